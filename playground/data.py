"""Writes what the playground plays with: `python -m playground.data PROGRAMS LEARNER STATIC`.

PROGRAMS is the folder for the compiled programs; LEARNER a run folder; STATIC the page's folder. With STATIC alone only
the stock Llama is written, which changes with the text interpreter.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from emulon.certify import Domain
from emulon.core.errors import EmulonError
from emulon.core.files import make_folder, write_atomically, write_json
from emulon.export import interpreter_to_onnx, save_prompt
from emulon.interpreter import Interpreter, Program
from emulon.language.interpreter import interpreter as text_interpreter
from emulon.language.prompt import prompt, text_of
from emulon.language.vocabulary import SMALL
from emulon.machine import RegisterProgram
from emulon.machine.programs import sgd
from emulon.machine.targets.llama import LlamaProgram, compile_llama, serialised
from emulon.machine.token_layers import Attention
from emulon.softmax import approximate
from emulon.training import load_learner
from playground.models import learner_to_onnx, machine_to_onnx
from playground.offers import OFFERS, Offer, compile_offers, load_offers

# What one softmax is asked to be, on (−1, 1), by as many keys.
FUNCTIONS = {
    "s": "t",
    "sin 10s": "sin(10*t)",
    "s²": "t**2",
    "eˢ": "exp(t)",
    "1/(1 + 25s²)": "1/(1 + 25*t**2)",
    "max(s, 0)": "Max(t, 0)",
    "soft threshold": "sign(t)*Max(Abs(t) - 0.3, 0)",
}
KEYS = (6, 9, 13, 17, 25, 33, 49)
# How many steps the stock Llama writes.
TEXT_STEPS = 20


def main(programs: Path, learner: Path, static: Path) -> None:
    compile_offers(make_folder(programs))
    data = make_folder(static / "data")
    write_programs(load_offers(programs), data)
    write_softmaxes(data)
    write_llama(data)
    write_atomically(data / "machine.onnx", machine_to_onnx(machine().compile()))
    write_atomically(data / "learner.onnx", learner_to_onnx(load_learner(learner)[0]))


def write_programs(programs: dict[str, Program], data: Path) -> None:
    """One interpreter for all, a prompt for each, and their error bounds, step by step."""
    interpreter = Interpreter.fitting(*programs.values())
    write_atomically(data / "interpreter.onnx", interpreter_to_onnx(interpreter))
    for name, program in programs.items():
        save_prompt(program, interpreter.capacity, data / f"{name}.safetensors")
    write_json(data / "programs.json", [facts(offer, programs[offer.name], interpreter) for offer in OFFERS])


def facts(offer: Offer, program: Program, interpreter: Interpreter) -> dict[str, Any]:
    """What the page must know beside the prompt: the exact algorithm's numbers, the domain, the bounds."""
    descent, domain, inner = offer.algorithm.descent, program.domain, program.plan.inner
    # Of a bound only the growth depends on the number of steps. Four digits, rounded up.
    each = program.certificate_on(interpreter.identity).bound / program.plan.certified_growth
    bounds = [each * program.plan.changed(steps=steps).certified_growth for steps in range(1, program.steps + 1)]
    return {
        "name": offer.name,
        "title": offer.name.replace("_", " "),
        "says": offer.says,
        "loss": program.loss.name,
        "derivative": program.loss.derivative,
        "link": program.loss.link.name,
        "steps": program.steps,
        "step_size": program.step_size,
        "l1": descent.l1,
        "l2": descent.l2,
        "momentum": descent.momentum,
        "domain": {"points": domain.samples, "x": domain.x, "y": domain.y, "w": domain.w, "residual": inner.residual},
        "bounds": [0.0, *(float(f"{1.0006 * bound:.3e}") for bound in bounds)],
        "bands": [[band.lo, band.hi] for band in program.gradient.proved.bands],
    }


def write_softmaxes(data: Path) -> None:
    """Grids (3, keys) of slopes, intercepts and values: ours and the paper's, with the proved bound of each."""
    grids: dict[str, Tensor] = {}
    known = []
    for name, expression in FUNCTIONS.items():
        for keys in KEYS:
            ways = {}
            for way in ("auto", "paper"):
                found = approximate(expression, (-1.0, 1.0), points=keys, grid=way)
                label = f"{name}/{keys}/{way}"
                grids[label] = torch.stack([found.slopes, found.intercepts, found.values])
                ways[way] = {"grid": label, "bound": found.certificate.bound, "way": found.grid.way}
            known.append({"function": name, "keys": keys, **ways})
    write_atomically(data / "softmax.safetensors", save(grids, {"emulon": json.dumps(known, sort_keys=True)}))


def machine() -> RegisterProgram:
    """Stochastic gradient descent over four examples of one feature beside a constant 1, and a fifth to predict."""
    domain = Domain(5, 2, x=1.0, y=1.0, w=2.0)
    return sgd(2, 5, 0.4, domain=domain)


def write_llama(data: Path) -> None:
    write_atomically(data / "llama.safetensors.gz", llama(compile_llama(text_interpreter(SMALL))))


def llama(compiled: LlamaProgram) -> bytes:
    """The text interpreter: of every parameter what is not zero, with names for registers, heads and words.

    Places are written as steps from one to the next in the flattened tensor, which compress well.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in compiled.state.items():
        flat = parameter.flatten()
        at = flat.view(torch.int32).nonzero().flatten()  # −0, too: the file is put together again for its sha256
        tensors[f"{name}.steps"] = torch.diff(at, prepend=torch.zeros(1, dtype=at.dtype, device="cpu")).int()
        tensors[f"{name}.values"] = flat[at]
    slots = compiled.layout.slots
    facts = {
        "config": compiled.config,
        "shapes": {name: list(parameter.shape) for name, parameter in compiled.state.items()},
        "sha256": hashlib.sha256(serialised(compiled.state)).hexdigest(),
        "words": compiled.program.words,
        "registers": {name: [slots[name].start, slots[name].stop] for name in compiled.program.registers},
        "heads": [
            [
                {
                    "where": str(where),
                    "reads": [f"{one.target.text} ← {one.value.text}" for one in layer.reads if one.where == where],
                }
                for where in Attention(compiled.layout, layer.reads).heads
            ]
            for layer in compiled.layers
        ],
        "units": [[str(one) for one in layer.products] for layer in compiled.layers],
        "methods": methods(),
    }
    return gzip.compress(save(tensors, {"emulon": json.dumps(facts, sort_keys=True)}), mtime=0)


def methods() -> dict[str, str]:
    """Of the playground's algorithms those that a text can state: what its prompt says before the data."""
    found = {}
    for offer in OFFERS:
        x, y = [[1.0] * offer.domain.features] * 2, [1.0, -1.0]
        try:
            text = text_of(prompt(replace(offer.algorithm.descent, steps=TEXT_STEPS), x, y))
        except EmulonError:
            continue  # counts
        found[offer.name] = "\n".join(line for line in text.splitlines() if not line.startswith(("#", "step:")))
    return found


if __name__ == "__main__":
    given = [Path(each) for each in sys.argv[1:]]
    write_llama(given[0] / "data") if len(given) == 1 else main(*given)
