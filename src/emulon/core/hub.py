"""Models on the Hugging Face hub: the methods of its `ModelHubMixin`, and the tokenizer files that it opens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from emulon.core.errors import EmulonError
from emulon.core.files import make_folder, write_atomically

CARD = "README.md"
# What a model card calls its repository until it has one.
HERE = "this folder"


Own = TypeVar("Own", bound="HubMixin")


class HubMixin:
    """`save_pretrained`, `from_pretrained` and `push_to_hub` for a class with `_write` and `_read`.

    Example:
        >>> model.push_to_hub("me/planted-sgd")
        >>> PlantedModel.from_pretrained("me/planted-sgd")
    """

    def _write(self, folder: Path) -> None:
        """Write files and a model card into a folder that is there."""
        raise NotImplementedError

    @classmethod
    def _read(cls: type[Own], folder: Path) -> Own:
        """Read what `_write` wrote."""
        raise NotImplementedError

    def save_pretrained(
        self, folder: str | Path, *, repo_id: str | None = None, push_to_hub: bool = False, **options: Any
    ) -> Path:
        """Write the model and its card.

        Args:
            folder: Made if there is none.
            repo_id: The repository that the card speaks of, as "me/planted-sgd".
            push_to_hub: Upload it there, too.
            **options: Of `push_to_hub`.
        Returns:
            The folder.
        """
        folder = make_folder(folder)
        self._write(folder)
        if repo_id is not None:
            card = (folder / CARD).read_text(encoding="utf-8")
            write_atomically(folder / CARD, card.replace(HERE, repo_id))
        if push_to_hub:
            upload(folder, repo_id or folder.name, **options)
        return folder

    @classmethod
    def from_pretrained(
        cls: type[Own],
        name: str | Path,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
    ) -> Own:
        """Read a model from a folder or from the hub.

        Args:
            name: A folder, or a repository as "me/planted-sgd".
            revision: Branch, tag or commit of the repository.
            token: For private repositories; by default the one that `hf auth login` has stored.
            cache_dir: Where downloads are kept.
            local_files_only: Download nothing.
        Returns:
            The model, checked as its class checks its files.
        Raises:
            EmulonError: There is no such folder, and the hub did not give the repository.
        """
        folder = Path(name)
        if not folder.is_dir():
            options = {"revision": revision, "token": token, "cache_dir": cache_dir}
            try:
                found = _hub().snapshot_download(str(name), local_files_only=local_files_only, **options)
            except (OSError, ValueError) as error:  # no network, no such repository, no valid name
                why = " ".join(str(error).split())[:160]
                raise EmulonError(f"{name} is no folder here, and the hub did not give it: {why}") from None
            folder = Path(found)
        return cls._read(folder)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model and its card to the hub.

        Args:
            repo_id: As "me/planted-sgd"; made if there is none.
            **options: `private`, `token`, `commit_message`, `revision` and `create_pr`, as huggingface_hub has them.
        Returns:
            The address of the commit.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, repo_id=repo_id)
            return upload(Path(folder), repo_id, **options)


def upload(
    folder: Path,
    repo_id: str,
    *,
    kind: str = "model",
    private: bool | None = None,
    token: str | None = None,
    commit_message: str = "Push with emulon",
    **options: Any,
) -> str:
    """Upload a folder to a repository of the hub, which is made if there is none; returns the commit's address."""
    api = _hub().HfApi(token=token)
    repo_id = api.create_repo(repo_id, repo_type=kind, private=private, exist_ok=True).repo_id
    done = api.upload_folder(
        folder_path=str(folder), repo_id=repo_id, repo_type=kind, commit_message=commit_message, **options
    )
    return str(done)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise EmulonError("the hub needs huggingface_hub; install it with: pip install 'emulon[hf]'") from None
    return huggingface_hub


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
