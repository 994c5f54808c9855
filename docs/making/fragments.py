"""Markdown made from what is there: results/, the claims' own words, docstrings."""

from __future__ import annotations

import ast
import json
import math
import re
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import speedrun
from emulon.report.benchmark import cell_of, coverage_lines, table_rows
from reproduce.claim import Claim, all_claims
from reproduce.index import setup_rows, source_of, table
from reproduce.record import Record, path_of
from reproduce.record import records as measured

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
SOURCE = ROOT / "src" / "emulon"
PACKAGES = (
    *("interpreter", "networks", "algorithms", "softmax", "constructions", "certify", "attention", "machine"),
    *("machine.programs", "looped", "language", "planted", "planted.benchmark", "canary", "core.predictor", "tasks"),
    "models",
    *("training", "identification", "estimators", "testing", "export"),
)


# Claims


def numbers(name: str, up: str) -> str:
    """What a claim's source says, what was measured, and the figure of the largest scale."""
    claim = all_claims()[name]
    found = measured(claim, RESULTS)
    lines = [f"**{claim.source}.** {claim.statement}", "", f"Theirs: {claim.theirs}.", ""]
    rows = [_row(claim, record) for record in found]
    lines += [table(("command", "minutes", "ours", "verdict"), rows), ""]
    if claim.correction:
        lines += [f"Mended: {claim.correction}", ""]
    if claim.differs:
        lines += [f"Our set-up: {claim.differs}", ""]
    if claim.set_up:
        lines += [table(("", "theirs", "ours"), setup_rows(claim)), ""]
    if found and "cannot" not in found[-1].numbers:
        figure = path_of(name, found[-1].scale, RESULTS, ".svg").name
        lines += [f"![{claim.statement}]({up}figures/{figure}){{ loading=lazy }}", ""]
    return "\n".join(lines)


def verdict(name: str) -> str:
    """What a claim's largest result says, with a link to its numbers."""
    claim = all_claims()[name]
    found = measured(claim, RESULTS)
    state = found[-1].verdict(claim).state if found else "not run"
    return f"[{state}](claims.md#{name})"


def _row(claim: Claim, record: Record) -> tuple[str, ...]:
    verdict = record.verdict(claim)
    minutes = (record.seconds if record.scale == "gpu" else record.cpu_seconds) / 60
    scale = "" if record.scale == "small" else f" --scale {record.scale}"
    state = f"{'**stale**, ' * record.stale(claim)}**{verdict.state}**: {verdict.reason}"
    return f"`python -m reproduce {claim.name}{scale}`", f"{minutes:.1f}", verdict.ours, state


def claims(up: str) -> str:
    """A line a claim with its verdict at the largest scale, then every claim with its numbers and figure."""
    every = list(all_claims().values())
    rows = []
    for claim in every:
        found = measured(claim, RESULTS)
        state = found[-1].verdict(claim).state if found else "not run"
        rows.append((f"[{claim.source}](#{claim.name})", claim.statement, state))
    parts = [table(("claim", "says", "verdict"), rows), ""]
    for source, group in groupby(every, key=source_of):
        parts += [f"## {source[:1].upper() + source[1:]}", ""]
        for claim in group:
            title = claim.source.partition(", ")[2] or claim.source
            parts += [f"### {title} {{ #{claim.name} }}", "", numbers(claim.name, up), ""]
    return "\n".join(parts)


# Records


def records(up: str) -> str:
    """The rule in the module's own words, and a table a track."""
    rule = " ".join((speedrun.__doc__ or "").partition("The rule. ")[2].split())
    tracks = json.loads((RESULTS / "bench" / "speedrun.json").read_text())
    parts = [f"> {rule}", ""]
    for name, record in tracks.items():
        config = record["config"]
        rows = [
            (
                *(str(each["seed"]), f"{each['rate']:g}" if "rate" in each else "–", f"{each['steps']:,}"),
                f"{each['seconds']:.1f}" if "seconds" in each else "–",
                *(f"{each['after_d']:.4f}", f"{each['after_2d']:.6f}"),
            )
            for each in record.get("attempts") or [*record["sweep"], record["best"]]
        ]
        head = ("seed", "Adam's rate", "steps", "seconds", "error / d after d", "after 2d")
        parts += [f"## {name}", "", f"{record['machine']}, torch {record['torch']}, commit {record['commit'][:7]}; "]
        parts[-1] += f"optimiser {config['optimiser']}, batch {config['batch']}."
        if "mean" in record:
            told = ", ".join(f"{record['mean'][what]:.3g} (p = {p:.2g})" for what, p in record["p"].items())
            parts[-1] += f" Means {told} in {record['seconds']:.1f} s: {'a' if record['record'] else 'no'} record."
        parts += ["", table(head, rows), ""]
    return "\n".join(parts)


