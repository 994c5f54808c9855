"""Table 1 and Figure 2: a softmax head emulated by trained modules, over the number of heads; and over their tokens.

As in the public code, three modules learn K, Q and V of one fixed head apart, and their answers are put together. The
rule, written before the numbers: the error falls with the number of heads if the slope of log error over log heads,
one for each seed, has a 95 % interval below zero, along the softmax axis of the script that printed the numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from emulon.report.figure import Figure, Panel, Series
from emulon.tasks import normal
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict, set_up
from reproduce.drawing import with_intervals
from reproduce.emulation.modules import GPU, SMALL, Batches, MultiHeads, Stack, fit, in_chunks
from reproduce.interval import at_most, shown
from reproduce.learners import best_device

# Heads, and the mean and deviation of the squared error printed for them.
PRINTED = {1: (3.469, 0.381), 2: (2.802, 0.413), 4: (1.222, 0.603), 6: (1.012, 0.204), 8: (0.793, 0.127)}
PRINTED |= {12: (0.686, 0.171)}
PARTS = ("K", "Q", "V")
SCRIPT, RIGHT = "over the queries (the script)", "over the keys"


def run(setting: Setting) -> Numbers:
    """Held-out squared errors over the number of heads, and over p with one head, which the script does and the paper
    does not print."""
    heads, tokens, p = (setting.sizes[key] for key in ("heads", "p_list", "p"))
    both = {"heads": [(count, p) for count in heads], "p": [(1, each) for each in tokens]}
    every = {f"heads {count}, p {each}": (count, each) for pairs in both.values() for count, each in pairs}
    found = setting.parts({name: partial(measured, *pair) for name, pair in every.items()})
    over = {
        what: {
            name: [found[f"heads {count}, p {each}"][name] for count, each in pairs] for name in (*PARTS, SCRIPT, RIGHT)
        }
        for what, pairs in both.items()
    }
    return {**over, "counts": {"heads": list(heads), "p": list(tokens)}}


def measured(heads: int, p: int, setting: Setting) -> Numbers:
    """The errors of parts and whole, by seed; all seeds are trained as one stack.

    One set of data and one head serve all seeds, which draw first weights, the rows held out and the order.
    """
    sizes, device, seeds = setting.sizes, best_device(), len(setting.seeds)
    n, d, hidden = sizes["points"], sizes["features"], sizes["hidden"]
    draw = torch.Generator(device).manual_seed(setting.seed)
    x = 2 * normal(draw, sizes["datasets"], n, d) - 1
    wide = [normal(draw, d, width) for width in (hidden, hidden, d)]
    maps = torch.stack([nn.functional.pad(one, (0, hidden - one.shape[1])) for one in wide])[:, None, None]
    # V has d columns, its module answers with `hidden`: those behind have no weight.
    share = torch.stack([torch.arange(hidden, device=device) < one.shape[1] for one in wide]) / n
    share = (share / torch.tensor([[one.shape[1]] for one in wide], device=device))[:, None, None, None]
    rows = torch.stack([torch.randperm(len(x), generator=draw, device=device) for _ in range(seeds)])
    train, test = rows.split([len(x) * 4 // 5, len(x) - len(x) * 4 // 5], dim=1)
    module = Stack(3 * seeds, setting.seed, partial(MultiHeads, n, d, hidden, hidden, p - n, heads))

    def answers(x: Tensor) -> Tensor:
        """(part, seed, batch, n, hidden)."""
        said: Tensor = module(x.expand(3, *x.shape).flatten(0, 1))[0].unflatten(0, (3, seeds))
        return said

    def loss(x: Tensor, _: Tensor) -> Tensor:
        off: Tensor = ((answers(x) - x @ maps).square() * share).sum()
        return off / x.shape[1]

    fit(module, loss, Batches([x], train, sizes["batch"], setting.seed), setting)
    errors: dict[str, list[Tensor]] = {name: [] for name in (*PARTS, SCRIPT, RIGHT)}
    with torch.no_grad():
        for (some,) in in_chunks([x], test, 100):
            target, said = some @ maps, answers(some)
            each = ((said - target).double().square() * share).sum(dim=(-2, -1)).mean(dim=-1)
            for name, error in zip(PARTS, each.unbind(), strict=True):
                errors[name].append(error)
            for axis in (SCRIPT, RIGHT):
                off = (assembled(said, axis, d) - assembled(target, axis, d)).double()
                errors[axis].append(off.square().mean(dim=(-3, -2, -1)))
    return {name: torch.stack(each).mean(dim=0).tolist() for name, each in errors.items()}


def assembled(parts: Tensor, axis: str, d: int) -> Tensor:
    """One softmax head, unscaled, from its keys, queries and values: (part, seed, batch, n, hidden) to (…, n, d).

    The script normalises softmax(Kᵀ Q) over the queries, and sums over the keys.
    """
    keys, queries, values = parts.unbind()
    weights = (keys @ queries.mT).softmax(dim=-1 if axis == SCRIPT else -2)
    return weights.mT @ values[..., :d]


def slopes(counts: Sequence[int], errors: Sequence[Sequence[float]]) -> list[float]:
    """Of log error over log count, by least squares, one for each seed."""
    logs = [math.log(count) for count in counts]
    return [statistics.linear_regression(logs, list(map(math.log, each))).slope for each in zip(*errors, strict=True)]


def judge(numbers: Numbers) -> Verdict:
    """By the rule above. Beside it the rule of the first version: of all pairs of means most fall (12 of 15)."""
    counts, errors = numbers["counts"]["heads"], numbers["heads"][SCRIPT]
    means = [statistics.fmean(each) for each in errors]
    pairs = list(combinations(means, 2))
    falling = sum(later < earlier for earlier, later in pairs)
    printed = slopes(list(PRINTED), [[mean] for mean, _ in PRINTED.values()])[0]
    right = slopes(counts, numbers["heads"][RIGHT])
    told = slopes(counts, errors)
    ours = f"MSE {', '.join(f'{mean:.3g}' for mean in means)} for {', '.join(map(str, counts))} heads; over p = "
    ours += f"{numbers['counts']['p'][0]} to {numbers['counts']['p'][-1]} with one head "
    ours += f"{statistics.fmean(numbers['p'][SCRIPT][0]):.3g} to {statistics.fmean(numbers['p'][SCRIPT][-1]):.3g}"
    reason = f"error ~ heads^{shown(told, digits='.2f')}, printed heads^{printed:.2f}; {falling} of {len(pairs)} pairs "
    reason += f"fall; normalised over the keys heads^{shown(right, digits='.2f')}"
    return Verdict(at_most(0.0, told), ours, reason)


def figure(numbers: Numbers) -> Figure:
    panels = []
    for what in ("heads", "p"):
        counts = numbers["counts"][what]
        series = [with_intervals(axis, counts, numbers[what][axis], "line") for axis in (SCRIPT, RIGHT)]
        if what == "heads":
            series.append(Series("Table 1", list(PRINTED), [mean for mean, _ in PRINTED.values()], "dots"))
        panels.append(Panel(what, "mean squared error", series, log_y=True))
    return Figure(panels)


FEW: dict[str, Any] = SMALL | {"heads": [1, 2, 4, 6, 12], "p_list": [5, 10, 20], "seeds": 3}
MANY: dict[str, Any] = GPU | {"heads": list(PRINTED), "p_list": list(range(20, 120, 10)), "seeds": 10, "fast": True}
SET_UP = """
model | K, Q and V by a multi-head module each, 40 learnable tokens (p = 60), width 48 | the same
training | the three apart, on one fixed head that all data share; weights unscaled | the same
softmax | over the queries in the script, over the keys in the formula | both; the script's is judged
data | 50,000 sequences of 20 tokens of 24 features, X ~ 2·N(0, 1) − 1, a fifth held out | the same
optimiser | Adam, 1e-3 throughout, batch 32 | the same; matrix products of training in tf32
steps | 50 epochs | the same
seeds | 10 in the text, 11 in the script; one set of data and one head for all | 10, likewise
"""
CLAIM = Claim(
    "emulation-table-1",
    "Hu et al. 2025, Table 1, Figure 2",
    "Trained multi-head attention emulates a softmax head; the error falls with the number of heads.",
    "MSE 3.469, 2.802, 1.222, 1.012, 0.793, 0.686 for 1, 2, 4, 6, 8, 12 heads",
    {"small": Scale(0.5, FEW, at_source_scale=False), "gpu": Scale(6, MANY, set_up=set_up(SET_UP))},
    *(run, judge, figure),
    reversal="a slope over seeds whose interval lies below zero, in this set-up",
)
