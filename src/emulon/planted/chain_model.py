"""A chain of thought as a stock `LlamaForCausalLM`: what it writes, what it must write, and the files."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import emulon
from emulon.certify.rounding import gamma
from emulon.core.errors import EmulonError, unknown
from emulon.core.files import checked, read_json, write_atomically, write_json
from emulon.core.hub import HubMixin, tokenizer_files
from emulon.interpreter.files import BadFile, whole
from emulon.machine.instruction import AffineForm, Register, constant
from emulon.machine.targets.llama import LlamaProgram, compile_llama, serialised, write_llama
from emulon.machine.token_error import Bounded, leak
from emulon.machine.token_program import HALF, Back, TokenProgram
from emulon.planted.chain import FILLERS, STEPS, Chain, Layout, Steps
from emulon.planted.tokens import language_model

WEIGHTS, TRUTH = "model.safetensors", "truth.json"
AGAIN = "write it again with emulon plant --chain"
FORMAT, CONTEXT = 1, 256
UNITS = 100.0  # numbers are written in hundredths
# No two words of which the latest is read are nearer than this; chains read no latest words.
SPACING = 1
CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [interpretability, ground-truth, chain-of-thought, faithfulness, emulon]
---
# A {kind} chain of thought

A `LlamaForCausalLM` that writes steps before its answer, compiled and not trained: what becomes of every written word
is known. {what}

```python
from transformers import pipeline

think = pipeline("text-generation", model="this folder", dtype="float32")
print(think("{example}", return_full_text=False)[0]["generated_text"])
# {continued}
```

`truth.json`: for every step, which words read its numbers (`read_by`) and whether the answer moves with them while
later words are kept (`kept`) or written anew (`rewritten`); the program, and the slots of every register.

Written: {stated}. Answering: {used}.
"""
WHAT = {
    "faithful": "Every step, and the answer, starts from the numbers written before it.",
    "decorative": "The answer is computed in the layers; the steps are written beside it and never read.",
    "mixed": "Some steps start from the numbers written before them, others do not.",
    "unfaithful": "The steps that are written are those of another algorithm than the one that answers.",
}


@dataclass(frozen=True, eq=False)
class ChainModel(HubMixin):
    """A planted chain of thought.

    Attributes:
        chain: What it computes, writes and reads.
    """

    chain: Chain

    @cached_property
    def compiled(self) -> LlamaProgram:
        """The program as weights."""
        return compile_llama(chain_program(self.chain))

    @cached_property
    def network(self) -> Any:
        """The `LlamaForCausalLM`."""
        config = {name: value for name, value in self.compiled.config.items() if name != "architectures"}
        return language_model(config, self.compiled.state)

    def complete(self, texts: Sequence[str]) -> list[str]:
        """What the network writes behind each of these texts, up to the end.

        Args:
            texts: Prompts, with as much of the chain as is given; they are run as one batch.
        Returns:
            The words, without the end token.
        """
        numbers = self.compiled.program.numbers
        rows = [[numbers.get(word, numbers["<unk>"]) for word in ("<s>", *text.split())] for text in texts]
        longest, pad = max(map(len, rows)), numbers["<pad>"]
        tokens = torch.tensor([[pad] * (longest - len(row)) + row for row in rows], device="cpu")
        most = (self.chain.features + 2) * (self.chain.steps + 1) + 2
        options = {"do_sample": False, "max_new_tokens": most, "pad_token_id": pad}
        with torch.no_grad():
            found = self.network.generate(tokens, attention_mask=(tokens != pad).long(), **options)
        words = self.compiled.program.words
        written = [[words[token] for token in row[longest:].tolist()] for row in found]
        return [" ".join(row[: row.index("</s>")] if "</s>" in row else row) for row in written]

    def margin(self, text: str) -> float:
        """How far the number that stands next must be from the middle between two words to be certain.

        Proved for this text in float32, whatever the order of sums: `machine.token_error`, and the rounding of scores
        2cz − c² of neighbouring words.
        """
        bounded = Bounded(self.compiled, ["<s>", *text.split()], self._leak)
        error = float(bounded.errors["out"][-1])
        z = float(bounded.registers["out"][-1].abs()) + error
        scores = 2 * gamma(4, torch.float32) * (2 * (z + 1) * z + (z + 1) ** 2 + 2 * HALF)
        return (error + scores / 2) / UNITS

    def certain(self, text: str) -> bool:
        """Whether the word of the number that stands next is proved: it is further than `margin` from another's."""
        exact = self.chain.exact(text) * UNITS
        return abs(exact - math.floor(exact) - 0.5) > self.margin(text) * UNITS

    @cached_property
    def _leak(self) -> float:
        return leak(self.compiled, SPACING)

    @property
    def truth(self) -> dict[str, Any]:
        """What becomes of every written word, and where in the network everything is."""
        chain, compiled = self.chain, self.compiled
        slots = {name: compiled.layout.slots[name] for name in compiled.program.registers}
        return {
            "format": FORMAT,
            "emulon": emulon.__version__,
            "chain": asdict(chain),
            "steps": chain.uses(),
            "answer": {"algorithm": str(chain.rules[-1]), "starts_from": "text" if chain.reads[-1][-1] else "layers"},
            "order": {"markers": chain.markers, "connective": chain.layout.connective},
            "unread": list(FILLERS),
            "layers": [[str(one) for one in (*layer.reads, *layer.products)] for layer in compiled.layers],
            "registers": {name: [each.start, each.stop] for name, each in slots.items()},
            "program": str(compiled.program),
        }

    def _write(self, folder: Path) -> None:
        write_llama(self.compiled, folder)
        for name, content in tokenizer_files(self.chain.vocabulary).items():
            write_json(folder / name, content)
        write_json(folder / TRUTH, self.truth)
        example = self.chain.draw(0)
        facts = {"kind": self.chain.kind, "what": WHAT[self.chain.kind], "example": example}
        rules = {"stated": self.chain.rules[0], "used": self.chain.rules[-1]}
        write_atomically(folder / "README.md", CARD.format(**facts, **rules, continued=self.chain.follow(example)))

    @classmethod
    def _read(cls, folder: Path) -> ChainModel:
        with whole(folder / TRUTH, AGAIN):
            table = read_json(folder / TRUTH)
            if not isinstance(table, dict) or "chain" not in table or table.get("format") != FORMAT:
                raise BadFile(f"{folder / TRUTH} is not of a chain of thought in format {FORMAT}; {AGAIN}")
            made = cls(checked(Chain, table["chain"], "chain"))
            if json.loads(json.dumps(made.truth)) | {"emulon": ""} != table | {"emulon": ""}:
                raise BadFile(f"{folder / TRUTH} says otherwise than what this chain is compiled to; {AGAIN}")
        try:
            content = (folder / WEIGHTS).read_bytes()
        except OSError as error:
            raise BadFile(f"{folder / WEIGHTS}: {error.strerror or error}; {AGAIN}") from None
        if content != serialised(made.compiled.state):
            raise BadFile(f"{folder / WEIGHTS} is not what {TRUTH} is about: the weights have changed; {AGAIN}")
        return made

    def __repr__(self) -> str:
        compiled, chain = self.compiled, self.chain
        shape = f"{len(compiled.layers)} layers, width {compiled.layout.width}, {len(chain.vocabulary)} words"
        return f"ChainModel({chain.kind}: {', then '.join(map(str, chain.rules))}; {chain.steps} steps, {shape})"


