"""Smaller runs of the real thing; what Table 3 and Section 5.1 are measured on; the committed results made again."""

import json
import math
from html import escape
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import Lasso, LinearRegression, Ridge

from emulon.report.figure import Figure, chart
from reproduce.algoformer import figure_2
from reproduce.claim import SCALES, CannotTest, Claim, Scale, Setting, SetUp, Verdict, all_claims
from reproduce.emulation import tables_2_and_3 as table3
from reproduce.emulation import trained_heads as section_51
from reproduce.index import index
from reproduce.record import path_of, read

CLAIMS = all_claims()
RESULTS = Path(__file__).parents[2] / "results"


def test_a_difference_that_could_turn_a_verdict_leaves_it_undecided():
    def state(turns, holds):
        scales = {"gpu": Scale(1, set_up=[SetUp("steps", "500,000", "2,500", turns)])}
        claim = Claim("c", "", "", "", scales, dict, lambda _: Verdict.that(holds, "", "why"), lambda _: Figure([]))
        return claim.verdict({}, "gpu")

    assert state("", True).state == state("does not hold", True).state == "holds"
    assert state("", False).state == "does not hold"
    assert state("both", True).state == "not tested as printed"
    turned = state("does not hold", False)
    assert turned.state == "not tested as printed"
    assert turned.reason == "as set up here it does not hold: why; steps could turn that"


def test_table_3_without_the_data_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("EMULON_CORPORA", str(tmp_path))
    claim = CLAIMS["emulation-table-3"]
    with pytest.raises(CannotTest, match=r"fetch_openml\(name='house_prices'"):
        claim.run(Setting(claim.scales["small"].sizes))


def test_table_3_prepares_its_columns_as_the_public_script_does(monkeypatch, tmp_path):
    """Gaps of numbers become the median, those of words a word, and the first word of a column has no column."""
    lines = ["Id,Street,LotArea,Alley,SalePrice", "1,b,10,?,1", "2,a,?,x,2", "3,c,30,x,3", "4,a,20,?,4"]
    (tmp_path / "house_prices.csv").write_text("\n".join(lines))
    monkeypatch.setenv("EMULON_CORPORA", str(tmp_path))
    table, prices = table3.ames(10, 10)
    columns = [[1, 2, 3, 4], [10, 20, 30, 20], [1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]]
    assert table.T.tolist() == columns and prices.tolist() == pytest.approx(
        [math.log(2), math.log(3), math.log(4), math.log(5)]
    )


def test_table_3_fits_what_scikit_learn_fits():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=draw, dtype=torch.float64)
    x, y = x - x.mean(dim=0), 12 + 0.3 * x[:, 0] + 0.1 * torch.randn(40, generator=draw, dtype=torch.float64)
    fits = [model.fit(x.numpy(), y.numpy()) for model in (Lasso(alpha=1.0), Ridge(alpha=1.0), LinearRegression())]
    for ours, theirs in zip(table3.fitted(x, y), fits, strict=True):
        assert ours.numpy() == pytest.approx(theirs.coef_, abs=1e-12)
    with pytest.raises(CannotTest, match="lasso"):
        table3.fitted(x, 100 * y)


def test_section_5_1_draws_what_text_and_script_say():
    for form in section_51.FORMS:
        shown, w, target = section_51.drawn(form, torch.Generator().manual_seed(0), 50, 4, 3)
        x, y = shown.split([3, 1], dim=-1)
        one = bool((w == w[0]).all())
        assert one == (form != section_51.EACH)
        if form == section_51.LEAK:
            assert torch.equal(x, target)
            continue
        assert x.mean().item() == pytest.approx(-5, abs=1.5) and x.std().item() == pytest.approx(10, abs=1.5)
        for i in range(4):
            value = torch.tanh((w[7, i] * x[7, i]).sum() - y[7, i, 0])
            assert target[7, i].tolist() == pytest.approx((value * x[7, i]).tolist(), abs=1e-4)


MACHINES = {"features": [2, 4], "fixed": 2, "examples": [1, 3], "datasets": 8}
LOOPS = {"samples": 12, "features": 3, "loops": 8, "problems": 2}
QUICK = {
    "emulation-corollary-3.1.2": {"points": [17, 33, 65], "tolerances": [1e-2, 1e-6], "datasets": 4},
    "emulation-corollaries-3.1.3-3.1.4": {"samples": 16, "features": 3, "steps": 120},
    "emulation-theorem-d.1": {"heads": [4, 8, 16], "tolerances": [1e-2], "datasets": 20},
    "emulation-theorem-4.1": {"tokens": 8, "features": 2, "width": 2, "heads": [20, 40, 80], "soft": [9, 17]},
    "emulation-corollary-3.1.1": {"points": [17, 33, 65], "tolerances": [1e-2], "datasets": 2},
    "emulation-hopfield": {"points": [17, 33, 65], "tolerances": [1e-2], "datasets": 2},
    "emulation-corollary-e.2.1": {"points": [17, 33, 65], "tolerances": [1e-2], "datasets": 2},
    "emulation-theorem-e.1": {"points": [17, 33, 65], "tolerances": [1e-2], "datasets": 2},
    "emulation-remark-4.1": {"tokens": 6, "features": 2, "width": 2, "permutations": 3},
    "emulation-remark-4.5": {"tokens": 5, "features": 3, "width": 2, "points": [17, 33, 65], "tolerances": [1e-2]}
    | {"datasets": 3},
    "emulation-example-2": {"samples": 8, "features": 2, "steps": 5, "points": 65}
    | {"steps_times_smoothness": {"η = 1/L": 1.0}},
    **dict.fromkeys([f"learning-theorem-{n}" for n in (1, 2)], MACHINES),
    **dict.fromkeys([f"algoformer-theorem-{n}" for n in (3.1, 3.2, 3.3, 4.1, 4.2)], LOOPS),
    "algoformer-section-4.1": {"samples": 12, "features": 3, "gradient": 200, "newton": 12},
    "learning-lemmas-1-7": {"datasets": 20, "scales": [1e2, 1e4, 1e6]},
}


