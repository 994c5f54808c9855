"""Hu et al. 2025, section 4.3: attention makes every (linear) network in-context. One module, networks by prompt."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from emulon.algorithms import ALGORITHMS, Ridge
from emulon.identification import identify
from emulon.identification.sampling import Sampling
from emulon.interpreter import Interpreter, Program, compile
from emulon.models import Learner
from emulon.networks import NetworkProgram, classes_of, compile_network, heads_of
from emulon.report.figure import Figure, Panel, Series
from emulon.tasks import RegressionTask
from emulon.training import RunFolder, load_learner
from reproduce.bounded import largest
from reproduce.claim import CannotTest, Claim, Numbers, Scale, Setting, Verdict
from reproduce.emulation.algorithms import dataset

f64 = torch.float64
# Asked of every network, and of regressions by scikit-learn.
NEAR, NEAR_REGRESSION = 1e-9, 1e-8
LEARNER = "small_learner"
ALGORITHM_NAMES = ("ridge", "lasso", "logistic_regression")
TABLES = {"digits": "classifier", "breast_cancer": "classifier", "diabetes": "regressor"}


def run(setting: Setting) -> Numbers:
    """Errors, audits and hashes of networks and algorithms on one interpreter; the learner's identification; costs."""
    torch.manual_seed(setting.seed)
    networks = {**perceptrons(setting), **others(setting), LEARNER: learner_case(setting)}
    programs: dict[str, NetworkProgram] = {}
    for done, (name, (network, x)) in enumerate(networks.items()):
        setting.report_progress(f"compiling {name}", 0.4 * done / len(networks))
        programs[name] = compile_network(network, data=x, margin=0.5 if name == LEARNER else 0.25)
    data = {name: dataset(name, 60, 4, setting.seed) for name in ALGORITHM_NAMES}
    algorithms: dict[str, Program] = {
        name: compile(ALGORITHMS[name](steps=50), data=data[name], tolerance=1e-8)  # type: ignore[call-arg]  # all take it
        for name in ALGORITHM_NAMES
    }
    interpreter = Interpreter.fitting(*programs.values(), *algorithms.values())
    hashes, found = {interpreter.sha256}, dict[str, Numbers]()
    for done, (name, (network, x)) in enumerate(networks.items()):
        setting.report_progress(f"running {name}", 0.4 + 0.3 * done / len(networks))
        found[name], seen = measured(interpreter, programs[name], network, x[: setting.sizes["rows"]])
        hashes |= seen
    for name, program in algorithms.items():
        one = interpreter.run(program, *data[name])
        exact = ALGORITHMS[name](steps=50).run(*data[name])  # type: ignore[call-arg]  # all take it
        found[name] = {"error": largest(one.weights, exact), "audit": one.audit.bound, "kind": "algorithm"}
        hashes |= set(one.sha256)
    setting.report_progress("scikit-learn, edits, the learner's identification, costs", 0.7)
    return {
        "networks": found,
        "hashes": sorted(hashes),
        "scikit-learn": {table: scikit_learn(table, setting) for table in TABLES},
        "edits": edits(interpreter, programs["perceptron, tanh"], networks["perceptron, tanh"]),
        "identified": identified(setting, networks[LEARNER][0], programs[LEARNER]),
        "costs": [cost(width, setting) for width in setting.sizes["widths"]],
    }


def perceptrons(setting: Setting) -> dict[str, tuple[nn.Module, Tensor]]:
    """64-64-10 on digits, as they come from the generator: what is asked is the forward pass, not the digits."""
    images = digits()
    kinds: dict[str, nn.Module] = {"tanh": nn.Tanh(), "gelu": nn.GELU(), "relu": nn.ReLU()}
    return {
        f"perceptron, {name}": (nn.Sequential(nn.Linear(64, 64), kind, nn.Linear(64, 10)).to(f64), images.flatten(1))
        for name, kind in kinds.items()
    }


def others(setting: Setting) -> dict[str, tuple[nn.Module, Tensor]]:
    from transformers import GPT2Config, GPT2Model

    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten()]
    convolutional = nn.Sequential(*layers, nn.Linear(32, 10)).to(f64)
    gpt2 = GPT2Model(GPT2Config(n_embd=64, n_head=4, n_layer=1))  # type: ignore[no-untyped-call]  # transformers' own
    x = torch.randn(setting.sizes["rows"], 12, 64, dtype=f64)
    return {"convolutions, relu": (convolutional, digits()), "a head of GPT-2": (heads_of(gpt2.h[0].attn, [0]), x)}


def digits() -> Tensor:
    from sklearn.datasets import load_digits

    return torch.from_numpy(load_digits().images[:256] / 16.0).unsqueeze(1)


