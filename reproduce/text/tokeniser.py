"""Texts to words and back: byte-level BPE, trained by the `tokenizers` library and kept as its own JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from emulon.core.errors import BadConfig

# The words with these numbers are no part of any text: padding, the beginning and the end of an answer.
SPECIAL = ("<pad>", "<s>", "</s>")
START, END = 1, 2
# Bytes, and the special words: fewer cannot write every text. More do not fit the 16 bits of a corpus' files.
FEWEST_WORDS, MOST_WORDS = 256 + len(SPECIAL), 2**15 - 1


class BadText(BadConfig):
    """Texts that cannot be read, learned from or answered, with the reason.

    Cure: do what the message says: shorten the text, name another folder, or install `emulon[text]`.
    """


class Tokeniser:
    """A byte-level BPE: any text is a sequence of its words, and a sequence of words is bytes.

    Encoding takes the `tokenizers` library; decoding takes nothing, so that a machine without it can write texts down.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.words: dict[str, int] = json.loads(text)["model"]["vocab"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadText(f"this is no tokeniser of the tokenizers library ({error}); make the corpus again") from error

    @classmethod
    def trained_on(cls, texts: Iterable[str], vocabulary: int) -> Tokeniser:
        """A new one with at most so many words; it should see training texts only."""
        tokenizers = _library()
        if not FEWEST_WORDS <= vocabulary <= MOST_WORDS:
            raise BadText(f"a vocabulary of {vocabulary} words cannot be; choose {FEWEST_WORDS} to {MOST_WORDS}")
        made = tokenizers.Tokenizer(tokenizers.models.BPE())
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
        made.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=list(SPECIAL),
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        made.train_from_iterator(texts, trainer)
        return cls(made.to_str())

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [each.ids for each in self._encoder.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Special words are left out; bytes that are no UTF-8 become the replacement character."""
        written = "".join(self._spelling[word] for word in ids if word >= len(SPECIAL))
        return bytes(_BYTES[character] for character in written).decode("utf-8", errors="replace").strip()

    @cached_property
    def _encoder(self) -> Any:
        return _library().Tokenizer.from_str(self.text)

    @cached_property
    def _spelling(self) -> dict[int, str]:
        return {number: word for word, number in self.words.items()}


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise BadText("texts are cut into words by the tokenizers library: pip install 'emulon[text]'") from None
    return tokenizers


def _bytes() -> dict[str, int]:
    """How byte-level BPE writes bytes: Latin-1's visible characters as themselves, the others from 256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(visible))
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _bytes()
