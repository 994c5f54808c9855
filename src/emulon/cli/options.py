"""From words to options: tyro reads a dataclass, and what it cannot read is refused in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar, cast

import tyro
from tyro import _errors as rejected  # the one place where tyro says what it refused and why, before it draws a box
from tyro.constructors import PrimitiveConstructorSpec

from emulon.core.errors import EmulonError, nearest


class BadUsage(EmulonError):
    """Words that are no options of the command.

    Cure: take the word that the message offers, or look at `emulon COMMAND --help`.
    """


@dataclass(frozen=True)
class CommandOptions:
    """What every command's options can do."""

    def defaults(self) -> CommandOptions | None:
        """Other defaults to read the same words with, where these options ask for some, as a preset does."""
        return None


Options = TypeVar("Options", bound=CommandOptions)


def read(kind: type[Options], words: Sequence[str], command: str) -> Options:
    """The options, or BadUsage. Help is printed and leaves by SystemExit."""
    # Before tyro, which may stumble over a word after a misspelt option and complain about that instead.
    require_options(words, [field.name for field in fields(kind)])
    first = _parsed(kind, words, command, None)
    default = first.defaults()
    return first if default is None else _parsed(kind, words, command, default)


def _parsed(kind: type[Options], words: Sequence[str], command: str, default: CommandOptions | None) -> Options:
    start = tyro.MISSING_NONPROP if default is None else cast(Options, default)
    with rejected.on_parse_error(_refuse):
        return tyro.cli(kind, args=list(words), prog=f"emulon {command}", default=start)


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


def _refuse(event: rejected.ParseErrorEvent) -> None:
    if isinstance(event, rejected.InvalidChoice):
        hint = nearest(event.value, event.choices) or f"; choose from {', '.join(event.choices)}"
        raise BadUsage(f"{_name(event.argument)}: there is no choice {event.value!r}{hint}")
    if isinstance(event, rejected.InstantiationFailure) and event.argument is not None:
        raise BadUsage(f"{_name(event.argument)}: {_in_plain_words(event.message)}")
    if isinstance(event, rejected.BadValue):
        raise BadUsage(f"{_name(event.argument)} needs a value")
    if isinstance(event, rejected.MissingArgs):
        missing = ", ".join(_name(each.arg) for each in event.missing_arguments)
        raise BadUsage(f"{missing} is missing")
    if isinstance(event, rejected.UnrecognizedArgs):
        raise BadUsage(f"one word too many: {event.tokens[0]!r}")
    raise BadUsage("these options cannot be read")


def _name(argument: Any) -> str:
    """As the help names it."""
    return str(argument.lowered.metavar if argument.is_positional() else argument.display_name())


def _in_plain_words(message: str) -> str:
    """Python's own words for what is no number, made into ours; of several attempts the last."""
    last = re.sub(r"^- .*[>\]]: ", "", message.splitlines()[-1])
    if number := re.fullmatch(r"(?:invalid literal for (int)|could not convert string to float).*?: ('.*')", last):
        return f"{number[2]} is not a {'whole number' if number[1] else 'number'}"
    return last


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
Factor = Annotated[float, _checked("FACTOR", "a number, 1 or more", float, lambda value: 1 <= value < math.inf)]
Count = Annotated[int, _checked("COUNT", "a whole number, 1 or more", int, lambda value: value >= 1)]
Size = Annotated[int, _checked("COUNT", "a whole number, 0 or more", int, lambda value: value >= 0)]
Seed = Annotated[int, _checked("SEED", "a whole number in 0 … 2³²−1", int, lambda value: 0 <= value < 2**32)]


def shown(metavar: str) -> Any:
    """How the help names the value of an option, or a word, that need not be given."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")
