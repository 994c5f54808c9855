"""The public API's main paths on small data, each as a function that yields what it computed."""

import json
import tempfile
import traceback
from pathlib import Path

import numpy as np
import torch

from emulon import Domain, Interpreter, compile, compile_iteration, compile_network
from emulon import constructions as built
from emulon.algorithms import (
    Lasso,
    LogisticRegression,
    NewtonLeastSquares,
    Ridge,
    ShermanMorrisonRidge,
)
from emulon.core.predictor import as_predictor
from emulon.estimators import EmulatedClassifier, EmulatedRegressor
from emulon.export import interpreter_to_onnx, save_prompt
from emulon.identification import analyse, hidden_states, identify, linear_probe, prefix_weights
from emulon.interpreter import load_interpreter, load_program, save
from emulon.looped import CausalLoopedGradientDescent, LoopedGradientDescent, LoopedNewton
from emulon.machine.programs import batch_gradient_descent, sgd, sherman_morrison
from emulon.networks import load_network, save_network
from emulon.planted import load as load_planted
from emulon.planted import obfuscate, plant
from emulon.planted import save as save_planted
from emulon.planted.benchmark import METHODS, ask, score
from emulon.softmax import approximate
from emulon.tasks import TASKS, Linear, RegressionTask
from emulon.training import TrainConfig, fit, resume, train

DRAWN = np.random.default_rng(0)
X, W = DRAWN.normal(size=(12, 2)), np.array([0.5, -0.25])
x, y = torch.from_numpy(X), torch.from_numpy(X @ W)
labels = torch.where(y > 0, 1.0, -1.0).double()
small = Domain(samples=6, features=2, x=2.0, y=1.5, w=1.0)
rows, targets, w = x[:6].clamp(-1, 1), y[:6].clamp(-1, 1), torch.from_numpy(W)
TINY = TrainConfig.of(
    features=2, points=4, width=16, heads=2, layers=1, steps=3, batch=4, evaluation_batch=8, quiet=True, device="cpu"
)


def programs():
    """Compiled, run on both paths, audited, traced, saved and loaded."""
    for algorithm, target in (
        (Lasso(0.05, 4), y),
        (LogisticRegression(0.1, 4), labels),
    ):
        program = compile(algorithm, data=(x, target))
        interpreter = Interpreter.fitting(program)
        run = interpreter.run(program, x, target)
        yield from (run.weights, run.audit.bound, run.certificate.bound, run.entered_band, run.predict(x[:3]))
        yield interpreter.run(program, x, target, mode="reference").weights
        yield program.predict(x, target, x[:2])
    yield run.trace is not None
    with tempfile.TemporaryDirectory() as folder:
        for thing, load in ((interpreter, load_interpreter), (program, load_program)):
            save(thing, Path(folder, "file.safetensors"))
            yield repr(load(Path(folder, "file.safetensors")))
        save_prompt(program, interpreter.capacity, Path(folder, "prompt.safetensors"))
    yield len(interpreter_to_onnx(interpreter))


def functions():
    for text in ("tanh(4*t)", "Max(t, 0)", "sign(t)*t**2", "exp(-t**2)"):
        softmax = approximate(text, (-2.0, 2.0), tolerance=1e-3)
        yield from (softmax(x.clamp(-2, 2)), softmax.certificate.bound, softmax.keys)


def modules():
    for make, inputs in (
        (lambda: built.ResidualMap("tanh(t)", small, 1e-6), (rows, targets, w)),
        (lambda: built.HopfieldResidualMap("tanh(t)", small, 1e-6), (rows, targets, w)),
        (lambda: built.GradientStep("log_cosh", small, 1e-5, step_size=0.1, l2=0.5), (rows, targets, w)),
        (lambda: built.DescentInContext("squared", small, 1e-5, steps=3, step_size=0.1), (rows, targets)),
        (lambda: built.TruncatedLinear(6, 2, -1.0, 1.0, tolerance=1e-2, reach=8.0), (rows, w)),
    ):
        module = make()
        yield from (module(*inputs), module.certificate.bound)
    yield module.double().certificate.bound


def looped():
    domain = Domain.covering(rows.unsqueeze(0), targets.unsqueeze(0), w.unsqueeze(0), 1.1)
    for kind in (LoopedGradientDescent, CausalLoopedGradientDescent, LoopedNewton):
        model = kind(domain, horizon=2)
        run = model.run(rows.unsqueeze(0), targets.unsqueeze(0), w.unsqueeze(0), loops=2)
        yield from (run.prediction, run.certificate.bound, run.audit.bound)


