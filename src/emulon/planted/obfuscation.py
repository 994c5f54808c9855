"""Obfuscations: other weights for the same function. Each is exact, or its error is part of the certificate."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Certificate
from emulon.core.errors import EmulonError, unknown
from emulon.machine.compiler import Plan
from emulon.machine.targets.llama_error import LlamaPlan
from emulon.machine.targets.llama_registers import LlamaMachine
from emulon.machine.transformer import result_name
from emulon.planted.architecture import ARCHITECTURES, Architecture, Block, Weights, slots_named
from emulon.planted.mechanism import Mechanism
from emulon.planted.model import DECOY, Build, PlantedModel, readout, useful, with_measured
from emulon.planted.noise import ROTATION, SECOND_ORDER, RotatedLlama, noise_of
from emulon.planted.truth import Arrangement, Compiled, Truth, truth_of

# At strength 1: number of distractors and largest exponent of rescaling, and number of dead blocks.
DISTRACTORS = RESCALED = DEAD_BLOCKS = 3


@dataclass
class Draft:
    """A planted model while obfuscations are applied."""

    machine: Compiled
    plan: Plan
    weights: Weights  # in float64
    arranged: Arrangement  # of the machine's parts in the weights
    generator: torch.Generator
    build: Build
    weight_noise: float = 0.0  # relative change of weights so far
    dead_norm: float = 0.0  # bound on the 2-norm of all that dead components write into directions that nothing reads
    intended: Weights | None = None  # before rotation and noise

    @classmethod
    def of(cls, mechanism: Mechanism, dtype: torch.dtype, build: Build) -> Draft:
        """The compiled mechanism before any obfuscation."""
        architecture, program = ARCHITECTURES[build.architecture], build.program(mechanism)
        machine, plan = architecture.compile(program, dtype), architecture.plan(program, dtype)
        generator = torch.Generator().manual_seed(build.seed)
        return cls(machine, plan, architecture.weights_of(machine), Arrangement.of(machine), generator, build)

    @property
    def truth(self) -> Truth:
        """About these weights, derived anew at every call."""
        return truth_of(self.machine, self.arranged)

    @property
    def architecture(self) -> Architecture:
        """Of the machine."""
        return ARCHITECTURES[self.build.architecture]

    @property
    def fixed(self) -> list[int]:
        """Slots that no obfuscation changes."""
        return self.architecture.fixed_slots(self.machine)

    def random(self, *size: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(*size, dtype=torch.float64, generator=self.generator, device="cpu")


# Dead components.


def dead_blocks(draft: Draft) -> None:
    """Insert blocks of dead heads and neurons; what they write is counted in the certificate."""
    before = draft.machine.depth
    count = before + round(draft.build.strength * DEAD_BLOCKS)
    order = torch.randperm(count, generator=draft.generator, device="cpu")[:before].sort().values.tolist()
    blocks = [draft.weights.dead_block() for _ in range(count)]
    for block in reversed(draft.architecture.glued(draft.machine)):  # no dead block directly after these
        order[block] = order[block + 1] - 1
    for old, new in enumerate(order):
        blocks[new] = draft.weights.blocks[old]
    draft.weights.blocks, draft.arranged = blocks, Arrangement(count, order)
    for index in sorted(set(range(count)) - set(order)):
        fill_heads(draft, index, list(range(draft.machine.heads)))
        fill_neurons(draft, index, torch.arange(draft.machine.inner, device="cpu"))


def dead_components(draft: Draft) -> None:
    """Random weights for every head and neuron that writes nothing; what they write is counted in the certificate."""
    for index, block in enumerate(draft.weights.blocks):
        fill_heads(draft, index, (block.output.abs().sum(dim=(1, 2)) == 0).nonzero()[:, 0].tolist())
        fill_neurons(draft, index, (~block.outward.any(dim=1)).nonzero()[:, 0])


def fill_heads(draft: Draft, index: int, heads: list[int]) -> None:
    """Random queries, keys, values and outputs for these heads.

    Claim: together they write at most `share(draft)`, in 2-norm, into unread directions, and nothing elsewhere.
    Proof. A head averages its values over tokens; a value is at most ‖V‖₂·C long, C bounding a token's registers and
    codes: nothing else is read, and the rows of V sum to zero, so that LayerNorm's mean is not read either.
    ‖o·O‖ ≤ ‖o‖·‖O‖_F, and O is scaled to make this an equal part of the share. `SECOND_ORDER` covers rounding. QED
    """
    if not heads:
        return
    block, size = draft.weights.blocks[index], draft.weights.blocks[index].query.shape[1]
    for head in heads:
        for part in (block.query, block.key, block.value):
            part[head] = _reading(draft, size)
        block.output[head] = _writing(draft, block.value[head], share(draft) / len(heads))
    draft.dead_norm += share(draft)


def fill_neurons(draft: Draft, index: int, neurons: Tensor) -> None:
    """Random weights for these neurons: |GELU(z)| ≤ |z|, and |silu(g)·u| ≤ |g||u|.

    In a block that divides, what they read is divided too.
    """
    if not len(neurons):
        return
    divisors = [1.0]
    if index in draft.arranged.places:
        layer = draft.machine.layers[draft.arranged.places.index(index)]
        divisors += [draft.plan.divisions[one.number].low for one in layer.divisions]
    block = draft.weights.blocks[index]
    least = min(divisors)
    for part in block.inward:
        part[neurons] = _reading(draft, len(neurons))
    # Gates are at most so large; GPT-2 has none.
    gates = [float(part[neurons].norm(dim=-1).max()) for part in block.inward[:-1]]
    gated = max([1.0, *(gate * draft.plan.normalisation.content / least for gate in gates)])
    block.outward[neurons] = _writing(draft, block.inward[-1, neurons], share(draft) * least / gated)
    draft.dead_norm += share(draft)


def share(draft: Draft) -> float:
    """Largest 2-norm of what the attention, or the MLP, of one block writes into unread directions."""
    depth = draft.machine.depth + DEAD_BLOCKS
    return draft.build.strength * draft.architecture.dead_share * draft.plan.normalisation.content / (2 * depth)


def unread(draft: Draft) -> list[int]:
    """Slots that nothing reads."""
    return slots_named(draft.machine, ("spare", "filler"))


def _reading(draft: Draft, count: int) -> Tensor:
    """Random functionals of the stream, (count, width), that sum to zero and read no fixed or unread slot."""
    excluded = {*draft.fixed, *unread(draft)}
    seen = [i for i in range(draft.machine.width) if i not in excluded]
    reading = torch.zeros(count, draft.machine.width, dtype=torch.float64, device="cpu")
    drawn = draft.random(len(seen), count) / math.sqrt(len(seen))
    reading[:, seen] = (drawn - drawn.mean(dim=0)).mT
    return reading


def _writing(draft: Draft, reading: Tensor, most: float) -> Tensor:
    """Random unread directions, (count, width), scaled so that with this reading at most `most` is written."""
    places = unread(draft)
    writing = torch.zeros_like(reading)
    writing[:, places] = draft.random(len(reading), len(places))
    size = float(torch.linalg.matrix_norm(writing) * torch.linalg.matrix_norm(reading, 2))
    return writing * (most / (SECOND_ORDER * size * draft.plan.normalisation.content))


# Changes of basis and of weights.


def permuted(draft: Draft) -> None:
    """Permute heads and neurons of every block: exact but for the order of summation, which no bound depends on."""
    for block in draft.weights.blocks:
        order = torch.randperm(draft.machine.heads, generator=draft.generator, device="cpu")
        units = torch.randperm(draft.machine.inner, generator=draft.generator, device="cpu")
        block.query, block.key, block.value = block.query[order], block.key[order], block.value[order]
        block.output, block.inward, block.outward = block.output[order], block.inward[:, units], block.outward[units]
        draft.arranged.heads.append(order)
        draft.arranged.units.append(units)


def rescaled(draft: Draft) -> None:
    """Scale queries against keys and values against outputs by powers of two, head by head: exact to the last bit.

    In a Llama likewise what neurons read against what they write, beside the gate. GPT-2's neurons cannot be rescaled:
    GELU(c·z) is not c·GELU(z).
    """
    most = round(draft.build.strength * RESCALED)
    for block in draft.weights.blocks:
        powers = torch.randint(-most, most + 1, (2, draft.machine.heads), generator=draft.generator, device="cpu")
        match, value = (2.0 ** powers.double())[..., None, None]
        block.query, block.key = block.query * match, block.key / match
        block.value, block.output = block.value * value, block.output / value
        if len(block.inward) > 1:
            units = torch.randint(-most, most + 1, (draft.machine.inner, 1), generator=draft.generator, device="cpu")
            block.inward[-1] *= 2.0 ** units.double()
            block.outward = block.outward / 2.0 ** units.double()


def rotated(draft: Draft) -> None:
    """Rotate the stream by a rotation that no normalisation changes; its rounding is counted in the certificate.

    Pads and divisors keep their slots: mixed with them a register would be rounded relative to the pad. With
    `build.mixed` registers are mixed in random groups of so many slots, and unread directions among themselves.
    """
    angle, width, most = math.pi * draft.build.strength, draft.machine.width, draft.build.mixed
    if most == 0:
        rotation = random_rotation(width, draft.fixed, draft.generator, angle)
    else:
        dead = unread(draft)
        read = [i for i in range(width) if i not in {*draft.fixed, *dead}]
        order = torch.randperm(len(read), generator=draft.generator, device="cpu").tolist()
        count, rotation = math.ceil(len(read) / most), torch.eye(width, dtype=torch.float64, device="cpu")
        for group in (*([read[i] for i in order[start::count]] for start in range(count)), dead):
            still = [i for i in range(width) if i not in group]
            rotation = rotation @ random_rotation(width, still, draft.generator, angle)
    draft.weights.positions = draft.weights.positions @ rotation.mT
    for block in draft.weights.blocks:
        for name, part in block.rows.items():
            setattr(block, name, part @ rotation.mT)
    draft.arranged.rotation = rotation


def random_rotation(
    width: int, fixed: list[int], generator: torch.Generator, angle: float
) -> Float[Tensor, "width width"]:
    """Orthogonal, the identity on the slots `fixed` and the all-ones vector, with rotation angles up to `angle`."""
    free = torch.tensor([i for i in range(width) if i not in fixed], device="cpu")
    count = len(free)
    identity = torch.eye(count, dtype=torch.float64, device="cpu")
    ones = torch.ones(count, 1, dtype=torch.float64, device="cpu") / math.sqrt(count)
    basis = torch.linalg.qr(torch.cat([ones, identity[:, 1:]], dim=1)).Q[:, 1:]
    sides = torch.randn(count - 1, count - 1, dtype=torch.float64, generator=generator, device="cpu")
    skew = sides - sides.mT
    skew *= angle / torch.linalg.matrix_norm(skew, 2).clamp(min=1e-300)
    inner = torch.linalg.matrix_exp(skew)
    rotation = torch.eye(width, dtype=torch.float64, device="cpu")
    rotation[free[:, None], free] = basis @ inner @ basis.mT + ones @ ones.mT
    assert float((rotation @ rotation.mT - torch.eye(width, dtype=torch.float64, device="cpu")).norm()) < ROTATION / 2
    return rotation


def noisy(draft: Draft) -> None:
    """Change every weight by a random part of itself, counted in the certificate; pads, biases and gains stay."""
    relative = draft.build.strength * draft.architecture.noise_roundings * torch.finfo(draft.machine.dtype).eps / 2

    def changed(part: Tensor) -> Tensor:
        change = 2 * torch.rand(part.shape, dtype=torch.float64, generator=draft.generator, device="cpu") - 1
        change[..., draft.fixed] = 0.0
        return part * (1 + relative * change)

    draft.weights.positions = changed(draft.weights.positions)
    for block in draft.weights.blocks:
        for name, part in block.rows.items():
            setattr(block, name, changed(part))
    draft.weight_noise += relative


# In the order of application; distractors come before, as instructions of the program.
FUNCTIONS: dict[str, Callable[[Draft], None]] = {
    "dead blocks": dead_blocks,
    "dead components": dead_components,
    "permuted": permuted,
    "rescaled": rescaled,
    "rotated": rotated,
    "noisy": noisy,
}
OBFUSCATIONS = ("distractors", *FUNCTIONS)
# With the one that is applied only by name, as it makes a model up to twice as large.
BY_NAME = (*OBFUSCATIONS, DECOY)
# Names of 0.2.
EARLIER = {"idle blocks": "dead blocks", "idle weights": "dead components", "turned": "rotated"}


def obfuscate(
    planted: PlantedModel, seed: int = 0, strength: float = 1.0, *, only: Iterable[str] = OBFUSCATIONS
) -> PlantedModel:
    """The same mechanism in other weights, with their truth and their certificate.

    Args:
        planted: The model; obfuscations do not stack, earlier ones are discarded.
        seed: Draws the obfuscations.
        strength: 0 … 1, scales every obfuscation.
        only: Names of `OBFUSCATIONS`, or "decoy".
    Returns:
        Another planted model.
    Raises:
        EmulonError: There is no such obfuscation, or the strength is out of range.

    Example:
        >>> obfuscate(plant("sgd"), only=["rotated"]).build.obfuscations
        ('rotated',)
    """
    names = {current_name(name) for name in only}
    for name in names - set(BY_NAME):
        raise EmulonError(unknown("obfuscation", name, BY_NAME))
    chosen = [name for name in BY_NAME if name in names]
    if not 0 <= strength <= 1:
        raise EmulonError(f"an obfuscation has a strength between 0 and 1, got {strength}")
    count = round(strength * DISTRACTORS) if "distractors" in chosen else 0
    build, made = Build(count, seed, tuple(chosen), strength, planted.build.architecture), list[PlantedModel]()
    for mixed in (0, *(planted.architecture.mixed if "rotated" in chosen else ())):
        draft = drafted(planted.mechanism, planted.dtype, replace(build, mixed=mixed))
        made.append(model_from(draft, planted.mechanism))
        if useful(made[-1].certificate):
            return made[-1]
    return with_measured(made[0])


def current_name(name: str) -> str:
    """The name of an obfuscation; one of 0.2 is translated with a DeprecationWarning."""
    if name in EARLIER:
        warnings.warn(f"the obfuscation {name!r} is {EARLIER[name]!r} since 0.3", DeprecationWarning, stacklevel=3)
    return EARLIER.get(name, name)


def drafted(mechanism: Mechanism, dtype: torch.dtype, build: Build) -> Draft:
    """The mechanism's program compiled and obfuscated as `build` says; deterministic up to last digits."""
    draft = Draft.of(mechanism, dtype, build)
    for name, change in FUNCTIONS.items():
        if name == "rotated":
            draft.intended = deepcopy(draft.weights)
        if name in build.obfuscations:
            change(draft)
    return draft


