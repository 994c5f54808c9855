"""A planted model: a GPT-2 that runs a known mechanism, the truth about it, and what is promised."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Certificate
from emulon.certify.balls import FloatBall
from emulon.certify.domain import require_shape
from emulon.core.errors import BadShape
from emulon.core.predictor import padded_prefixes
from emulon.machine.carry_out import at_start, distance, results
from emulon.machine.targets.gpt2 import load_gpt2, state_dict
from emulon.machine.program import RegisterProgram
from emulon.machine.transformer import result_name
from emulon.planted.distractors import add_distractors
from emulon.planted.ground_truth import truth_of
from emulon.planted.interventions import nudged
from emulon.planted.mechanism import TARGET, Mechanism
from emulon.planted.task import BoundedLinear
from emulon.planted.truth import Truth

# Directions that nothing uses, in every planted model.
SPARE = 2
# Where nothing useful can be proved the worst of so many prompts, so many times over, is given instead: measured.
PROMPTS, MARGIN = 512, 4.0


@dataclass(frozen=True)
class Build:
    """What a planted model was made of beside its mechanism: enough to make its program again."""

    distractors: int = 0
    seed: int = 0
    obfuscations: tuple[str, ...] = ()
    strength: float = 1.0

    def program(self, mechanism: Mechanism) -> RegisterProgram:
        examples = mechanism.examples()
        output = mechanism.add(examples)
        add_distractors(examples, self.distractors, torch.Generator().manual_seed(self.seed))
        examples.program.register("spare", SPARE)
        return examples.program.returns(output)


@dataclass(frozen=True, eq=False)
class PlantedModel:
    """`planted(xs, ys)` are the model's answers, `planted.algorithm(xs, ys)` the exact ones; it is a predictor.

    `state` has the parameters of its `GPT2Model`, by their names there; `gpt2` is that model.
    """

    mechanism: Mechanism
    truth: Truth
    state: Mapping[str, Tensor]
    certificate: Certificate
    build: Build = field(default_factory=Build)

    @property
    def name(self) -> str:
        return str(self.mechanism) + (
            f", obfuscated ({', '.join(self.build.obfuscations)})" if self.build.obfuscations else ""
        )

    @property
    def promise(self) -> str:
        """The certificate in words; a bound that was only measured is not called one for every input."""
        if self.certificate.proved:
            return str(self.certificate)
        return f"≤ {self.certificate.bound:.2e}, measured ({self.certificate.note})"

    @property
    def dtype(self) -> torch.dtype:
        return self.state["wpe.weight"].dtype

    @cached_property
    def gpt2(self) -> Any:
        """A `transformers.GPT2Model`, to be called with `inputs_embeds=planted.embed(xs, ys)`."""
        return load_gpt2(self.state, self.truth.heads)

    @property
    def model(self) -> Any:
        """The name of `gpt2` in 0.2."""
        warnings.warn("PlantedModel.model is gpt2 since 0.3", DeprecationWarning, stacklevel=2)
        return self.gpt2

    @cached_property
    def source(self) -> RegisterProgram:
        """The program that the weights were compiled from."""
        return self.build.program(self.mechanism)

    def algorithm(
        self, xs: Float[Tensor, "... samples features"], ys: Float[Tensor, "... targets"]
    ) -> Float[Tensor, "... samples"]:
        """The exact algorithm in float64, on the numbers that the model sees."""
        return self.mechanism.algorithm(*(part.to(self.dtype).double() for part in (xs, self._all_targets(xs, ys))))

    def embed(
        self, xs: Float[Tensor, "... samples features"], ys: Float[Tensor, "... targets"]
    ) -> Float[Tensor, "... tokens width"]:
        """The prompt as GPT-2's `inputs_embeds`: a start token, x₁, y₁, x₂, …; data outside the domain are refused."""
        embedded = xs.new_zeros((*xs.shape[:-2], self.truth.tokens - 1, self.truth.width), dtype=self.dtype)
        for name, values in self.inputs(xs, ys).items():
            self.source.inputs[name].require(name, values)
            embedded = embedded + values @ self.truth.registers[name].write.to(self.dtype)
        return torch.nn.functional.pad(embedded, (0, 0, 1, 0))

    def inputs(self, xs: Tensor, ys: Tensor) -> dict[str, Tensor]:
        """The input registers x and y, (..., tokens, size), as the model sees them."""
        prompt = self.source.prompt
        assert prompt is not None
        filled = prompt.fill(xs.to(self.dtype), self._all_targets(xs, ys).to(self.dtype))
        return dict(filled)

    def answers(self, hidden: Float[Tensor, "... tokens width"]) -> Float[Tensor, "... samples"]:
        """ŷ at every x, read off the model's last hidden state."""
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
        """The model's answers; with `added={"w#2": amounts}` those where so much was added to what w#2 holds."""
        embedded = self.embed(xs, ys)
        with torch.no_grad(), nudged(self.gpt2, self.truth, added or {}):
            hidden = self.gpt2(inputs_embeds=embedded.reshape(-1, *embedded.shape[-2:])).last_hidden_state
        return self.answers(hidden.reshape(embedded.shape))

    # As a predictor.

    @property
    def examples(self) -> tuple[int, ...]:
        return tuple(range(1, self.mechanism.samples))

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        points = torch.cat([xs, x_query.unsqueeze(-2)], dim=-2)
        return self.predict_prefixes(points, ys)[..., -1]

    def predict_prefixes(self, xs: Tensor, ys: Tensor) -> Tensor:
        """ŷ_i at every x_i; the last target may be left out, and so may later examples."""
        return padded_prefixes(self, self.mechanism.samples, xs, ys)

    # What every register must hold, and how far the answers are from it.

    def values(
        self, xs: Tensor, ys: Tensor, *, added: Mapping[str, Tensor] | None = None
    ) -> dict[str, Float[Tensor, "... tokens size"]]:
        """By version (`w#2`), what a register's stored entries must be, exactly, at every token but the start.

        With `added` what they must be after the intervention: what the program itself says.
        """
        inputs = {name: part.double() for name, part in self.inputs(xs, ys).items()}
        held = at_start(self.source, inputs, FloatBall)
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
        """ŷ at every x as the program has it; with `added`, after the intervention."""
        return self.values(xs, ys, added=added)[self.truth.output][..., 0::2, 0]

    def audit(self, xs: Tensor, ys: Tensor) -> Certificate:
        """How far these very answers are from the program's, proved in balls: for this run only."""
        prompt, program = self.source.prompt, self.source
        assert prompt is not None
        said = torch.zeros(*xs.shape[:-2], program.tokens, 1, dtype=torch.float64, device="cpu")
        said[..., 0::2, 0] = self(xs, ys).double()
        inputs = {name: part.double() for name, part in self.inputs(xs, ys).items()}
        away = distance(program, inputs, self.output, said)[..., 0::2, :].nan_to_num(nan=math.inf)
        return Certificate({"distance to the instructions": away.max().item()}, self.dtype, scope="run")

    @property
    def task(self) -> BoundedLinear:
        """Data inside its domain."""
        return BoundedLinear(self.mechanism.features, self.mechanism.samples)

    def draw(self, batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """xs (batch, samples, features) and ys (batch, samples) of `task`, in float64."""
        return self.task.held_out(seed, batch, self.mechanism.samples).pairs

    def _all_targets(self, xs: Tensor, ys: Tensor) -> Tensor:
        samples, features = self.mechanism.samples, self.mechanism.features
        require_shape(xs, "xs", samples, features)
        if ys.shape[:-1] != xs.shape[:-2] or ys.shape[-1] not in (samples, samples - 1):
            raise BadShape(f"ys has shape {tuple(ys.shape)}, wanted {(*xs.shape[:-2], samples)}")
        return torch.nn.functional.pad(ys, (0, samples - ys.shape[-1]))

    def __repr__(self) -> str:
        truth = self.truth
        shape = f"{truth.blocks} blocks, width {truth.width}, {truth.heads} heads, {truth.neurons} neurons"
        return f"PlantedModel({self.name}: {shape}, error {self.promise})"


def compiled(mechanism: Mechanism, dtype: torch.dtype = torch.float64, build: Build | None = None) -> PlantedModel:
    """The mechanism compiled, without obfuscation."""
    build = Build() if build is None else build
    machine = build.program(mechanism).compile(dtype)
    truth = truth_of(machine)
    planted = PlantedModel(mechanism, truth, with_readout(state_dict(machine), truth), machine.certificate, build)
    return planted if useful(machine.certificate) else with_measured(planted)


def with_readout(state: Mapping[str, Tensor], truth: Truth) -> dict[str, Tensor]:
    """The weights with ŷ's direction in place of word embeddings, which nobody reads by: a language model's logits,
    one a token, are then ŷ."""
    read = truth.registers[truth.version(truth.output).register].read
    return {**state, "wte.weight": read.to(state["wte.weight"])}


def useful(certificate: Certificate) -> bool:
    """Whether a bound says more than that answers are about as large as targets."""
    return certificate.says_something(TARGET)


def with_measured(planted: PlantedModel) -> PlantedModel:
    """The same with a bound that was measured, where none can be proved for the whole domain."""
    xs, ys = planted.draw(PROMPTS, seed=PROMPTS)
    worst = (planted(xs, ys).double() - planted.algorithm(xs, ys)).abs().nan_to_num(nan=math.inf).max().item()
    note = f"{MARGIN:g} times the worst of {PROMPTS} prompts; nothing useful is proved for every input"
    certificate = Certificate({"measured": MARGIN * worst}, planted.dtype, proved=False, note=note, assumes=())
    return PlantedModel(planted.mechanism, planted.truth, planted.state, certificate, planted.build)
