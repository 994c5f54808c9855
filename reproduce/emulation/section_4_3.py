"""Hu et al. 2025, section 4.3: attention makes every (linear) network in-context. One module, networks by prompt."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from emulon.algorithms import ALGORITHMS
from emulon.identification import identify
from emulon.identification.sampling import Sampling
from emulon.interpreter import Interpreter, Program, compile
from emulon.models import Learner
from emulon.networks import NetworkProgram, compile_network, heads_of
from emulon.report.figure import Figure, Panel
from emulon.tasks import RegressionTask
from reproduce.bounded import largest
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict
from reproduce.drawing import of_rows
from reproduce.emulation.algorithms import dataset
from reproduce.learners import committed

f64 = torch.float64
# Asked of every network.
NEAR = 1e-9
LEARNER = "small_learner"
ALGORITHM_NAMES = ("ridge", "lasso", "logistic_regression")


def run(setting: Setting) -> Numbers:
    """Errors, audits and hashes of networks and algorithms on one interpreter, and the learner's identification."""
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
    setting.report_progress("the learner's identification", 0.7)
    answers = identified(setting, networks[LEARNER][0], programs[LEARNER])
    return {"networks": found, "hashes": sorted(hashes), "identified": answers}


def perceptrons(setting: Setting) -> dict[str, tuple[nn.Module, Tensor]]:
    """64-64-10 on digits, not trained: the claim is about the forward pass."""
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
    subject = committed(setting, LEARNER)
    learner = subject.thing
    assert isinstance(learner, Learner) and isinstance(subject.task, RegressionTask)
    points = (learner.tokens + 1) // 2
    drawn = subject.task.held_out(setting.seed + 1, setting.sizes["prompts"], points)
    return learner, learner._prompt(drawn.xs, drawn.ys[:, :-1]).to(f64)


def measured(
    interpreter: Interpreter, program: NetworkProgram, network: nn.Module, x: Tensor
) -> tuple[Numbers, set[str]]:
    one = interpreter.run(program, x)
    with torch.no_grad():
        wanted = copy.deepcopy(network).to(f64)(x)
    bound = one.certificate.bound
    row = {
        "error": largest(one.last, wanted),
        "audit": one.audit.bound,
        "certificate": bound if math.isfinite(bound) else None,
        "phases": len(program.phases),
        "rows": len(x),
        "kind": "network",
    }
    return row, set(one.sha256)


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
    task, sampling = committed(setting, LEARNER).task, Sampling(datasets=setting.sizes["datasets"], seed=setting.seed)
    subjects = {"learner": copy.deepcopy(learner).to(f64), "by prompt": by_prompt(learner, program)}
    answers = {name: identify(subject, task, **sampling) for name, subject in subjects.items()}
    return {
        name: {"algorithm": each.algorithm, "nearest": str(each.nearest), "ranking": [one.name for one in each.ranking]}
        for name, each in answers.items()
    }


def judge(numbers: Numbers) -> Verdict:
    """One hash; every network within 1e-9 and its audit; the same identification."""
    rows = numbers["networks"]
    networks = {name: row for name, row in rows.items() if row["kind"] != "algorithm"}
    worst = max(row["error"] for row in networks.values())
    # PyTorch rounds, too: an audit is about the exact network.
    kept = all(row["error"] <= row["audit"] + 1e-12 for row in networks.values())
    kept = kept and all(row["error"] <= row["audit"] for row in rows.values() if row["kind"] == "algorithm")
    learner, prompted = (numbers["identified"][name] for name in ("learner", "by prompt"))
    alike = learner["algorithm"] == prompted["algorithm"]
    one = len(numbers["hashes"]) == 1
    ours = f"{len(networks)} networks and {len(rows) - len(networks)} algorithms on one module, within {worst:.0e}"
    ours += f"; the learner is {prompted['algorithm']}"
    parts = {"one hash": one, "audits": kept, "identify": alike}
    failed = [name for name, held in parts.items() if not held]
    reason = f"asked: {NEAR:g} of PyTorch; " + (f"failed: {', '.join(failed)}" if failed else "all parts hold")
    return Verdict.that(worst <= NEAR and not failed, ours, reason)


def figure(numbers: Numbers) -> Figure:
    rows = {name: row for name, row in numbers["networks"].items() if row["kind"] != "algorithm"}
    names = [name.replace(", ", "\n").replace("_", " ") for name in rows]
    series = of_rows(list(rows.values()), names, {"distance to PyTorch": "error", "audit": "audit"})
    return Figure([Panel("", "largest difference of outputs", series, log_y=True)])


CLAIM = Claim(
    name="emulation-section-4.3",
    source="Hu et al. 2025, section 4.3 and Remark 4.5",
    statement="A fixed attention module runs any network whose weights are given in its prompt.",
    theirs="any linear layer, to arbitrary precision (stated; no network was run)",
    scales={"small": Scale(3, {"rows": 4, "prompts": 512, "datasets": 32})},
    run=run,
    judge=judge,
    figure=figure,
    differs="Activations, norms and attention between positions are run by the same module, too; the section has "
    "linear layers. Building prompts and writing answers back are outside attention.",
)
