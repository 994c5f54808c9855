"""Canaries: exact answers, proved bits, and which injected faults they name."""

import numpy as np
import pytest
import torch
from llama_with_faults import Fault, Llama, bfloat16, float16, int8, tf32
from torch.nn.functional import gelu, relu

from emulon.canary import assert_known_answers, canary, check
from emulon.canary.arithmetic import ARITHMETICS
from emulon.canary.check import names_for
from emulon.canary.reference import Reference

ROPE = "rope look back own before"
FAULTS = {
    "rotary angles in TF32": Fault("rope", angle=tf32),
    "rotary positions and frequencies in bfloat16": Fault(ROPE, angle=bfloat16),
    "rotary frequencies in bfloat16": Fault("rope", frequency=bfloat16),
    "cosines in bfloat16": Fault("rope", cosine=bfloat16),
    "pairs interleaved, not in halves": Fault(ROPE, interleaved=True),
    "theta ignored": Fault(ROPE, theta=1e4),
    "halves swapped": Fault(ROPE, wrong_half=True),
    "positions restarted after 32": Fault(ROPE, restart=32),
    "norm in bfloat16": Fault("norm epsilon", norm=bfloat16),
    "epsilon 1e-5": Fault("epsilon", epsilon=1e-5 / 2.0**-20),
    "epsilon times 10": Fault("epsilon", epsilon=10.0),
    "scores in bfloat16": Fault("tie rope norm", score=bfloat16),
    "scores in float16": Fault("tie rope", score=float16),
    "weights in bfloat16": Fault("tie rope mean look mixed cancel norm", weight=bfloat16),
    "cache of keys in float16": Fault("rope epsilon norm look", keys=float16),
    "cache of values in float16": Fault("mixed mean norm epsilon look", values=float16),
    "cache of keys in int8": Fault("tie rope look back own epsilon norm", keys=int8),
    "cache of values in int8": Fault("mixed mean look norm epsilon own first before future", values=int8),
    "scale 1/√96 for 1/√128": Fault("tie rope mean look", scale=(128 / 96) ** 0.5),
    "scale forgotten": Fault("tie rope mean look", forgets_scale=True),
    "grouped heads tiled, not repeated": Fault("look back own first tie", tiled=True),
    "key and value heads shifted by one": Fault("look back own first tie", swapped=True),
    "factors of products in TF32": Fault("mixed product second logit norm epsilon", product=tf32),
    "sums in bfloat16": Fault("mixed product second logit norm epsilon", accumulated=bfloat16),
    "mask off by one": Fault("future mean own", future=1),
    "window of 32 tokens": Fault("first mean", window=32),
    "a stale slot in the cache": Fault("mean back before", stale=True),
    "softmax without its maximum": Fault("look first back own tie", no_maximum=True),
    "residual dropped in layer 2": Fault("embedding logit look", drops_residual=True),
    "tied embeddings": Fault("embedding", tied=True),
    "GELU for SiLU": Fault("activation", activation=gelu),
    "ReLU for SiLU": Fault("activation", activation=relu),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_every_answer_of_a_digital_canary_is_proved_to_be_exact_in_every_engine(arithmetic):
    for name in names_for(arithmetic):
        if name.startswith("digital"):
            registers = {canary(name).registers[probe.name] for probe in canary(name).probes}
            one = canary(name)
            exact = Reference(one.config, one.weights).logits(one.prompts[0], ARITHMETICS[arithmetic])
            assert registers & set(exact)
            assert all(value.error == 0 for place, value in exact.items() if place in registers), name


def test_a_plain_forward_pass_keeps_all_proved_bits():
    assert_known_answers(lambda folder: Llama(folder).logits)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_operation(fault):
    report = check(lambda folder: Llama(folder, FAULTS[fault]).logits, fault)
    assert report.first_wrong is not None, f"not noticed:\n{report}"
    wanted = FAULTS[fault].operations.split()
    first = [row.probe for row in report.wrong if row.layer == report.first_wrong.layer]
    assert any(probe.startswith(word) for probe in first for word in wanted), f"{first}\n{report}"


def test_the_reference_is_a_float64_forward_pass_but_for_its_last_digits():
    torch.manual_seed(0)
    one = canary("analog")
    rng = np.random.default_rng(0)
    noise = {name: rng.normal(size=each.shape) * (rng.random(each.shape) < 0.03) for name, each in one.weights.items()}
    weights = {name: each + 0.2 * noise[name] for name, each in one.weights.items()}
    weights = {name: each.astype(np.float32).astype(np.float64) for name, each in weights.items()}
    few = one.prompts[0][:6]
    exact = Reference(one.config, weights).logits(few)
    assert len(exact) > 200
    got = _float64(one.config, weights, few)
    for place, value in exact.items():
        assert abs(float(value.exact.mid()) - got[place]) <= 1e-9 * max(1.0, np.abs(got).max())


def _float64(config, weights, tokens):
    """numpy, float64, token by token."""
    x = weights["model.embed_tokens.weight"][list(tokens)]
    heads, groups, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    half, count = size // 2, len(tokens)
    angles = np.arange(count)[:, None] * config["rope_parameters"]["rope_theta"] ** (-np.arange(half) / half)

    def norm(x, gain):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * gain

    def rotated(z):
        a, b = z[..., :half], z[..., half:]
        c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        seen = norm(x, weights[f"{at}input_layernorm.weight"])
        q, k, v = (
            (seen @ weights[f"{at}self_attn.{name}_proj.weight"].T).reshape(count, n, size)
            for name, n in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k, read = rotated(q), rotated(k), np.zeros((count, heads, size))
        for head in range(heads):
            scores = q[:, head] @ k[:, head * groups // heads].T / np.sqrt(size)
            scores[np.triu_indices(count, 1)] = -np.inf
            share = np.exp(scores - scores.max(-1, keepdims=True))
            read[:, head] = share / share.sum(-1, keepdims=True) @ v[:, head * groups // heads]
        x = x + read.reshape(count, -1) @ weights[f"{at}self_attn.o_proj.weight"].T
        seen = norm(x, weights[f"{at}post_attention_layernorm.weight"])
        gate, up = (seen @ weights[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + gate / (1 + np.exp(-gate)) * up @ weights[f"{at}mlp.down_proj.weight"].T
    return norm(x[-1], weights["model.norm.weight"]) @ weights["lm_head.weight"].T
