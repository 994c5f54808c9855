"""States of a learner at every position of its stream, and probes: whether a quantity can be read from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.algorithms.algorithm import Algorithm
from emulon.core.errors import BadShape
from emulon.core.predictor import NotAPredictor
from emulon.identification.sampling import Inputs, Targets

# Hidden states of every layer, and what a probe looks for in them.
Stream = Float[Tensor, "layers datasets tokens width"]
Quantity = Float[Tensor, "datasets size"]


@dataclass(frozen=True)
class HiddenStates:
    """Hidden states of a model, layer by layer.

    Attributes:
        states: `states[0]` is the embedding and `states[l]` the residual stream after layer l.
        tokens: Names of the positions.
        registers: Groups of features by name, where the model has names for them.
    """

    states: Stream
    tokens: tuple[str, ...]
    registers: Mapping[str, slice] = field(default_factory=dict)

    def position(self, token: str) -> int:
        return self.tokens.index(token)

    def of(self, register: str) -> HiddenStates:
        """What one register holds."""
        return HiddenStates(self.states[..., self.registers[register]], self.tokens)


def hidden_states(model: Any, xs: Inputs, ys: Targets) -> HiddenStates:
    """Run a model and keep its residual stream.

    Args:
        model: A compiled register machine, or anything with `hidden_states(xs, ys)`, such as a learner.
        xs: Points.
        ys: Targets.
    Raises:
        NotAPredictor: The model is neither.
    """
    if hasattr(model, "hidden_states"):
        states = model.hidden_states(xs, ys)
        return states if isinstance(states, HiddenStates) else HiddenStates(states, interleaved(states.shape[2]))
    if not hasattr(model, "program") or not hasattr(model, "blocks"):
        raise NotAPredictor(
            f"{type(model).__name__} cannot be looked into: it needs hidden_states(xs, ys), (layers, datasets, tokens, "
            "width), or to be a compiled register machine"
        )
    with torch.no_grad():
        stream = model.embed(**model.program.prompt.fill(xs, ys)) + model.positions
        streams = [stream]
        for block in model.blocks:
            stream = block(stream)
            streams.append(stream)
    slots = model.layout.slots
    registers = {name: slots[name] for name in model.program.registers}
    states = torch.stack(streams)
    return HiddenStates(states, ("start", *interleaved(states.shape[2] - 1)), registers)


def interleaved(count: int) -> tuple[str, ...]:
    """x1, y1, x2, y2, …"""
    return tuple(f"{'xy'[i % 2]}{i // 2 + 1}" for i in range(count))


def moments(xs: Inputs, ys: Targets) -> Float[Tensor, "datasets prefixes features"]:
    """Xᵀy of the first 0, 1, 2, … examples.

    Args:
        xs: Points.
        ys: Targets.
    """
    sums = (xs * ys.unsqueeze(-1)).cumsum(dim=1)
    return torch.cat([torch.zeros_like(sums[:, :1]), sums], dim=1)


def prefix_weights(algorithm: Algorithm, xs: Inputs, ys: Targets) -> Float[Tensor, "datasets prefixes features"]:
    """An algorithm's weights on the first 0, 1, 2, … examples (zero on none).

    Args:
        algorithm: What is run.
        xs: Points.
        ys: Targets.
    """
    solved = [algorithm.run(xs[:, :n], ys[:, :n]) for n in range(1, xs.shape[1] + 1)]
    return torch.stack([torch.zeros_like(solved[0]), *solved], dim=1)


# Shrinks a linear probe's weights a little, so that constant and repeated features do no harm.
SHRINK = 1e-4

Kind = Literal["linear", "mlp"]


@dataclass(frozen=True)
class ProbeTraining:
    """How probes with attention are trained: AdamW on three quarters of the datasets; each probe keeps the weights
    that did best on the last quarter.

    Attributes:
        steps: Of the optimiser.
        rate: Learning rate.
        decay: Weight decay, against overfitting.
        one_cycle: The rate rises to twice `rate` and falls to zero; otherwise it is constant.
        inner: H' of Akyürek et al. 2022, App. C.8; 0 for as few as the target needs, or for an MLP twice that or 32.
        batch: Datasets a step; 0 for all.
        measurements: How often the last quarter is asked.
    """

    steps: int = 300
    rate: float = 0.02
    decay: float = 0.1
    one_cycle: bool = True
    inner: int = 0
    batch: int = 0
    measurements: int = 30


@dataclass(frozen=True)
class ProbeScores:
    """R² on held-out datasets for every layer and position, beside a control.

    The control asks the same probe for the target of another dataset: what it scores there it has from its size, not
    from what is encoded. Both can be negative: worse than saying the mean.

    Attributes:
        score: By layer and position.
        control: The same of the control task.
        tokens: Names of the positions.
    """

    score: Float[Tensor, "layers tokens"]
    control: Float[Tensor, "layers tokens"]
    tokens: tuple[str, ...]

    def first_layer(self, token: str, least: float = 0.99) -> int | None:
        """The first layer from which on the target can be read at this position."""
        enough = (self.score[:, self.tokens.index(token)] >= least).tolist()
        return next((layer for layer in range(len(enough)) if all(enough[layer:])), None)

    def at(self, token: str) -> list[tuple[float, float]]:
        """(score, control) at this position, layer by layer."""
        place = self.tokens.index(token)
        return list(zip(self.score[:, place].tolist(), self.control[:, place].tolist(), strict=True))


def linear_probe(hidden: HiddenStates, target: Quantity, *, seed: int = 0) -> ProbeScores:
    """One least-squares probe for each layer and position, fitted on half of the datasets and scored on the others.

    Args:
        hidden: Hidden states.
        target: What is to be read off them.
        seed: Of the control task.
    """
    score, control = (held_out_score(hidden.states, one) for one in (target, shuffled(target, seed)))
    return ProbeScores(score, control, hidden.tokens)


def shuffled(target: Quantity, seed: int) -> Quantity:
    """The control task: every dataset gets another's target."""
    return target[torch.randperm(len(target), generator=torch.Generator().manual_seed(seed), device="cpu")]


