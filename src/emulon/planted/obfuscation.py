"""Obfuscations: other weights, the same function. Each is exact, or counted in the certificate."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Certificate
from emulon.core.errors import EmulonError, unknown
from emulon.machine.compiler import planned
from emulon.machine.targets.gpt2 import state_dict
from emulon.machine.transformer import result_name
from emulon.planted.dead_components import dead_blocks, dead_components
from emulon.planted.draft import Draft, kept_apart
from emulon.planted.ground_truth import truth_of
from emulon.planted.mechanism import Mechanism
from emulon.planted.model import Build, PlantedModel, useful, with_measured, with_readout
from emulon.planted.noise import noise_of

# The part of itself that a weight may be off at strength 1, in units of the dtype's roundoff.
NOISE_ROUNDINGS = 64.0
# Circuits, and powers of two up to 2^±3, at strength 1.
DISTRACTORS = RESCALED = 3


def permuted(draft: Draft) -> None:
    """Heads and neurons in another order, block by block: exact but for the order of sums, of which no bound knows."""
    size, heads, neurons = draft.head_width, [], []
    for index in range(draft.truth.blocks):
        order = torch.randperm(draft.truth.heads, generator=draft.generator, device="cpu")
        units = torch.randperm(draft.truth.neurons, generator=draft.generator, device="cpu")
        places = (order[:, None] * size + torch.arange(size, device="cpu")).flatten()  # new place ← old place
        attention, output = draft.block(index, "attn.c_attn.weight"), draft.block(index, "attn.c_proj.weight")
        draft.state[attention] = draft.state[attention].unflatten(1, (3, -1))[:, :, places].flatten(1)
        draft.state[output] = draft.state[output][places]
        inward, outward = draft.block(index, "mlp.c_fc.weight"), draft.block(index, "mlp.c_proj.weight")
        draft.state[inward], draft.state[outward] = draft.state[inward][:, units], draft.state[outward][units]
        heads.append(order.argsort().tolist())
        neurons.append(units.argsort().tolist())
    draft.truth = draft.truth.relabelled(heads, neurons)


def rescaled(draft: Draft) -> None:
    """Queries against keys, and values against outputs, by powers of two, head by head: exact to the last bit.

    A neuron cannot be: GELU(c·z) is not c·GELU(z).
    """
    width, size = draft.truth.width, draft.head_width
    most = round(draft.strength * RESCALED)
    for index in range(draft.truth.blocks):
        powers = torch.randint(-most, most + 1, (2, draft.truth.heads), generator=draft.generator, device="cpu")
        match, value = (2.0 ** powers.double()).repeat_interleave(size, dim=1)
        attention = draft.state[draft.block(index, "attn.c_attn.weight")]
        attention[:, :width] *= match
        attention[:, width : 2 * width] /= match
        attention[:, 2 * width :] *= value
        draft.state[draft.block(index, "attn.c_proj.weight")] /= value[:, None]


def rotated(draft: Draft) -> None:
    """The stream in another basis. LayerNorm cannot see a rotation that fixes the all-ones vector: counted as noise.

    Pads and divisors keep their slots: mixed with them a register would be rounded relative to 1e10.
    """
    rotation = random_rotation(draft.truth.width, kept_apart(draft.machine), draft.generator, math.pi * draft.strength)
    for name, part in draft.state.items():
        if name.endswith(("attn.c_attn.weight", "mlp.c_fc.weight")):
            draft.state[name] = rotation @ part
        elif name.endswith(("c_proj.weight", "c_proj.bias", "wpe.weight")):
            draft.state[name] = part @ rotation.mT
    draft.truth, draft.rotated = draft.truth.rotated(rotation), True


def random_rotation(
    width: int, fixed: list[int], generator: torch.Generator, angle: float
) -> Float[Tensor, "width width"]:
    """Orthogonal, the identity on the slots `fixed` and on the all-ones vector; no plane turns by more than `angle`."""
    free = torch.tensor([i for i in range(width) if i not in fixed], device="cpu")
    count = len(free)
    ones = torch.ones(count, 1, dtype=torch.float64, device="cpu") / math.sqrt(count)
    basis = torch.linalg.qr(torch.cat([ones, torch.eye(count, dtype=torch.float64, device="cpu")[:, 1:]], dim=1)).Q[
        :, 1:
    ]
    sides = torch.randn(count - 1, count - 1, dtype=torch.float64, generator=generator, device="cpu")
    skew = sides - sides.mT
    skew *= angle / torch.linalg.matrix_norm(skew, 2).clamp(min=1e-300)
    inner = torch.linalg.matrix_exp(skew)
    rotation = torch.eye(width, dtype=torch.float64, device="cpu")
    rotation[free[:, None], free] = basis @ inner @ basis.mT + ones @ ones.mT
    return rotation


def noisy(draft: Draft) -> None:
    """Every weight off by a random part of itself: counted in the certificate. Pads, biases and gains stay."""
    part_of_itself = draft.strength * NOISE_ROUNDINGS * torch.finfo(draft.machine.dtype).eps / 2
    apart = kept_apart(draft.machine)
    for name, part in draft.state.items():
        if name.endswith(("c_attn.weight", "c_fc.weight", "c_proj.weight", "wpe.weight")):
            change = 2 * torch.rand(part.shape, dtype=torch.float64, generator=draft.generator, device="cpu") - 1
            reads = name.endswith(("c_attn.weight", "c_fc.weight"))
            change[(apart, slice(None)) if reads else (slice(None), apart)] = 0.0
            draft.state[name] = part * (1 + part_of_itself * change)
    draft.weight_noise += part_of_itself


# In this order; distractors come before all, for they are in the program.
OBFUSCATIONS: dict[str, Callable[[Draft], None]] = {
    "dead blocks": dead_blocks,
    "dead components": dead_components,
    "permuted": permuted,
    "rescaled": rescaled,
    "rotated": rotated,
    "noisy": noisy,
}
EVERY = ("distractors", *OBFUSCATIONS)
# Names of 0.2.
EARLIER = {"idle blocks": "dead blocks", "idle weights": "dead components", "turned": "rotated"}


def obfuscate(
    planted: PlantedModel, seed: int = 0, strength: float = 1.0, *, only: Iterable[str] = EVERY
) -> PlantedModel:
    """The same mechanism in other weights, with the truth about them and the certificate that still holds.

    `strength` in 0 … 1 scales every obfuscation, `only` chooses among them. Obfuscations do not stack: earlier
    ones are discarded.
    """
    names = {current_name(name) for name in only}
    chosen = [name for name in EVERY if name in names]
    for name in names - set(EVERY):
        raise EmulonError(unknown("obfuscation", name, EVERY))
    if not 0 <= strength <= 1:
        raise EmulonError(f"an obfuscation has a strength between 0 and 1, got {strength}")
    count = round(strength * DISTRACTORS) if "distractors" in chosen else 0
    draft = drafted(planted.mechanism, planted.dtype, Build(count, seed, tuple(chosen), strength))
    made = model_from(draft, planted.mechanism)
    return made if useful(made.certificate) else with_measured(made)


def current_name(name: str) -> str:
    """The name of an obfuscation; one of 0.2 is translated with a DeprecationWarning."""
    if name in EARLIER:
        warnings.warn(f"the obfuscation {name!r} is {EARLIER[name]!r} since 0.3", DeprecationWarning, stacklevel=3)
    return EARLIER.get(name, name)


def drafted(mechanism: Mechanism, dtype: torch.dtype, build: Build) -> Draft:
    """The weights that `build` makes of the mechanism's program; the same ones, up to the machine's last digits."""
    program = build.program(mechanism)
    machine = program.compile(dtype)
    weights = {name: part.double() for name, part in state_dict(machine).items()}
    generator = torch.Generator().manual_seed(build.seed)
    draft = Draft(machine, planned(program, dtype), weights, truth_of(machine), generator, build)
    for name, change in OBFUSCATIONS.items():
        if name in build.obfuscations:
            change(draft)
    return draft


def model_from(draft: Draft, mechanism: Mechanism) -> PlantedModel:
    """With what is proved of it, useful or not."""
    state = {name: part.to(draft.machine.dtype).contiguous() for name, part in draft.state.items()}
    return PlantedModel(mechanism, draft.truth, with_readout(state, draft.truth), certificate_of(draft), draft.build)


def certificate_of(draft: Draft, changed: float = 0.0) -> Certificate:
    """Of the draft's weights, or of others in which every functional that reads the stream, and every vector that is
    written to it, differs in 2-norm by the part `changed` of itself at most (`noise_of` has the proof)."""
    changed += draft.weight_noise
    if not (draft.rotated or changed or draft.beside):
        return draft.machine.certificate
    noisy = draft.rotated or changed > 0
    noise, skew = noise_of(draft.machine, draft.plan, changed, draft.beside) if noisy else (0.0, 0.0)
    certificates = draft.plan.certificates(noise=noise, skew=skew, beside=draft.beside)
    return certificates[result_name(draft.machine.program)]
