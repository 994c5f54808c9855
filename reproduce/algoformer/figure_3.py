"""Figure 3: AlgoFormers trained with T loops and a loss over ΔT of them, run for many more loops."""

from __future__ import annotations

from functools import partial
from itertools import product

from emulon.models import AlgoFormer
from emulon.report.figure import Figure, Panel, Series
from reproduce.algoformer import learners
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict, set_up

# An error that grows by less than this from T loops to the last is stable.
STABLE = 1.2
# Two of these within this much cannot be told apart.
ALIKE = 0.05


def run(setting: Setting) -> Numbers:
    """A learner for every T and every ΔT of at most T."""
    loops = setting.sizes.get("trained", [setting.sizes["training"]["loops"]])
    measures = {
        f"T = {most}, ΔT = {window}": partial(one_learner, most, window)
        for most, window in product(loops, setting.sizes["windows"])
    }
    return {"learners": list(setting.parts(measures).values())}


def one_learner(loops: int, window: int, setting: Setting) -> Numbers:
    config = learners.configured(setting, loops=loops, window=window)
    learner, evaluation = learners.examined(config, setting)
    assert isinstance(learner, AlgoFormer)
    errors = learners.by_loops(learner, evaluation, setting.sizes["loops"])
    left = learners.ends(evaluation, evaluation.curve(learner).tolist())
    return {"window": window, "trained": config.model.loops, "errors": errors, "left": left}


def grown(learner: Numbers) -> float:
    """The error after the most loops over that after as many as it was trained for."""
    return float(learner["errors"][-1] / learner["errors"][learner["trained"] - 1])


def judge(numbers: Numbers) -> Verdict:
    """For every T: with the largest ΔT the error is stable, and looping had lowered it; with the smallest it grows
    clearly more. Where the smallest ΔT is as stable as the largest there is nothing for a larger one to improve."""
    found = numbers["learners"]
    early = learners.too_early({f"T = {each['trained']}, ΔT = {each['window']}": each["left"] for each in found})
    if early:
        return early
    parts = {"stable": True, "looped": True, "calmer": True}
    alike, shown = True, []
    for loops in dict.fromkeys(each["trained"] for each in found):
        own = [each for each in found if each["trained"] == loops]
        first, last = own[0], own[-1]
        parts["stable"] &= grown(last) <= STABLE
        parts["looped"] &= last["errors"][loops - 1] < last["errors"][0]
        parts["calmer"] &= grown(last) < grown(first)
        alike &= abs(grown(first) - grown(last)) <= ALIKE
        ratios = ", ".join(f"ΔT = {each['window']}: ×{grown(each):.2f}" for each in own)
        shown.append(f"T = {loops}: {ratios}")
    ours = f"error after {len(found[0]['errors'])} loops over that after T: {'; '.join(shown)}"
    told = {name: "yes" if held else "no" for name, held in parts.items()}
    reason = f"stable with the largest ΔT (×{STABLE} asked): {told['stable']}; "
    reason += f"T loops lower the error of one: {told['looped']}; "
    if parts["looped"] and parts["stable"] and alike:
        alike_too = "the learner is as stable with the smallest ΔT, which leaves a larger one nothing to improve"
        return Verdict("not tested at scale", ours, reason + alike_too)
    return Verdict.that(all(parts.values()), ours, f"{reason}calmer than the smallest: {told['calmer']}")


def figure(numbers: Numbers) -> Figure:
    series = [
        Series(f"T = {each['trained']}, ΔT = {each['window']}", range(1, len(each["errors"]) + 1), each["errors"])
        for each in numbers["learners"]
    ]
    return Figure([Panel("loops", "squared error", series)])


SMALL = {"training": learners.TRAINING, "windows": [1, 3], "loops": 60, "datasets": 1024}
GPU = {"training": learners.SHORTER, "trained": [20, 12, 30, 50], "windows": [5, 10, 15], "loops": 200, "datasets": 512}
SET_UP = f"""{learners.recipe(learners.SHORTER)}
data | regression with representation, d = 20, 40 pairs, no noise | the same
model | pre, loop, post of one layer, Eq. 2 | the same, with injection | both
seeds | not stated | 1
"""
CLAIM = Claim(
    "algoformer-figure-3",
    "Gao et al. 2024, Figure 3",
    "An AlgoFormer stays stable far beyond the loops it was trained for, the more so with a larger ΔT.",
    "error falls until T and stays there up to 200 loops for ΔT = 10 and 15; less so for ΔT = 5",
    {"small": Scale(1.2, SMALL, at_source_scale=False), "gpu": Scale(20, GPU, set_up=set_up(SET_UP))},
    *(run, judge, figure),
    differs="On a CPU AlgoFormers of width 32 with T = 4 on linear functions of 2 features, after 1,200 steps.",
    reversal="for each T an error stable with the largest ΔT and grows more with the smallest, as set up there",
)
