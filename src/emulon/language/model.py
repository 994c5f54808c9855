"""The frozen model on disk and in use: a Hugging Face folder, and runs of algorithms by its `generate()`."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms import Algorithm, NamedAlgorithm, name_of
from emulon.certify import Certificate
from emulon.certify.certificate import Run
from emulon.certify.transcript_checker import PRECISION, Prompt, Transcript, audit
from emulon.certify.transcript_checker import read as read_transcript
from emulon.core.arrays import ArrayFormat, as_tensor
from emulon.core.errors import BadPrompt, BadShape, EmulonError, OutOfDomain
from emulon.core.files import make_folder, read_json, write_atomically
from emulon.expressions.evaluation import ball_arithmetic
from emulon.language.certificate import ASSUMES, bounds
from emulon.language.interpreter import interpreter
from emulon.language.methods import Method
from emulon.language.prompt import prompt, question, read, text_of
from emulon.language.vocabulary import CAPACITIES, LARGEST, SMALL, UNITS, Capacity, Vocabulary, decode
from emulon.machine.targets.llama import compile_llama, serialised, write_llama
from emulon.machine.targets.stock import NeedsTransformers

Mode = Literal["plain", "drafted"]
CARD = """# {name}

A stock `LlamaForCausalLM`, compiled from a program of {lines} instructions; nothing in it was trained.
A prompt states a first-order learning algorithm, its data and its starting weights; `generate()` writes every iterate.
It holds up to {samples} rows, {features} features and {steps} steps. One model runs every method of the language.

sha256 of model.safetensors: `{sha256}`

```python
from transformers import pipeline

run = pipeline("text-generation", model=".", dtype="float32", device="cpu")
zero = "+0.00 +000 +000"
piece = f"slope {{zero}} bias {{zero}} times +1.00 +000 +000 plus {{zero}}"
prompt = f"until:5 rate +0.40 +000 +000 ridge {{zero}} momentum {{zero}} {{piece}} loss^0 {{piece}} prox^0 "
prompt += "#1 y +1.00 +000 +000 x1 +0.50 +000 +000 #2 y -1.00 +000 +000 x1 -1.00 +000 +000 "
prompt += f"step:-1 w1 {{zero}} step:0 w1 {{zero}}"
print(run(prompt, return_full_text=False)[0]["generated_text"])
```