def held_out_score(states: Stream, target: Quantity) -> Float[Tensor, "layers tokens"]:
    """R² over all entries of the target, on the second half of the datasets."""
    datasets = states.shape[1]
    if datasets != target.shape[0] or datasets < 4:
        raise BadShape(f"{datasets} datasets of hidden states and {target.shape[0]} targets: give 4 or more of both")
    half = datasets // 2
    features = states.double().movedim(1, 2)  # (layers, tokens, datasets, width)
    seen, unseen = features[..., :half, :], features[..., half:, :]
    mean, deviation = seen.mean(dim=-2, keepdim=True), seen.std(dim=-2, keepdim=True)
    varies = deviation > 1e-9 * (1 + mean.abs())
    seen, unseen = (torch.where(varies, (part - mean) / deviation, 0.0) for part in (seen, unseen))
    centre = target[:half].double().mean(dim=0)
    gram = seen.mT @ seen + SHRINK * half * torch.eye(seen.shape[-1], dtype=seen.dtype, device="cpu")
    weights = torch.linalg.solve(gram, seen.mT @ (target[:half].double() - centre))
    return explained(unseen @ weights + centre, target[half:].double())


def explained(guess: Float[Tensor, "*layers datasets size"], truth: Quantity) -> Float[Tensor, "*layers"]:
    """R²: 1 − (squared error)/(squared deviation from the mean)."""
    left = (guess - truth).square().sum(dim=(-2, -1))
    return 1 - left / (truth - truth.mean(dim=0)).square().sum()


@dataclass(frozen=True)
class AttentionScores:
    """Held-out R² of probes with attention, layer by layer.

    Attributes:
        layers: Which layers.
        score: R².
        control: R² of the control task.
        attention: Mean attention on each position.
        tokens: Names of the positions.
    """

    layers: tuple[int, ...]
    score: Float[Tensor, " layers"]
    control: Float[Tensor, " layers"]
    attention: Float[Tensor, "layers tokens"]
    tokens: tuple[str, ...]

    def looks_at(self, layer: int) -> str:
        """The position that gets most of the attention."""
        return self.tokens[int(self.attention[self.layers.index(layer)].argmax())]