# The benchmark of methods


def benchmark(up: str) -> str:
    """The tables of results/benchmark: all methods on both architectures, and the leaderboard of the sealed split."""
    parts = []
    for path in sorted((RESULTS / "benchmark").glob("methods*.json")):
        record = json.loads(path.read_text())
        cells = [cell_of(one) for one in record["cells"]]
        variants = list(dict.fromkeys(cell.variant for cell in cells))
        seconds = sum(record["seconds_per_model"].values())
        told = f"{record['models']} planted models; {record['machine']}, torch "
        told += (
            f"{record['torch']}, commit {record['commit'][:7]}. Means ± half a 95 % bootstrap interval over models; "
        )
        told += "arrows where the difference from the same models without obfuscation has an interval without zero. "
        told += f"All methods together take {seconds:.1f} processor seconds for one model in one variant:"
        each = ", ".join(f"{name} {value:.3f}" for name, value in record["seconds_per_model"].items())
        made = table(("method", "measure", *variants), table_rows(cells, variants, record["missing"]))
        covered = (f"{line}." for line in coverage_lines(record))
        parts += [f"### {record['architecture']}", "", f"{told} {each}.", "", made, "", *covered, ""]
    entries = [json.loads(path.read_text()) for path in sorted((RESULTS / "benchmark" / "sealed").glob("*.entry.json"))]
    return "\n".join([*parts, *faithfulness(), *leaderboard(entries)])


def faithfulness() -> list[str]:
    """The table of results/benchmark/faithfulness.json."""
    path = RESULTS / "benchmark" / "faithfulness.json"
    if not path.is_file():
        return []
    made = json.loads(path.read_text())
    facts, kinds = made["provenance"], list(made["rows"][0]["flagged"])

    def told(rate: dict[str, float] | None) -> str:
        return "–" if rate is None else f"{rate['value']:.2f} ({rate['low']:.2f} … {rate['high']:.2f})"

    rows = [
        (
            row["method"],
            *(told(row["flagged"][kind]) for kind in kinds),
            *(told(row["every"].get(kind)) for kind in ("faithful", "mixed")),
            *(told(row["hit"]), told(row["false_alarm"])),
        )
        for row in made["rows"]
    ]
    head = (
        f"{facts['models']} models of each kind, {facts['machine']}, commit {facts['commit'][:7]}: the share of models "
    )
    head += (
        "in which a method says that the answer depends on the chain (`replay`: that it is not the chain's), and of "
    )
    head += "steps that it finds or wrongly calls used, with 95 % intervals."
    head += " Every: in which it says that the answer depends on every step."
    columns = ("method", *kinds, "every: faithful", "every: mixed", "hits", "false alarms")
    return ["### Chains of thought", "", head, "", table(columns, rows), ""]


def leaderboard(entries: list[dict[str, Any]]) -> list[str]:
    """A table of entries to one sealed split, the best circuit first."""
    keys = list(dict.fromkeys((cell["measure"], cell["variant"]) for entry in entries for cell in entry["cells"]))
    keys = [key for key in keys if key[0] in ("found", "what", "circuit", "which")]
    rows = []
    for entry in entries:
        by_key = {(cell["measure"], cell["variant"]): cell["score"] for cell in entry["cells"]}
        told = (f"{by_key[key]['value']:.2f}" if key in by_key else "–" for key in keys)
        rows.append((entry["method"], *told, entry["digest"][:12]))
    if not entries:
        return []
    split = entries[0]["split"]
    head = f"{split['models']} models ({split['architecture']}), truth {split['truth'][:12]}…, revealed."
    return ["### Sealed split", "", head, "", table(("method", *(": ".join(key) for key in keys), "digest"), rows), ""]


