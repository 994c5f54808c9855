"""A script for one process: writes its own files, reads those of another, and prints what must not depend on the CPU.

python figures.py OWN OTHER   writes into OWN, reads what such a process left in OTHER
"""

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import nn

from emulon.algorithms import Lasso, QuantileRegression
from emulon.attention.codes import _speeds
from emulon.certify import checker
from emulon.certify.interpolation import Interpolation, Keys, holds, prove
from emulon.core.errors import EmulonError
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter import Capacity, Interpreter, compile, load_interpreter, load_program, save
from emulon.interpreter.certificate_file import certificate_of
from emulon.interpreter.identity_grid import identity_grid, shipped_claims, shipped_proofs
from emulon.networks import compile_network, load_network, save_network
from emulon.networks.softmaxes import UNITS, softmax_for

SHIPPED = Path(__file__).parents[2] / "playground/programs"
ALGORITHMS = {"lasso": Lasso(0.05, 20), "quantile": QuantileRegression(0.3, 20)}
READ_BY = {
    "program": (load_program, save),
    "interpreter": (load_interpreter, save),
    "network": (load_network, save_network),
}


def sha256(thing: object) -> str:
    return hashlib.sha256(thing if isinstance(thing, bytes) else repr(thing).encode()).hexdigest()


def shipped() -> dict[str, object]:
    """Which of the shipped claims do not hold, and what some proofs come out as here."""
    claims, found = shipped_claims(), {}
    keys = {name: Keys(*map(np.frombuffer, felt[0]), others=felt[1], spread=felt[2]) for name, felt in claims.items()}
    false = [
        name
        for name, (*_, lo, hi) in claims.items()
        if not holds(keys[name], parse("t"), lo, hi, shipped_proofs()[name])
    ]
    for name in sorted(claims)[::5]:
        lo, hi = claims[name][3:]
        found[name] = asdict(prove(keys[name], parse("t"), lo, hi, target=2.0**-53 * max(abs(lo), abs(hi))))
    for unit in UNITS:
        known = softmax_for(*unit)
        claim = Interpolation(known.interpolation, 0.0, known.deviation, known.size)
        if not holds(known.grid.numbers, parse(known.f), known.grid.lo, known.grid.hi, claim):
            false.append(known.f)
    return {"shipped and false": false, "proofs": sha256(found)}


def frozen() -> dict[str, object]:
    """The interpreter, what is promised of its line, and which codes are chosen."""
    lines = [identity_grid(reach, dtype) for reach in (2048.0, 2e6) for dtype in (torch.float64, torch.float32)]
    speeds = [_speeds(samples, 3) for samples in (64, 100, 200, 1000)]
    return {
        "interpreter": Interpreter(Capacity(8, 100, 10, 16384.0)).sha256,
        "lines": sha256([(line.reaches, line.errors) for line in lines]),
        "codes": sha256(speeds),
    }


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(30, 3, generator=generator).double(), torch.randn(30, generator=generator).sign().double()


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "tanh": nn.Sequential(nn.Linear(30, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)).double(),
        "norm": nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 1)).double(),
    }


def write(folder: Path) -> dict[str, str]:
    """Each algorithm's program and interpreter, lasso's certificate file, and networks; hashes of interpreters.

    Programs differ in their last places from one processor to another, interpreters that fit them do not.
    """
    (x, y), fitting = data(), {}
    for name, algorithm in ALGORITHMS.items():
        program = compile(algorithm, data=(x, y))
        interpreter = Interpreter.fitting(program)
        fitting[name] = interpreter.sha256
        files = {kind: folder / f"{name}.{kind}" for kind in ("program", "interpreter")}
        save(program, files["program"])
        save(interpreter, files["interpreter"])
        if name == "lasso":
            with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
                text = checker.canonical(certificate_of(program, interpreter, files))
            (folder / f"{name}.certificate").write_text(text)
    made = networks()
    save_network(compile_network(made["tanh"], 1.0, shape=(30,)), folder / "tanh.network")
    save_network(compile_network(made["norm"], data=x), folder / "norm.network")
    return fitting


def read(folder: Path, again: Path) -> dict[str, str]:
    """Of each file the verdict: what a checker says of a certificate, or that a copy saved at `again` is the same."""
    found = {}
    for path in sorted(folder.iterdir()):
        try:
            if path.suffix == ".certificate":
                with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
                    found[path.name] = checker.check(path.read_text())
            else:
                load, save_again = READ_BY[path.suffix[1:].replace("safetensors", "program")]
                save_again(load(path), again)
                found[path.name] = "the same" if again.read_bytes() == path.read_bytes() else "altered"
        except (EmulonError, checker.Refused) as error:
            found[path.name] = str(error)
    return found


if __name__ == "__main__":
    own, other = map(Path, sys.argv[1:])
    own.mkdir()
    found: dict[str, object] = {"fitting": write(own)}
    again = own.with_suffix(".again")
    print(json.dumps(found | shipped() | frozen() | {"playground": read(SHIPPED, again), "read": read(other, again)}))
