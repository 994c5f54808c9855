"""Canaries: exact answers, proved bits, and which injected faults they name."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.faulty_llama import FAULTS, LATER, NONE, Llama, engine, rightly_named
from emulon.canary import CANARIES, canary, check, whole
from emulon.canary.check import compare, names_for
from emulon.canary.engine import ARITHMETICS
from emulon.canary.plugin import known_answers as known_answers
from emulon.canary.reference import Reference
from emulon.canary.torch_engines import loaded
from emulon.core.errors import EmulonError

ROOT = Path(__file__).parents[2]
PROMPTS = slice(2)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_every_answer_of_a_digital_canary_is_proved_to_be_exact_in_every_engine(arithmetic):
    for name in names_for(arithmetic):
        if name.startswith("digital"):
            registers = {canary(name).registers[probe.name] for probe in canary(name).probes}
            one = canary(name)
            exact = Reference(one.config, one.weights).logits(one.prompts[0], ARITHMETICS[arithmetic])
            assert registers & set(exact)
            assert all(value.error == 0 for place, value in exact.items() if place in registers), name


def test_a_right_engine_keeps_all_proved_bits_and_a_wrong_one_fails_with_a_table(known_answers):
    """By the fixture of the plug-in, which any suite has."""
    known_answers(engine(NONE))
    with pytest.raises(AssertionError, match="first wrong operation: layer 1, norm of a tiny token"):
        known_answers(engine(FAULTS["epsilon times 10"]))


# Seen, but a probe before the right one is not indifferent to them.
MISNAMED = {"residual stream in bfloat16", "scale applied twice"}


@pytest.mark.parametrize("fault", [*FAULTS, *LATER])
def test_a_fault_is_named_at_its_operation(fault):
    injected = (FAULTS | LATER)[fault]
    report = check(engine(injected), fault)
    assert report.first_wrong is not None
    assert rightly_named(injected, report) == (fault not in MISNAMED), str(report)


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_is_small_and_the_same_in_its_formats(name, tmp_path):
    for dtype in ("float32", "float16" if name.endswith("float16") else "bfloat16"):
        canary(name).write(tmp_path, dtype)
        stored = load_file(tmp_path / "model.safetensors")
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5e6
        assert all(np.array_equal(each.float().numpy(), canary(name).weights[key]) for key, each in stored.items())


def test_where_nothing_is_proved_nothing_is_wrong():
    """At position 2^20 angles are so far off that no digital answer is proved: bounds there are infinite or NaN."""
    rows = compare("digital-float16", np.full((2, 260), 0.125), "float16", first=1 << 20)
    assert {row.probe for row in rows if row.proved == 0} >= {"back_30", "product", "second"}


def test_a_format_too_small_for_a_family_is_refused():
    with pytest.raises(EmulonError, match="larger numbers than float16 has"):
        names_for("float16", "gemma")


def test_logits_are_asked_for_without_flint():
    """As on a GPU machine, where the exact answers cannot be computed."""
    code = (
        "import sys; sys.modules['flint'] = None\n"
        "import benchmarks.canaries; from emulon.canary.check import ask; from benchmarks.faulty_llama import Llama\n"
        "print(ask(lambda folder: Llama.of(folder).logits, ['digital-mistral'])['digital-mistral'].shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "(4, 260)\n"


@pytest.mark.parametrize(("fault", "wrong"), [(NONE, False), (FAULTS["cache of values in float16"], True)])
def test_an_engine_that_writes_gradient_descent_is_judged_word_by_word(fault, wrong, monkeypatch):
    monkeypatch.setattr(whole, "METHODS", ("lasso",))
    [row] = whole.whole(engine(fault))
    assert (row.probe, row.wrong) == ("lasso", wrong)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
def test_the_reference_is_a_float64_forward_pass_but_for_its_last_digits(family, tmp_path):
    """transformers computes norms of a Llama of float64 in float32; `Llama` does not."""
    one, rng = canary("analog" if family == "llama" else f"analog-{family}"), np.random.default_rng(0)
    noise = {name: rng.normal(size=each.shape) * (rng.random(each.shape) < 0.03) for name, each in one.weights.items()}
    weights = {name: (each + 0.2 * noise[name]).astype(np.float32) for name, each in one.weights.items()}
    few = one.prompts[0][:6]
    exact = Reference(one.config, weights).logits(few)
    assert len(exact) > 200
    if family == "llama":
        tensors = {name: torch.tensor(each).double() for name, each in weights.items()}
        got = Llama(one.config, tensors).forward(torch.tensor(few))[-1].numpy()
    else:
        pytest.importorskip("transformers")
        replace(one, weights=weights).write(tmp_path)
        with torch.no_grad():
            got = loaded(tmp_path, "float64", "eager")(torch.tensor([few])).logits[0, -1].numpy()
    # GPT-NeoX's rotary frequencies are float32 there.
    close = 1e-6 if family == "gpt_neox" else 1e-9
    for place, value in exact.items():
        assert abs(float(value.exact.mid()) - got[place]) <= close * max(1.0, np.abs(got).max())