# Columns of the table of engines, and the beginnings of their probes' names.
OPERATIONS = {
    **{"products": "linear", "values": "mixed", "norm": "norm head_norm", "ε": "epsilon", "ties": "tie"},
    **{"mean": "mean", "look-ups": "look", "Σ p·v": "cancel", "positions": "rope position"},
    **{"gate": "product activation second", "biases": "bias"},
    "head": "logit",
}


def canaries(up: str) -> str:
    """The tables of results/canary/: engines by operation, injected faults, random prompts."""
    folder = RESULTS / "canary"
    records = json.loads((folder / "engines.json").read_text())
    rows = [_engine_row(one) for one in records]
    dates = sorted({one["time"][:10] for one in records})
    machines = " and ".join(dict.fromkeys(one["machine"] for one in records))
    told = f"{len(records)} configurations, {machines}, measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}. "
    told += (
        "Bits kept by operation, the least of both shapes; bold: fewer than every correct engine of the format keeps."
    )
    head = ("engine", "version", "digital", *OPERATIONS, "text", "first wrong")
    return "\n".join([told, "", table(head, rows), "", *_faults(folder), "", *_prompts(folder)])


def _engine_row(one: dict[str, Any]) -> tuple[str, ...]:
    start = (one["engine"], one["version"].rpartition(" ")[2])
    if "failed" in one:
        return (*start, f"did not run: {one['failed'][:60]}", *[""] * (len(OPERATIONS) + 2))
    digital = [(proved, wrong) for canary, _, _, proved, wrong in one["rows"] if canary.startswith("digital")]
    right = "bit-exact" if min(digital)[0] == 30 else "right"
    cells = []
    for words in [*OPERATIONS.values(), ""]:
        kept = [
            (kept, wrong)
            for canary, probe, kept, _, wrong in one["rows"]
            if (canary.startswith("analog") and probe.startswith(tuple(words.split())))
            or (not words and canary == "whole")
        ]
        least = f"{min(kept)[0]:.1f}" if kept else "–"
        cells.append(f"**{least}**" if any(wrong for _, wrong in kept) else least)
    if "text" in one:
        cells[-1] = "did not run"
    return (*start, "**wrong**" if any(wrong for _, wrong in digital) else right, *cells, one.get("first", "–"))


def _faults(folder: Path) -> list[str]:
    found = json.loads((folder / "faults.json").read_text())
    rows = [
        (
            row["fault"] + " (later)" * row["later"] if row["fault"] else "none",
            "–" if row["first"] is None else f"{row['first']}, layer {row['layer']}",
            "–" if row["first"] is None else "yes" if row["right"] else "**no**",
            *("seen" if seen else "–" for seen in row["random"].values()),
        )
        for row in found["rows"]
    ]
    heads = [f"random, σ {spread}, {name}" for spread, name in (each.split() for each in found["rows"][0]["random"])]
    made = [row for row in found["rows"] if row["fault"]]
    right, later = ([row["right"] for row in made if row["later"] == late] for late in (False, True))
    told = f"**Injected faults**: {sum(right)} of {len(right)} are named at their operation, and {sum(later)} of "
    told += f"{len(later)} that were written down after the probes were fixed. `python -m benchmarks.canaries faults`"
    return [told, "", table(("fault", "first wrong operation", "right", *heads), rows)]


def _prompts(folder: Path) -> list[str]:
    rows = [
        (
            f"{row['arithmetic']}, {row['family']}",
            *(str(row[name]) for name in ("prompts", "registers")),
            ", ".join(f"{name}: {count}" for name, count in row["violations"].items()),
            f"{row['least_spare_bits']:.1f}",
        )
        for row in json.loads((folder / "prompts.json").read_text())
    ]
    head = ("format", "prompts", "registers", "below the proved bits", "bits to spare, the least")
    return ["**Random prompts**. `python -m benchmarks.canaries prompts`", "", table(head, rows), ""]


# The text interpreter


