"""Canaries: exact answers, proved bits, and which injected faults they name."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.canaries import judged
from benchmarks.faulty_llama import FAULTS, LATER, NONE, engine, rightly_named
from emulon.canary import CANARIES, assert_known_answers, canary, check
from emulon.canary.arithmetic import ARITHMETICS
from emulon.canary.check import compare, names_for
from emulon.canary.checkpoint import FAMILIES
from emulon.canary.engines import ENGINES
from emulon.canary.reference import Reference
from emulon.canary.whole import METHODS, whole
from emulon.core.errors import EmulonError
from emulon.core.files import read_json

ROOT = Path(__file__).parents[2]


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
    assert_known_answers(engine(NONE))


# Seen, but a probe before the right one is not indifferent to them.
MISNAMED = {"residual stream in bfloat16", "scale applied twice"}


@pytest.mark.parametrize("fault", [*FAULTS, *LATER])
def test_a_fault_is_named_at_its_operation(fault):
    injected = (FAULTS | LATER)[fault]
    report = check(engine(injected), fault)
    assert report.first_wrong is not None
    assert rightly_named(injected, report) == (fault not in MISNAMED), str(report)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama"])
def test_relatives_of_llama_are_exact_in_transformers(family):
    pytest.importorskip("transformers")
    for name in (f"transformers float32 sdpa {family}", f"transformers bfloat16 eager {family}"):
        one = ENGINES[name]
        report = check(one.open, name, one.arithmetic, family=family)
        assert not report.wrong, str(report)
        assert all(row.proved == 30 for row in report.rows if row.canary.startswith("digital"))


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_is_small_and_the_same_in_its_formats(name, tmp_path):
    for dtype in ("float32", "float16" if name.endswith("float16") else "bfloat16"):
        canary(name).write(tmp_path, dtype)
        stored = load_file(tmp_path / "model.safetensors")
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5e6
        assert all(np.array_equal(each.float().numpy(), canary(name).weights[key]) for key, each in stored.items())


def test_where_nothing_is_proved_nothing_is_wrong():
    """At position 2^20 angles are so far off that no digital answer is proved: bounds there are infinite or NaN."""
    rows = compare("digital-float16", np.full((4, 260), 0.125), "float16", first=1 << 20)
    assert {row.probe for row in rows if row.proved == 0} >= {"back_30", "product", "second"}


def test_a_format_too_small_for_a_family_is_refused():
    with pytest.raises(EmulonError, match="larger numbers than float16 has"):
        names_for("float16", "gemma")


def test_logits_are_asked_for_without_flint_and_judged_elsewhere(tmp_path):
    """As on a GPU machine, where the exact answers cannot be computed."""
    code = (
        "import sys; sys.modules['flint'] = None\n"
        "from pathlib import Path; from benchmarks.canaries import engines\n"
        f"engines(['transformers float32 eager mistral'], Path({str(tmp_path / 'asked.json')!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    row = read_json(tmp_path / "asked.json")["transformers float32 eager mistral"]
    logits = {name: np.array(each) for name, each in row["logits"].items()}
    found = judged(ENGINES["transformers float32 eager mistral"], logits)
    assert "first" not in found and len(found["rows"]) == 24


def test_the_plug_in_gives_other_suites_a_fixture(tmp_path):
    """Three lines in an engine's own tests, and the table where a fault is."""
    suite = tmp_path / "test_engine.py"
    suite.write_text(
        "from benchmarks.faulty_llama import FAULTS, NONE, Llama\n"
        "def test_right(known_answers):\n    known_answers(lambda folder: Llama.of(folder).logits)\n"
        "def test_wrong(known_answers):\n"
        "    known_answers(lambda folder: Llama.of(folder, FAULTS['epsilon times 10']).logits)\n"
    )
    words = ["-m", "pytest", "-p", "no:emulon", "-p", "emulon.canary.plugin", "-p", "no:cacheprovider", str(suite)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "first wrong operation: layer 1, RMSNorm of a tiny token" in done.stdout


@pytest.mark.parametrize(
    ("fault", "wrong"), [(NONE, False), (FAULTS["cache of values in float16"], True), (FAULTS["scale forgotten"], True)]
)
def test_an_engine_that_writes_gradient_descent_is_judged_word_by_word(fault, wrong):
    rows = whole(engine(fault))
    assert [row.probe for row in rows] == list(METHODS)
    assert any(row.wrong for row in rows) == wrong


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