Run it in float32: numbers of other types are not exact in it. A number is three words, `+0.32 -488 +484` for
0.32 − 0.00488 + 0.00000484. `emulon llama prompt` writes prompts; `emulon check` verifies what the model wrote.
"""


def write(folder: str | Path, capacity: Capacity | str = SMALL) -> str:
    """Write the frozen model as a folder that Hugging Face opens.

    Args:
        folder: Where to; it is made if need be.
        capacity: How much it can hold: `SMALL`, `LARGE`, or a name of these.
    Returns:
        The sha256 of `model.safetensors`, the same on every machine.
    Raises:
        EmulonError: There is no such capacity, or the folder cannot be written.

    Example:
        >>> write("llama")
    """
    size, folder = _capacity(capacity), make_folder(folder)
    program = interpreter(size)
    digest = write_llama(compile_llama(program), folder)
    Vocabulary(size).write_tokenizer(folder)
    facts = {"features": size.features, "samples": size.samples, "steps": size.steps, "sha256": digest}
    card = CARD.format(name=program.name.capitalize(), lines=len(program.instructions), **facts)
    write_atomically(folder / "README.md", card)
    return digest


def _capacity(named: Capacity | str) -> Capacity:
    if isinstance(named, Capacity):
        return named
    if named not in CAPACITIES:
        raise EmulonError(f"{named!r} is no capacity; choose {' or '.join(CAPACITIES)}")
    return CAPACITIES[named]


def load(folder: str | Path, attention: Literal["sdpa", "eager"] = "sdpa", device: str = "cpu") -> TextModel:
    """Open a folder that `write` has written.

    Args:
        folder: The folder.
        attention: Which of transformers' implementations to use.
        device: Where to run it.
    Returns:
        The model, which runs algorithms.
    Raises:
        NeedsTransformers: Hugging Face transformers is not installed.
        BadPrompt: The folder has another vocabulary.

    Example:
        >>> load("llama").run(Ridge(0.3, steps=30), x, y).weights
    """
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as missing:
        raise NeedsTransformers(
            "language.load needs transformers; install it with: pip install 'emulon[hf]'"
        ) from missing
    folder = Path(folder)
    try:
        words = read_json(folder / "tokenizer.json")["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadPrompt(f"{folder} is no folder of the text language: {error}") from None
    size = next((size for size in CAPACITIES.values() if Vocabulary(size).numbers == words), None)
    if size is None:
        raise BadPrompt(f"{folder} has another vocabulary than this version of emulon; write it anew")
    options: dict[str, Any] = {"local_files_only": True, "use_safetensors": True, "dtype": torch.float32}
    network: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, **options)
    return TextModel(network.to(device).eval().requires_grad_(False), size)


def structure(prompt: Prompt) -> list[str]:
    """The words that follow a prompt, up to its end; empty where a word of a number stands."""
    rows, number = [f"@{i + 1}" for i in range(len(prompt.rows))], ["", "", ""]
    weights = [word for j in range(len(prompt.start)) for word in (f"w{j + 1}", *number)]
    steps = range(prompt.first + 1, prompt.until + 1)
    return [word for step in steps for word in (f"step:{step}", *rows, *weights)]


@dataclass(frozen=True)
class TextModel:
    """A loaded model.

    Attributes:
        network: The `LlamaForCausalLM`.
        capacity: How much it can hold.
    """

    network: Any
    capacity: Capacity

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Its words."""
        return Vocabulary(self.capacity)

    @property
    def sha256(self) -> str:
        """Of the parameters as they are now: that of `model.safetensors`, if nothing has changed them."""
        return hashlib.sha256(serialised(self.network.state_dict())).hexdigest()

    def complete(self, texts: Sequence[str], mode: Mode = "plain") -> list[str]:
        """What `generate()` writes behind each of these texts.

        Args:
            texts: Prompts; several are run as one batch, padded on the left.
            mode: "plain" is `generate()`, a word at a time; "drafted" feeds the words between numbers, which the prompt
                decides, in blocks and keeps those that the model would have written. The structure is the same;
                matrices of other shapes may round differently.
        Returns:
            What was written, without the end token.

        Example:
            >>> model.complete([text_of(prompt(Ridge(0.3, steps=30), x, y))])
        """
        from transformers import GenerationConfig

        words = self.vocabulary
        if mode == "drafted":
            return self._all_drafted(texts)
        encoded = [words.encode(text) for text in texts]
        longest, pad = max(map(len, encoded)), words.numbers["<pad>"]
        rows = [[pad] * (longest - len(row)) + row for row in encoded]
        tokens = torch.tensor(rows, device=self.network.device)
        settings: Any = GenerationConfig(**self.network.generation_config.to_dict())  # type: ignore[no-untyped-call]  # unannotated
        with torch.no_grad():
            mask = (tokens != pad).long()
            written = self.network.generate(tokens, attention_mask=mask, generation_config=settings)
        return [words.decode(row[longest:].tolist()) for row in written]

    def _all_drafted(self, texts: Sequence[str]) -> list[str]:
        """Prompts of one length and structure run as one batch; where one ends before the others, each alone."""
        found, alike = [""] * len(texts), defaultdict[tuple[int, tuple[str, ...]], list[int]](list)
        for i, text in enumerate(texts):
            alike[len(text.split()), tuple(structure(read(text, self.capacity)))].append(i)
        for (_, shape), places in alike.items():
            batch = [texts[i] for i in places]
            together = self._drafted(batch, shape) or [self._drafted([text], shape)[0] for text in batch]
            for i, written in zip(places, together, strict=True):
                found[i] = written
        return found

    def _drafted(self, texts: Sequence[str], shape: Sequence[str]) -> list[str]:
        """Greedy decoding with the words that have to come next fed along and checked; [] where several differ."""
        from transformers import DynamicCache

        words, cache, most = self.vocabulary, DynamicCache(), self.network.config.max_position_embeddings
        ends = torch.tensor([words.numbers["</s>"], words.numbers["overflow"]], device=self.network.device)
        fed = torch.tensor([words.encode(text) for text in texts], device=self.network.device)
        begin, written = fed.shape[1], fed[:, :0]
        with torch.no_grad():
            while not (written[:, -1:] == ends[0]).any() and begin + written.shape[1] < most:
                draft = [words.numbers[word] for word in takewhile(bool, shape[written.shape[1] :])]
                fed = torch.cat([fed, fed.new_tensor(draft).expand(len(fed), -1)], dim=1)
                keep = len(draft) + 1
                best = self.network(fed, past_key_values=cache, use_cache=True, logits_to_keep=keep).logits.argmax(-1)
                wrong = (best[:, :-1] != fed[:, fed.shape[1] - len(draft) :]).any(dim=0).tolist()
                right = next((i for i, differs in enumerate(wrong) if differs), len(draft))
                ended = int(torch.isin(best[:, -1], ends).sum())
                if len(texts) > 1 and (right < len(draft) or 0 < ended < len(texts)):
                    return []
                if right < len(draft):
                    cache.crop(right - len(draft))
                fed = best[:, right : right + 1]
                written = torch.cat([written, best[:, : right + 1]], dim=1)
        return [words.decode(row) for row in written.tolist()]

    def run(self, algorithm: Algorithm | Method, x: Any, y: Any, start: Any = None, mode: Mode = "plain") -> TextRun:
        """Run an algorithm on data: write the prompt, let the model write the iterates, read them.

        Args:
            algorithm: A gradient descent of emulon, or a `Method`.
            x: Rows of features, (samples, features).
            y: A target a row; −1 or +1 for margin losses.
            start: The weights to start from; zeros by default.
            mode: As in `complete`.
        Returns:
            The run: weights, iterates, the transcript, and an audit made from its text alone.
        Raises:
            OutOfDomain: The prompt cannot hold the data.
            Refused: The model wrote something that is no transcript.

        Example:
            >>> model.run(Ridge(0.3, steps=30), x, y).audit.bound < 1e-6
            True
        """
        asked, before = prompt(algorithm, x, y, start=start, capacity=self.capacity), self.sha256
        text = text_of(asked)
        text += self.complete([text], mode)[0]
        name = name_of(type(algorithm)) if isinstance(algorithm, NamedAlgorithm) else type(algorithm).__name__
        return TextRun(name, text, read_transcript(text), ArrayFormat.of(x), (before, self.sha256))

    def predict(self, run: TextRun, x_new: Any) -> Any:
        """Let the model predict new rows: each is asked for behind the run's transcript.

        Args:
            run: A run of this model, with all its steps.
            x_new: New rows, (queries, features).
        Returns:
            w·x of every row as the model writes it, in the form of x_new.
        Raises:
            BadShape: The rows have other features than the run's.
            OutOfDomain: A number, given or predicted, is above 19.99.

        Example:
            >>> model.predict(run, x[:2])
        """
        rows, most = as_tensor(x_new, "x_new").double(), self.capacity.samples
        if rows.ndim != 2 or rows.shape[1] != len(run.prompt.start):
            raise BadShape(f"x_new has shape {tuple(rows.shape)}, wanted (rows, {len(run.prompt.start)})")
        questions = [question(i % most + 1, row) for i, row in enumerate(rows.tolist())]
        found = self.complete([f"{run.transcript} {asked}" for asked in questions])
        for i, words in enumerate(found):
            if words == "overflow":
                raise OutOfDomain(f"the prediction of row {i + 1} of x_new is above {LARGEST}; rescale the data")
        answers = torch.tensor([decode(words.split()) for words in found], dtype=torch.float64, device="cpu")
        return ArrayFormat.of(x_new).back(answers / UNITS, "rows")