def learner_case(setting: Setting) -> tuple[nn.Module, Tensor]:
    """The trained learner, and prompts of its own task."""
    folder = setting.results / "learners" / LEARNER
    if not RunFolder(folder).config_file.is_file():
        raise CannotTest(f"there is no learner in {folder}; emulon train standard --preset small --out {folder}")
    learner, _ = load_learner(folder)
    points = (learner.tokens + 1) // 2
    drawn = task_of(setting).held_out(setting.seed + 1, setting.sizes["prompts"], points)
    return learner, learner._prompt(drawn.xs, drawn.ys[:, :-1]).to(f64)


def task_of(setting: Setting) -> RegressionTask:
    task = RunFolder(setting.results / "learners" / LEARNER).config().make_task()
    assert isinstance(task, RegressionTask)
    return task


def measured(
    interpreter: Interpreter, program: NetworkProgram, network: nn.Module, x: Tensor
) -> tuple[Numbers, set[str]]:
    start = time.perf_counter()
    one = interpreter.run(program, x)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        wanted = copy.deepcopy(network).to(f64)(x)
    bound = one.certificate.bound
    row = {
        "error": largest(one.last, wanted),
        "audit": one.audit.bound,
        "certificate": bound if math.isfinite(bound) else None,
        "phases": len(program.phases),
        "rows": len(x),
        "seconds": seconds,
        "kind": "relu" if "relu" in "".join(layer.name for layer in program.layers) else "smooth",
    }
    return row, set(one.sha256)


def scikit_learn(table: str, setting: Setting) -> Numbers:
    """A fitted MLP's held-out predictions: classes that differ, or the largest difference."""
    import warnings

    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.preprocessing import StandardScaler

    x, y = getattr(datasets, f"load_{table}")(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    x_fit, x_new, y_fit, _ = train_test_split(x, y, random_state=setting.seed)
    kind: Callable[..., Any] = MLPClassifier if TABLES[table] == "classifier" else MLPRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # converged or not, it is a network
        network = kind(hidden_layer_sizes=(64,), max_iter=200, random_state=setting.seed).fit(x_fit, y_fit)
    one = compile_network(network, data=x)(x_new)
    if TABLES[table] == "regressor":
        return {"rows": len(x_new), "difference": float(abs(one.outputs[:, 0] - network.predict(x_new)).max())}
    said = network.classes_[classes_of(one.outputs)]
    return {"rows": len(x_new), "other classes": int((said != network.predict(x_new)).sum())}


def edits(interpreter: Interpreter, program: NetworkProgram, case: tuple[nn.Module, Tensor]) -> Numbers:
    """A low-rank update by prompt against the same in PyTorch, and ridge by prompt on the network's outputs."""
    network, x = case
    left, right = torch.randn(10, 2, dtype=f64) / 8, torch.randn(64, 2, dtype=f64) / 8
    other: Any = copy.deepcopy(network)
    with torch.no_grad():
        other[2].weight += left @ right.T
        wanted = other(x)
    edited = interpreter.run(program.with_weights("2", weight=other[2].weight, data=x), x)
    y, made = x.sum(dim=-1).sin(), interpreter.run(program, x).last
    ridge = compile(Ridge(steps=50), data=(made, y))
    learned = Interpreter.fitting(program, ridge).run(ridge, made, y).last
    with torch.no_grad():
        features = network(x)
    exact = replace(Ridge(steps=50), step_size=ridge.step_size).run(features, y)
    return {
        "low rank": largest(edited.last, wanted),
        "moved": largest(wanted, features),
        "sha256": sorted(set(edited.sha256)),
        "ridge on features": largest(learned, exact),
    }


def by_prompt(learner: nn.Module, program: NetworkProgram) -> nn.Module:
    """A copy of the learner whose forward pass is the program's; its other methods stay, and use the new pass."""
    interpreter, asked = Interpreter.fitting(program), copy.deepcopy(learner)

    @torch.no_grad()
    def forward(tokens: Tensor) -> Tensor:
        return interpreter.run(program, tokens).last

    asked.forward = forward
    return asked


def identified(setting: Setting, learner: nn.Module, program: NetworkProgram) -> Numbers:
    """What `identify` says of the learner, and of the learner run by prompt, on the same datasets."""
    assert isinstance(learner, Learner)
    task, sampling = task_of(setting), Sampling(datasets=setting.sizes["datasets"], seed=setting.seed)
    subjects = {"learner": copy.deepcopy(learner).to(f64), "by prompt": by_prompt(learner, program)}
    answers = {name: identify(subject, task, **sampling) for name, subject in subjects.items()}
    return {
        name: {"algorithm": each.algorithm, "nearest": str(each.nearest), "ranking": [one.name for one in each.ranking]}
        for name, each in answers.items()
    }


def cost(width: int, setting: Setting) -> Numbers:
    """A perceptron of this width, and 64 inputs: phases, tokens, keys, seconds by both paths and by PyTorch."""
    torch.manual_seed(setting.seed)
    network = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)).to(f64)
    x = torch.rand(64, width, dtype=f64)
    program = compile_network(network, data=x)
    interpreter = Interpreter.fitting(program)
    row: Numbers = {"width": width, "phases": len(program.phases), "features": program.capacity.features}
    row["keys"] = len(interpreter.slopes)
    row["tokens"] = sum(prompt.tokens.shape[0] * prompt.tokens.shape[1] for prompt in prompts_of(program, x))
    row["fast"] = seconds_of(lambda: interpreter.run(program, x))
    row["faithful"] = seconds_of(lambda: interpreter.run(program, x, mode="reference"), 1)
    with torch.no_grad():
        row["pytorch"] = seconds_of(lambda: network(x))
    return row