def model_from(draft: Draft, mechanism: Mechanism) -> PlantedModel:
    """The planted model with its proved certificate, useful or not."""
    truth = draft.truth
    state = draft.architecture.state(draft.weights, readout(truth), draft.machine.dtype)
    return PlantedModel(mechanism, truth, state, certificate_of(draft), draft.build)


# Certificates.


def certificate_of(draft: Draft, changed: float = 0.0) -> Certificate:
    """The certificate of the draft's weights.

    Also that of any other weights in which every row that reads or writes the stream differs, in 2-norm, by at most
    the part `changed` of itself (proof in `noise_of`).
    """
    noisy = draft.arranged.rotation is not None or draft.weight_noise or changed
    if not (noisy or draft.dead_norm):
        return draft.machine.certificate
    output = result_name(draft.machine.program)
    if isinstance(draft.plan, LlamaPlan):
        noise_in = rotated_llama(draft, changed).noise if noisy else None
        return draft.plan.certificates(beside=draft.dead_norm, noise_in=noise_in)[output]
    noise, skew = 0.0, 0.0
    if noisy:
        part = changed + draft.weight_noise
        noise, skew = noise_of(draft.architecture, draft.machine, draft.plan, part, draft.dead_norm)
    return draft.plan.certificates(noise=noise, skew=skew, beside=draft.dead_norm)[output]


def rotated_llama(draft: Draft, changed: float) -> RotatedLlama:
    """The draft's weights beside what they were intended to be."""
    machine, plan, intended = draft.machine, draft.plan, draft.intended
    assert isinstance(machine, LlamaMachine) and isinstance(plan, LlamaPlan) and intended is not None
    rotation = draft.arranged.rotation
    if rotation is None:
        rotation = torch.eye(draft.machine.width, dtype=torch.float64, device="cpu")

    def back(part: Tensor) -> Tensor:
        return part.to(machine.dtype).double() @ rotation

    blocks = [
        Block(**{name: back(part) for name, part in one.rows.items()}, fixed=one.fixed) for one in draft.weights.blocks
    ]
    actual = replace(draft.weights, positions=back(draft.weights.positions), blocks=blocks)
    units = draft.arranged.units or [torch.arange(machine.inner, device="cpu")] * draft.arranged.blocks
    held = changed + ROTATION
    places = draft.arranged.places, unread(draft), draft.fixed
    return RotatedLlama(machine, plan, intended, actual, units, rotation, held, *places)
