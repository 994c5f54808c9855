"""Theorems 4.1, 4.2 and D.1, Remarks 4.1 and 4.5, Table 4 and the public code: attention heads given by the prompt."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from emulon.attention import attend
from emulon.constructions import HeadInEmbedding, HeadInTokens, LinearLayer, ScalarHeads, TruncatedLinear
from emulon.report.figure import Figure, Panel, Series
from reproduce import bounded
from reproduce.bounded import Row, largest, normal, uniform
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict
from reproduce.drawing import of_rows

Construct = type[HeadInEmbedding] | type[HeadInTokens]


def exact_head(x: Tensor, w_k: Tensor, w_q: Tensor, w_v: Tensor) -> Tensor:
    k, q, v = (x.double() @ w.double().mT for w in (w_k, w_q, w_v))
    return attend(q, k, v)


def a_head(setting: Setting) -> tuple[torch.Generator, tuple[int, int, int, float], Tensor, list[Tensor]]:
    """A random head: its generator, its sizes with the largest key, query or value, its tokens and its weights."""
    tokens, features, width = (setting.sizes[key] for key in ("tokens", "features", "width"))
    draw = torch.Generator().manual_seed(setting.seed)
    x = normal(draw, tokens, features)
    weights = [normal(draw, width, features) / features for _ in range(3)]
    bound = 1.01 * max((x.abs() @ w.abs().mT).max().item() for w in weights)
    return draw, (tokens, features, width, bound), x, weights


def emulated(setting: Setting, construct: Construct, paper: str, keys: Callable[[Any], int]) -> Numbers:
    """The paper's construction over `paper` (heads or points), ours over its points, which `keys` counts."""
    _, shape, x, weights = a_head(setting)
    exact = exact_head(x, *weights)

    def measured(**options: Any) -> Row:
        built = construct(*shape, **options)
        used = options[paper] if options.get("grid") == "paper" else keys(built)
        return used, largest(built(x, *weights), exact), built.audit(x, *weights).bound

    labels = {"heads": "heads", "points": "points", "soft": "points"}
    return bounded.curves(setting, measured, {"paper's": (paper,), "ours": ("soft",)}, labels)


def theorem_4_1(setting: Setting) -> Numbers:
    return emulated(setting, HeadInEmbedding, "heads", lambda built: int(built.f.keys))


def theorem_4_2(setting: Setting) -> Numbers:
    return emulated(setting, HeadInTokens, "points", lambda built: int(built.linear.f.keys))


SIZES: dict[str, Any] = {"tokens": 20, "features": 24, "width": 24, "soft": [5, 9, 13, 17, 25]}
THEOREM_4_1 = bounded.claim(
    "emulation-theorem-4.1",
    "Theorem 4.1",
    "One frozen two-layer module emulates any attention head whose weights are in the embedding.",
    theorem_4_1,
    {"small": Scale(0.2, SIZES | {"heads": [20, 80, 320, 1280]})},
    "error ≤ ε for any ε > 0, with more heads",
    differs="The offset of a head is applied once and Q stands in its own block, where the proof slips. The bound is "
    "the certificate for this head and data; ours pads the prompt so that one head a row suffices.",
)
THEOREM_4_2 = bounded.claim(
    "emulation-theorem-4.2",
    "Theorem 4.2",
    "One frozen two-layer module emulates any attention head whose weights are tokens of the prompt.",
    theorem_4_2,
    {"small": Scale(0.2, SIZES | {"points": [65, 257, 1025]})},
    "error ≤ ε for any ε > 0, with more interpolation points",
    differs="The selectors of the assembling head are those of D.38 (the sketch in A.1 permutes them). The bound is "
    "the certificate for this head and data.",
)

TOKENS, FEATURES, LOW, HIGH = 12, 3, -1.0, 2.0


def theorem_d_1(setting: Setting) -> Numbers:
    draw = torch.Generator().manual_seed(setting.seed)
    batch = setting.sizes["datasets"]
    wide = uniform(draw, batch, TOKENS, FEATURES), uniform(draw, batch, FEATURES)
    # The paper's heads fall silent outside [a, b]: their bound holds inside it only.
    narrow = uniform(draw, batch, TOKENS, FEATURES, bound=0.6), uniform(draw, batch, FEATURES, bound=0.55)

    def measured(**options: Any) -> Row:
        built = TruncatedLinear(TOKENS, FEATURES, LOW, HIGH, **options)
        x, w = narrow if "heads" in options else wide
        exact = (x @ w.unsqueeze(-1)).squeeze(-1).clamp(LOW, HIGH)
        size = built.heads.f.keys if isinstance(built.heads, ScalarHeads) else options["heads"]
        return size, largest(built(x, w), exact), built.certificate.bound

    each = {"paper's heads": ("heads",), "ours, one head, clipping": ("tolerances",)}
    labels = {"heads": f"heads of {TOKENS} tokens"}
    return bounded.curves(setting, measured, each, labels) | {"outside": outside(setting)}