@pytest.mark.parametrize("name", QUICK)
def test_a_smaller_run_of_the_real_thing_holds_and_is_drawn(name):
    claim = CLAIMS[name]
    numbers = json.loads(
        json.dumps(claim.run(Setting(QUICK[name], seed=int("algoformer-theorem" in name))), allow_nan=False)
    )
    verdict = claim.verdict(numbers, "small")
    assert verdict.state.startswith("holds"), verdict
    assert chart(claim.figure(numbers)).startswith("<svg")


TINY = {
    "datasets": 10,
    "features": 2,
    "points": 3,
    "hidden": 12,
    "p": 5,
    "epochs": 1,
    "batch": 4,
    "lr": 1e-3,
    "seeds": 2,
}
LEARNER = {"features": 2, "points": 6, "layers": 1, "width": 8, "heads": 1, "steps": 3, "batch": 4, "device": "cpu"}
LEARNER |= {"evaluation_batch": 16}
LOOPED = LEARNER | {"model": "algoformer", "noise": 0.0, "loops": 4, "window": 3}
PROBE = {"steps": 4, "rate": 1e-4, "decay": 0.0, "one_cycle": False, "inner": 8, "batch": 6}
TRAINED = {
    "learning-figure-1": {"training": LEARNER, "datasets": 16},
    "learning-figure-2": {"training": LEARNER, "trained": [[0.5, 1.0]], "noises": [1.0], "priors": [1.0]}
    | {"datasets": 16, "learners": []},
    "learning-figure-3": {"training": LEARNER, "depths": [1, 2], "datasets": 16, "seeds": 2},
    "learning-figure-3-width": {"training": LEARNER, "widths": [4, 8], "datasets": 16, "seeds": 2},
    "learning-figure-4": {"training": LEARNER, "learner_datasets": 32, "machine_datasets": 64, "examples": [1, 3]}
    | {"points": 5, "probe": PROBE, "bf16": True, "seeds": 2},
    "algoformer-figure-2": figure_2.SMALL
    | {"training": figure_2.SMALL["training"] | {"evaluation_batch": 16, "device": "cpu"}}
    | {"tasks": {task: {"steps": 20, "batch": 4} for task in figure_2.TASKS}},
    "algoformer-figure-3": {"training": LOOPED, "trained": [2, 3], "windows": [1, 2], "loops": 5, "datasets": 64},
    "algoformer-figure-4": {"training": LOOPED, "layers": [1, 2], "heads": [1, 2], "standard": [3, 6], "datasets": 64},
    "algoformer-figure-5": {"training": LOOPED, "noises": [0.0, 1.0], "iterations": [5], "trained": [[4, 3], [2, 2]]}
    | {"datasets": 64},
    "ours-loop-forms": figure_2.SMALL
    | {"training": figure_2.SMALL["training"] | {"evaluation_batch": 16, "device": "cpu"}}
    | {"tasks": {"representation": {"steps": 5, "batch": 4}}, "noises": [0.0, 1.0], "seeds": 2},
    "emulation-section-5.1": TINY,
    "emulation-table-1": TINY | {"heads": [1, 2], "p_list": [3, 4, 6]},
    "emulation-table-2": TINY | {"asked": 4, "heads": 2},
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_claim_runs_and_a_seed_gives_its_numbers_again(name):
    claim, setting = CLAIMS[name], Setting(TRAINED[name], seed=3)
    numbers = json.loads(json.dumps(claim.run(setting), allow_nan=False))
    assert numbers == json.loads(json.dumps(claim.run(setting)))
    assert claim.verdict(numbers, "small").ours and chart(claim.figure(numbers)).startswith("<svg")


def test_the_committed_index_is_the_one_the_results_give():
    assert (RESULTS / "README.md").read_text() == index(CLAIMS.values(), RESULTS)


def test_the_committed_figures_say_what_the_committed_numbers_say():
    compared = 0
    for claim in CLAIMS.values():
        for scale in SCALES:
            record = read(claim.name, scale, RESULTS)
            if record is not None and record.tested:
                figure = claim.figure(record.numbers)
                kept = path_of(claim.name, scale, RESULTS, ".svg").read_text()
                # Words, not bytes: another numpy may draw the same figure a little differently. That every claim's
                # figure can be drawn is seen above, on a smaller run.
                words = [series.label for panel in figure.panels for series in panel.series]
                assert all(escape(word, quote=False) in kept for word in words)
                compared += 1
    assert compared
