"""A compiled program as a Hugging Face `GPT2Model`: the same weights, a checkpoint folder, and `slots.json` beside it.

What GPT-2 does differently is folded into the weights: it divides scores by √head_width (the queries are multiplied
by it), stores linear maps transposed, and gives every layer the same MLP width (units that a layer does not use are
zero). The last LayerNorm is bypassed like all others: a register is scale · (hidden[slot] − hidden[zero]) in
`last_hidden_state`. The certificate is for the exact GELU, `activation_function="gelu"`. GPT-2's `gelu_new`, the
tanh formula, serves as well in practice: it has the same z² and an exact odd part too, and the scales cancel z⁴ and
z⁶ whatever their coefficients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.machine.layer import MachineBlock
from emulon.machine.layout import ZERO, RegisterLayout
from emulon.machine.normalisation import EPSILON
from emulon.machine.ranges import Range
from emulon.machine.targets.stock import NeedsTransformers, stock_model
from emulon.machine.tokens import Interleaved
from emulon.machine.transformer import Transformer

SLOTS = "slots.json"


# Places of a GPT-NeoX's head that rotary embeddings turn; no head in use has anything there.
ROTATED = 2


def to_gpt2(transformer: Transformer) -> Any:
    """The same network as a `transformers.GPT2Model`.

    Args:
        transformer: A compiled program.
    Returns:
        The model, to be called with `inputs_embeds=transformer.embed(...)`.
    Raises:
        NeedsTransformers: Hugging Face transformers is not installed.
    """
    state = state_dict(transformer)
    return stock_model("gpt2", config_of(state, transformer.heads), state)


def config_of(state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
    """What of a `GPT2Config` decides the function that these parameters compute."""
    tokens, width = state["wpe.weight"].shape
    return {
        "vocab_size": 1,
        "n_positions": tokens,
        "n_embd": width,
        "n_layer": sum(name.endswith(".mlp.c_fc.weight") for name in state),
        "n_head": heads,
        "n_inner": state["h.0.mlp.c_fc.weight"].shape[1],
        "activation_function": "gelu",
        "layer_norm_epsilon": EPSILON,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def neox_config(state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
    """What of a `GPTNeoXConfig` decides the function that these parameters compute."""
    tokens, width = state["embed_in.weight"].shape
    # Between whole numbers of places, so that rounding cannot take one away.
    turned = (ROTATED + 0.5) * heads / width
    return {
        "vocab_size": tokens,
        "hidden_size": width,
        "intermediate_size": state["layers.0.mlp.dense_h_to_4h.weight"].shape[0],
        "num_hidden_layers": sum(name.endswith("dense_h_to_4h.weight") for name in state),
        "num_attention_heads": heads,
        "hidden_act": "gelu",
        "max_position_embeddings": tokens,
        "layer_norm_eps": EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": turned},
        "attention_bias": True,
        "use_parallel_residual": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
    }


def state_dict(transformer: Transformer) -> dict[str, Tensor]:
    """Every parameter of the `GPT2Model`, by its name there."""
    zeros = torch.zeros(transformer.width, dtype=transformer.dtype, device="cpu")
    state = {
        "wte.weight": zeros[None],
        "wpe.weight": transformer.positions,
        "ln_f.weight": transformer.final_gain,
        "ln_f.bias": zeros,
    }
    for index, block in enumerate(transformer.typed_blocks):
        state |= {f"h.{index}.{name}": part for name, part in _block(block, transformer.inner).items()}
    return {name: part.clone().contiguous() for name, part in state.items()}


def _block(block: MachineBlock, inner: int) -> dict[str, Tensor]:
    width = block.output.shape[0]
    attention = block.attention.clone()
    attention[:width] *= math.sqrt(width // block.heads)  # GPT-2 divides the scores by this
    unused = (0, inner - block.inward.shape[0])
    zeros = block.output_bias.new_zeros
    return {
        "ln_1.weight": block.gain,
        "ln_1.bias": zeros(width),
        "attn.c_attn.weight": attention.mT,
        "attn.c_attn.bias": zeros(3 * width),
        "attn.c_proj.weight": block.output.mT,
        "attn.c_proj.bias": block.output_bias,
        "ln_2.weight": block.mlp_gain,
        "ln_2.bias": zeros(width),
        "mlp.c_fc.weight": torch.nn.functional.pad(block.inward.mT, unused),
        "mlp.c_fc.bias": zeros(inner),
        "mlp.c_proj.weight": torch.nn.functional.pad(block.outward, unused).mT,
        "mlp.c_proj.bias": block.outward_bias,
    }


def save_gpt2(transformer: Transformer, folder: str | Path) -> Path:
    """Write a checkpoint folder that `GPT2Model.from_pretrained(folder)` loads, with `slots.json` in it.

    Args:
        transformer: A compiled program.
        folder: Where to write.
    Returns:
        The folder.
    """
    folder = Path(folder)
    to_gpt2(transformer).save_pretrained(folder)
    (folder / SLOTS).write_text(json.dumps(slots(transformer), indent=1, ensure_ascii=False), encoding="utf-8")
    return folder


def slots(transformer: Transformer) -> dict[str, Any]:
    """What every direction of the residual stream is for, what every layer does, and how to read the result."""
    layout, program = transformer.layout, transformer.program
    prompt, output = program.prompt, program.output
    return {
        "program": str(program),
        "certificate": {"bound": transformer.certificate.bound, "terms": dict(transformer.certificate.terms)},
        "dtype": str(transformer.dtype).removeprefix("torch."),
        "tokens": layout.tokens,
        "prompt": None if prompt is None else {"features": prompt.features, "samples": prompt.samples},
        "zero": layout.slots[ZERO].start,
        "value": "scale * (stream[slot] - stream[zero]); exactly scale * stream[slot] before a LayerNorm",
        "output": None if output is None else output.name,
        "slots": {name: _slot(layout, name) for name in layout.slots},
        "layers": [[str(one) for one in layer.instructions] for layer in transformer.layers],
    }


def _slot(layout: RegisterLayout, name: str) -> dict[str, Any]:
    program, where = layout.program, layout.slots[name]
    register = program.registers.get(name)
    if register is None:
        role, labels = "system", [name] if where.stop - where.start == 1 else None
    else:
        role = "input" if name in program.inputs else "constant" if name in program.constants else "register"
        labels = list(register.labels)
    labels = labels or [f"{name}[{i}]" for i in range(where.stop - where.start)]
    out = {
        "start": where.start,
        "stop": where.stop,
        "role": role,
        "scale": layout.scale.get(name, 1.0),
        "labels": labels,
    }
    if name in program.inputs:
        reach = program.inputs[name]
        out["domain"] = {"entry": reach.peak, "norm": reach.norm}
    return out


def to_transformer_lens(transformer: Transformer, folder: str | Path) -> Any:
    """A TransformerLens `TransformerBridge` (release 4) over the checkpoint in `folder`, saved there if need be.

    Its GPT-2 adapter knows `GPT2LMHeadModel` only, so the model is wrapped in one; the logits mean nothing. Call it
    with `inputs_embeds`, that is, `bridge.run_with_cache(transformer.embed(...))`; `slots.json` labels every cached
    stream.

    Args:
        transformer: A compiled program.
        folder: A folder of `save_gpt2`, or where to write one.
    Returns:
        The bridge.
    """
    try:
        from transformer_lens.model_bridge import TransformerBridge
        from transformers import GPT2LMHeadModel
    except ImportError as missing:
        raise NeedsTransformers("to_transformer_lens needs transformers and transformer_lens ≥ 4") from missing
    if not (Path(folder) / SLOTS).exists():
        save_gpt2(transformer, folder)
    model = to_gpt2(transformer)
    wrapped: Any = GPT2LMHeadModel(model.config)  # type: ignore[no-untyped-call]  # transformers leaves it unannotated
    wrapped = wrapped.to(transformer.dtype).eval()
    wrapped.transformer.load_state_dict(model.state_dict())
    return TransformerBridge.boot_transformers(str(folder), hf_model=wrapped, dtype=transformer.dtype, device="cpu")


def predict_gpt2(
    model: Any, labels: dict[str, Any], xs: Float[Tensor, "batch samples features"], ys: Float[Tensor, "batch targets"]
) -> Float[Tensor, "batch samples"]:
    """Predictions of a loaded checkpoint, with nothing of emulon's transformer.

    Invariants of registers besides the inputs are watched by `Transformer` only.

    Args:
        model: The loaded `GPT2Model`.
        labels: Its `slots.json`.
        xs: The examples' inputs.
        ys: Their targets.
    Returns:
        A prediction for every example.
    Raises:
        OutOfDomain: Inputs are outside the domain.
    """
    prompt = Interleaved(**labels["prompt"])
    embedded = xs.new_zeros(xs.shape[0], labels["tokens"], model.config.n_embd)
    for name, values in prompt.fill(xs, ys).items():
        slot = labels["slots"][name]
        Range(-slot["domain"]["entry"], slot["domain"]["entry"], slot["domain"]["norm"]).require(name, values)
        embedded[:, 1:, slot["start"] : slot["stop"]] = values / slot["scale"]
    hidden = model(inputs_embeds=embedded).last_hidden_state[:, 1:]
    slot = labels["slots"][labels["output"]]
    return prompt.predictions(slot["scale"] * (hidden[..., slot["start"], None] - hidden[..., labels["zero"], None]))
