"""Section 5.6: the cost of AlgoFormer's pre- and post-transformer, at inference and in a training step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor

from emulon.models import Learner
from emulon.report.figure import Figure, Panel, Series
from reproduce.algoformer.language import MODELS, PAPER
from reproduce.claim import Claim, Numbers, Scale, ScaleName, Setting, Verdict
from reproduce.learners import best_device

# The paper's shares of pre and post in all of the computation, by T.
SHARES = {20: 1 / 10, 200: 1 / 100}
WITHIN = 1.25
# (T, ΔT) of section 5.5, and of sections 5.2 and 5.6.
TRAINED = {"10, 10": (10, 10), "20, 15": (20, 15)}


def run(setting: Setting) -> Numbers:
    """Parameters and operations of every model, counted; seconds and kept activations of a training step, measured."""
    sizes = setting.sizes
    shape = {key: sizes[key] for key in ("width", "heads", "vocabulary")}
    found: Numbers = {"trained": {}, "inference": {}}
    setting.report_progress("a training step of the standard model", 0.0)
    standard = step_cost(make("standard", 0, 0, sizes["words"], **shape), sizes, shape)
    for done, (name, (loops, window)) in enumerate(TRAINED.items()):
        setting.report_progress(f"a training step at (T, ΔT) = ({name})", done / len(TRAINED))
        found["trained"][name] = {
            model: step_cost(make(model, loops, window, sizes["words"], **shape), sizes, shape) for model in MODELS[1:]
        }
        found["trained"][name] = {"standard": standard} | found["trained"][name]
    few = shape | {"vocabulary": 4}  # next to nothing for the scores of words
    found["blocks"] = {
        model: trained_operations(make(model, *TRAINED["10, 10"], sizes["words"], **few), sizes) for model in MODELS
    }
    # affine in T, so that two counts give all
    counts = {
        model: [operations(make(model, loops, 1, sizes["words"], **shape), sizes["words"]) for loops in (1, 2)]
        for model in MODELS
    }
    for loops in (10, *SHARES):
        found["inference"][str(loops)] = {
            model: one + (loops - 1) * (two - one) for model, (one, two) in counts.items()
        }
    return found


def make(model: str, loops: int, window: int, words: int, **shape: int) -> Callable[..., Learner]:
    """A decoder of text of the paper's size, made when it is called."""
    options: dict[str, Any] = PAPER[model] | shape | {"fused": False}
    if model != "standard":
        options |= {"loops": loops, "window": window}
    return lambda **more: Learner.registry[model](2, shape["vocabulary"], 2 * words, **options | more)


def asked(states: Tensor) -> Tensor:
    return states[..., states.shape[-2] // 2 :, :]


def a_batch(batch: int, words: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Random words at their places, and random words that are asked."""
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(3, vocabulary, (batch, 2 * words), generator=draw)
    tokens = torch.stack([text, torch.arange(2 * words).expand_as(text)], dim=-1)
    return tokens, torch.randint(3, vocabulary, (batch, words, 1), generator=draw)


def operations(build: Callable[..., Learner], words: int) -> float:
    """Floating-point operations of one text's blocks at inference, counted without doing them."""
    from torch.utils.flop_counter import FlopCounterMode

    learner, tokens = build().to("meta"), torch.ones(1, 2 * words, 2, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        learner.states(learner.embed(tokens), 1, learner.visible(tokens))
    return float(counter.get_total_flops())


def trained_operations(build: Callable[..., Learner], sizes: Mapping[str, Any]) -> float:
    """The same of one text's loss, forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode

    learner, shapes = build().to("meta"), ((1, 2 * sizes["words"], 2), (1, sizes["words"], 1))
    tokens, targets = (torch.ones(shape, dtype=torch.long, device="meta") for shape in shapes)
    with FlopCounterMode(display=False) as counter:
        learner.loss(tokens, targets, asked).backward()
    return float(counter.get_total_flops())


def step_cost(build: Callable[..., Learner], sizes: Mapping[str, Any], shape: dict[str, int]) -> Numbers:
    """Of one training step's forward and backward pass: operations a text; seconds a step; bytes kept for the backward
    pass, and on a GPU the most that was allocated."""
    device = best_device()
    real, batch = build(fused=True).to(device), a_batch(sizes["batch"], sizes["words"], shape["vocabulary"])
    tokens, targets = (part.to(device) for part in batch)
    bytes_kept = kept_bytes(real, tokens, targets)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = [timed(real, tokens, targets) for _ in range(sizes["repeats"])]
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {
        "parameters": sum(parameter.numel() for parameter in real.parameters()),
        "operations": trained_operations(build, sizes),
        "seconds": median(seconds),
        "kept_bytes": bytes_kept,
        "peak_bytes": peak,
    }


def kept_bytes(learner: Learner, tokens: Tensor, targets: Tensor) -> int:
    """What the forward pass keeps for the backward pass, weights apart."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in learner.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.loss(tokens, targets, asked).backward()
    return sum(kept.values())


def timed(learner: Learner, tokens: Tensor, targets: Tensor) -> float:
    learner.zero_grad()
    began = time.perf_counter()
    learner.loss(tokens, targets, asked).backward()
    if tokens.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


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
    times, kept = (ratio(first, what) for what in ("seconds", "kept_bytes"))
    blocks = numbers["blocks"]["algoformer"] / numbers["blocks"]["standard"]
    share = 1 - 1 / ratio(second, "operations", "looped")
    parameters = "/".join(f"{first[model]['parameters'] / 1e6:.1f}" for model in MODELS)
    near = STATED / WITHIN <= share <= STATED * WITHIN
    return Verdict.that(
        own <= NEGLIGIBLE and near,
        f"a training step at (10, 10) costs {own:.2f} times the standard model's operations ({blocks:.2f} without"
        f" scores of words), {times:.2f} its time, {kept:.2f} its kept activations; at (20, 15) pre and post are"
        f" {share:.2f} of all operations; millions of parameters, standard/looped/AlgoFormer: {parameters}",
        f"in training the post-transformer and the read-out run for every loop count of the loss (asked: {NEGLIGIBLE:g}"
        f" times the standard model's operations at most, and {STATED:g} for pre and post)",
    )


def ratio(models: Numbers, what: str, of: str = "standard", model: str = "algoformer") -> float:
    return float(models[model][what] / models[of][what])


def draw_training(numbers: Numbers) -> Figure:
    panels = []
    for what, label in (("operations", "operations"), ("seconds", "seconds"), ("kept_bytes", "kept activations")):
        series = [
            Series(f"(T, ΔT) = ({name})", list(MODELS), [ratio(models, what, model=model) for model in MODELS], "bars")
            for name, models in numbers["trained"].items()
        ]
        panels.append(Panel("", "times the standard model's", series, title=f"{label} of a training step"))
    return Figure(panels)


DIFFERS = "Decoders of section 5.5's size with 8,000 words and prompts of 40, the standard one of 12 layers."
SIZES: dict[str, Any] = {"width": 256, "heads": 8, "vocabulary": 8000, "words": 20}
SCALES: dict[ScaleName, Scale] = {
    "small": Scale(1, SIZES | {"batch": 4, "repeats": 3}),
    "gpu": Scale(1, SIZES | {"batch": 64, "repeats": 20}),
}
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
