"""Interventions on planted models through other people's tools: TransformerLens's bridge and nnsight."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emulon.planted import PlantedModel, drawn_mechanism, obfuscate, plant
from emulon.planted.lens import adding, to_transformer_lens
from emulon.report.figure import Figure, Panel
from reproduce.claim import CannotTest, Claim, Numbers, Scale, Setting, Verdict
from reproduce.drawing import of_rows
from reproduce.ours.planted_models import AMOUNT

TOOLS = ("bridge", "nnsight")
PROMPTS = 8
# What a float32 answer after an intervention may be off by.
ROUNDED = 1e-4


def lenses(setting: Setting) -> Numbers:
    """For every planted Llama and variant, by tool: the largest distance of an answer after an intervention from what
    the program predicts, over all versions that a prediction depends on."""
    seeds = range(setting.seed, setting.seed + setting.sizes["models"])
    parts = setting.parts({f"seed {seed}": partial(one_model, seed) for seed in seeds})
    return {"rows": [row for part in parts.values() for row in part["rows"]]}


def one_model(seed: int, setting: Setting) -> Numbers:
    """Plain and obfuscated."""
    mechanism, rows = drawn_mechanism(seed), []
    setting.report_progress(str(mechanism), 0.0)
    plain = plant(mechanism, architecture="llama")
    for one in (plain, obfuscate(plain, seed)):
        row = {"seed": seed, "mechanism": str(mechanism), "obfuscated": bool(one.build.obfuscations)}
        rows.append({**row, **through_tools(one)})
    return {"rows": rows}


def through_tools(one: PlantedModel) -> dict[str, float | int]:
    """The largest distance by tool, and how many interventions were made with each."""
    try:
        import nnsight
        import transformer_lens  # noqa: F401 (the bridge is opened by to_transformer_lens)
    except ImportError as missing:
        raise CannotTest(
            "needs TransformerLens and nnsight; install them with: pip install 'emulon[lens]'"
        ) from missing
    generator, traced = torch.Generator().manual_seed(0), nnsight.NNsight(one.network)
    xs, ys = one.draw(PROMPTS, seed=PROMPTS)
    prompt, worst, count = one.embed(xs, ys), dict.fromkeys(TOOLS, 0.0), 0
    with tempfile.TemporaryDirectory() as folder:
        bridge = to_transformer_lens(one, Path(folder))
    for version in one.truth.versions:
        if version.last_read is None:
            continue
        shape = len(xs), one.truth.tokens - 1, len(one.truth.registers[version.register].write)
        amounts = AMOUNT * torch.randn(*shape, dtype=torch.float64, generator=generator)
        added, count = {version.name: amounts}, count + 1
        wanted = one.expected(xs, ys, added=added)
        with torch.no_grad():
            logits = bridge.run_with_hooks(prompt, fwd_hooks=adding(one, added))
        answers = {"bridge": logits[:, 1::2, 0], "nnsight": one.answers(traced_with(one, traced, prompt, added))}
        worst = {tool: max(worst[tool], float((answers[tool] - wanted).abs().max())) for tool in TOOLS}
    return {**worst, "interventions": count}


def traced_with(one: PlantedModel, traced: Any, prompt: Tensor, added: dict[str, Tensor]) -> Tensor:
    """The last hidden state of a trace in which amounts are added to one version."""
    [(name, amounts)] = added.items()
    version, change = one.truth.version(name), one.truth.in_stream(name, amounts.to(one.dtype))
    block = getattr(traced, one.architecture.blocks)[max(version.layer, 0)]
    with torch.no_grad(), traced.trace(inputs_embeds=prompt.clone()):
        if version.part == "embedding":
            block.input[:] += change
        elif version.part == "attention":
            getattr(block, one.architecture.attention).output[0][:] += change
        else:
            getattr(block, one.architecture.mlp).output[:] += change
        hidden: Tensor = traced.output.last_hidden_state.save()
    return hidden


def judge_lenses(numbers: Numbers) -> Verdict:
    """Through each tool every intervention on every model, plain and obfuscated, within ROUNDED of what is foretold."""
    rows, parts = numbers["rows"], []
    for tool in TOOLS:
        for kind, part in (
            ("plain", [r for r in rows if not r["obfuscated"]]),
            ("obfuscated", [r for r in rows if r["obfuscated"]]),
        ):
            held = sum(row[tool] <= ROUNDED for row in part)
            parts.append(f"{tool}, {kind}: {held} of {len(part)} (worst {max(row[tool] for row in part):.1e})")
    total = sum(row["interventions"] for row in rows)
    off = [f"{row['mechanism']} by {tool}" for row in rows for tool in TOOLS if row[tool] > ROUNDED]
    reason = f"{total} interventions by each tool" + (f"; beyond {ROUNDED:g}: {', '.join(off)}" if off else "")
    return Verdict.that(not off, "; ".join(parts), reason)


def draw_lenses(numbers: Numbers) -> Figure:
    panels = []
    for obfuscated in (False, True):
        rows = [row for row in numbers["rows"] if row["obfuscated"] == obfuscated]
        rows.sort(key=lambda row: row["bridge"])
        series = of_rows(rows, range(1, len(rows) + 1), TOOLS, "line")
        title = "obfuscated" if obfuscated else "plain"
        panels.append(
            Panel("planted Llamas, by distance", "distance to what is foretold", series, title=title, log_y=True)
        )
    return Figure(panels)


CLAIM = Claim(
    "ours-planted-lenses",
    "ours, planted models",
    "Registers of planted Llamas in float32 are moved through TransformerLens's bridge and nnsight as foretold.",
    "every intervention to 1e-4, through both tools, plain and obfuscated",
    {"small": Scale(1, {"models": 4}), "paper": Scale(8, {"models": 200})},
    *(lenses, judge_lenses, draw_lenses),
)
