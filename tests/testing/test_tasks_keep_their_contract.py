"""Tasks are functions of their generators, of the declared sizes, and never train on held-out data."""

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import reproduce.algoformer  # noqa: F401 (registers three more)
from emulon.core.errors import EmulonError
from emulon.tasks import TASKS, Datasets, Prompts, RegressionTask, Task, at_step, deinterleave, read_task
from emulon.testing import require, require_refusal, require_same_bits

BATCH, SEED = 6, 5
# Steps of training that held-out data are compared with; -1 is the evaluation's.
STEPS = (-1, 0, 1, 2)


def _name(task: Task) -> str | None:
    return next((name for name, kind in TASKS.items() if kind is type(task)), None)


def _drawn(task: Task, seed: int = SEED, step: int = 2, live: Tensor | None = None) -> Prompts:
    return task.sample(at_step(torch.Generator(), seed, step), BATCH, live)


def _parts(drawn: Prompts | Datasets) -> dict[str, Tensor]:
    return {field.name: getattr(drawn, field.name) for field in dataclasses.fields(drawn)}


def _require_same(ours: Prompts | Datasets, theirs: Prompts | Datasets, what: str) -> None:
    for name, part in _parts(ours).items():
        require_same_bits(part, _parts(theirs)[name], f"{name} of {what}")


def a_batch_is_a_function_of_its_generator(task: Task) -> None:
    """The same seed and step give the same bits, whatever was drawn before."""
    generator = torch.Generator()
    for step in range(3):
        later = task.sample(at_step(generator, SEED, step), BATCH)
    _require_same(later, _drawn(task), "one step drawn twice")


def other_seeds_and_steps_give_other_batches(task: Task) -> None:
    batches = [_drawn(task, *where).tokens for where in ((0, 0), (0, 1), (1, 0), (1, -1))]
    for i, one in enumerate(batches):
        require(not any(torch.equal(one, other) for other in batches[:i]), "two steps gave the same batch")


def sizes_are_as_declared(task: Task) -> None:
    """`tokens`, `width_in` and `width_out` are those of the prompts, and `asked` picks as many as targets; finite."""
    prompts = _drawn(task)
    wanted = (BATCH, task.tokens, task.width_in)
    require(prompts.tokens.shape == wanted, f"tokens of shape {tuple(prompts.tokens.shape)}, declared {wanted}")
    asked = task.asked(torch.zeros(BATCH, task.tokens, task.width_out, device="cpu")).shape
    for name, part in _parts(prompts).items():
        require(bool(part.isfinite().all()), f"{name} are not finite")
        if name in ("targets", "truth"):
            require(part.shape == asked, f"{name} of shape {tuple(part.shape)}, asked are {tuple(asked)}")


def every_baseline_has_an_error_for_each_point_of_the_curve(task: Task) -> None:
    """And saying nothing is one of them."""
    prompts = _drawn(task)
    curves, length = task.baselines(prompts), len(task.curve(prompts.truth.square()))
    require("zero" in curves, "there is no baseline 'zero'")
    for name, curve in curves.items():
        held = curve.shape == (length,) and bool(curve.isfinite().all())
        require(held, f"the baseline {name} has {tuple(curve.shape)} errors, or some that are not finite")


