"""From words to options: tyro reads a dataclass, and what it refuses becomes one line."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, cast

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from emulon.core.errors import EmulonError, nearest
from emulon.core.files import make_folder, write_json


class BadUsage(EmulonError):
    """Words that are no options of the command.

    Cure: take the word that the message offers, or look at `emulon COMMAND --help`.
    """


def shown(metavar: str) -> Any:
    """How the help names the value of an option, or a word, that need not be given."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Options of every command."""

    # Other names of options, as {"--report": "--out"}.
    aliases: ClassVar[Mapping[str, str]] = {}

    json: Annotated[str | None, shown("FILE")] = None
    """also write the results there as JSON; with - to standard output, and nothing else"""
    quiet: bool = False
    """print results that were asked for, warnings and errors only"""

    def defaults(self) -> CommandOptions | None:
        """Other defaults to read the same words with, where these options ask for some, as a preset does."""
        return None

    def changed(self, *besides: str) -> list[str]:
        """Options that differ from their defaults, as they are typed; not those named, --json and --quiet."""
        left = [field for field in fields(self) if field.name not in ("json", "quiet", *besides)]
        changed = [field.name for field in left if getattr(self, field.name) != field.default]
        return [f"--{name.strip('_').replace('_', '-')}" for name in changed]

    def require_writable(self, *folders: Path | None) -> None:
        """Make the folders that results go to now, not after the work."""
        json = Path(self.json).parent if self.json not in (None, "-") else None
        for folder in (*folders, json):
            if folder is not None:
                make_folder(folder)

    def finish(self, record: Mapping[str, Any] | Sequence[Any]) -> int:
        """Write the results where --json says, and return the exit code 0."""
        if self.json == "-":
            print(json.dumps(record, indent=1, ensure_ascii=False))
        elif self.json is not None:
            write_json(self.json, record)
        return 0


Options = TypeVar("Options", bound=CommandOptions)


class Command(NamedTuple):
    """A command: its options, or those behind each of its words; what it does, giving the exit code; its examples."""

    options: type[CommandOptions] | Mapping[str, type[CommandOptions]]
    main: Callable[[Any], int]
    examples: str


def read(kind: type[Options], words: Sequence[str], command: str) -> Options:
    """Options of a class from the words of a command.

    Args:
        kind: The dataclass of options.
        words: What was typed after the command.
        command: The command's name, for help and errors.

    Returns:
        The options.

    Raises:
        BadUsage: The words cannot be read; one line says which.
        SystemExit: Help was asked for, and printed.
    """
    parts = (word.partition("=") for word in words)
    words = [f"{kind.aliases.get(name, name)}{rest}{value}" for name, rest, value in parts]
    # Before tyro, which may stumble over a word after a misspelt option and complain about that instead.
    require_options(words, [field.name for field in fields(kind)])
    first = _parsed(kind, words, command, None)
    default = first.defaults()
    return first if default is None else _parsed(kind, words, command, default)


def _parsed(kind: type[Options], words: Sequence[str], command: str, default: CommandOptions | None) -> Options:
    start, refusal = tyro.MISSING_NONPROP if default is None else cast(Options, default), io.StringIO()
    try:
        with contextlib.redirect_stderr(refusal):
            return tyro.cli(kind, args=list(words), prog=f"emulon {command}", default=start)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise BadUsage(one_line(refusal.getvalue())) from None


def require_options(words: Sequence[str], names: Iterable[str]) -> None:
    """Refuse words that look like options and are none of these."""
    names = [name.rstrip("_").replace("_", "-") for name in names]
    known = {"--help", *(f"--{name}" for name in names), *(f"--no-{name}" for name in names)}
    for word in words:
        if word == "--":
            return
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in known:
            raise BadUsage(f"there is no option {flag}{nearest(flag, known)}")


def one_line(box: str) -> str:
    """The refusal that tyro prints in a box of several sections, as one line; words that are not recognised stay."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", box)
    # Where the terminal has no UTF-8 the box is drawn by spaces and hyphens.
    lines = [line[2:].rstrip("│ ") for line in plain.splitlines() if line[:2] in ("│ ", "  ")]
    until = next((i for i, line in enumerate(lines) if line.startswith(("──", "-----"))), len(lines))
    first, text = lines[:until], " ".join(line.strip() for line in lines[:until])
    if text.startswith("Missing from"):
        return f"{', '.join(line.split()[0] for line in first[1:] if re.match(r' {4}[^ ]', line))} is missing"
    if choice := re.match(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*?),?\)", text):
        word, name, choices = choice.groups()
        known = [each.strip("' ") for each in choices.split(",") if "None" not in each]
        hint = nearest(word, known) or f"; choose from {', '.join(known)}"
        return f"{name}: there is no choice {word!r}{hint}"
    if missing := re.match(r"Missing value for argument '(.*?)'", text):
        return f"{missing[1]} needs a value"
    if over := re.match(r"Unrecognized options: ([^,]*)", text):
        return f"one word too many: {over[1]!r}"
    if wrong := re.match(r"Error parsing (.*?): (.*)", text):
        reason = re.split(r"(?<=[>\]]): ", wrong[2])[-1]
        if number := re.match(r"(?:invalid literal for (int)|could not convert string to float).*?: ('.*')", reason):
            reason = f"{number[2]} is not a {'whole number' if number[1] else 'number'}"
        return f"{wrong[1]}: {reason}"
    return text or "these options cannot be read"


def _checked(metavar: str, wanted: str, read: Callable[[str], Any], accepts: Callable[[Any], bool]) -> Any:
    """A number that is refused where it is read, with what was wanted."""

    def from_words(words: list[str]) -> Any:
        try:
            value = read(words[0])
        except ValueError:
            value = None
        if value is None or not accepts(value):
            raise ValueError(f"{words[0]} is not {wanted}")
        return value

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=from_words,
        is_instance=lambda value: isinstance(value, int | float),
        str_from_instance=lambda value: [str(value)],
    )


Positive = Annotated[float, _checked("NUMBER", "a positive number", float, lambda value: 0 < value < math.inf)]
NotNegative = Annotated[float, _checked("NUMBER", "a number, 0 or more", float, lambda value: 0 <= value < math.inf)]
Factor = Annotated[float, _checked("FACTOR", "a number in 1 … 1e60", float, lambda value: 1 <= value <= 1e60)]
Count = Annotated[int, _checked("COUNT", "a whole number, 1 or more", int, lambda value: value >= 1)]
Size = Annotated[int, _checked("COUNT", "a whole number, 0 or more", int, lambda value: value >= 0)]
Seed = Annotated[int, _checked("SEED", "a whole number in 0 … 2³²−1", int, lambda value: 0 <= value < 2**32)]