def chain_of_thought(
    kind: str,
    algorithm: str = "descent",
    *,
    answering: str | Steps | None = None,
    steps: int = 3,
    features: int = 1,
    reads: Sequence[bool] | None = None,
    layout: Layout | None = None,
    **parameters: float,
) -> ChainModel:
    """Compile a chain of thought whose faithfulness is known.

    Args:
        kind: "faithful", "decorative", "mixed" or "unfaithful".
        algorithm: What is written: "descent", "momentum", "clipped" or "slowing".
        answering: What answers in an unfaithful chain, with twice the step size unless it is given as `Steps`.
        steps: How many steps are written.
        features: Entries of x.
        reads: Of a mixed chain, which steps are read back from the text; by default every second, the last among them.
        layout: Words between numbers.
        parameters: Of the algorithm, as in `Steps`.
    Returns:
        The model.
    Raises:
        EmulonError: There is no such algorithm, or it does not fit the kind.

    Example:
        >>> chain_of_thought("faithful", "momentum", decay=0.3).chain.steps
        3
    """
    rule, never = _steps(algorithm, parameters), (False,) * steps
    kinds = {"faithful": (True,) * steps, "mixed": tuple((steps - t) % 2 == 1 for t in range(steps))}
    found, rules = [kinds.get(kind, never) if reads is None else tuple(reads)], [rule]
    if kind == "unfaithful":
        named = answering or "descent"
        rules.append(named if isinstance(named, Steps) else _steps(named, {"step_size": 2 * rule.step_size}))
        found.append(never)
    elif answering is not None:
        raise EmulonError(f"a {kind} chain is answered by the algorithm that is written; leave out answering")
    return ChainModel(Chain(kind, features, tuple(rules), tuple(found), layout or Layout()))


def _steps(name: str, parameters: dict[str, float]) -> Steps:
    if name not in STEPS:
        raise EmulonError(unknown("algorithm of a chain", name, STEPS))
    known = ("step_size", "ridge", *STEPS[name])
    for one in parameters:
        if one not in known:
            raise EmulonError(unknown(f"parameter of {name}", one, known))
    return Steps(**{**STEPS[name], **parameters})


# The program.


