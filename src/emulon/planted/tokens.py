"""Planted models that read and write numbers as words: tokens in, logits out.

A text is `x1 +0.25 -0.50 y1 +0.75 x2 … y3`, and the next word is the answer, `+0.31`. One more block stands before
those of the compiled program: at y_i its attention collects the numbers of x_i, at x_{i+1} that of y_i. The markers y1,
x2, y2, … are then the tokens x₁, y₁, x₂, … of the program, x1 is its start token, and everything after that block is as
in the model with `inputs_embeds`. The unembedding scores a number c by 2cŷ − c², highest for the nearest.

Claim. The word at y_i is the number nearest to the exact answer if that is further than `margin` from the middle
between two numbers.
Proof. Number words keep their pad in a slot of their own, so that the functional that reads 1 elsewhere reads 0 there,
and in every head they attend to number words only, and are attended to by number words only: scores differ by ISOLATED
one way or the other. By induction over blocks all registers are exactly zero there, and every other token computes what
it would without them. The collecting block reads with weight exactly 1: float32's exp of all other scores is zero
(`_steepness`). So ŷ is within the certificate of the model. With z = ŷ in units of the grid and k the number's
count of them, scores are 2kz − k², off by at most γ_n(2|k||ẑ| + k²) with |ẑ| the sum of absolute terms in ŷ; those of k
and k ± j differ by j(j − 1) + 2jm, m the distance from the boundary, so 2m above both errors is enough. QED
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Certificate
from emulon.certify.rounding import gamma
from emulon.core.errors import BadProgram, EmulonError, OutOfDomain
from emulon.core.files import checked, read_json, write_atomically, write_json
from emulon.core.hub import HubMixin, head_text, tokenizer_files
from emulon.interpreter.files import BadFile, whole
from emulon.machine.program import RegisterProgram
from emulon.machine.targets.llama_error import PAD_SIZE
from emulon.machine.targets.llama_registers import THETA, LlamaMachine, config_of
from emulon.planted.architecture import ARCHITECTURES, NORMS, WORD, Block, Weights
from emulon.planted.files import TRUTH, WEIGHTS, Record, read_tensors, same_json
from emulon.planted.mechanism import Mechanism, mechanism_named
from emulon.planted.model import Build, PlantedModel, plant, readout, useful, with_measured
from emulon.planted.obfuscation import Draft, certificate_of, drafted, model_from
from emulon.planted.truth import EMBEDDING, Arrangement, Truth, truth_of

SPECIAL = ("</s>", "<pad>", "<unk>")
STEP, MOST = 0.01, 1999
NEVER = 2.0**10
AGAIN = "write it again with emulon plant --tokens"


@dataclass(frozen=True)
class WordBuild(Build):
    """A build with slots for what the words of a text hold."""

    def program(self, mechanism: Mechanism) -> RegisterProgram:
        program = super().program(mechanism)
        program.register(WORD, 4)
        return program


@dataclass(frozen=True)
class Words:
    """The vocabulary: special words, the markers x1 y1 … xn yn, and the numbers −limit … +limit in hundredths.

    Where two algorithms are in one model, `switch` has words for values of x's first entry: the algorithm named behind
    x_i answers behind y_i.

    >>> Words(2, 3, 150).text([[0.25, -0.5], [0.1, 0.0]], [0.75])
    'x1 +0.25 -0.50 y1 +0.75 x2 +0.10 +0.00 y2'
    >>> Words(2, 3, 150, {"sgd": 0.5, "last-value": -0.5}).text([[0.5, 0.25], [-0.5, 0.1]], [0.75])
    'x1 sgd +0.25 y1 +0.75 x2 last-value +0.10 y2'
    """

    features: int
    samples: int
    most: int
    switch: Mapping[str, float] = field(default_factory=dict)

    @property
    def markers(self) -> list[str]:
        """In the order of the program's tokens; the first is its start token."""
        return [f"{letter}{i}" for i in range(1, self.samples + 1) for letter in "xy"]

    @property
    def counts(self) -> range:
        """The numbers, in hundredths."""
        return range(-self.most, self.most + 1)

    @cached_property
    def all(self) -> tuple[str, ...]:
        """Every word, in the order of the vocabulary."""
        return (*SPECIAL, *self.markers, *self.switch, *map(head_text, self.counts))

    @property
    def length(self) -> int:
        """Words of the longest text, the answer and the end included."""
        return self.samples * (self.features + 3) + 1

    def places(self, samples: int | None = None) -> list[int]:
        """Where the markers stand in a text of so many samples."""
        starts = [i * (self.features + 3) for i in range(self.samples if samples is None else samples)]
        return [place for start in starts for place in (start, start + self.features + 1)]

    def text(self, xs: Any, ys: Any) -> str:
        """The text of a prompt; the last x has no y.

        Raises:
            OutOfDomain: A number is not in the vocabulary.
        """
        rows, targets = (torch.as_tensor(part, device="cpu").double().tolist() for part in (xs, ys))
        words = []
        for i, row in enumerate(rows):
            named = [self.named(row[0])] if self.switch else []
            words += [f"x{i + 1}", *named, *map(self.number, row[len(named) :]), f"y{i + 1}"]
            words += [self.number(targets[i])] if i + 1 < len(rows) else []
        return " ".join(words)

    def number(self, value: float) -> str:
        """The word of the nearest hundredth."""
        count = round(value / STEP) if math.isfinite(value) else self.most + 1
        if abs(count) > self.most:
            raise OutOfDomain(f"{value:.6g} is no word of this model, whose numbers go to {self.most * STEP:.2f}")
        return head_text(count)

    def named(self, value: float) -> str:
        """The word of the switch for this value of x's first entry."""
        for word, meant in self.switch.items():
            if abs(value - meant) < STEP / 2:
                return word
        raise OutOfDomain(f"the first entry of x is one of {sorted(self.switch.values())}, not {value:.6g}")


CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [interpretability, ground-truth, in-context-learning, emulon]
---
# {name}, in words

A `LlamaForCausalLM` whose mechanism is known: its weights were compiled from the program below, not trained. Behind
y1, y2, … it writes what the algorithm predicts from the examples before, to the nearest of {count} numbers.

```python
from transformers import pipeline

answer = pipeline("text-generation", model="this folder", dtype="float32")
answer("{example}", return_full_text=False)[0]["generated_text"]
```

Inputs: ‖x‖ ≤ 1 and |y| ≤ 1, in hundredths, at most {samples} examples. **Error.** |ŷ − exact answer| {error}, before ŷ
is rounded to a word. **Truth.** `truth.json` has directions, heads and neurons as for other planted models; its tokens
are the markers, whose places in a text are `words.places`.

```text
{program}
```
"""


@dataclass(frozen=True, eq=False)
class TokenModel(HubMixin):
    """A planted `LlamaForCausalLM` with a vocabulary of numbers.

    Attributes:
        planted: The model of the same program with `inputs_embeds`: the algorithm, and what registers hold.
        truth: What is where in `network`; tokens are counted as the program counts them, and `words.places` has their
            places in a text.
        state: The parameters of `network`.
        words: The vocabulary.
        reach: Bound on the sum of absolute terms when ŷ is read off the stream, beyond |ŷ| itself.
    """

    planted: PlantedModel
    truth: Truth
    state: dict[str, Tensor]
    words: Words
    reach: float

    def _write(self, folder: Path) -> None:
        from safetensors.torch import save

        write_json(folder / "config.json", {"architectures": ["LlamaForCausalLM"], **self.config})
        special = {name: value for name, value in self.config.items() if name.endswith("_token_id")}
        write_json(folder / "generation_config.json", {**special, "do_sample": False, "max_length": self.words.length})
        for name, content in tokenizer_files(self.words.all, begins=False).items():
            write_json(folder / name, content)
        write_atomically(folder / WEIGHTS, save(self.state, metadata={"format": "pt"}))
        write_json(folder / TRUTH, self._record())
        write_atomically(folder / "README.md", self._card())

    @classmethod
    def _read(cls, folder: Path) -> TokenModel:
        with whole(folder / TRUTH, AGAIN):
            table = read_json(folder / TRUTH)
            build, most = checked(WordBuild, table["build"], "build"), checked(int, table["words"]["most"], "most")
            made = _built(mechanism_named(**table["mechanism"]), build, most)
            wanted = json.loads(json.dumps(made._record()))
        same = ("format", "mechanism", "program", "words")
        if any(table.get(name) != wanted[name] for name in same) or not same_json(table["truth"], wanted["truth"]):
            raise BadFile(f"{folder / TRUTH} says otherwise than what emulon compiles {made.name} to; {AGAIN}")
        state = read_tensors(folder, AGAIN)
        if {name: part.shape for name, part in state.items()} != {name: one.shape for name, one in made.state.items()}:
            raise BadFile(f"{folder / WEIGHTS} has other tensors than {made.name}; {AGAIN}")
        if all(torch.equal(part, state[name]) for name, part in made.state.items()):
            return made
        unknown = Certificate({"unknown": math.inf}, torch.float32, proved=False, note="the weights have changed")
        return replace(made, state=state, planted=replace(made.planted, certificate=unknown))

    def _record(self) -> dict[str, Any]:
        """The content of truth.json: that of other planted models, and what is in words."""
        words = {"most": self.words.most, "step": STEP, "places": self.words.places()}
        words |= {"switch": dict(self.words.switch)} if self.words.switch else {}
        return {**asdict(Record.of(replace(self.planted, truth=self.truth))), "words": words}

    def _card(self) -> str:
        facts = {"name": self.name, "error": self.planted.error_bound, "program": self.planted.source}
        example = self.words.text(*(part[0] for part in self.draw(1)))
        return CARD.format(**facts, example=example, count=len(self.words.counts), samples=self.words.samples)

    @property
    def certificate(self) -> Certificate:
        """Bound on |ŷ − exact answer| before ŷ is rounded to a word."""
        return self.planted.certificate

    @property
    def name(self) -> str:
        """The mechanism with its parameters, and the obfuscations."""
        return self.planted.name

    @cached_property
    def network(self) -> Any:
        """The `LlamaForCausalLM`."""
        return language_model(self.config, self.state)

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says."""
        bare = {name.removeprefix("model."): part for name, part in self.state.items()}
        config = config_of(bare, self.truth.heads)
        special = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 1}
        return {**config, **special, "max_position_embeddings": self.words.length, "use_cache": True}

    def encode(self, text: str) -> list[int]:
        """The numbers of a text's words."""
        numbers = {word: number for number, word in enumerate(self.words.all)}
        return [numbers.get(word, numbers["<unk>"]) for word in text.split()]

    def draw(self, batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """xs (batch, samples, features) and ys (batch, samples) of `planted.task`, in hundredths.

        They are rounded towards zero, so that they stay in the domain.
        """
        xs, ys = ((part / STEP + 1e-9 * part.sign()).trunc() * STEP for part in self.planted.draw(batch, seed))
        return xs, ys

    def __call__(
        self, xs: Float[Tensor, "batch samples features"], ys: Float[Tensor, "batch targets"]
    ) -> Float[Tensor, "batch samples"]:
        """The numbers that the network writes at every y_i: the most likely words among all."""
        texts = [self.words.text(rows, targets) for rows, targets in zip(xs, ys, strict=True)]
        with torch.no_grad():
            logits = self.network(torch.tensor([self.encode(text) for text in texts], device="cpu")).logits
        best = logits[:, self.words.places(xs.shape[1])[1::2]].argmax(dim=-1)
        values = [math.nan] * (len(self.words.all) - len(self.words.counts)) + [k * STEP for k in self.words.counts]
        return torch.tensor(values, dtype=torch.float64, device="cpu")[best]

    def exact(self, xs: Tensor, ys: Tensor) -> Tensor:
        """The algorithm's answers at every x_i, before they are rounded to a word."""
        missing = xs.shape[-2] - ys.shape[-1]
        rounded = xs.float().double(), torch.nn.functional.pad(ys, (0, missing)).float().double()
        return self.planted.mechanism.algorithm(*rounded)

    def margin(self, exact: Tensor) -> Tensor:
        """How far an exact answer must be from the middle between two numbers for its word to be certain."""
        bound = self.certificate.bound
        z = (exact.abs() + bound) / STEP
        terms = z + (self.reach / STEP if self.reach else 0.0)
        k = (z + 1).clamp(max=self.words.most)
        error = 2 * gamma(max(2, self.truth.width if self.reach else 2), torch.float32) * (2 * k * terms + k.square())
        return bound + STEP * error / 2

    def certain(self, exact: Tensor) -> Tensor:
        """Whether the words of these exact answers are certain."""
        z = exact / STEP
        distance = STEP * (z - z.floor() - 0.5).abs()
        outside = exact.abs() > self.words.most * STEP  # nearer to the last word than to any other, by more than half
        return outside | (distance > self.margin(exact))

    def in_stream(self, version: str, amounts: Tensor, samples: int | None = None) -> Tensor:
        """What to add to the stream, (..., words, width), to add amounts to a version; see `Truth.in_stream`."""
        change = self.truth.in_stream(version, amounts)
        places = self.words.places(samples)
        out = change.new_zeros(*change.shape[:-2], places[-1] + 1, change.shape[-1])
        out[..., places, :] = change[..., : len(places), :]
        return out

    def __repr__(self) -> str:
        truth = self.truth
        shape = f"{truth.blocks} blocks, width {truth.width}, {truth.heads} heads, {len(self.words.all)} words"
        return f"TokenModel({self.name}: LlamaForCausalLM, {shape}, error {self.planted.error_bound})"


def language_model(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Any:
    """A `LlamaForCausalLM` with these parameters, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("cpu"):
        model: Any = LlamaForCausalLM(LlamaConfig(**config))  # type: ignore[no-untyped-call]  # unannotated
    model = model.float().eval()
    model.load_state_dict(state)
    return model.requires_grad_(False)


def tokenized(model: PlantedModel | Mechanism | str, limit: float = 2.0, **parameters: Any) -> TokenModel:
    """A planted Llama that reads numbers as words and answers with one.

    Args:
        model: A planted Llama, plain or obfuscated, a mechanism or its name.
        limit: The largest number; the words are the hundredths from −limit to limit.
        parameters: Of the named mechanism.
    Returns:
        The model of words, with the truth and a bound.
    Raises:
        EmulonError: The model is no Llama, the limit is below 1 or above 19.99, or nothing useful is proved of it.

    Example:
        >>> tokenized("sgd", samples=3)([[[0.5, 0.25], [0.25, 0.5], [0.5, 0.5]]], [[0.5, 0.25]])
    """
    if not isinstance(model, PlantedModel):
        model = plant(model, architecture="llama", **parameters)
    most = round(limit / STEP)
    if model.build.architecture != "llama" or not 1 / STEP <= most <= MOST:
        raise EmulonError(f"words are for planted Llamas, with a limit of 1 to {MOST * STEP:.2f}, got {limit}")
    build = WordBuild(**{**asdict(model.build), "obfuscations": model.build.obfuscations})
    return _built(model.mechanism, build, most)


def _built(mechanism: Mechanism, build: WordBuild, most: int) -> TokenModel:
    draft = drafted(mechanism, torch.float32, build)
    planted, rotated, reach = model_from(draft, mechanism), draft.arranged.rotation is not None, 0.0
    if rotated:  # collected numbers are written to rotated rows, and rounded there
        changed = gamma(mechanism.features + 4, torch.float32)
        planted = replace(planted, certificate=certificate_of(draft, changed))
        reach = float(readout(planted.truth).norm()) * (draft.plan.normalisation.content + draft.dead_norm)
    planted = planted if useful(planted.certificate) else with_measured(planted)
    words = Words(mechanism.features, mechanism.samples, most, mechanism.switch)
    surrounded, architecture = _Surrounded(draft, planted.truth, words), ARCHITECTURES["llama"]
    weights = Weights(surrounded.embedding(), surrounded.blocks(), surrounded.gain)
    state = architecture.state(weights, surrounded.unembedding(), torch.float32)
    named = {architecture.saved_name(name): part for name, part in state.items()}
    return TokenModel(planted, _truth(draft, surrounded.heads), named, words, reach)


def _truth(draft: Draft, heads: int) -> Truth:
    """The truth with one block more, which writes the inputs, and more heads."""
    inner = draft.arranged
    heads_of, units = ([orders[0], *orders] if orders else [] for orders in (inner.heads, inner.units))
    outer = Arrangement(inner.blocks + 1, [place + 1 for place in inner.places], heads_of, units, inner.rotation)
    truth = truth_of(draft.machine, outer)
    versions = tuple(
        replace(one, layer=0, part="attention") if one.register in ("x", "y") and one.layer == EMBEDDING else one
        for one in truth.versions
    )
    word = replace(truth.registers[WORD], kind="input", labels=("pad", "number", "role", "start"))
    return replace(truth, heads=heads, versions=versions, registers={**truth.registers, WORD: word})


# Entries of the slots `word`: a number's pad and its value, +1 at y_i and −1 at x_i, 1 at the start.
PAD, VALUE, ROLE, FIRST = range(4)
# Differences of scores: between number words and others in every block, and least in the collecting one.
ISOLATED, LEAST, STEEPEST = 2.0**30, 128.0, 2.0**24


class _Surrounded:
    """A draft's weights and what surrounds them; rows are functionals of the normalised stream."""

    def __init__(self, draft: Draft, truth: Truth, words: Words) -> None:
        assert isinstance(draft.machine, LlamaMachine)
        self.draft, self.truth, self.words, self.layout = draft, truth, words, draft.machine.layout
        self.word, self.size = self.layout.read(WORD), self.layout.head_width
        self.start = self.layout.slots[WORD].start
        self.heads = max(truth.heads, words.features + 1)
        self.gain = self._with_pad(draft.weights.gain)
        # All pairs of RoPE's places but the slowest, which says where a head has nothing to read.
        self.frequencies = [float(THETA ** (-2 * pair / self.size)) for pair in range(self.size // 2 - 1)]

    def blocks(self) -> list[Block]:
        """The collecting block, then the program's, where number words see one another only."""
        return [self._collecting(), *(self._isolated(block) for block in self.draft.weights.blocks)]

    def embedding(self) -> Tensor:
        """Rows for special words, for the markers, and for numbers."""
        markers = self.draft.weights.positions.clone()
        markers[1::2, self.start + ROLE] = 1.0
        markers[2::2, self.start + ROLE] = -1.0
        markers[0, self.start + FIRST] = 1.0
        values = markers.new_tensor([*self.words.switch.values(), *(k * STEP for k in self.words.counts)])
        numbers = markers.new_zeros(len(SPECIAL) + len(values), markers.shape[1])
        numbers[:, self.start + PAD] = PAD_SIZE
        numbers[len(SPECIAL) :, self.start + VALUE] = values
        return torch.cat([numbers[: len(SPECIAL)], markers, numbers[len(SPECIAL) :]])

    def unembedding(self) -> Tensor:
        """2kz − k² for the number k·STEP, z = ŷ/STEP; behind a number the first word, which ends the text."""
        counts, one = torch.tensor([*self.words.counts], dtype=torch.float64, device="cpu"), self.layout.constant()
        rows = -NEVER * one.expand(len(self.words.all), -1).clone()
        rows[-len(counts) :] = 2 * counts[:, None] * (readout(self.truth) / STEP) - counts.square()[:, None] * one
        rows[0] += NEVER * self.word[PAD]
        return rows

    def _with_pad(self, gain: Tensor) -> Tensor:
        """The gain with which the pads of number words read as 1."""
        gain = gain.clone()
        gain[self.start + PAD] = 1 / math.sqrt(self.layout.width)
        return gain

    def _isolated(self, block: Block) -> Block:
        """More heads, and in each one place of RoPE's slowest pair in which number words know one another."""
        parts = {name: self._more_heads(getattr(block, name)) for name in ("query", "key", "value", "output")}
        parts["query"][:, -1] = ISOLATED * math.sqrt(self.size) * (self.word[PAD] - self.layout.constant())
        parts["key"][:, -1] = self.word[PAD]
        fixed = {name: self._with_pad(part) if name == NORMS[0] else part for name, part in block.fixed.items()}
        return Block(**parts, inward=block.inward, outward=block.outward, fixed=fixed)

    def _more_heads(self, part: Tensor) -> Tensor:
        return torch.cat([part, part.new_zeros(self.heads - len(part), *part.shape[1:])])

    def _collecting(self) -> Block:
        """One head for each feature, which reads at y_i so many words back, and one for y, which reads at x_i one back.

        Where a head has nothing to read, it reads the start, whose value is zero.
        """
        empty = self.draft.weights.dead_block()
        one, root, pairs = self.layout.constant(), math.sqrt(self.size), len(self.frequencies)
        names = ("query", "key", "value", "output")
        parts = {name: self._more_heads(torch.zeros_like(getattr(empty, name))) for name in names}
        registers, features = self.truth.registers, self.words.features
        reads = [(features - j, row, 1.0) for j, row in enumerate(registers["x"].write)]
        reads.append((1, registers["y"].write[0], -1.0))
        for head, (back, row, role) in enumerate(reads):
            size = self._steepness(back)
            for pair, frequency in enumerate(self.frequencies):
                angle = frequency * back
                parts["query"][head, pair] = size * root * math.cos(angle) * one
                parts["query"][head, pair + self.size // 2] = -size * root * math.sin(angle) * one
                parts["key"][head, pair] = self.word[PAD]
            sink = 4 * size * pairs * root
            parts["query"][head, -1] = sink * (self.word[PAD] + one - role * self.word[ROLE])
            parts["key"][head, -1] = self.word[FIRST]
            parts["value"][head, 0], parts["output"][head, 0] = self.word[VALUE], row
        fixed = {name: self.gain.clone() for name in empty.fixed}
        return Block(**parts, inward=empty.inward, outward=empty.outward, fixed=fixed)

    def _steepness(self, back: int) -> float:
        """A, the least power of two with which a number so many words back beats all others by LEAST.

        Pair j of a head turns by ω_j a word, and a query turned by ω_j·k scores A·Σ_j cos ω_j(δ − k) against a number
        δ words back: highest at δ = k. Angles are off by ε_j = ω_j·context·2⁻²¹, so that cosines are off by ε²/2 at
        δ = k and by |sin|ε + ε²/2 elsewhere; products and sums by γ₈ of A times the pairs' number.
        """
        context = self.words.length
        distance = torch.arange(context, dtype=torch.float64, device="cpu")
        distance = distance[distance != back]
        lost = torch.zeros_like(distance)
        for omega in self.frequencies:
            angle, off = omega * (distance - back), omega * context * 2.0**-21
            lost += 1 - angle.cos() - angle.sin().abs() * off - off**2
        least = float(lost.min()) - 2 * len(self.frequencies) * gamma(8, torch.float32)
        if least * STEEPEST < LEAST:
            raise BadProgram(f"{back} words back in a text of {context} is too near others; use fewer samples")
        return 2.0 ** math.ceil(math.log2(LEAST / least))