class AttentionProbe(nn.Module):
    """The probe with example-attention of Akyürek et al. 2022, Eq. 20–22, which finds the position too.

    α = softmax(W_pᵀh) over positions, u = W_v Σ α_i h_i, t̂ = FF(u): `probes` of them for each layer, side by side.
    """

    def __init__(self, layers: int, probes: int, width: int, inner: int, size: int, kind: Kind, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def matrix(rows: int, columns: int) -> nn.Parameter:
            drawn = torch.randn(layers, probes, rows, columns, generator=generator, device="cpu")
            return nn.Parameter(drawn / rows**0.5)

        self.asks = nn.Parameter(torch.zeros(layers, probes, width, device="cpu"))
        self.values, self.out = matrix(width, inner), matrix(inner, size)
        self.hidden = matrix(inner, inner) if kind == "mlp" else None
        self.bias = nn.Parameter(torch.zeros(layers, probes, 1, size, device="cpu"))

    def attention(self, states: Stream) -> Float[Tensor, "layers probes datasets tokens"]:
        return torch.einsum("lbtw,lpw->lpbt", states, self.asks).softmax(dim=-1)

    def forward(self, states: Stream) -> Float[Tensor, "layers probes datasets size"]:
        u = torch.einsum("lpbt,lbtw->lpbw", self.attention(states), states) @ self.values
        if self.hidden is not None:
            u = nn.functional.gelu(u @ self.hidden)
        return u @ self.out + self.bias


@dataclass(frozen=True)
class ManyScores:
    """Held-out R² and mean attention of every probe at every layer; `halfway` is R² on the datasets that choose the
    weights, after half of the training and at its end."""

    score: Float[Tensor, "layers probes"]
    attention: Float[Tensor, "layers probes tokens"]
    halfway: tuple[Float[Tensor, "layers probes"], Float[Tensor, "layers probes"]]


def attention_probe(
    hidden: HiddenStates,
    target: Quantity,
    *,
    kind: Kind = "linear",
    layers: Sequence[int] | None = None,
    steps: int = 300,
    seed: int = 0,
) -> AttentionScores:
    """For every layer a probe with attention and one for the control task, trained on half of the datasets and scored
    on the others, on the device of the hidden states.

    Args:
        hidden: Hidden states.
        target: What is to be read off them.
        kind: The last map: linear, or an MLP of one hidden layer.
        layers: Which layers; all by default.
        steps: Of training.
        seed: Of the first weights and the control task.
    """
    layers = tuple(range(len(hidden.states))) if layers is None else tuple(layers)
    targets = torch.stack([target, shuffled(target, seed)])
    states = standardised(hidden.states[list(layers)])
    found = attention_probes(states, targets, kind=kind, training=ProbeTraining(steps=steps), seed=seed)
    score, control = found.score.unbind(dim=1)
    return AttentionScores(layers, score, control, found.attention[:, 0], hidden.tokens)


def attention_probes(
    states: Stream,
    targets: Float[Tensor, "probes datasets size"],
    *,
    kind: Kind = "linear",
    training: ProbeTraining | None = None,
    seed: int = 0,
) -> ManyScores:
    """Train one probe for every layer and target on half of the datasets, and score it on the others.

    Args:
        states: As `standardised` gives them, in any float dtype; probes are trained on their device.
        targets: What each probe is to recover.
        kind: FF of Eq. 22: linear, or an MLP of one hidden layer.
        training: Optimiser, sizes and steps.
        seed: Of the probes' first weights.
    Returns:
        Scores for every layer and target.
    """
    training = training or ProbeTraining()
    half, size = targets.shape[1] // 2, targets.shape[2]
    goals = torch.stack([_unit(target) for target in targets]).to(states.device)
    inner = training.inner or (max(2 * size, 32) if kind == "mlp" else size)
    with torch.enable_grad():
        probe = AttentionProbe(len(states), len(targets), states.shape[-1], inner, size, kind, seed).to(states.device)
        halfway = _train(probe, states[:, :half], goals[:, :half], training)
    with torch.no_grad():
        parts = [slice(start, start + PART) for start in range(half, len(targets[0]), PART)]
        guess = torch.cat([probe(states[:, part].float()) for part in parts], dim=2)
        looked = sum(probe.attention(states[:, part].float()).sum(dim=2) for part in parts)
        scores = torch.stack([explained(guess[:, k], goals[k, half:]) for k in range(len(targets))], dim=1)
    assert isinstance(looked, Tensor)
    attention = looked / (targets.shape[1] - half)
    return ManyScores(scores.double().cpu(), attention.double().cpu(), halfway)


# Datasets that are evaluated at once: memory, not scores, depends on it.
PART = 1024


def _train(
    probe: AttentionProbe, states: Tensor, goals: Tensor, training: ProbeTraining
) -> tuple[Float[Tensor, "layers probes"], Float[Tensor, "layers probes"]]:
    """R² on the last quarter, after half of the steps and at the end."""
    seen, steps = 3 * states.shape[1] // 4, training.steps
    fused = states.device.type == "cuda"
    optimiser = torch.optim.AdamW(probe.parameters(), lr=training.rate, weight_decay=training.decay, fused=fused)
    cycle: torch.optim.lr_scheduler.LRScheduler
    if training.one_cycle:
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2 * training.rate, total_steps=steps + 1)
    else:
        cycle = torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0)
    best = goals.new_full(probe.asks.shape[:2], torch.inf)
    kept = [one.detach().clone() for one in probe.parameters()]
    batch, every = min(training.batch or seen, seen), max(steps // training.measurements, 1)
    after_half = best
    for step in range(steps):
        start = step * batch % (seen - batch + 1)
        rows = slice(start, start + batch)
        optimiser.zero_grad()
        (probe(states[:, rows].float()) - goals[:, rows]).square().mean(dim=(2, 3)).sum().backward()
        optimiser.step()
        cycle.step()
        if step % every == every - 1 or step == steps - 1:
            loss = _loss(probe, states[:, seen:], goals[:, seen:])
            better, best = loss < best, torch.minimum(loss, best)
            for one, old in zip(probe.parameters(), kept, strict=True):
                old[better] = one.detach()[better]
        if 2 * (step + 1) <= steps:
            after_half = best
    with torch.no_grad():
        for one, old in zip(probe.parameters(), kept, strict=True):
            one.copy_(old)
    variance = (goals[:, seen:] - goals[:, seen:].mean(dim=1, keepdim=True)).square().mean(dim=(1, 2))
    first, last = (1 - loss.detach() / variance for loss in (after_half, best))
    return first.double().cpu(), last.double().cpu()


@torch.no_grad()
def _loss(probe: AttentionProbe, states: Tensor, goals: Tensor) -> Float[Tensor, "layers probes"]:
    """The mean squared error, a part of the datasets at a time."""
    parts = zip(states.split(PART, dim=1), goals.split(PART, dim=1), strict=True)
    total = sum((probe(some.float()) - wanted).square().mean(dim=3).sum(dim=2) for some, wanted in parts)
    assert isinstance(total, Tensor)
    return total / goals.shape[1]


def statistics_of(states: Stream) -> tuple[Float[Tensor, "layers 1 1 width"], Float[Tensor, "layers 1 1 width"]]:
    """Mean and deviation of every feature of a layer over datasets and positions; the deviation of a constant is ∞.

    Args:
        states: Hidden states.
    """
    double = states.double()
    mean, deviation = double.mean(dim=(1, 2), keepdim=True), double.std(dim=(1, 2), keepdim=True)
    return mean, torch.where(deviation > 1e-9 * (1 + mean.abs()), deviation, torch.inf)


def standardised(states: Stream, statistics: tuple[Tensor, Tensor] | None = None) -> Stream:
    """Every feature with mean 0 and deviation 1; constants are 0.

    Args:
        states: Hidden states.
        statistics: Means and deviations; by default the states' own.
    """
    mean, deviation = statistics or statistics_of(states)
    return ((states - mean) / deviation).float()


def _unit(target: Tensor) -> Tensor:
    target = target.double()
    return ((target - target.mean(dim=0)) / target.std().clamp(min=1e-12)).float()