class TextRun(Run):
    """A run by text.

    Attributes:
        prompt: The question.
        transcript: The prompt and all that was written behind it.
        weights: After the last step, in the form in which x was given.
        iterates: After every step, the start among them, (steps + 1, features), float64.
        overflow: Whether a weight could not be written, and the run ended there.
        sha256: Of the model's parameters, before and after.
    """

    def __init__(self, name: str, text: str, found: Transcript, given: ArrayFormat, sha256: tuple[str, str]) -> None:
        self._name, self.transcript, self.found, self.given, self.sha256 = name, text, found, given, sha256
        self.prompt, self.overflow = found.prompt, found.overflow
        weights = torch.tensor([found.prompt.start, *found.written], dtype=torch.float64, device="cpu")
        self.iterates: Float[Tensor, "iterates features"] = weights / UNITS

    @cached_property
    def certificate(self) -> Certificate:  # type: ignore[override]  # it takes as long as an audit: made when asked for
        """As `language.certificate` claims, from the prompt alone."""
        return Certificate(
            {"float32 in every step": max(bounds(self.prompt), default=0.0)}, torch.float32, assumes=ASSUMES
        )

    @property
    def name(self) -> str:
        """The name of what ran."""
        return self._name

    @property
    def last(self) -> Float[Tensor, " features"]:
        """The weights after the last step that was written."""
        return self.iterates[-1]

    @property
    def weights(self) -> Any:
        """The same as a tensor, an array, a list, or a Series named by x's columns."""
        return self.given.back(self.last, "columns")

    def _make_audit(self) -> Certificate:
        """As `certify.transcript_checker` claims."""
        with ball_arithmetic(PRECISION):
            found = audit(self.found)
        return Certificate({"distance to the exact iterates": found.bound}, torch.float32, scope="run")
