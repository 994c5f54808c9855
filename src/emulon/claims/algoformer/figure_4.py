"""Figure 4: more heads, more layers, and AlgoFormer beside standard transformers with as many layers."""

from __future__ import annotations

from statistics import mean
from typing import Any

from emulon.claims.algoformer import learners
from emulon.claims.claim import Claim, Numbers, Scale, Setting, Verdict
from emulon.claims.figure import Figure, Panel, Series

# pre, loop and post have so many layers together.
PARTS = 3


def run(setting: Setting) -> Numbers:
    sizes = setting.sizes
    usual = sizes["training"]["heads"]
    shapes: dict[str, dict[str, Any]] = {
        f"AlgoFormer, {n} layer{'s' * (n > 1)}": {"layers": n} for n in sizes["layers"]
    }
    shapes |= {f"AlgoFormer, {n} head{'s' * (n > 1)}": {"heads": n} for n in sizes["heads"] if n != usual}
    standard = {"model": "standard", "loops": None, "window": None}
    shapes |= {f"standard, {PARTS * n} layers": {**standard, "layers": PARTS * n} for n in sizes["layers"]}
    found: Numbers = {}
    for done, (name, options) in enumerate(shapes.items()):
        config = learners.configured(setting, **options)
        learner, evaluation = learners.examined(config, setting, done / len(shapes), 1 / len(shapes))
        curve = evaluation.curve(learner).tolist()
        shape = {"model": config.model, "layers": config.layers, "heads": config.heads}
        found[name] = {**shape, "curve": curve, "left": learners.ends(evaluation, curve)}
    return found


def judge(numbers: Numbers) -> Verdict:
    """AlgoFormer's error falls with heads and with layers, and is below a standard one's of as many layers."""
    early = learners.too_early({name: each["left"] for name, each in numbers.items()})
    if early:
        return early
    own = [each for each in numbers.values() if each["model"] == "algoformer"]
    layers, heads = (sorted({each[key] for each in own}) for key in ("layers", "heads"))
    error = {(each["model"], each["layers"], each["heads"]): mean(each["curve"]) for each in numbers.values()}
    by_layers = [error["algoformer", n, heads[-1]] for n in layers]
    by_heads = [error["algoformer", layers[0], n] for n in heads]
    against = [error["standard", PARTS * n, heads[-1]] for n in layers]
    parts = {
        "falls with heads": by_heads == sorted(by_heads, reverse=True),
        "falls with layers": len(layers) > 1 and by_layers == sorted(by_layers, reverse=True),
        "below standard with as many layers": all(a < b for a, b in zip(by_layers, against, strict=True)),
    }
    shown = ", ".join(f"{name} {mean(each['curve']):.3f}" for name, each in numbers.items())
    told = ", ".join(f"{name}: {'yes' if held else 'no'}" for name, held in parts.items())
    return Verdict.that(all(parts.values()), f"mean error: {shown}", told)


def figure(numbers: Numbers) -> Figure:
    series = [Series(name, range(len(each["curve"])), each["curve"]) for name, each in numbers.items()]
    return Figure([Panel("in-context samples", "squared error", series, log_y=True)])


CLAIM = Claim(
    name="algoformer-figure-4",
    source="Gao et al. 2024, Figure 4",
    statement="More heads and layers lower AlgoFormer's error; it is below standard transformers' of as many layers.",
    theirs="2 layers below 1; more heads lower (16 excepted); AlgoFormer below standard of 3 to 22 layers",
    scales={
        "small": Scale(
            3,
            {"training": learners.TRAINING, "layers": [1, 2], "heads": [1, 4], "datasets": 1024},
            at_source_scale=False,
        ),
    },
    run=run,
    judge=judge,
    figure=figure,
    differs="Learners of width 32 with T = 4 on linear functions of 2 features, one seed, 1,200 steps on a CPU; "
    "the paper has width 256, T = 20, regression with representation, d = 20, 500,000 steps.",
)
