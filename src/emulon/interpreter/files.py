"""Interpreters and programs as files: safetensors with a JSON header, a format version and a checksum inside."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emulon.algorithms import GradientDescent
from emulon.algorithms.losses import LINKS, Loss, registered
from emulon.attention.codes import Codes, circular
from emulon.certify import Band, Domain, Spectrum, rounding
from emulon.certify.interpolation import Interpolation, holds
from emulon.core.arrays import bits
from emulon.core.errors import EmulonError
from emulon.core.files import write_atomically
from emulon.core.hub import CARD
from emulon.expressions import parse
from emulon.interpreter.module import Capacity, Interpreter
from emulon.interpreter.phase import SPARE, Phase, ProvedBounds, ValueCoefficients, penalty_function
from emulon.interpreter.plan import Plan, Slopes, enclosed_negative_curvature
from emulon.interpreter.program import Program
from emulon.softmax import Grid

FORMAT = {"interpreter": "2", "program": "5", "network": "4"}
# Facts of a program that are numbers, of its plan or its descent; the domain and the loss stand beside them.
PLAIN = {
    "name": str,
    "steps": int,
    "step_size": float,
    "l2": float,
    "l1": float,
    "momentum": float,
    "accelerated": bool,
    "rows": int,
    "strong_convexity": float,
    "negative_curvature": float,
    "curvature_reach": float,
    "max_step_times_smoothness": float,
    "step_from_data": bool,
}

# Codes are compared with each other up to so many, and so many at a time with all others.
PAIRS, BLOCK = 20_000, 512
READOUTS = {"gradient": ("mean",), "proximal": ("sum", "rest")}

# A folder for the hub.
WEIGHTS = "interpreter.safetensors"
MODEL_CARD = """---
license: apache-2.0
library_name: emulon
pipeline_tag: tabular-regression
tags: [in-context-learning, transformers, certified-numerics, emulon]
---
# A frozen interpreter

