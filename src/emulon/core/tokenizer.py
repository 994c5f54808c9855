"""The tokenizer files that Hugging Face opens, for vocabularies of words separated by white space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")


def head_text(hundredths: int) -> str:
    """A number of hundredths as a word: `+0.32` for 32."""
    whole, rest = divmod(abs(hundredths), 100)
    return f"{'-' if hundredths < 0 else '+'}{whole}.{rest:02d}"


def tokenizer_files(words: Sequence[str], *, begins: bool = True) -> dict[str, Any]:
    """Tokenizer files by name.

    Args:
        words: The vocabulary in the order of its numbers; those of `SPECIAL` among them are special tokens.
        begins: Whether every text begins with `<s>`.
    Returns:
        The content of `tokenizer.json` and `tokenizer_config.json`.

    Example:
        >>> tokenizer_files(["<s>", "</s>", "<pad>", "<unk>", "a"])["tokenizer.json"]["model"]["vocab"]["a"]
        4
    """
    numbers = {word: number for number, word in enumerate(words)}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
    template = {
        "type": "TemplateProcessing",
        "single": [start, texts[0]],
        "pair": [start, *texts],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [numbers.get("<s>")], "tokens": ["<s>"]}},
    }
    unknown = "<unk>" if "<unk>" in numbers else words[0]
    special = [text for text in SPECIAL if text in numbers]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": numbers[text], "content": text, **added} for text in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": template if begins else None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": numbers, "unk_token": unknown},
    }
    roles = dict(zip(("bos_token", "eos_token", "pad_token", "unk_token"), SPECIAL, strict=True))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{role: text for role, text in roles.items() if text in numbers},
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config}
