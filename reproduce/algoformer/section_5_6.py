"""Section 5.6: the cost of AlgoFormer's pre- and post-transformer, at inference and in a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from emulon.models import Learner
from emulon.report.figure import Figure, Panel, Series
from reproduce.algoformer.language import MODELS, PAPER
from reproduce.claim import Claim, Numbers, Scale, ScaleName, Setting, Verdict

# The paper's shares of pre and post in all of the computation, by T.
SHARES = {20: 1 / 10, 200: 1 / 100}
WITHIN = 1.25
# (T, ΔT) of section 5.5, and of sections 5.2 and 5.6.
SHAPE = ("width", "heads", "vocabulary")
TRAINED = {"10, 10": (10, 10), "20, 15": (20, 15)}


def run(setting: Setting) -> Numbers:
    """Parameters of every model, and its operations for a text, counted without doing them."""
    sizes = setting.sizes
    setting.report_progress("training steps", 0.0)
    trained = {
        name: {model: step_cost(make(sizes, model, *loops)) for model in MODELS} for name, loops in TRAINED.items()
    }
    few = {**sizes, "vocabulary": 4}  # next to nothing for the scores of words
    blocks = {model: step_cost(make(few, model, *TRAINED["10, 10"]))["operations"] for model in MODELS}
    # affine in T, so that two counts give all
    counts = {model: [operations(make(sizes, model, loops, 1)) for loops in (1, 2)] for model in MODELS}
    inference = {
        str(loops): {model: one + (loops - 1) * (two - one) for model, (one, two) in counts.items()}
        for loops in (10, *SHARES)
    }
    return {"trained": trained, "inference": inference, "blocks": blocks}


def make(sizes: Mapping[str, Any], model: str, loops: int, window: int) -> Learner:
    """A decoder of text of the paper's size, without weights."""
    options: dict[str, Any] = PAPER[model] | {"fused": False, **{key: sizes[key] for key in SHAPE}}
    if model != "standard":
        options |= {"loops": loops, "window": window}
    with torch.device("meta"):
        return Learner.registry[model](2, sizes["vocabulary"], 2 * sizes["words"], **options)


def operations(learner: Learner) -> float:
    """Floating-point operations of one text's blocks at inference."""
    tokens = torch.ones(1, learner.tokens, 2, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        learner.states(learner.embed(tokens), 1, learner.visible(tokens))
    return float(counter.get_total_flops())


def step_cost(learner: Learner) -> Numbers:
    """Parameters, and operations of one text's loss, forward and backward."""
    words = learner.tokens // 2
    tokens, targets = (torch.ones(1, *shape, dtype=torch.long, device="meta") for shape in ((2 * words, 2), (words, 1)))
    with FlopCounterMode(display=False) as counter:
        learner.loss(tokens, targets, lambda states: states[..., words:, :]).backward()
    parameters = sum(parameter.numel() for parameter in learner.parameters())
    return {"parameters": parameters, "operations": float(counter.get_total_flops())}


def share_of_ends(models: Numbers) -> float:
    """What AlgoFormer's pre and post are of all its computation: all that the looped one does not do."""
    return float((models["algoformer"] - models["looped"]) / models["algoformer"])


def judge(numbers: Numbers) -> Verdict:
    """At inference pre and post are within a factor of 1.25 of 1/10 (T = 20) and 1/100 (T = 200) of all operations."""
    shares = {loops: share_of_ends(numbers["inference"][str(loops)]) for loops in SHARES}
    near = all(stated / WITHIN <= shares[loops] <= stated * WITHIN for loops, stated in SHARES.items())
    shown = ", ".join(f"{share:.2g} (T = {loops})" for loops, share in shares.items())
    return Verdict.that(near, f"pre and post at inference {shown}", f"within a factor of {WITHIN} of what is stated")


def figure(numbers: Numbers) -> Figure:
    loops = [int(each) for each in numbers["inference"]]
    own = [share_of_ends(each) for each in numbers["inference"].values()]
    stated = Series("stated", list(SHARES), list(SHARES.values()), "dots")
    panel = Panel("loops T", "share of pre and post", [Series("counted", loops, own), stated], log_x=True, log_y=True)
    return Figure([panel])


# What "negligible" is taken to mean beside the standard model, and what is stated beside the looped one at T = 20.
NEGLIGIBLE, STATED = 1.1, 1 / 10


def judge_training(numbers: Numbers) -> Verdict:
    """Both of: a training step at the paper's (T, ΔT) = (10, 10) takes at most 1.1 times the standard model's
    operations; and of one at (20, 15) what the looped model does not do is within a factor of 1.25 of 1/10."""
    first, second = (numbers["trained"][name] for name in ("10, 10", "20, 15"))
    own = ratio(first, "operations")
    blocks = numbers["blocks"]["algoformer"] / numbers["blocks"]["standard"]
    share = 1 - 1 / ratio(second, "operations", "looped")
    parameters = "/".join(f"{first[model]['parameters'] / 1e6:.1f}" for model in MODELS)
    near = STATED / WITHIN <= share <= STATED * WITHIN
    return Verdict.that(
        own <= NEGLIGIBLE and near,
        f"a training step at (10, 10) costs {own:.2f} times the standard model's operations ({blocks:.2f} without"
        f" scores of words); at (20, 15) pre and post are {share:.2f} of all operations; millions of parameters,"
        f" standard/looped/AlgoFormer: {parameters}",
        f"in training the post-transformer and the read-out run for every loop count of the loss (asked: {NEGLIGIBLE:g}"
        f" times the standard model's operations at most, and {STATED:g} for pre and post)",
    )


def ratio(models: Numbers, what: str, of: str = "standard", model: str = "algoformer") -> float:
    return float(models[model][what] / models[of][what])


def draw_training(numbers: Numbers) -> Figure:
    series = [
        Series(f"(T, ΔT) = ({name})", MODELS, [ratio(models, "operations", model=model) for model in MODELS], "bars")
        for name, models in numbers["trained"].items()
    ]
    return Figure([Panel("", "times the standard model's", series, title="operations of a training step")])


DIFFERS = "Decoders of section 5.5's size with 8,000 words and prompts of 40, the standard one of 12 layers."
SIZES: dict[str, Any] = {"width": 256, "heads": 8, "vocabulary": 8000, "words": 20}
SCALES: dict[ScaleName, Scale] = {"small": Scale(1, SIZES)}
INFERENCE = Claim(
    "algoformer-section-5.6",
    "Gao et al. 2024, section 5.6, inference",
    "At inference pre- and post-transformer are a small share of AlgoFormer's computation.",
    "about 1/100 of all computation at T = 200; 1/10 at T = 20, which is stated of training",
    SCALES,
    *(run, judge, figure),
    differs=f"{DIFFERS} Both shares are counted at inference, where a loop count has no loss of its own.",
    reversal="a count of operations, of the authors or ours, that differs from 1/10 or 1/100 by more than a quarter",
)
TRAINING = Claim(
    "algoformer-section-5.6-training",
    "Gao et al. 2024, section 5.6, training",
    "AlgoFormer's additional cost of training over the standard and the looped transformer is negligible.",
    "“negligible”; pre and post are about 1/10 of the computation at T = 20 during training; no times are given",
    SCALES,
    *(run, judge_training, draw_training),
    differs=f"{DIFFERS} A step is its forward and backward pass. The section names ΔT as the dominant additional "
    "cost, and smaller batches as a remedy; operations a text do not depend on the batch.",
    reversal="a training step whose loss runs the post-transformer once for all loop counts, or times of the authors' "
    "code within a tenth of the standard model's",
)