def machines():
    for program in (sgd(2, 4, 0.1), sherman_morrison(2, 4, 0.5), batch_gradient_descent(2, 4, 0.1, 2)):
        machine = program.compile()
        run = machine.run(**program.prompt.fill(rows[None, :4], targets[None, :4]))
        yield from (run.result, run.certificate.bound, run.audit.bound)


def networks():
    cpu = {"dtype": torch.float64, "device": "cpu"}
    first, last = torch.nn.Linear(2, 4, **cpu), torch.nn.Linear(4, 1, **cpu)
    with torch.no_grad():
        for part in (first, last):
            part.weight.copy_(torch.from_numpy(np.resize(X, part.weight.shape)))
            part.bias.zero_()
    norm = torch.nn.LayerNorm(4, **cpu)
    network = compile_network(torch.nn.Sequential(first, torch.nn.Tanh(), norm, last).eval(), data=rows)
    run = network(rows)
    yield from (run.outputs, run.certificate.bound, run.audit.bound, network.exact(rows))
    with tempfile.TemporaryDirectory() as folder:
        save_network(network, Path(folder, "network.safetensors"))
        yield repr(load_network(Path(folder, "network.safetensors")))
    step = torch.nn.Linear(2, 2, **cpu)
    with torch.no_grad():
        step.weight.copy_(torch.from_numpy(X[:2] / 10))
        step.bias.zero_()
    iteration = compile_iteration(torch.nn.Sequential(step, torch.nn.Tanh()).eval(), rows, steps=3)
    moved = iteration(rows)
    yield from (moved.outputs, moved.certificate.bound, moved.audit.bound)


def tasks():
    for task in TASKS.values():
        if issubclass(task, RegressionTask):
            drawn = task(features=3, points=5).held_out(0, 4, 5)
            yield from vars(drawn).values()


def solvers():
    for algorithm in (Ridge(0.1, 5), NewtonLeastSquares(3), ShermanMorrisonRidge(0.1)):
        yield as_predictor(algorithm).predict(x.unsqueeze(0), y.unsqueeze(0), x[:1])


def estimators():
    for model, target in (
        (EmulatedRegressor(Ridge(0.1, 5)), y),
        (EmulatedClassifier(LogisticRegression(0.1, 5)), labels),
    ):
        model.fit(X, target.numpy())
        yield from (model.predict(X), model.certificate_.bound)


def training():
    yield from fit(TINY.changed(model="algoformer", loops=2, window=1)).curve
    with tempfile.TemporaryDirectory() as folder:
        train(TINY, Path(folder, "run"))
        yield resume(Path(folder, "run")).curve


def analysis():
    task = Linear(2, noise=0.1)
    asked = analyse(Ridge(0.1, 20), task, datasets=16, points=6)
    yield str(asked.identification)
    yield str(identify(ShermanMorrisonRidge(0.1), task, datasets=16, points=6))
    machine = sgd(2, 4, 0.1).compile()
    xs, ys = task.held_out(0, 64, 4).pairs
    held = prefix_weights(Ridge(0.1, 5), xs, ys)
    yield linear_probe(hidden_states(machine, xs, ys), held[:, 2], seed=0).score


def planted_models():
    plain = plant("sgd", features=2, samples=4, step_size=0.3)
    for model in (plain, obfuscate(plain, seed=1)):
        xs, ys = model.draw(batch=2, seed=0)
        yield from (model(xs, ys), model.certificate.bound)
    with tempfile.TemporaryDirectory() as folder:
        save_planted(plain, folder)
        yield load_planted(folder)(xs, ys)
    questions = ask(plain, 0)
    for name in ("linear-probe", "attribution-patching"):
        yield score(METHODS[name](questions.subject), questions)


PATHS = (
    programs,
    functions,
    modules,
    looped,
    machines,
    networks,
    tasks,
    solvers,
    estimators,
    training,
    analysis,
    planted_models,
)


def plain(thing):
    if isinstance(thing, torch.Tensor):
        assert thing.device.type == "cpu", thing.device
        return thing.detach().double().numpy().tolist()
    return thing if isinstance(thing, float | int) else str(thing)


def told():
    """As JSON, by path: the numbers, or the traceback."""
    found = {}
    for path in PATHS:
        try:
            found[path.__name__] = [plain(thing) for thing in path()]
        except Exception:
            found[path.__name__] = traceback.format_exc()
    return json.dumps(found)