def llama(up: str) -> str:
    """The tables of results/llama/: methods over 50 and 200 steps, random prompts, engines."""
    folder, parts = RESULTS / "llama", []
    head = ("prompts", "runs", "worst", "median", "known before, median", "within it", "above 2e-7")
    for name, about in (
        ("methods-sdpa-50", "50 steps, 20 rows, 4 features, sdpa"),
        ("methods-sdpa-200", "200 steps, sdpa"),
        ("random-sdpa", "random methods, rows, features, steps and starts, sdpa"),
        ("random-eager", "the same, eager"),
    ):
        record = json.loads((folder / f"{name}.json").read_text())
        rows = [
            (
                *(each["method"], str(each["runs"]), f"{each['worst']:.1e}", f"{each['median']:.1e}"),
                "–" if math.isinf(float(each["certificate"][0])) else f"{float(each['certificate'][0]):.1e}",
                *(f"{each['within_certificate']} of {each['runs']}", str(each["above_2e-7"])),
            )
            for each in record["rows"]
        ]
        parts += [
            f"**{about.capitalize()}.** sha256 {record['sha256'][:16]}…, torch {record['torch']}.",
            "",
            table(head, rows),
            "",
        ]
    engines = json.loads((folder / "engines.json").read_text())
    rows = [
        (one["engine"], f"failed: {one['failed'][:60]}", "")
        if "failed" in one
        else (one["engine"], f"{one['worst']:.1e}", "yes" if one["within_certificate"] else "no")
        for one in engines
    ]
    parts += ["**Engines**, five prompts of three steps, decoded greedily from their logits.", ""]
    return "\n".join([*parts, table(("engine", "worst", "within what was known before"), rows), ""])


# Planted models of words


def words(up: str) -> str:
    """The tables of results/benchmark/tokens.json and chains.json: answers, and changes of written numbers."""
    answers, chains = (
        json.loads((RESULTS / "benchmark" / f"{name}.json").read_text()) for name in ("tokens", "chains")
    )
    rows = [
        (
            one["mechanism"],
            f"{one['bound']:.1e}" + ("" if one["proved"] else ", measured"),
            *(str(one[name]) for name in ("prompts", "right", "certain", "wrong though certain")),
        )
        for one in answers["rows"]
    ]
    parts = [table(("mechanism", "bound on ŷ", "prompts", "right", "certain", "wrong though certain"), rows), ""]
    moved = [
        tuple(
            f"{one.get(f'{use} numbers changed, answer moved', 0)} of {one.get(f'{use} numbers changed', 0)}"
            for use in ("used", "unused")
        )
        for one in chains["rows"]
    ]
    told = [
        (
            one["kind"],
            f"{one['models as the truth says']} of {one['models']}",
            *each,
            str(one.get("wrong", 0)),
            str(one.get("as foretold but for a boundary within the bound", 0)),
        )
        for one, each in zip(chains["rows"], moved, strict=True)
    ]
    head = ("chains", "models as the truth says", "answer moved by used numbers", "by unused ones", "wrong", "boundary")
    return "\n".join([*parts, table(head, told), ""])


# Errors


@cache
def refusals() -> dict[str, tuple[str, str, str]]:
    """Name: module, cause, cure. Every class of ours that a caller can meet, from its docstring."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "EmulonError" for base in node.bases):
                cause, _, cure = (ast.get_docstring(node) or "").partition("Cure: ")
                module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
                found[node.name] = module, " ".join(cause.split()), " ".join(cure.partition("\n\n")[0].split())
    return dict(sorted(found.items()))


def errors(up: str) -> str:
    parts = []
    for name, (module, cause, cure) in refusals().items():
        parts += [f"## {name}", "", f"`from {module} import {name}`", "", f"**Cause.** {cause}", ""]
        parts += [f"**Cure.** {cure[:1].upper() + cure[1:]}", ""]
    return "\n".join(parts)


# Reference


def reference(name: str) -> str:
    return f"# emulon.{name}\n\n::: emulon.{name}\n"


def packages() -> str:
    """One line a package: the first of its docstring."""
    lines = []
    for name in PACKAGES:
        place = SOURCE.joinpath(*name.split("."))
        path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        lines.append(f"- [emulon.{name}]({name}.md): {re.sub(r'[.]$', '', first)}")
    return (
        "# Reference\n\nMade from the docstrings. Tensors are `(..., tokens, features)`.\n\n" + "\n".join(lines) + "\n"
    )
