"""A small learner, trained in minutes on one core, beside the predictor that is best for its task."""

from __future__ import annotations

from functools import partial

from emulon.report.figure import Figure, Panel, Series
from emulon.training import PRESETS, TrainConfig
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict
from reproduce.learners import trained

# Times the error of the Bayes ridge predictor after 2d examples.
ASKED = 1.1
BAYES = "ridge"


def run(setting: Setting) -> Numbers:
    """Error over the in-context examples, a curve a seed, and the baselines'; what each training took of a core."""
    config = PRESETS[setting.sizes["preset"]]
    measures = {f"seed {seed}": partial(one_seed, config.changed(seed=seed)) for seed in setting.seeds}
    return {
        "features": config.task.features,
        "steps": config.schedule.steps,
        "seeds": list(setting.parts(measures).values()),
    }


def one_seed(config: TrainConfig, setting: Setting) -> Numbers:
    run = trained(config, setting)
    return {"curve": run.curve, "baselines": run.baselines, "cpu_seconds": run.cpu_seconds}


def ratios(numbers: Numbers) -> list[float]:
    """To the Bayes predictor's error, after 2d examples."""
    place = 2 * numbers["features"]
    return [each["curve"][place] / each["baselines"][BAYES][place] for each in numbers["seeds"]]


def judge(numbers: Numbers) -> Verdict:
    every = ratios(numbers)
    shown = ", ".join(f"{ratio:.2f}" for ratio in every)
    ours = f"{shown} times the error of the Bayes ridge predictor after {2 * numbers['features']} examples"
    near = sum(ratio <= ASKED for ratio in every)
    return Verdict.that(near == len(every), ours, f"{near} of {len(every)} seeds within {ASKED:g}")


def figure(numbers: Numbers) -> Figure:
    """The learners, and the baselines that stay within a factor ten of them."""
    curves = [each["curve"] for each in numbers["seeds"]]
    low, high = min(map(min, curves)) / 10, 3 * max(map(max, curves))
    series = [Series(f"learner, seed {seed}", range(len(curve)), curve) for seed, curve in enumerate(curves)]
    for name, errors in numbers["seeds"][0]["baselines"].items():
        shown = [(n, error) for n, error in enumerate(errors) if low <= error <= high]
        series.append(Series(name, [n for n, _ in shown], [error for _, error in shown], "dashes"))
    title = f"linear functions, {numbers['steps']} steps"
    return Figure([Panel("in-context samples", "squared error", series, title=title, log_y=True)])


CLAIM = Claim(
    name="ours-small-learner",
    source="ours, learners",
    statement="A small learner comes near the Bayes predictor of its task in minutes on one core.",
    theirs=f"at most {ASKED:g} times the Bayes ridge predictor's error after 2d examples, every seed (our own aim)",
    scales={"small": Scale(10, {"preset": "small", "seeds": 3})},
    run=run,
    judge=judge,
    figure=figure,
)
