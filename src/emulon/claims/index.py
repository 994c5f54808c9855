"""results/README.md, made from the results: claim → command → minutes → theirs, ours, verdict."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from emulon.claims.claim import Claim
from emulon.claims.record import Record, path_of, read

HEAD = """# Claims, and what came of them

Made by `emulon reproduce` from the JSON files beside it: do not edit. `emulon reproduce` lists the claims,
`emulon reproduce --all` runs all of them at the small scale, `emulon reproduce --figures` draws everything again
without measuring. Verdicts are decided by a rule in each claim's module under `src/emulon/claims/`.
JSON files that no claim is named after are written by `benchmarks/`.
"""
COLUMNS = ("claim", "command", "CPU minutes", "theirs", "ours", "verdict")


def index(claims: Iterable[Claim], folder: Path) -> str:
    """One table a source, one row a result; then where set-ups differ, and which machine measured what."""
    claims = list(claims)
    parts = [HEAD]
    for source, group in groupby(claims, key=lambda claim: claim.source.split()[0]):
        rows = [row for claim in group for row in _rows(claim, folder)]
        parts.append(_table(f"{source}_…" if source.isdecimal() else source.capitalize(), rows))
    notes = [f"- **{claim.name}**: {claim.differs}" for claim in claims if claim.differs]
    if notes:
        parts.append("\n".join(["## Where our set-up differs", "", *notes, ""]))
    parts.append(_machines(claims, folder))
    return "\n".join(parts)


def records(claim: Claim, folder: Path) -> list[Record]:
    """What was measured, small scale first."""
    return [found for scale in claim.scales if (found := read(claim.name, scale, folder)) is not None]


def _rows(claim: Claim, folder: Path) -> list[tuple[str, ...]]:
    what = f"**{claim.source}** {claim.statement}"
    found = records(claim, folder)
    if not found:
        minutes = claim.scales["small"].minutes
        return [(what, f"`emulon reproduce {claim.name}`", f"about {minutes:g}", claim.theirs, "–", "not run")]
    rows: list[tuple[str, ...]] = []
    for record in found:
        verdict = record.verdict(claim)
        command = f"`emulon reproduce {claim.name}{'' if record.scale == 'small' else f' --scale {record.scale}'}`"
        picture = path_of(claim.name, record.scale, folder, ".svg").name
        state = f"**{verdict.state}**: {verdict.reason}"
        shown = verdict.ours if "cannot" in record.numbers else f"{verdict.ours} ([figure]({picture}))"
        rows.append((what, command, f"{record.cpu_seconds / 60:.1f}", claim.theirs, shown, state))
    return rows


def _table(title: str, rows: list[tuple[str, ...]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([f"## {title}", "", line(COLUMNS), line("---" for _ in COLUMNS), *map(line, rows), ""])


def _short(commit: str) -> str:
    """Seven digits, and whether the code had changed since."""
    first, _, rest = commit.partition(" ")
    return f"{first[:7]} {rest}".strip()


def _machines(claims: list[Claim], folder: Path) -> str:
    """Which machine and commit measured which claims."""
    found: dict[str, list[str]] = {}
    for claim in claims:
        for record in records(claim, folder):
            about = record.about
            where = f"{about['machine']}, torch {about['torch']}, commit {_short(about['commit'])}"
            found.setdefault(where, []).append(path_of(claim.name, record.scale, folder, "").name)
    return "\n".join(["## Measured on", "", *(f"- {where}: {', '.join(names)}" for where, names in found.items()), ""])
