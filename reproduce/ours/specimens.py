"""Specimens drawn at random: within their certificate, and is their truth true?"""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.planted import PlantedModel, drawn_mechanism, obfuscate, plant
from emulon.report.figure import Figure, Panel, Series
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict

# Asked of the truth: what its directions read, and how interventions compare with the program's own.
LEAST_FIT, INTERVENTION = 0.9999, 1e-6
# A single coordinate that is as good as this is a register's own slot.
SLOT = 0.99
# Registers that hardly vary have no R² to speak of.
VARIES = 1e-3
# Added to registers: large beside 1e-6, and small enough that no divisor of least squares comes near zero.
AMOUNT = 1e-3


def run(setting: Setting) -> Numbers:
    """For every specimen and variant: error, bound, R² of the truth's directions and of the best coordinate, and how
    far interventions are from what the program says."""
    rows = []
    for index in range(setting.sizes["specimens"]):
        seed = setting.seed + index
        mechanism = drawn_mechanism(seed)
        setting.report_progress(str(mechanism), index / setting.sizes["specimens"])
        for dtype in (torch.float64, torch.float32):
            plain = plant(mechanism, dtype)
            for one in (plain, obfuscate(plain, seed)):
                rows.append({"seed": seed, "mechanism": str(mechanism), **measured(one, setting.sizes["prompts"])})
    return {"rows": rows}


def measured(one: PlantedModel, prompts: int) -> Numbers:
    xs, ys = one.draw(prompts, seed=prompts)
    fits, slots = registers(one, xs, ys)
    out: Numbers = {
        "dtype": str(one.dtype).removeprefix("torch."),
        "disguised": bool(one.build.obfuscations),
        "error": float((one(xs, ys).double() - one.algorithm(xs, ys)).abs().max()),
        "bound": one.certificate.bound,
        "proved": one.certificate.proved,
        "least_fit": min(fits),
        "slots": sum(fit > SLOT for fit in slots) / len(slots),
    }
    if one.dtype == torch.float64:
        out |= interventions(one, xs[:16], ys[:16])
    return out


def registers(one: PlantedModel, xs: Tensor, ys: Tensor) -> tuple[list[float], list[float]]:
    """Of every version that varies, where it was written: R² of the truth's directions, and of the best coordinate."""
    with torch.no_grad():
        out = one.network(inputs_embeds=one.embed(xs, ys), output_hidden_states=True)
    # The last of them has been through the last LayerNorm, which the truth reads through, too.
    streams, values = [stream[:, 1:].double() for stream in out.hidden_states], one.values(xs, ys)
    fits, slots = [], []
    for version in one.truth.versions:
        stream, wanted = streams[version.layer + 1], values[version.name]
        if wanted[..., 0].std() > VARIES:
            off = one.truth.read(version.register, stream) - wanted
            fits.append(float(1 - off.square().sum() / (wanted - wanted.mean()).square().sum()))
            if version.layer + 2 < len(streams):  # LayerNorm has taken the mean off the last
                slots.append(best_coordinate(stream, wanted[..., 0]))
    return fits, slots


def best_coordinate(stream: Tensor, wanted: Tensor) -> float:
    """R² of the best single coordinate, slope and offset fitted."""
    x, y = stream.flatten(0, -2), wanted.flatten()
    x, y = x - x.mean(dim=0), y - y.mean()
    return float(((x.mT @ y) ** 2 / (x.square().sum(dim=0) * y.square().sum()).clamp(min=1e-300)).max())


def interventions(one: PlantedModel, xs: Tensor, ys: Tensor) -> Numbers:
    """Amounts at random added to every version in turn: the answer's distance to the program's, and, of versions that
    no prediction depends on, to the answer without."""
    generator = torch.Generator().manual_seed(0)
    before, used, unused = one(xs, ys), 0.0, 0.0
    for version in one.truth.versions:
        shape = len(xs), one.truth.tokens - 1, len(one.truth.registers[version.register].write)
        added = {version.name: AMOUNT * torch.randn(*shape, dtype=torch.float64, generator=generator)}
        answer = one(xs, ys, added=added)
        if version.last_read is None:
            unused = max(unused, float((answer - before).abs().max()))
        else:
            used = max(used, float((answer - one.expected(xs, ys, added=added)).abs().max()))
    return {"intervention": used, "unused": unused}


def judge(numbers: Numbers) -> Verdict:
    """All within their bounds, interventions as the program says, and no slots in disguise; every register is read in
    float64 (in float32 a register's own error may be as large as it varies)."""
    rows = numbers["rows"]
    within = sum(row["error"] <= row["bound"] for row in rows)
    least, single = (min(row["least_fit"] for row in rows if row["dtype"] == d) for d in ("float64", "float32"))
    asked = [row for row in rows if "intervention" in row]
    off = max(row["intervention"] for row in asked)
    quiet = sum(row["unused"] <= row["bound"] for row in asked)
    plain = [row["slots"] for row in rows if not row["disguised"]]
    hidden = [row["slots"] for row in rows if row["disguised"]]
    slots = sum(hidden) / len(hidden)
    proved = {
        f"{dtype}{', disguised' if disguised else ''}": [
            row["proved"] for row in rows if row["dtype"] == dtype and row["disguised"] == disguised
        ]
        for dtype in ("float64", "float32")
        for disguised in (False, True)
    }
    shares = ", ".join(f"{sum(part)}/{len(part)} in {name}" for name, part in proved.items())
    ours = (
        f"{within} of {len(rows)} within the bound (proved {shares}); R² of every register ≥ {least:.6f} (float32: "
        f"{single:.6f}); interventions off by {off:.1e}; a slot for {sum(plain) / len(plain):.0%} of registers in the "
        f"plain, {slots:.1%} in disguise"
    )
    holds = within == len(rows) and least >= LEAST_FIT and off <= INTERVENTION and quiet == len(asked) and slots < 0.05
    return Verdict.that(holds, ours, f"{quiet} of {len(asked)} are moved by nothing that is called unused")


def figure(numbers: Numbers) -> Figure:
    panels = []
    for dtype in ("float64", "float32"):
        for disguised in (False, True):
            rows = [row for row in numbers["rows"] if row["dtype"] == dtype and row["disguised"] == disguised]
            rows = sorted(rows, key=lambda row: float(row["bound"]))
            places = list(range(1, len(rows) + 1))
            series = [Series(key, places, [max(row[key], 1e-17) for row in rows]) for key in ("error", "bound")]
            title = f"{dtype}{', disguised' if disguised else ''}"
            panels.append(Panel("specimens, by bound", "distance to the algorithm", series, title=title, log_y=True))
    return Figure(panels)


CLAIM = Claim(
    name="ours-specimens",
    source="ours, specimens",
    statement="Planted algorithms run as they are written in GPT2Model, plain and in disguise, and the truth beside "
    "them reads every register and foretells every intervention.",
    theirs="all within their bounds; R² ≥ 0.9999; interventions to 1e-6; single coordinates tell nothing in disguise",
    scales={
        "small": Scale(1, {"specimens": 22, "prompts": 64}),
        "paper": Scale(6, {"specimens": 200, "prompts": 64}),
    },
    run=run,
    judge=judge,
    figure=figure,
)
