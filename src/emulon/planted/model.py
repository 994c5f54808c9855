"""A planted model: a transformer that runs a known mechanism, its ground truth, and a bound on its error."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Certificate
from emulon.certify.balls import FloatBall
from emulon.certify.domain import require_shape
from emulon.core.errors import BadShape
from emulon.core.hub import HubMixin
from emulon.core.predictor import PrefixPredictor
from emulon.machine.evaluate import distance, initial_values, results
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples
from emulon.machine.transformer import result_name
from emulon.planted.architecture import ARCHITECTURES, Architecture
from emulon.planted.learners import drawn_mechanism
from emulon.planted.mechanism import TARGET, BoundedLinear, Mechanism, mechanism_named
from emulon.planted.truth import Truth, truth_of

# Entries of a register that nothing uses, in every planted model.
SPARE = 2
# The obfuscation that adds a circuit of the same kind.
DECOY = "decoy"
# Where no useful bound is proved, MARGIN times the worst error on PROMPTS prompts is reported as measured.
PROMPTS, MARGIN = 512, 4.0


@dataclass(frozen=True)
class Build:
    """How a planted model was made from its mechanism: enough to make it again.

    Attributes:
        distractors: Number of circuits that compute something unused.
        seed: Draws distractors and obfuscations.
        obfuscations: Their names.
        strength: Of the obfuscations, 0 … 1.
        architecture: A name of `ARCHITECTURES`.
        mixed: How many slots a rotation mixes with each other; 0: all.
    """

    distractors: int = 0
    seed: int = 0
    obfuscations: tuple[str, ...] = ()
    strength: float = 1.0
    architecture: str = "gpt2"
    mixed: int = 0

    def program(self, mechanism: Mechanism) -> RegisterProgram:
        """The register program with a decoy, distractors and a spare register.

        A decoy is the same mechanism with other parameters on the same inputs; ŷ does not depend on it.
        """
        generator, both = torch.Generator().manual_seed(self.seed), [mechanism]
        if DECOY in self.obfuscations:
            sizes = {"features": mechanism.features, "samples": mechanism.samples}
            both.append(replace(type(mechanism).drawn(generator), **sizes))
        examples = max(both, key=lambda one: one.max_norm).examples()
        output = mechanism.add(examples)
        for decoy in both[1:]:
            decoy.add(replace(examples, prefix=f"{DECOY} "))
        add_distractors(examples, self.distractors, generator)
        examples.program.register("spare", SPARE)
        return examples.program.returns(output)


def add_distractors(examples: Examples, count: int, generator: torch.Generator) -> None:
    """Append circuits that ŷ does not depend on, each of a kind drawn at random.

    The kinds: ‖x‖² of the previous example, the mean of y·x so far, (u·x)(v·x) for random unit vectors u and v.
    """
    program, prompt, features = examples.program, examples.prompt, examples.domain.features
    for index in range(count):
        kind = int(torch.randint(3, (), generator=generator, device="cpu"))
        name = f"distractor {index + 1}"
        x = examples.own_x()
        if kind == 0:
            squared, before = program.register(f"{name} square"), program.register(name)
            program.dot(squared, x, x)
            program.mov(before, squared, at=prompt.previous_example)
        elif kind == 1:
            cross, mean = program.register(f"{name} cross", features), program.register(name, features)
            program.mul(cross, x, examples.y)
            program.mov(mean, cross, at=prompt.past_examples)
        else:
            directions = torch.randn(2, features, dtype=torch.float64, generator=generator, device="cpu")
            left, right = (row[None] / row.norm() for row in directions)
            form = program.register(name)
            program.mul(form, x.map(left, (1, 1), "u·x"), x.map(right, (1, 1), "v·x"))


@dataclass(frozen=True, eq=False)
class PlantedModel(HubMixin, PrefixPredictor):
    """A transformer with a planted learning algorithm; it is a predictor, and `identify` takes it.

    `planted(xs, ys)` are the network's answers and `planted.algorithm(xs, ys)` the exact ones.

    Attributes:
        mechanism: The algorithm.
        truth: What is where in the network.
        state: The parameters of `network`, by their names there, and the readout.
        certificate: Bound on |answer − exact answer|; `proved`, or measured.
        build: How it was made from the mechanism.
    """

    mechanism: Mechanism
    truth: Truth
    state: Mapping[str, Tensor]
    certificate: Certificate
    build: Build = field(default_factory=Build)

    def _write(self, folder: Path) -> None:
        from emulon.planted.files import save

        save(self, folder)

    @classmethod
    def _read(cls, folder: Path) -> PlantedModel:
        from emulon.planted.files import load

        return load(folder)

    @property
    def name(self) -> str:
        """The mechanism with its parameters, and the obfuscations."""
        names = ", ".join(self.build.obfuscations)
        return f"{self.mechanism}, obfuscated ({names})" if names else str(self.mechanism)

    @property
    def error_bound(self) -> str:
        """The certificate in words; a measured bound is called measured."""
        if self.certificate.proved:
            return str(self.certificate)
        return f"≤ {self.certificate.bound:.2e}, measured ({self.certificate.note})"

    @property
    def architecture(self) -> Architecture:
        """Where its weights and modules are."""
        return ARCHITECTURES[self.build.architecture]

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(iter(self.state.values())).dtype

    @cached_property
    def network(self) -> Any:
        """The Hugging Face model, a `GPT2Model`: call it with `inputs_embeds=planted.embed(xs, ys)`."""
        return self.architecture.load(self.state, self.truth.heads)

    @property
    def model(self) -> Any:
        """The name of `network` in 0.2."""
        warnings.warn("PlantedModel.model is network since 0.3", DeprecationWarning, stacklevel=2)
        return self.network

    @cached_property
    def source(self) -> RegisterProgram:
        """The program that the weights were compiled from."""
        return self.build.program(self.mechanism)

    def algorithm(
        self, xs: Float[Tensor, "... samples features"], ys: Float[Tensor, "... targets"]
    ) -> Float[Tensor, "... samples"]:
        """The exact algorithm in float64, on the data as rounded to the network's dtype."""
        return self.mechanism.algorithm(*(part.to(self.dtype).double() for part in (xs, self._all_targets(xs, ys))))

    def embed(
        self, xs: Float[Tensor, "... samples features"], ys: Float[Tensor, "... targets"]
    ) -> Float[Tensor, "... tokens width"]:
        """The prompt as `inputs_embeds`: a start token, x₁, y₁, x₂, …; data outside the domain are refused."""
        embedded = xs.new_zeros((*xs.shape[:-2], self.truth.tokens - 1, self.truth.width), dtype=self.dtype)
        for name, values in self.inputs(xs, ys).items():
            self.source.inputs[name].require(name, values)
            embedded = embedded + values @ self.truth.registers[name].write.to(self.dtype)
        embedded = torch.nn.functional.pad(embedded, (0, 0, 1, 0))
        offset = self.architecture.prompt_offset(self.state)
        return embedded if offset is None else embedded + offset

    def inputs(self, xs: Tensor, ys: Tensor, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The input registers x and y, (..., tokens, size), as rounded to the network's dtype."""
        prompt = self.source.prompt
        assert prompt is not None
        filled = prompt.fill(xs.to(self.dtype), self._all_targets(xs, ys).to(self.dtype))
        return {name: part.to(dtype) for name, part in filled.items()}

    def answers(self, hidden: Float[Tensor, "... tokens width"]) -> Float[Tensor, "... samples"]:
        """ŷ at every x, read off the network's last hidden state."""
        return self.truth.read(self.output, hidden)[..., 1::2, 0]

    @property
    def output(self) -> str:
        """The register that holds ŷ."""
        return result_name(self.source)

    def __call__(
        self,
        xs: Float[Tensor, "... samples features"],
        ys: Float[Tensor, "... targets"],
        *,
        added: Mapping[str, Tensor] | None = None,
    ) -> Float[Tensor, "... samples"]:
        """The network's answers; with `added={"w#2": amounts}` after adding amounts to what w#2 holds."""
        embedded = self.embed(xs, ys)
        with torch.no_grad(), self.intervened(added or {}):
            hidden = self.network(inputs_embeds=embedded.reshape(-1, *embedded.shape[-2:])).last_hidden_state
        return self.answers(hidden.reshape(embedded.shape))

    @contextmanager
    def intervened(self, added: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, `network` runs with amounts added to versions, `{"w#2": amounts}`.

        A version is changed in the output of what writes it (attention, MLP or embedding), so that everything that
        reads it later, in the same block too, sees the change.
        """
        handles, blocks = [], self.architecture.blocks_of(self.network)
        for name, amounts in added.items():
            version, change = self.truth.version(name), self.truth.in_stream(name, amounts.to(self.dtype))
            if version.part == "embedding":
                handles.append(blocks[0].register_forward_pre_hook(_adding(change)))
            else:
                path = self.architecture.attention if version.part == "attention" else self.architecture.mlp
                place = blocks[version.layer].get_submodule(path)
                handles.append(place.register_forward_hook(_adding(change)))
        with removed_after(handles):
            yield

    @property
    def samples(self) -> int:
        """Examples in a prompt; the last one is only a query."""
        return self.mechanism.samples

    # What every register must hold.

    def values(
        self, xs: Tensor, ys: Tensor, *, added: Mapping[str, Tensor] | None = None
    ) -> dict[str, Float[Tensor, "... tokens size"]]:
        """By version (`w#2`), the exact content of a register at every token but the start, as the program says.

        With `added`, after the intervention.
        """
        held = initial_values(self.source, self.inputs(xs, ys, torch.float64), FloatBall)
        extra: dict[int, FloatBall] = {}
        for name, amounts in (added or {}).items():
            version = self.truth.version(name)
            change = FloatBall.of(amounts.double().expand_as(held[version.register].high))
            if version.instruction is None:
                held[version.register] = held[version.register] + change
            else:
                extra[version.instruction] = change
        out = {f"{name}#0": held[name].high for name in self.source.known}
        counts = dict.fromkeys(held, 0)
        for instruction, ball in results(self.source, held, extra):
            counts[instruction.target.name] += 1
            out[f"{instruction.target.name}#{counts[instruction.target.name]}"] = ball.high
        return out

    def expected(self, xs: Tensor, ys: Tensor, *, added: Mapping[str, Tensor] | None = None) -> Tensor:
        """ŷ at every x as the program computes it; with `added`, after the intervention."""
        return self.values(xs, ys, added=added)[self.truth.output][..., 0::2, 0]

    def audit(self, xs: Tensor, ys: Tensor) -> Certificate:
        """Bound on the distance of these answers from the program's, proved in ball arithmetic for this run only."""
        answered = torch.zeros(*xs.shape[:-2], self.source.tokens, 1, dtype=torch.float64, device="cpu")
        answered[..., 0::2, 0] = self(xs, ys).double()
        error = distance(self.source, self.inputs(xs, ys, torch.float64), self.output, answered)[..., 0::2, :]
        error = error.nan_to_num(nan=math.inf)
        return Certificate({"distance to the instructions": error.max().item()}, self.dtype, scope="run")

    @property
    def task(self) -> BoundedLinear:
        """Data inside its domain."""
        return self.mechanism.task

    def draw(self, batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """xs (batch, samples, features) and ys (batch, samples) of `task`, in float64."""
        return self.task.held_out(seed, batch, self.samples).pairs

    def _all_targets(self, xs: Tensor, ys: Tensor) -> Tensor:
        samples, features = self.mechanism.samples, self.mechanism.features
        require_shape(xs, "xs", samples, features)
        if ys.shape[:-1] != xs.shape[:-2] or ys.shape[-1] not in (samples, samples - 1):
            raise BadShape(f"ys has shape {tuple(ys.shape)}, wanted {(*xs.shape[:-2], samples)}")
        return torch.nn.functional.pad(ys, (0, samples - ys.shape[-1]))

    def __repr__(self) -> str:
        truth = self.truth
        shape = f"{truth.blocks} blocks, width {truth.width}, {truth.heads} heads, {truth.neurons} neurons"
        return f"PlantedModel({self.name}: {self.architecture.title}, {shape}, error {self.error_bound})"


def _adding(change: Tensor) -> Any:
    """A hook that adds to the first of a module's outputs, or of its inputs."""

    def hook(module: Any, *given: Any) -> Any:
        return (given[-1][0] + change, *given[-1][1:]) if isinstance(given[-1], tuple) else given[-1] + change

    return hook


@contextmanager
def removed_after(handles: Iterable[Any]) -> Iterator[None]:
    """Removes hooks at the end of the block."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def plant(
    mechanism: str | Mechanism, dtype: torch.dtype | None = None, *, architecture: str = "gpt2", **parameters: Any
) -> PlantedModel:
    """Compile a learning algorithm into the weights of a transformer.

    Args:
        mechanism: A name of `MECHANISMS`, or a mechanism with its parameters.
        dtype: Of the weights; by default the widest in which the architecture computes.
        architecture: A name of `ARCHITECTURES`.
        parameters: Of the named mechanism: features, samples, and its own; the rest by default.
    Returns:
        A `PlantedModel` without obfuscation.
    Raises:
        EmulonError: The mechanism, a parameter or the architecture does not exist, or has an impossible value.

    Example:
        >>> plant("sgd", features=3, step_size=0.2).truth.blocks
        7
    """
    if isinstance(mechanism, str):
        mechanism = mechanism_named(mechanism, **parameters)
    return compiled(mechanism, dtype, Build(architecture=architecture))


def sample(seed: int, dtype: torch.dtype | None = None, *, architecture: str = "gpt2") -> PlantedModel:
    """Draw a planted model without obfuscation.

    Args:
        seed: Determines the mechanism and its parameters (see `drawn_mechanism`).
        dtype: Of the weights; by default the widest in which the architecture computes.
        architecture: A name of `ARCHITECTURES`.
    Returns:
        A `PlantedModel`.

    Example:
        >>> sample(3).mechanism == drawn_mechanism(3)
        True
    """
    return compiled(drawn_mechanism(seed), dtype, Build(architecture=architecture))


def compiled(mechanism: Mechanism, dtype: torch.dtype | None, build: Build) -> PlantedModel:
    """The mechanism compiled, without obfuscation."""
    architecture = ARCHITECTURES.named(build.architecture)
    dtype = architecture.dtypes[0] if dtype is None else dtype
    architecture.require(dtype)
    machine = architecture.compile(build.program(mechanism), dtype)
    truth = truth_of(machine)
    state = architecture.state(architecture.weights_of(machine), readout(truth), dtype)
    planted = PlantedModel(mechanism, truth, state, machine.certificate, build)
    return planted if useful(machine.certificate) else with_measured(planted)


def readout(truth: Truth) -> Tensor:
    """The direction of ŷ, (1, width): the row of the unembedding whose logit is ŷ."""
    return truth.registers[truth.version(truth.output).register].read


def useful(certificate: Certificate) -> bool:
    """Whether a bound is below the size of targets."""
    return certificate.is_informative(TARGET)


def with_measured(planted: PlantedModel) -> PlantedModel:
    """The same model with a measured bound instead of a proved one."""
    xs, ys = planted.draw(PROMPTS, seed=PROMPTS)
    worst = (planted(xs, ys).double() - planted.algorithm(xs, ys)).abs().nan_to_num(nan=math.inf).max().item()
    note = f"{MARGIN:g} times the worst of {PROMPTS} prompts; nothing useful is proved for every input"
    certificate = Certificate({"measured": MARGIN * worst}, planted.dtype, proved=False, note=note, assumes=())
    return replace(planted, certificate=certificate)