def outside(setting: Setting) -> Numbers:
    """Errors against the truncation where w·x lies outside [a, b], which is the point of truncating."""
    draw = torch.Generator().manual_seed(setting.seed)
    x = uniform(draw, setting.sizes["datasets"], TOKENS, FEATURES)
    w = 1.4 * HIGH / FEATURES * torch.ones(len(x), FEATURES, dtype=torch.float64)
    score = (x @ w.unsqueeze(-1)).squeeze(-1)
    beyond, exact = (score < LOW) | (score > HIGH), score.clamp(LOW, HIGH)
    paper = TruncatedLinear(TOKENS, FEATURES, LOW, HIGH, heads=setting.sizes["heads"][-1], grid="paper")
    ours = TruncatedLinear(TOKENS, FEATURES, LOW, HIGH, setting.sizes["tolerances"][-1])
    # The module refuses such data; its heads are evaluated directly.
    silent = paper.heads(x, w.unsqueeze(-2)).squeeze(-1)
    errors = {"paper": largest(silent[beyond], exact[beyond]), "ours": largest(ours(x, w)[beyond], exact[beyond])}
    return {"tokens": int(beyond.sum()), **errors, "bound": ours.certificate.bound}


def judge_d_1(numbers: Numbers) -> Verdict:
    """As every construction, and outside [a, b] ours truncates within its bound."""
    inside, beyond = bounded.judge(numbers), numbers["outside"]
    reason = f"{inside.reason}; outside [a, b] the printed heads are off by {beyond['paper']:.1g}, ours by "
    holds = inside.state == "holds" and beyond["ours"] <= beyond["bound"]
    return Verdict.that(holds, inside.ours, f"{reason}{beyond['ours']:.0e} ({beyond['tokens']} tokens)")


THEOREM_D_1 = bounded.claim(
    "emulation-theorem-d.1",
    "Theorem D.1",
    "H softmax heads of n tokens give a truncated linear function of every token.",
    theorem_d_1,
    {"small": Scale(0.1, {"heads": [4, 16, 64, 256], "tolerances": [1e-2, 1e-4, 1e-6, 2e-7], "datasets": 1000})},
    "error ≤ ε with H = 2(b − a)/((n − 2)ε) heads of n tokens",
    judge_d_1,
    correction="Outside [a, b] all printed heads fall silent and give 0, not a or b; and with the printed spacing the "
    "last point is silent. With the spacing (b − a)/(p − 1) the bound holds inside; ours truncates on both sides.",
)


def remark_4_5(setting: Setting) -> Numbers:
    tokens, features, width = (setting.sizes[key] for key in ("tokens", "features", "width"))
    draw = torch.Generator().manual_seed(setting.seed)
    x, theta = uniform(draw, setting.sizes["datasets"], tokens, features), uniform(draw, width, features)
    theta = theta.expand(setting.sizes["datasets"], width, features)

    def measured(**options: Any) -> Row:
        layer = LinearLayer(tokens, features, width, float(features), **options)
        return layer.f.keys, largest(layer(x, theta), x @ theta.mT), layer.certificate.bound

    return bounded.curves(setting, measured, {"paper's grid": ("points",), "ours": ("tolerances",)})


REMARK_4_5 = bounded.claim(
    "emulation-remark-4.5",
    "Remark 4.5",
    "A fixed softmax layer computes x ↦ Θx with Θ given in the prompt, to any precision.",
    remark_4_5,
    {
        "small": Scale(
            0.1,
            {"tokens": 12, "features": 6, "width": 4, "datasets": 50}
            | {"points": [33, 65, 129, 257], "tolerances": [1e-2, 1e-6, 1e-10]},
        )
    },
    "“to arbitrary precision” (no number is given)",
    differs="One head for each row of Θ, where the remark speaks of one layer and does not count heads.",
)

MODULES: dict[str, tuple[Construct, dict[str, Any]]] = {
    "weights in the embedding, paper's": (HeadInEmbedding, {"grid": "paper", "heads": 40}),
    "weights in the embedding, ours": (HeadInEmbedding, {"points": 17}),
    "weights as tokens, paper's": (HeadInTokens, {"grid": "paper", "points": 65}),
    "weights as tokens, ours": (HeadInTokens, {"points": 17}),
}
# What reordering sums may change, relative to the largest output.
ROUNDING = 1e-11


