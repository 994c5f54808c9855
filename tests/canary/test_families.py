"""Canaries of the families beside Llama, in transformers: proved answers, and faults that only they can have."""

import numpy as np
import pytest
import torch

from emulon.canary import check
from emulon.canary.checkpoint import CENTRED, FAMILIES
from emulon.canary.engines import ENGINES
from emulon.canary.torch_engines import loaded

# One in which no register is zero.
PROMPTS = slice(1, 2)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama"])
def test_relatives_of_llama_are_exact_in_transformers(family):
    pytest.importorskip("transformers")
    names = [f"transformers float32 sdpa {family}"]
    names += [f"transformers bfloat16 eager {family}"] if family in ("gemma", "gpt2") else []
    for name in names:
        one = ENGINES[name]
        report = check(one.open, name, one.arithmetic, family=family)
        assert not report.wrong, str(report)
        least = 5 if family in CENTRED else 30
        assert all(row.proved >= least for row in report.rows if row.canary.startswith("digital"))


def tiled(matrix):
    """Read as if all queries stood before all keys and values, not head by head."""
    return matrix.unflatten(0, (3, 16, 16)).transpose(0, 1).flatten(0, 2)


@pytest.mark.parametrize(
    ("family", "named", "change"),
    [
        ("gpt2", "position", lambda model: model.transformer.wpe.weight.copy_(model.transformer.wpe.weight.roll(1, 0))),
        ("gpt2", "bias_attention", lambda model: model.transformer.h[0].attn.c_proj.bias.zero_()),
        ("gpt2", "bias_mlp", lambda model: model.transformer.ln_f.bias.zero_()),
        ("gpt2", "epsilon", lambda model: setattr(model.transformer.h[0].ln_1, "eps", 1e-5)),
        ("gpt2", "activation", lambda model: setattr(model.transformer.h[0].mlp, "act", torch.nn.GELU())),
        ("gpt_neox", "back_30", lambda model: model.gpt_neox.rotary_emb.inv_freq.mul_(0.5)),
        (
            "gpt_neox",
            "groups",
            lambda model: [
                layer.attention.query_key_value.weight.copy_(tiled(layer.attention.query_key_value.weight))
                for layer in model.gpt_neox.layers
            ],
        ),
    ],
)
def test_a_fault_in_a_model_with_layer_norms_is_named(family, named, change):
    pytest.importorskip("transformers")

    def opened(folder):
        model = loaded(folder)
        with torch.no_grad():
            change(model)
        return lambda prompts: np.stack([model(torch.tensor([p])).logits[0, -1].detach().double() for p in prompts])

    first = check(opened, family=family).first_wrong
    assert first is not None and first.probe == named