def prompts_of(program: NetworkProgram, x: Tensor) -> list[Any]:
    """Of a network whose phases read each what the one before has written."""
    states = [x.unsqueeze(-2)]
    for layer in program.layers:
        states.append(layer.exact(states[-1]))
    return [prompt for phase, state in zip(program.phases, states, strict=False) for prompt in phase.prompts(state)]


def seconds_of(call: Callable[[], object], repeats: int = 3) -> float:
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def judge(numbers: Numbers) -> Verdict:
    """One hash; every network within 1e-9 and its audit; the same classes; edits; the same identification."""
    rows = numbers["networks"]
    networks = {name: row for name, row in rows.items() if row["kind"] != "algorithm"}
    worst = max(row["error"] for row in networks.values())
    # PyTorch rounds, too: an audit is about the exact network.
    kept = all(row["error"] <= row["audit"] + 1e-12 for row in networks.values())
    kept = kept and all(row["error"] <= row["audit"] for row in rows.values() if row["kind"] == "algorithm")
    tables = numbers["scikit-learn"].values()
    same = all(row.get("other classes", 0) == 0 and row.get("difference", 0.0) <= NEAR_REGRESSION for row in tables)
    edited = numbers["edits"]["low rank"] <= NEAR < numbers["edits"]["moved"]
    edited = edited and numbers["edits"]["sha256"] == numbers["hashes"]
    learner, prompted = (numbers["identified"][name] for name in ("learner", "by prompt"))
    alike = learner["algorithm"] == prompted["algorithm"]
    one = len(numbers["hashes"]) == 1
    ours = f"{len(networks)} networks and {len(rows) - len(networks)} algorithms on one module, within {worst:.0e}"
    ours += f"; the learner is {prompted['algorithm']}"
    parts = {"one hash": one, "audits": kept, "scikit-learn's predictions": same, "edits": edited, "identify": alike}
    failed = [name for name, held in parts.items() if not held]
    reason = f"asked: {NEAR:g} of PyTorch; " + (f"failed: {', '.join(failed)}" if failed else "all parts hold")
    return Verdict.that(worst <= NEAR and not failed, ours, reason)


def figure(numbers: Numbers) -> Figure:
    rows = {name: row for name, row in numbers["networks"].items() if row["kind"] != "algorithm"}
    names = [name.replace(", ", "\n").replace("_", " ") for name in rows]
    series = [
        Series("distance to PyTorch", names, [max(row["error"], 1e-17) for row in rows.values()], mark="bars"),
        Series("audit", names, [max(row["audit"], 1e-17) for row in rows.values()], mark="bars"),
    ]
    widths = [row["width"] for row in numbers["costs"]]
    times = [Series(name, widths, [row[name] for row in numbers["costs"]]) for name in ("faithful", "fast", "pytorch")]
    return Figure(
        [
            Panel("", "largest difference of outputs", series, log_y=True),
            Panel("width", "seconds for 64 inputs", times, log_x=True, log_y=True),
        ]
    )


CLAIM = Claim(
    name="emulation-section-4.3",
    source="Hu et al. 2025, section 4.3 and Remark 4.5",
    statement="A fixed attention module runs any network whose weights are given in its prompt.",
    theirs="any linear layer, to arbitrary precision (stated; no network was run)",
    scales={"small": Scale(3, {"rows": 4, "prompts": 512, "datasets": 32, "widths": [16, 32, 64, 128, 256]})},
    run=run,
    judge=judge,
    figure=figure,
    differs="Activations, norms and attention between positions are run by the same module, too; the section has "
    "linear layers. Building prompts and writing answers back are outside attention.",
)
