"""Figure 3: AlgoFormers trained with T loops and a loss over ΔT of them, run for many more loops."""

from __future__ import annotations

from functools import partial

from emulon.claims.algoformer import learners
from emulon.claims.claim import Claim, Numbers, Scale, Setting, Verdict
from emulon.claims.figure import Figure, Panel, Series
from emulon.models import AlgoFormer

# An error that grows by less than this from T loops to the last is stable.
STABLE = 1.2
# Two of these within this much cannot be told apart.
ALIKE = 0.05


def run(setting: Setting) -> Numbers:
    measures = {f"ΔT = {window}": partial(one_learner, window) for window in setting.sizes["windows"]}
    return {"learners": list(setting.parts(measures).values())}


def one_learner(window: int, setting: Setting) -> Numbers:
    config = learners.configured(setting, window=window)
    learner, evaluation = learners.examined(config, setting)
    assert isinstance(learner, AlgoFormer)
    errors = learners.by_loops(learner, evaluation, setting.sizes["loops"])
    left = learners.ends(evaluation, evaluation.curve(learner).tolist())
    return {"window": window, "trained": config.loops, "errors": errors, "left": left}


def judge(numbers: Numbers) -> Verdict:
    """With the largest ΔT the error is stable, and looping had lowered it; with the smallest it grows clearly more.

    Where the smallest ΔT is as stable as the largest there is nothing for a larger one to improve.
    """
    found = numbers["learners"]
    early = learners.too_early({f"ΔT = {each['window']}": each["left"] for each in found})
    if early:
        return early
    grown = [each["errors"][-1] / each["errors"][each["trained"] - 1] for each in found]
    last = found[-1]
    looped, stable = last["errors"][last["trained"] - 1] < last["errors"][0], grown[-1] <= STABLE
    shown = ", ".join(f"ΔT = {each['window']}: ×{ratio:.2f}" for each, ratio in zip(found, grown, strict=True))
    ours = f"error after {len(last['errors'])} loops over that after T = {last['trained']}: {shown}"
    reason = f"stable with the largest ΔT (×{STABLE} asked): {'yes' if stable else 'no'}; "
    reason += f"T loops lower the error of one: {'yes' if looped else 'no'}; "
    if looped and stable and abs(grown[0] - grown[-1]) <= ALIKE:
        alike = "the learner is as stable with the smallest ΔT, which leaves a larger one nothing to improve"
        return Verdict("not tested at scale", ours, reason + alike)
    calmer = grown[-1] < grown[0]
    return Verdict.that(
        looped and stable and calmer, ours, f"{reason}calmer than the smallest: {'yes' if calmer else 'no'}"
    )


def figure(numbers: Numbers) -> Figure:
    series = [
        Series(f"ΔT = {each['window']}", range(1, len(each["errors"]) + 1), each["errors"])
        for each in numbers["learners"]
    ]
    title = f"trained for T = {numbers['learners'][0]['trained']}"
    return Figure([Panel("loops", "squared error", series, title=title)])


CLAIM = Claim(
    name="algoformer-figure-3",
    source="Gao et al. 2024, Figure 3",
    statement="An AlgoFormer stays stable far beyond the loops it was trained for, the more so with a larger ΔT.",
    theirs="error falls until T and stays there up to 200 loops for ΔT = 10 and 15; less so for ΔT = 5",
    scales={
        "small": Scale(
            1.2,
            {"training": learners.TRAINING, "windows": [1, 3], "loops": 60, "datasets": 1024},
            at_source_scale=False,
        ),
        "gpu": Scale(5, {"training": learners.AT_SCALE, "windows": [5, 10, 15], "loops": 200, "datasets": 512}),
    },
    run=run,
    judge=judge,
    figure=figure,
    differs="On a CPU AlgoFormers of width 32 with T = 4 on linear functions of 2 features, after 1,200 steps; on "
    "a GPU the paper's with T = 20 (of 12 to 50), by 10,000 steps of Muon where the paper has 500,000 of Adam.",
)
