"""Figure 4: more heads, more layers, and AlgoFormer beside standard transformers with as many layers."""

from __future__ import annotations

import math
from functools import partial
from statistics import mean
from typing import Any

from emulon.report.figure import Figure, Panel, Series
from reproduce.algoformer import learners
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict, set_up

# pre, loop and post have so many layers together.
PARTS = 3
# More heads than this "may exhibit suboptimal performance".
FALLS_UNTIL = 8


def run(setting: Setting) -> Numbers:
    sizes = setting.sizes
    usual = sizes["training"]["heads"]
    shapes: dict[str, dict[str, Any]] = {
        f"AlgoFormer, {n} layer{'s' * (n > 1)}": {"layers": n} for n in sizes["layers"]
    }
    shapes |= {f"AlgoFormer, {n} head{'s' * (n > 1)}": {"heads": n} for n in sizes["heads"] if n != usual}
    standard = {"model": "standard", "loops": None, "window": None}
    shapes |= {f"standard, {n} layers": {**standard, "layers": n} for n in sizes["standard"]}
    measures = {name: partial(one_learner, options) for name, options in shapes.items()}
    return setting.parts(measures)


def one_learner(options: dict[str, Any], setting: Setting) -> Numbers:
    config = learners.configured(setting, **options)
    learner, evaluation = learners.examined(config, setting)
    curve = evaluation.curve(learner).tolist()
    shape = {"model": config.model.model, "layers": config.model.layers, "heads": config.model.heads}
    return {**shape, "curve": curve, "left": learners.ends(evaluation, curve)}


def judge(numbers: Numbers) -> Verdict:
    """AlgoFormer's error falls with heads (16 left out, as in the paper) and with layers, and is below a standard one's
    of as many layers; one layer a part is below all that are deeper, too."""
    early = learners.too_early({name: each["left"] for name, each in numbers.items()})
    if early:
        return early
    own = [each for each in numbers.values() if each["model"] == "algoformer"]
    layers, heads = (sorted({each[key] for each in own}) for key in ("layers", "heads"))
    usual = next(each["heads"] for each in own)
    error = {(each["model"], each["layers"], each["heads"]): mean(each["curve"]) for each in numbers.values()}
    by_layers = [error["algoformer", n, usual] for n in layers]
    by_heads = [error["algoformer", layers[0], n] for n in heads if n <= FALLS_UNTIL]
    against = [error.get(("standard", PARTS * n, usual), math.inf) for n in layers]
    deeper = [each for (model, n, _), each in error.items() if model == "standard" and n > PARTS * layers[-1]]
    parts = {
        "falls with heads": by_heads == sorted(by_heads, reverse=True),
        "falls with layers": len(layers) > 1 and by_layers == sorted(by_layers, reverse=True),
        "below standard with as many layers": all(a < b for a, b in zip(by_layers, against, strict=True)),
        "one layer below deeper standard ones": all(by_layers[0] < each for each in deeper),
    }
    shown = ", ".join(f"{name} {mean(each['curve']):.3f}" for name, each in numbers.items())
    told = ", ".join(f"{name}: {'yes' if held else 'no'}" for name, held in parts.items())
    return Verdict.that(all(parts.values()), f"mean error: {shown}", told)


def figure(numbers: Numbers) -> Figure:
    series = [Series(name, range(len(each["curve"])), each["curve"]) for name, each in numbers.items()]
    return Figure([Panel("in-context samples", "squared error", series, log_y=True)])


SMALL = {"training": learners.TRAINING, "layers": [1, 2], "heads": [1, 4], "standard": [3, 6], "datasets": 1024}
GPU = {"training": learners.SHORTER | {"heads": 8}, "layers": [1, 2], "heads": [2, 4, 8, 16], "datasets": 1024}
GPU |= {"standard": [3, 6, 12, 14, 20, 22]}
SET_UP = f"""{learners.recipe(learners.SHORTER)}
data | regression with representation, d = 20, 40 pairs, no noise | the same
model | (20, 15), Eq. 2; standard of 3, 12, 14, 20, 22 layers | with injection; 6 layers, too
seeds | not stated | 1 | both
"""
CLAIM = Claim(
    "algoformer-figure-4",
    "Gao et al. 2024, Figure 4",
    "More heads and layers lower AlgoFormer's error; it is below standard transformers' of as many layers.",
    "2 layers below 1; more heads lower (16 excepted); AlgoFormer below standard of 3 to 22 layers",
    {"small": Scale(3, SMALL, at_source_scale=False), "gpu": Scale(13, GPU, set_up=set_up(SET_UP))},
    *(run, judge, figure),
    differs="On a CPU learners of width 32 with T = 4 on linear functions of 2 features, 1,200 steps.",
    reversal="all four parts of the rule in several seeds, with the paper's optimiser and steps",
)
