"""Traced by torch.compile and torch.export, the interpreter computes the same; called as it is, it still refuses."""

import subprocess
import sys

# In a process of its own: the type checks that are on under test cannot be traced.
COMPILED = """
import copy

import torch

from emulon.algorithms import Ridge
from emulon.core.errors import BadShape, OutOfDomain
from emulon.interpreter import Interpreter, compile

STEPS = 3
generator = torch.Generator().manual_seed(0)
x, y = torch.randn(8, 2, generator=generator).double(), torch.randn(8, generator=generator).double()
algorithm = Ridge(0.1, STEPS)
program = compile(algorithm, data=(x, y))
interpreter = Interpreter.fitting(program)
exact, bound, before = algorithm.iterates(x, y)[-1], interpreter.certificate(program).bound, interpreter.sha256
[data] = program.plan.batches(program.loss.template_data(x, y))


def descended(module):
    machine, w, last = program.steps_on(module, data, "reference"), x.new_zeros(2), None
    for _ in range(STEPS):
        w, last = machine.step(w, w if last is None else last), w
    return w


calls = []
eager = descended(lambda *args, **options: (calls.append((args, options)), interpreter(*args, **options))[1])
assert torch.equal(eager, interpreter.run(program, x, y, mode="reference").iterates[-1])
args, options = calls[0]
own = copy.deepcopy(interpreter)
own.compile(fullgraph=True, backend="aot_eager")
for module in (own, torch.export.export(interpreter, args, options).module()):
    out = descended(module)
    assert out.dtype == torch.float64
    assert (out - exact).abs().max() <= bound < 1e-6, (module, bound)
    assert (out - eager).abs().max() <= 1e-12, module
assert interpreter.sha256 == before

tokens, *head = args
wide = 2 * interpreter.capacity.reach * tokens / tokens.abs().max()
for given, error in ((wide, OutOfDomain), (float("nan") * tokens, OutOfDomain), (torch.cat([tokens] * 9), BadShape)):
    try:
        interpreter(given, *head)
    except error:
        continue
    raise AssertionError(f"{error.__name__} was not raised")
try:
    own(float("inf") * tokens, *head, **options)
except OutOfDomain:
    print("refused")
"""


def test_traced_the_interpreter_computes_the_same_and_as_it_is_it_refuses():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused\n"