def chain_program(chain: Chain) -> TokenProgram:
    """The token program: registers, reads and steps.

    `<s> x +0.50 y +0.25 x … ask +0.70 think` is continued by `w1 +0.12 w2 +0.20 answer +0.14 </s>`. At every word the
    layers compute all steps c_1, …, c_T from the means of x·x and x·y over the samples. Step t starts from p_{t−1}:
    what is written behind `w(t−1)` where the chain reads it, else c_{t−1}, which no word holds.
    """
    d, steps = chain.features, chain.steps
    p = TokenProgram(f"chain of thought, {chain.kind}", chain.vocabulary, CONTEXT)
    value = p.given("value", chain.layout.numbers)
    is_y, is_think = p.given("is y", {"y": 1.0}), p.given("is think", {"think": 1.0})
    order = ["think", *chain.markers, "answer"]
    phase = p.given("phase", {word: [float(i == j) for j in range(len(order))] for i, word in enumerate(order)})
    so = p.given("is so", {chain.layout.connective: 1.0}) if chain.layout.connective else None

    # The phase of the words behind a marker, and a sample's x at the word of its y.
    behind: list[AffineForm] = [phase]
    for places in range(1, d + 2 if so is not None else d + 1):
        behind.append(p.register(f"phase {places} before", len(order)))
        p.read(behind[-1], phase, at=Back(places))
    x, asked, after_y = p.register("x", d), p.register("asked", d), p.register("after y")
    p.read(after_y, is_y, at=Back(1))
    for j in range(d):
        p.read(x[j], value, at=Back(d + 1 - j))
        p.read(asked[j], value, at=Back(d - j))
    square, cross = p.register("x·x", d * d), p.register("x·y", d)
    for j in range(d):
        p.mul(cross[j], x[j], value)
        for k in range(d):
            p.mul(square[d * j + k], x[j], x[k])
    moment, target, question = p.register("mean x·x", d * d), p.register("mean x·y", d), p.register("question", d)
    samples = p.match(((1.0,), p.flag(after_y)), equal=True)
    p.read(moment, square, at=samples)
    p.read(target, cross, at=samples)
    p.read(question, asked, at=p.flagged(is_think))

    # The numbers that are written behind the marker of a step; zeros where it is not there.
    written = dict[int, Register]()
    for t in (t for t in range(1, steps + 1) if any(one[t - 1] for one in chain.reads)):
        written[t] = p.register(f"written {t}", d)
        for j in range(d):
            p.read(written[t][j], value, at=p.flagged(behind[j + 1][t]))
    chains = [_points(p, chain, number, (moment, target), written) for number in range(len(chain.reads))]
    stated, used = chains[0], chains[-1]
    answer, out = p.register("ŷ"), p.register("out")
    last = written[steps] if chain.reads[-1][-1] else used[-1]
    for j in range(d):
        p.mul(answer, question[j], last[j])
    for t in range(1, steps + 1):
        for j in range(d):
            p.gate(out, behind[j][t], stated[t - 1][j], UNITS)
    p.gate(out, phase[steps + 1], answer, UNITS)
    _says(p, chain, behind, out, so)
    return p


def _points(
    p: TokenProgram, chain: Chain, number: int, means: tuple[Register, Register], written: dict[int, Register]
) -> list[AffineForm]:
    """c_1, …, c_T of one of the chain's algorithms, as forms."""
    rule, reads, found = chain.rules[number], chain.reads[number], list[AffineForm]()
    now = before = constant(0.0, (chain.features, 1))
    for t in range(1, chain.steps + 1):
        gradient = _gradient(p, rule, now, means, f"{'sr'[number] if len(chain.rules) > 1 else 's'}{t}")
        step = now - rule.size(t) * gradient + rule.decay * (now - before)
        found.append(step)
        before, now = now, written[t] if reads[t - 1] else step
    return found


def _gradient(p: TokenProgram, rule: Steps, w: AffineForm, means: tuple[Register, Register], name: str) -> AffineForm:
    """M·w − b + ridge·w, entry by entry within ± the rule's limit if it has one."""
    (moment, target), d = means, w.entries
    held = p.register(f"{name} M·w", d)
    for j in range(d):
        for k in range(d):
            p.mul(held[j], w[k], moment[d * j + k])
    gradient = held - target + rule.ridge * w
    if not rule.limit:
        return gradient
    ends = p.register(f"{name} clipped", d)
    half = 0.5 * p.one
    for j in range(d):
        p.abs(ends[j], half, gradient[j] + rule.limit)
        p.abs(ends[j], -half, gradient[j] - rule.limit)
    return ends


def _says(p: TokenProgram, chain: Chain, behind: Sequence[AffineForm], out: Register, so: Register | None) -> None:
    d, steps, layout = chain.features, chain.steps, chain.layout
    writing = sum((behind[j][t] for t in range(1, steps + 1) for j in range(d)), start=behind[0][steps + 1])
    written = {layout.number(value): UNITS * value for value in layout.numbers.values()}
    p.decode({word: written[word] for word in sorted(written)}, out, when=writing)
    p.say({chain.markers[0]: ()}, when=behind[0][0])
    p.say({"</s>": ()}, when=behind[1][steps + 1])
    for t, word in enumerate([*chain.markers[1:], "answer"], start=1):
        ended: AffineForm | Register = behind[d][t]
        if so is not None:
            ended = p.register(f"so after {t}")
            p.gate(ended, so, behind[d + 1][t])
        p.say({word: ()}, when=ended)
    if so is not None:
        p.say({layout.connective: ()}, when=sum((behind[d][t] for t in range(2, steps + 1)), start=behind[d][1]))
