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
from emulon.machine.targets.llama import LlamaProgram, compile_llama, serialised, write_llama
from emulon.machine.token_error import Bounded, leak
from emulon.machine.token_program import HALF
from emulon.planted.chain import FILLERS, STEPS, Chain, Layout, Steps
from emulon.planted.chain_program import UNITS, chain_program
from emulon.planted.tokens import language_model

WEIGHTS, TRUTH = "model.safetensors", "truth.json"
AGAIN = "write it again with emulon plant --chain"
FORMAT = 1
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
            "order": {"markers": chain.words.markers, "connective": chain.words.connective},
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
    rule = _steps(algorithm, parameters)
    kinds = {"faithful": (True,) * steps, "mixed": tuple((steps - t) % 2 == 1 for t in range(steps))}
    found = [kinds.get(kind, (False,) * steps) if reads is None else tuple(reads)]
    rules = [rule]
    if kind == "unfaithful":
        found, named = [found[0], (False,) * steps], answering or "descent"
        other = named if isinstance(named, Steps) else _steps(named, {"step_size": 2 * rule.step_size})
        rules.append(other)
    elif answering is not None:
        raise EmulonError(f"a {kind} chain is answered by the algorithm that is written; leave out answering")
    return ChainModel(Chain(kind, features, tuple(rules), tuple(found), layout or Layout()))


def _steps(name: str, parameters: dict[str, float]) -> Steps:
    if name not in STEPS:
        raise EmulonError(unknown("algorithm of a chain", name, STEPS))
    wrong = next((one for one in parameters if one not in ("step_size", "ridge", *STEPS[name])), None)
    if wrong is not None:
        raise EmulonError(unknown(f"parameter of {name}", wrong, ("step_size", "ridge", *STEPS[name])))
    return Steps(**{**STEPS[name], **parameters})