def dead_features_are_not_shown(task: Task) -> None:
    """`live` of ones changes nothing; what it sets to zero changes the prompts, and none of their sizes.

    A task that has no curriculum refuses any `live` in one line.
    """
    live = torch.ones(task.features, device="cpu")
    try:
        whole = _drawn(task, live=live)
    except EmulonError as error:
        require("\n" not in str(error), f"live is refused in more than one line: {str(error)!r}")
        return
    _require_same(whole, _drawn(task), "features that are all live")
    live[task.features // 2 :] = 0.0
    drawn = _drawn(task, live=live)
    require(not torch.equal(drawn.tokens, whole.tokens), "dead features are shown all the same")
    for name, part in _parts(drawn).items():
        require(part.shape == _parts(whole)[name].shape, f"{name} change their shape")
        require(bool(part.isfinite().all()), f"{name} are not finite")
    if isinstance(task, RegressionTask):
        xs, _ = deinterleave(drawn.tokens)
        require(not xs[..., task.features // 2 :].any(), "dead features of x are not zero")


def options_are_read_back_from_a_line(task: Task) -> None:
    """`read_task` of the name and all options is the task again."""
    options = {name: _written(value) for name, value in _options(task).items() if name != "points"}
    line = f"{_name(task)}:" + ",".join(f"{name}={value}" for name, value in options.items())
    require(read_task(line, points=task.points) == task, f"{line!r} is read as another task")


def options_without_sense_are_refused(task: Task) -> None:
    """No features, no points, a negative number or NaN, in a line that names the option."""
    for name, value in _options(task).items():
        bad = [0, -1] if name in ("features", "points") else [-1.0, float("nan")] if type(value) is float else []
        for one in bad:
            require_refusal(partial(dataclasses.replace, task, **{name: one}), f"{name}={one}", name)


def _options(task: Task) -> dict[str, object]:
    return {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def datasets_have_the_points_and_the_dtype_asked_for(task: RegressionTask) -> None:
    for dtype in (torch.float32, torch.float64):
        points = task.points + 3
        drawn = task.datasets(torch.Generator().manual_seed(SEED), BATCH, points=points, dtype=dtype)
        require(drawn.xs.shape == (BATCH, points, task.features), f"xs have shape {tuple(drawn.xs.shape)}")
        for name, part in _parts(drawn).items():
            require(part.shape[:2] == (BATCH, points), f"{name} have shape {tuple(part.shape)}")
            require(part.dtype == dtype, f"{name} are {part.dtype}, asked for {dtype}")
    require(task.datasets(torch.Generator(), BATCH).xs.dtype == torch.float32, "the default is not float32")


def prompts_are_made_of_the_datasets(task: RegressionTask) -> None:
    """The same stream as datasets and as prompts: x₁, y₁, …, and the last y is nowhere to be read."""
    drawn, prompts = task.datasets(at_step(torch.Generator(), SEED, 2), BATCH), _drawn(task)
    xs, answered = deinterleave(prompts.tokens)
    pairs = {
        "xs": (xs, drawn.xs),
        "answered ys": (answered, drawn.ys[:, :-1]),
        "targets": (prompts.targets[..., 0], drawn.ys),
        "truth": (prompts.truth[..., 0], drawn.truth),
    }
    for name, (shown, wanted) in pairs.items():
        require_same_bits(shown, wanted, f"{name} of prompts and datasets")


def truth_has_no_noise(task: RegressionTask) -> None:
    """Xs and truth do not change with `noise`; where the noise is zero, targets are the truth."""
    if "noise" not in _options(task) or _name(task) is None:
        return
    quiet, loud = (dataclasses.replace(task, noise=noise) for noise in (0.0, 2.0))
    drawn = [one.datasets(torch.Generator().manual_seed(SEED), BATCH) for one in (quiet, loud)]
    require_same_bits(drawn[0].truth, drawn[1].truth, "truth with and without noise")
    require_same_bits(drawn[0].xs, drawn[1].xs, "xs with and without noise")
    if not torch.as_tensor(quiet.noise_scale(torch.Generator(), BATCH), device="cpu").any():
        require_same_bits(drawn[0].ys, drawn[0].truth, "targets without noise and truth")
        require(not torch.equal(drawn[1].ys, drawn[1].truth), "noise changes no target")


def held_out_data_are_a_function_of_the_seed(task: RegressionTask) -> None:
    """In float64 on the CPU; another seed gives others."""
    drawn = task.held_out(SEED, BATCH, task.points)
    _require_same(drawn, task.held_out(SEED, BATCH, task.points), "one seed held out twice")
    require(drawn.xs.dtype == torch.float64 and drawn.xs.device.type == "cpu", f"{drawn.xs.dtype} on {drawn.xs.device}")
    require(not torch.equal(drawn.ys, task.held_out(SEED + 1, BATCH, task.points).ys), "two seeds give the same data")


def held_out_data_are_in_no_training_batch(task: RegressionTask) -> None:
    """Training with the same seed does not draw them, at any dtype."""
    held = task.held_out(SEED, BATCH, task.points).xs
    for step in STEPS:
        for dtype in (torch.float32, torch.float64):
            seen = task.datasets(at_step(torch.Generator(), SEED, step), BATCH, dtype=dtype).xs
            require(not torch.equal(held.to(dtype), seen), f"step {step} of training draws what is held out")


CHECKS: tuple[Callable[[Task], None], ...] = (
    a_batch_is_a_function_of_its_generator,
    other_seeds_and_steps_give_other_batches,
    sizes_are_as_declared,
    every_baseline_has_an_error_for_each_point_of_the_curve,
    dead_features_are_not_shown,
)
REGRESSION: tuple[Callable[[RegressionTask], None], ...] = (
    datasets_have_the_points_and_the_dtype_asked_for,
    prompts_are_made_of_the_datasets,
    truth_has_no_noise,
    held_out_data_are_a_function_of_the_seed,
    held_out_data_are_in_no_training_batch,
)


def checks_of(task: Task) -> list[Callable]:
    """There are more for a task that asks for a y from an x, and for a registered one."""
    named = [options_are_read_back_from_a_line, options_without_sense_are_refused] if _name(task) else []
    return [*CHECKS, *named, *(REGRESSION if isinstance(task, RegressionTask) else [])]


def small(name):
    noise = {"noise": 0.25} if "noise" in TASKS[name].__dataclass_fields__ else {}
    return TASKS[name](features=4, points=7, **noise)


# Those over text need a corpus, and keep what of the contract is about them in tests/reproduce/test_text_tasks.py.
CASES = {name: small(name) for name, task in TASKS.items() if not task.reads_words}


@pytest.mark.parametrize(
    ("check", "task"),
    [
        pytest.param(check, task, id=f"{case}-{check.__name__}")
        for case, task in CASES.items()
        for check in checks_of(task)
    ],
)
def test_task(check, task):
    check(task)