A two-layer softmax transformer whose weights were computed, not trained, and never change: what it runs (ridge, lasso,
Huber, logistic regression, any loss that can be written down, any network of PyTorch's layers) is decided by the prompt
alone.

```python
import emulon
from emulon.algorithms import Ridge

interpreter = emulon.Interpreter.from_pretrained("this folder")
program = emulon.compile(Ridge(steps=50), data=(x, y))   # x, y: your data, centred
print(interpreter.run(program, x, y))                    # weights, and a proved bound on their error
```

| what | |
| --- | --- |
| prompts | up to {tokens} tokens of width {width}, of data with up to {features} features |
| numbers | up to {reach:g} in magnitude, {dtype} |
| layer 1 | {keys} keys of an identity grid: it reads a number up to 1 with an error of at most {error}, proved |
| sha256 | `{sha256}`, of every frozen number |

**Bound.** Every program comes with a certificate, for every input of its domain, every run with an audit of that run.

**Files.** `{file}` is read by emulon alone, which checks it; nothing is pickled.
"""


class BadFile(EmulonError):
    """A file that is not what it should be: truncated, altered, foreign, or of another version.

    Cure: write it again with the command that made it, for example `emulon compile`.
    """


def save(thing: Interpreter | Program, path: str | Path) -> None:
    """Write an interpreter or a program to a file, whole or not at all.

    Args:
        thing: What is written.
        path: The file, safetensors with a JSON header.
    """
    if isinstance(thing, Interpreter):
        kind, (tensors, facts) = "interpreter", _interpreter_to_parts(thing)
    else:
        kind, (tensors, facts) = "program", _program_to_parts(thing)
    write_sealed(path, kind, tensors, facts)


def write_folder(interpreter: Interpreter, folder: Path) -> None:
    """Write an interpreter and its model card for the hub.

    Args:
        interpreter: What is written, as `WEIGHTS`.
        folder: Is there already.
    """
    save(interpreter, folder / WEIGHTS)
    facts = {"keys": len(interpreter.slopes), "dtype": str(interpreter.dtype).removeprefix("torch.")}
    facts |= {"error": f"{interpreter.identity.error(1.0):.1e}", "sha256": interpreter.sha256, "file": WEIGHTS}
    write_atomically(folder / CARD, MODEL_CARD.format(**asdict(interpreter.capacity), **facts))


def write_sealed(path: str | Path, kind: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Tensors and facts in one file, with a checksum of both inside."""
    from safetensors.torch import save as to_bytes

    header = {"kind": kind, "format": FORMAT[kind], "facts": json.dumps(facts, sort_keys=True)}
    header["sha256"] = _checksum(header, tensors)
    # One entry: safetensors writes several in any order, and the same thing should be the same file.
    write_atomically(path, to_bytes(tensors, {"emulon": json.dumps(header, sort_keys=True)}))


def load_interpreter(path: str | Path) -> Interpreter:
    """Read an interpreter exactly as saved.

    Args:
        path: File that `save` wrote.

    Raises:
        BadFile: The file is truncated, altered, of another version, or holds something else.
    """
    tensors, facts = read_sealed(Path(path), "interpreter")
    with whole(path, "save it again"):
        require_kind(facts["capacity"], dict.fromkeys(("features", "tokens", "width"), int) | {"reach": float})
        capacity = Capacity(**facts["capacity"])
        # Before anything of that size is made.
        if tuple(tensors["assemble.w_k"].shape) != (capacity.width, 3 * capacity.width):
            raise BadFile(f"the second layer in {path} is not of the width it says; save it again")
        interpreter = Interpreter(capacity, _DTYPES[facts["dtype"]])
        made = dict(interpreter.named_buffers())
        if other := [name for name in made if not torch.equal(tensors[name], made[name])]:
            raise BadFile(f"{other[0]} in {path} is not that of an interpreter; save one again")
        _require_read(path, tensors, facts, *_interpreter_to_parts(interpreter))
    return interpreter


def load_program(path: str | Path, proved: str | None = None) -> Program:
    """Read a program exactly as saved, once what it claims of itself has been proved again.

    Args:
        path: File that `save` wrote.
        proved: sha256 of a file that was proved elsewhere, where there is no ball arithmetic to prove it here.

    Raises:
        BadFile: The file is truncated, altered, of another version, or one of its claims is false.
    """
    if proved is not None and (found := file_sha256(path)) != proved:
        raise BadFile(f"{path} is not the file that was proved: its sha256 is {found[:12]}…, not {proved[:12]}…")
    tensors, facts = read_sealed(Path(path), "program")
    with whole(path, "compile it again"):
        program = _program_from_parts(path, tensors, facts)
        wrong = None if proved else false_claim(program)
    if wrong is not None:
        raise BadFile(f"{path} claims what is not so: its {wrong}; compile it again")
    rounded = {name: _with_rounded_bounds(part) for name, part in facts.items()}
    _require_read(path, tensors, rounded, *_program_to_parts(program))
    return program


def _require_read(
    path: str | Path, tensors: dict[str, Tensor], facts: dict[str, Any], read: dict[str, Tensor], known: dict[str, Any]
) -> None:
    """Refuse a file with something in it that loading ignores, or takes for something else: a name, say."""
    for name in sorted(facts.keys() | known.keys()):
        if json.dumps(facts.get(name), sort_keys=True) != json.dumps(known.get(name), sort_keys=True):
            why = "loss is not the one of its name" if name == "loss" else f"{name} is not what is read of it"
            raise BadFile(f"{path} claims what is not so: its {why}; compile it again")
    if more := sorted(tensors.keys() ^ read.keys()):
        raise BadFile(f"{path} holds {more[0]}, which is not read; compile it again")


def file_sha256(path: str | Path) -> str:
    """Of all bytes of a file."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        raise BadFile(f"there is no file {path}; check the path") from None


@contextmanager
def whole(path: str | Path, advice: str) -> Iterator[None]:
    """A checksum made anew fits any content: what is missing in it, or of another kind, is said in one line."""
    try:
        yield
    except EmulonError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise BadFile(f"{path} is not whole ({why}); {advice}") from None


def require_kind(facts: dict[str, Any], kinds: Mapping[str, type]) -> None:
    """Refuse (TypeError) a fact of another kind; a whole number may stand for a float, not the other way round."""
    for name, kind in kinds.items():
        if not isinstance(facts[name], (int, float) if kind is float else kind) or (
            isinstance(facts[name], bool) and kind is not bool
        ):
            raise TypeError(f"{name} is {facts[name]!r}")


def _program_from_parts(path: str | Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Program:
    require_kind(facts, PLAIN)
    known, domain, rows = {name: facts[name] for name in PLAIN}, _domain(facts["domain"]), facts["rows"]
    own = {each.name for each in fields(GradientDescent)} & known.keys()
    batch = None if rows == domain.samples else domain.samples
    try:
        descent = GradientDescent(_loss(facts["loss"]), batch=batch, **{name: known.pop(name) for name in own})
    except EmulonError:
        raise BadFile(
            f"{path} claims what is not so: its numbers are none that descent can have; compile it again"
        ) from None
    plan = Plan(descent=descent, domain=domain, **known)
    proximal = _phase_from_parts("proximal", tensors, facts["proximal"]) if facts["proximal"] else None
    gradient = _phase_from_parts("gradient", tensors, facts["gradient"], plan.value_coefficients)
    return Program(plan, gradient, proximal)


def _interpreter_to_parts(interpreter: Interpreter) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {name: part.contiguous().clone() for name, part in interpreter.named_buffers()}
    return tensors, {"capacity": asdict(interpreter.capacity), "dtype": str(interpreter.dtype)}


def _program_to_parts(program: Program) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    plan = vars(program.plan) | vars(program.descent)
    facts: dict[str, Any] = {name: plan[name] for name in PLAIN}
    facts["loss"] = {name: getattr(program.loss, name) for name in ("name", "derivative", "curvature")}
    facts["loss"]["link"] = program.loss.link.name
    facts |= {"domain": asdict(program.domain), "proximal": None}
    for phase in program.phases:
        name, grid = phase.name, phase.grid
        for part in ("slopes", "intercepts", "values"):
            tensors[f"{name}.{part}"] = getattr(grid, part).contiguous().clone()
        tensors[f"{name}.codes"] = phase.codes.vectors.contiguous().clone()
        facts[name] = {
            "grid": {"lo": grid.lo, "hi": grid.hi, "way": grid.way, "bands": [[b.lo, b.hi] for b in grid.bands]},
            "domain": asdict(phase.domain),
            "gap": phase.codes.gap,
            "strength": phase.strength,
            "readout": phase.readout,
            "bounds": asdict(phase.proved),
        }
    return tensors, facts


def _domain(facts: dict[str, Any]) -> Domain:
    return Domain(**facts | {"spectrum": Spectrum(**facts["spectrum"])})


def _phase_from_parts(
    name: str, tensors: dict[str, Tensor], facts: dict[str, Any], values: ValueCoefficients | None = None
) -> Phase:
    """`values` are those of the plan; a proximal phase has its own."""
    parts = {part: tensors[f"{name}.{part}"] for part in ("slopes", "intercepts", "values")}
    shape, dtype = facts["grid"], parts["slopes"].dtype
    if len({(part.dtype, part.shape) for part in parts.values()}) > 1 or dtype not in _DTYPES.values():
        raise TypeError(f"the keys of the {name} phase are not of one kind")
    if tensors[f"{name}.codes"].dtype != dtype:
        raise TypeError(f"the codes of the {name} phase are not of its kind")
    require_kind(facts, {"gap": float, "strength": float, "readout": str})
    require_kind(shape, {"lo": float, "hi": float, "way": str})
    bands = tuple(Band(*band) for band in shape["bands"])
    grid = Grid(**parts, lo=shape["lo"], hi=shape["hi"], way=shape["way"], bands=bands)
    codes = Codes(tensors[f"{name}.codes"], facts["gap"])
    known = dict(facts["bounds"])
    numbers = ("interpolation", "deviation", "size", "leak")
    require_kind(known, dict.fromkeys(numbers, float) | {"proved": bool})
    known |= _rounded(known)
    known["bands"] = tuple(Band(**band) for band in known["bands"])
    layout = grid, _domain(facts["domain"]), codes, facts["strength"]
    values = ValueCoefficients.of_penalty(facts["readout"]) if values is None else values
    return Phase(*layout, name=name, readout=facts["readout"], values=values, proved=ProvedBounds(**known))


def _rounded(bounds: dict[str, Any]) -> dict[str, float]:
    """Proved figures as `prove` rounds them; files from before it did may claim the last digit of another processor."""
    return {name: rounding.rounded_up(float(bounds[name])) for name in ("interpolation", "deviation", "size")}


def _with_rounded_bounds(phase: Any) -> Any:
    """The facts of a phase with its figures rounded; anything else as it is."""
    if not isinstance(phase, dict) or "bounds" not in phase:
        return phase
    return phase | {"bounds": phase["bounds"] | _rounded(phase["bounds"])}


def _loss(facts: dict[str, Any]) -> Loss:
    """Registered losses by their name, `huber(1.35)` or `squared`; of any other the derivative, which is what runs."""
    return registered(facts["name"]) or Loss(
        facts["name"],
        facts["derivative"],
        facts["curvature"],
        LINKS.named(facts["link"]),
        value=_no_value,
        slope=parse(facts["derivative"]),
    )


def _no_value(t: Tensor) -> Tensor:
    raise EmulonError("a program's file keeps the derivative of its loss, not the loss; use the algorithm for that")


_DTYPES = {"torch.float64": torch.float64, "torch.float32": torch.float32}


def _checksum(header: Mapping[str, Any], tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps({k: header[k] for k in ("kind", "format", "facts")}, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name}{tensors[name].dtype}{tuple(tensors[name].shape)}".encode())
        digest.update(bits(tensors[name]))
    return digest.hexdigest()


def kind_of(path: str | Path) -> str:
    """The kind of thing that a file holds: "interpreter", "program" or "network"; empty for other files.

    Args:
        path: Any file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return str(json.loads((file.metadata() or {}).get("emulon", "{}")).get("kind", ""))
    except (SafetensorError, OSError, ValueError, AttributeError):
        return ""


def read_sealed(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("emulon", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        raise BadFile(f"there is no file {path}; check the path") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise BadFile(f"{path} is not a whole safetensors file ({error}); copy or save it again") from None
    if not isinstance(header, dict) or header.get("kind") not in FORMAT:
        raise BadFile(f"{path} is a safetensors file, but not emulon's; save one with emulon compile")
    if header["kind"] != kind:
        raise BadFile(f"{path} holds {_a(header['kind'])}, not {_a(kind)}; check the order of the arguments")
    if header.get("format") != FORMAT[kind]:
        theirs = header.get("format")
        raise BadFile(f"{path} has format {theirs}, this emulon reads {FORMAT[kind]}; write it again: emulon compile")
    with whole(path, "copy or save it again"):
        if header.get("sha256") != _checksum(header, tensors):
            raise BadFile(f"{path} was altered: its checksum does not match its content; copy or save it again")
        facts: dict[str, Any] = json.loads(header["facts"])
    return tensors, facts


def _a(kind: str) -> str:
    return f"an {kind}" if kind == "interpreter" else f"a {kind}"


def false_claim(program: Program) -> str | None:
    """What the program says of itself and is not so, in words that follow "its"; None where all of it is."""
    return next(_false_claims(program), None)


def _false_claims(program: Program) -> Iterator[str]:
    if not _possible(program):
        yield "numbers are none that descent can have"
        return
    plan, descent = program.plan, program.descent
    if program.loss.derivative != "t" and (descent.momentum or plan.strong_convexity):
        yield "loss is not quadratic, as momentum and strong convexity ask"
    if descent.l1 and descent.momentum:
        yield "momentum has no promise beside a penalty"
    if not _jumps_in_bands(program):
        yield "loss jumps where it has no band"
    phases = [(program.gradient, program.loss.derivative)]
    if program.gradient.domain != plan.inner:
        yield "gradient phase is for another domain"
    if bool(descent.l1) != (program.proximal is not None):
        yield "penalty and its proximal phase do not fit together"
    elif program.proximal is not None:
        if not _reaches(program, program.proximal):
            yield "proximal phase is for another domain"
        if program.proximal.grid.bands:
            yield "proximal phase has bands, of which no promise speaks"
        function = penalty_function(program.proximal.readout, program.step_size * descent.l1)
        phases.append((program.proximal, function))
    for phase, function in phases:
        yield from _false_claims_of_phase(phase, function)
    if plan.curvature_reach:
        found = enclosed_negative_curvature(program.loss, plan.curvature_reach)
        if found is None or found > plan.negative_curvature:
            yield "loss bends more than it says"
    if math.isfinite(program.loss.curvature):
        reach = plan.inner.residual
        _, steepest = Slopes(parse(program.loss.derivative)).between(-reach, reach)
        # The enclosure is tight to a hundredth, so that a curvature wrong by less than two passes.
        if steepest > program.loss.curvature * 1.02:
            yield "loss is steeper than it says"


def _jumps_in_bands(program: Program) -> bool:
    """A band may end at a jump, if the loss is continuous from the other side."""
    reach, bands = program.plan.inner.residual, program.gradient.grid.bands
    jumps = (one for one in parse(program.loss.derivative).breaks(-reach, reach) if one.jump)
    return all(
        any(
            band.lo < one.at < band.hi
            or (one.at == band.lo and one.value == one.left)
            or (one.at == band.hi and one.value == one.right)
            for band in bands
        )
        for one in jumps
    )


def _possible(program: Program) -> bool:
    plan = program.plan
    numbers = (plan.strong_convexity, plan.negative_curvature, plan.curvature_reach)
    parts = [
        part
        for phase in (program.gradient, program.proximal)
        if phase is not None
        for part in (phase.grid.slopes, phase.grid.intercepts, phase.grid.values, phase.codes.vectors)
    ]
    return (
        0 < plan.max_step_times_smoothness <= 2
        and program.rows >= program.domain.samples
        and all(0 <= number < math.inf for number in numbers)
        and all(bool(torch.isfinite(part).all()) for part in parts)
    )


def _reaches(program: Program, phase: Phase) -> bool:
    """Whether the proximal phase covers every weight that a gradient step can lead to."""
    plan = program.plan
    moved = plan.moved(program.gradient.proved.size)
    d, domain = program.domain.features, phase.domain
    covered = abs(plan.shrink) * program.domain.w + moved <= min(domain.w, domain.residual, domain.absolute)
    return covered and (domain.samples, domain.features, domain.x, domain.y) == (d, d, 1.0, 0.0)


def _false_claims_of_phase(phase: Phase, function: str) -> Iterator[str]:
    grid, bounds, reach, which = phase.grid, phase.proved, phase.domain.residual, f"{phase.name} phase"
    if not grid.lo <= -reach < reach <= grid.hi or phase.readout not in READOUTS[phase.name]:
        yield f"{which} does not cover its residuals"
        return
    vectors = phase.codes.vectors
    if len(vectors) != phase.domain.samples or not _least_distance(vectors) >= phase.codes.gap > 0:
        yield f"{which} has codes that are nearer to each other than it says"
        return
    others = max(phase.domain.samples - 1, 1)
    # Compared in log; processors agree to within the rounding of scores, a part of `log_normaliser_range`'s own doubt.
    needed = grid.log_normaliser_range + math.log(others / bounds.leak) + SPARE if bounds.leak > 0 else math.inf
    enough = phase.strength * phase.codes.gap
    if not needed <= enough + 1e-12 * (enough + grid.score_size):
        yield f"{which} leaks more to other samples than it says"
    claimed = Interpolation(bounds.interpolation, 0.0, bounds.deviation, bounds.size)
    if bounds.bands != grid.bands or not holds(
        grid.numbers, parse(function), grid.lo, grid.hi, claimed, bands=grid.bands
    ):
        yield f"{which} is not as near to {function} as it says"


def _least_distance(vectors: torch.Tensor) -> float:
    """A lower bound on the gap between codes: products with themselves less those with others, less rounding.

    Of codes that are zeros and ones, as those of few samples, nothing is rounded.
    """
    width, last = vectors.shape[1], torch.finfo(vectors.dtype).eps / 4
    if len(vectors) > PAIRS:
        # All pairs of so many would take hours. How far ours are apart is known, with room for last places.
        known = circular(len(vectors), vectors.dtype, width // 2)
        near = (known.vectors.double() - vectors.double()).abs().max().item() <= max(2e-14, last)
        return known.gap if near else -math.inf
    vectors = vectors.double()
    own, nearest = vectors.square().sum(dim=1).min().item(), -math.inf
    for start in range(0, len(vectors), BLOCK):
        products = vectors[start : start + BLOCK] @ vectors.T
        products.diagonal(start).fill_(-math.inf)
        nearest = max(nearest, products.max().item())
    plain = bool(((vectors == 0) | (vectors == 1)).all())
    off = 0.0 if plain else 2 * rounding.dot(width + 1, vectors.square().sum(dim=1).max().item(), torch.float64)
    return (own - nearest if len(vectors) > 1 else own) - off