def remark_4_1(setting: Setting) -> Numbers:
    """|module(πx) − π·module(x)| over the largest output, worst of some permutations; and the change by π itself."""
    draw, shape, x, weights = a_head(setting)
    orders = [torch.randperm(len(x), generator=draw) for _ in range(setting.sizes["permutations"])]
    numbers: Numbers = {}
    for done, (name, (construct, options)) in enumerate(MODULES.items()):
        setting.report_progress(name, done / len(MODULES))
        module = construct(*shape, **options)
        plain = module(x, *weights)
        size = plain.abs().max().item()
        numbers[name] = {
            "difference": max(largest(module(x[order], *weights), plain[order]) for order in orders) / size,
            "moved": max(largest(plain[order], plain) for order in orders) / size,
        }
    return numbers


def judge_remark_4_1(numbers: Numbers) -> Verdict:
    worst = max(numbers, key=lambda name: numbers[name]["difference"])
    moved = min(each["moved"] for each in numbers.values())
    difference = numbers[worst]["difference"]
    ours = f"permuting before and after differ by at most {difference:.0e} of the output ({worst})"
    reason = f"rounding alone ({ROUNDING:.0e} allowed), where the permutations move outputs by {moved:.1g} or more"
    return Verdict.that(difference <= ROUNDING < moved, ours, reason)


def draw_remark_4_1(numbers: Numbers) -> Figure:
    names = [name.replace(", ", ",\n").replace(" in ", "\nin ").replace(" as ", "\nas ") for name in numbers]
    labels = {"permuted before against after": "difference", "permuted against not": "moved"}
    series = of_rows(list(numbers.values()), names, labels)
    return Figure([Panel("", "relative difference", series, log_y=True)])


REMARK_4_1 = Claim(
    "emulation-remark-4.1",
    "Hu et al. 2025, Remark 4.1",
    "The emulators of a head are permutation equivariant, as the head is.",
    "“an identical change in the order of the columns”",
    {"small": Scale(0.1, {"tokens": 10, "features": 3, "width": 2, "permutations": 20})},
    *(remark_4_1, judge_remark_4_1, draw_remark_4_1),
    differs="The remark is about Theorem 4.1's construction; Theorem 4.2's is tested, too.",
)

# P and the mean squared error printed for it.
PRINTED = {20: 4.002e-1, 30: 2.442e-2, 40: 5.852e-4, 60: 5.770e-9, 80: 5.037e-14}
# The paper does not say over which range its grid lies; this one fits the printed numbers.
RANGE, BETA = 20.4, 2.0
GRIDS: dict[str, dict[str, Any]] = {
    "the paper's grid, float32": {"beta": BETA, "dtype": torch.float32},
    "ours, float32": {"dtype": torch.float32},
    "ours, float64": {"dtype": torch.float64},
}


