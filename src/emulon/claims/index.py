"""results/README.md, made from the results: claim → command → minutes → theirs, ours, verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from emulon.claims.claim import Claim
from emulon.claims.learners import KEPT, command
from emulon.claims.record import Record, path_of, records

HEAD = """# Claims, and what came of them

Made by `emulon reproduce` from the JSON files in claims/: do not edit. `emulon reproduce` lists the claims,
`emulon reproduce --all` runs all of them at the small scale, `emulon reproduce --figures` draws everything again
without measuring. Verdicts are decided by a rule in each claim's module under `src/emulon/claims/`:

- **holds**, **does not hold**: at the source's sizes, or of a theorem, which may be checked at any size;
- **holds as corrected**: as printed the statement fails; mended as the section below says, it holds;
- **not tested at scale**: whatever the numbers say, they are of smaller learners than the source's;
- **cannot be tested here**: something is missing, and the line says what.

Minutes are of the CPU, at the scale gpu of the clock. What runs on a GPU runs there without any other package than
torch: `python -m emulon.claims NAME --scale gpu --out results`.
"""
COLUMNS = ("claim", "command", "minutes", "theirs", "ours", "verdict")


def index(claims: Iterable[Claim], results: Path) -> str:
    """One table a source, one row a result; then where set-ups differ, and which machine measured what."""
    claims = list(claims)
    parts = [HEAD, _count(claims, results)]
    for source, group in groupby(claims, key=source_of):
        rows = [row for claim in group for row in _rows(claim, results)]
        parts.append(_table(source[:1].upper() + source[1:], rows))
    parts += _notes("Mended statements", {claim.name: claim.correction for claim in claims})
    parts += _notes("Where our set-up differs", {claim.name: claim.differs for claim in claims})
    parts += _notes("Learners kept for the claims", {name: f"`{command(name)}`" for name in KEPT})
    parts.append(_machines(claims, results))
    return "\n".join(parts)


def source_of(claim: Claim) -> str:
    """Authors and year; `ours` for what no source says."""
    return claim.source.partition(",")[0]


def _count(claims: list[Claim], results: Path) -> str:
    """How many claims end how, each at the largest scale it was run at."""
    last = [(claim, measured[-1]) for claim in claims if (measured := records(claim, results))]
    states = Counter(record.verdict(claim).state for claim, record in last)
    return f"Of {len(claims)} claims: {', '.join(f'{count} {state}' for state, count in states.most_common())}.\n"


def _rows(claim: Claim, results: Path) -> list[tuple[str, ...]]:
    what = f"**{claim.source}** {claim.statement}"
    measured = records(claim, results)
    if not measured:
        scale, cost = next(iter(claim.scales.items()))
        return [(what, _command(claim, scale), f"about {cost.minutes:g}", claim.theirs, "–", "not run")]
    return [(what, *_row(claim, record, results)) for record in measured]


def _row(claim: Claim, record: Record, results: Path) -> tuple[str, ...]:
    verdict = record.verdict(claim)
    picture = path_of(claim.name, record.scale, results, ".svg").relative_to(results)
    state = f"**{verdict.state}**: {verdict.reason}"
    shown = verdict.ours if "cannot" in record.numbers else f"{verdict.ours} ([figure]({picture.as_posix()}))"
    minutes = (record.seconds if record.scale == "gpu" else record.cpu_seconds) / 60
    return _command(claim, record.scale), f"{minutes:.1f}", claim.theirs, shown, state


def _command(claim: Claim, scale: str) -> str:
    return f"`emulon reproduce {claim.name}{'' if scale == 'small' else f' --scale {scale}'}`"


def _table(title: str, rows: list[tuple[str, ...]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([f"## {title}", "", line(COLUMNS), line("---" for _ in COLUMNS), *map(line, rows), ""])


def _notes(title: str, notes: dict[str, str]) -> list[str]:
    lines = [f"- **{name}**: {note}" for name, note in notes.items() if note]
    return ["\n".join([f"## {title}", "", *lines, ""])] if lines else []


def _short(commit: str) -> str:
    """Seven digits, and whether the code had changed since."""
    first, _, rest = commit.partition(" ")
    return f"{first[:7]} {rest}".strip()


def _machines(claims: list[Claim], results: Path) -> str:
    """Which machine and commit measured which claims."""
    measured: dict[str, list[str]] = {}
    for claim in claims:
        for record in records(claim, results):
            about = record.about
            where = f"{about['machine']}, torch {about['torch']}, commit {_short(about['commit'])}"
            measured.setdefault(where, []).append(path_of(claim.name, record.scale, results, "").name)
    lines = [f"- {where}: {', '.join(names)}" for where, names in measured.items()]
    return "\n".join(["## Measured on", "", *lines, ""])
