"""results/README.md, made from the results: claim, printed number, ours, what differs, verdict, figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from reproduce.claim import Claim, ScaleName
from reproduce.learners import KEPT, command
from reproduce.record import Record, path_of, records

HEAD = """# Claims, and what came of them

What the sources state, the number they print, the number measured here, and a verdict. Made by `python -m reproduce`
from the JSON files in claims/: do not edit. `python -m reproduce NAME` measures a claim again (`--scale paper` or `gpu`
at larger sizes), `--all` every claim at the small scale, `--figures` draws everything again without measuring. A
verdict is decided by a rule beside the code that measures, in `reproduce/`, written before the numbers; rules and
verdicts that were changed later are listed in [what we had wrong](../docs/corrections.md).

- **holds**, **does not hold**: in the source's set-up, or of a theorem, which may be checked at any size;
- **holds as corrected**: as printed the statement fails; mended as the section below says, it holds;
- **not decided**: the interval over seeds contains the limit of the rule;
- **not tested as printed**: our set-up differs in something that could turn the verdict;
- **not tested at scale**: whatever the numbers say, they are of smaller models than the source's;
- **cannot be tested here**: something is missing, and the line says what;
- **stale**: the code or the sizes that the claim has now are not those that measured the number.

What runs on a GPU runs there with torch and numpy alone: `python -m reproduce NAME --scale gpu`.
"""
# Verdicts beside which stands what would change or decide them.
OPEN = ("does not hold", "not decided", "not tested as printed", "not tested at scale")
COLUMNS = ("claim", "printed", "ours", "what differs", "verdict", "figure")


def index(claims: Iterable[Claim], results: Path) -> str:
    """One table a source, one row a result; then whole set-ups, mended statements, and machines with their results."""
    claims = list(claims)
    parts = [HEAD, _count(claims, results)]
    for source, group in groupby(claims, key=source_of):
        rows = [row for claim in group for row in _rows(claim, results)]
        parts += [f"## {source[:1].upper() + source[1:]}", "", table(COLUMNS, rows), ""]
    for claim in claims:
        if claim.set_up:
            parts += [f"## Set-up of {claim.name}", "", table(("", "theirs", "ours"), setup_rows(claim)), ""]
    parts += _notes("Mended statements", {claim.name: claim.correction for claim in claims})
    parts += _notes("Learners kept for the claims", {name: f"`{command(name)}`" for name in KEPT})
    parts.append(_machines(claims, results))
    return "\n".join(parts)


def setup_rows(claim: Claim) -> list[tuple[str, ...]]:
    """What, theirs, ours; a difference that could turn the verdict says so."""
    turns = " (could turn the verdict)"
    return [(each.what, each.theirs, each.ours + turns * bool(each.turns)) for each in claim.set_up]


def source_of(claim: Claim) -> str:
    """Authors and year; `ours` for claims of our own."""
    return claim.source.partition(",")[0]


def _count(claims: list[Claim], results: Path) -> str:
    """How many claims end how, each at the largest scale it was run at."""
    last = [(claim, measured[-1]) for claim in claims if (measured := records(claim, results))]
    states = Counter(record.verdict(claim).state for claim, record in last)
    stale = sum(record.stale(claim) for claim, record in last)
    shown = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return f"Of {len(claims)} claims: {shown}. Of these results {stale} are stale.\n"


def _rows(claim: Claim, results: Path) -> list[tuple[str, ...]]:
    measured = records(claim, results)
    if not measured:
        scale = next(iter(claim.scales))
        return [(_what(claim, scale), claim.theirs, "–", _differs(claim, scale), "not run", "–")]
    return [_row(claim, record, results) for record in measured]


def _row(claim: Claim, record: Record, results: Path) -> tuple[str, ...]:
    verdict, figure = record.verdict(claim), "–"
    if record.tested:
        figure = f"[figure]({path_of(claim.name, record.scale, results, '.svg').relative_to(results).as_posix()})"
    state = f"**{verdict.state}**: {verdict.reason}"
    if verdict.state in OPEN and claim.reversal:
        what = "change" if verdict.state == "does not hold" else "decide"
        state = f"What would {what} this: {claim.reversal}. {state}"
    if record.stale(claim):
        state = f"**stale**. {state}"
    return _what(claim, record.scale), claim.theirs, verdict.ours, _differs(claim, record.scale), state, figure


def _what(claim: Claim, scale: ScaleName) -> str:
    named = f"`{claim.name}`" if scale == "small" else f"`{claim.name} --scale {scale}`"
    return f"**{claim.source.partition(', ')[2] or claim.source}** {claim.statement} {named}"


def _differs(claim: Claim, scale: ScaleName) -> str:
    """Sizes where they are smaller than the source's, then the parts of the set-up that are not the same."""
    smaller = [] if claim.scales[scale].at_source_scale else ["smaller in all sizes"]
    parts = [f"{each.what}: {each.ours}" for each in claim.set_up if not each.ours.startswith("the same")]
    return "; ".join([*smaller, *parts, *filter(None, [claim.differs])]) or "–"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _notes(title: str, notes: dict[str, str]) -> list[str]:
    lines = [f"- **{name}**: {note}" for name, note in notes.items() if note]
    return ["\n".join([f"## {title}", "", *lines, ""])] if lines else []


def _short(commit: str) -> str:
    """Seven digits, and whether the code had changed since."""
    first, _, rest = commit.partition(" ")
    return f"{first[:7]} {rest}".strip()


def _machines(claims: list[Claim], results: Path) -> str:
    """Which machine and commit measured which claims, and in how many minutes: of the CPU, on a GPU of the clock."""
    measured: dict[str, list[str]] = {}
    for claim in claims:
        for record in records(claim, results):
            about = record.about
            where = f"{about['machine']}, torch {about['torch']}, commit {_short(about['commit'])}"
            minutes = (record.seconds if record.scale == "gpu" else record.cpu_seconds) / 60
            name = path_of(claim.name, record.scale, results, "").name
            measured.setdefault(where, []).append(f"{name} ({minutes:.1f})")
    lines = [f"- {where}: {', '.join(names)}" for where, names in measured.items()]
    return "\n".join(["## Measured on, in minutes", "", *lines, ""])