def mean_square(
    setting: Setting,
    tokens: int,
    features: int,
    points: int,
    beta: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> float:
    """The error over random heads, by the paper's grid with this β, or by ours; its range grows with √d, as the scores
    do."""
    draw, heads = torch.Generator().manual_seed(setting.seed), setting.sizes["heads"]
    x = torch.rand(heads, tokens, features, generator=draw) * 2 - 1
    weights = list(torch.randn(3, heads, tokens, features, generator=draw))
    way: dict[str, Any] = {} if beta is None else {"grid": "paper", "grid_beta": beta}
    limit = RANGE * (features / 4) ** 0.5
    module = HeadInTokens(tokens, features, tokens, limit, points=points + 1, dtype=dtype, **way)
    answers = module(*(part.to(dtype) for part in (x, *weights))).double()
    return float((answers - exact_head(x, *weights)).square().mean())


def table_4(setting: Setting) -> Numbers:
    errors: Numbers = {}
    for name, options in GRIDS.items():
        setting.report_progress(name, len(errors) / len(GRIDS))
        errors[name] = [mean_square(setting, TOKENS, 4, steps, **options) for steps in PRINTED]
    return {"points": list(PRINTED), "printed": list(PRINTED.values()), "mse": errors}


def judge_table_4(numbers: Numbers) -> Verdict:
    paper, *_, ours = numbers["mse"].values()
    falls = all(later < earlier for earlier, later in pairwise(paper))
    factor = max(max(a / b, b / a) for a, b in zip(paper, numbers["printed"], strict=True))
    shown = ", ".join(f"{value:.1e}" for value in paper)
    return Verdict.that(
        falls and factor < 10,
        f"{shown} with the paper's grid; {ours[0]:.1e} at P = {numbers['points'][0]} with ours",
        f"{'falls' if falls else 'does not fall'} with P; within a factor {factor:.1f} of what is printed (10 asked)",
    )


def draw_table_4(numbers: Numbers) -> Figure:
    series = [Series(name, numbers["points"], mse) for name, mse in numbers["mse"].items()]
    printed = Series("printed in Table 4", numbers["points"], numbers["printed"], mark="dots")
    return Figure([Panel("interpolation points P", "mean squared error", [*series, printed], log_y=True)])


TABLE_4 = Claim(
    "emulation-table-4",
    "Hu et al. 2025, Table 4, Figure 5",
    "Handcrafted frozen attention emulates a softmax head; the error falls with the interpolation points P.",
    f"MSE {', '.join(f'{value:.1e}' for value in PRINTED.values())} for P = {', '.join(map(str, PRINTED))}",
    {"small": Scale(0.1, {"heads": 384})},
    *(table_4, judge_table_4, draw_table_4),
    differs="d = 4 as in the table (Figure 5's caption says 24, which does not fit the numbers), and a mean over 384 "
    "heads where the paper has 4. The paper does not give the range of its grid: ±20.4 fits its numbers.",
)

# att_sim_attn_frozen.py --tune and --plotN, as its README calls them.
TUNE: dict[str, Any] = {"tokens": 12, "points": 66, "features": [4, 8, 12, 16], "betas": [2.0, 4.0, 8.0, 16.0]}
PLOT: dict[str, Any] = {"tokens": [1, 2, 4, 6, 8, 12], "points": 100, "features": 4, "beta": 8.0}


def public_code(setting: Setting) -> Numbers:
    """Mean squared errors of the paper's grid, and of ours, which chooses its own β."""
    tuned: Numbers = {}
    for done, d in enumerate(TUNE["features"]):
        setting.report_progress(f"--tune, d = {d}", 0.7 * done / len(TUNE["features"]))
        paper = [mean_square(setting, TUNE["tokens"], d, TUNE["points"], beta) for beta in TUNE["betas"]]
        tuned[str(d)] = {"paper": paper, "ours": mean_square(setting, TUNE["tokens"], d, TUNE["points"])}
    plotted: Numbers = {"paper": [], "ours": []}
    for tokens in PLOT["tokens"]:
        setting.report_progress(f"--plotN, n = {tokens}", 0.8)
        plotted["paper"].append(mean_square(setting, tokens, PLOT["features"], PLOT["points"], PLOT["beta"]))
        plotted["ours"].append(mean_square(setting, tokens, PLOT["features"], PLOT["points"]))
    return {"tune": tuned, "plotN": plotted}


def judge_public_code(numbers: Numbers) -> Verdict:
    """No number is printed to compare with: ours must be below the paper's grid in every cell."""
    cells = [(paper, each["ours"]) for each in numbers["tune"].values() for paper in each["paper"]]
    cells += list(zip(numbers["plotN"]["paper"], numbers["plotN"]["ours"], strict=True))
    below = sum(ours < paper for paper, ours in cells)
    best, worst = (pick(paper for paper, _ in cells) for pick in (min, max))
    shown = (
        f"MSE {best:.0e} to {worst:.0e} with the paper's grid, at most {max(ours for _, ours in cells):.0e} with ours"
    )
    return Verdict.that(below == len(cells), shown, f"ours below the paper's in {below} of {len(cells)} cells")


def draw_public_code(numbers: Numbers) -> Figure:
    tune = [Series(f"d = {d}", TUNE["betas"], each["paper"]) for d, each in numbers["tune"].items()]
    plot = [Series(name, PLOT["tokens"], values) for name, values in numbers["plotN"].items()]
    left = Panel("β", "mean squared error", tune, title=f"--tune, P = {TUNE['points']}", log_x=True, log_y=True)
    return Figure([left, Panel("tokens n", "mean squared error", plot, f"--plotN, P = {PLOT['points']}", log_y=True)])


CODE = Claim(
    "emulation-code",
    "Hu et al. 2025, public code (--tune, --plotN)",
    "The handcrafted emulator works over d, β and the number of tokens.",
    "commands without printed numbers: P = 66 over d and β, P = 100 over n",
    {"small": Scale(0.2, {"heads": 16})},
    *(public_code, judge_public_code, draw_public_code),
    differs="16 heads a cell, where the code draws 2 to 16; the range of the grid, which is not given, is that which "
    "fits Table 4, times √(d/4).",
)
