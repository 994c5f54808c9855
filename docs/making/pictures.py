"""The constructions as pictures, each drawn from an object built for it: sizes, names and weights are its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from drawing import HUES, Drawing, boxes, curves, looped, shades, strip
from torch import Tensor

from emulon import Domain, Interpreter, compile
from emulon.algorithms import LogCoshRegression, Ridge
from emulon.attention import Trace
from emulon.certify import Spectrum
from emulon.constructions import (
    HeadInEmbedding,
    HeadInTokens,
    HopfieldResidualMap,
    LinearLayer,
    ResidualMap,
    TruncatedLinear,
)
from emulon.looped import (
    CausalLoopedGradientDescent,
    LoopedAutoRegression,
    LoopedChainOfThought,
    LoopedGradientDescent,
    LoopedNewton,
    RepresentationNetwork,
)
from emulon.looped.transformer import LoopedTransformer
from emulon.machine import RegisterProgram
from emulon.machine.programs import moving_average, sgd, sherman_morrison
from emulon.softmax import approximate

RESULTS = Path(__file__).parents[2] / "results"
PICTURES: dict[str, Callable[[], str]] = {}
X = torch.tensor([[0.9, -0.2], [-0.4, 0.8], [0.1, 0.5]], dtype=torch.float64)
Y = torch.tensor([0.7, -0.6, 0.1], dtype=torch.float64)
W = torch.tensor([0.5, -0.3], dtype=torch.float64)


def picture(draw: Callable[[], str]) -> Callable[[], str]:
    PICTURES[draw.__name__] = draw
    return draw


def as_file(name: str) -> str:
    """A picture as an SVG file on white, for pages that are read elsewhere."""
    svg = named(name).partition("<svg ")[2].partition("</svg>")[0]
    return f'<svg color="#555" {svg}</svg>\n'


def named(name: str) -> str:
    if name not in PICTURES:
        raise KeyError(f"there is no picture {name}; there are {', '.join(sorted(PICTURES))}")
    return PICTURES[name]()


def seen(trace: Trace, name: str) -> list[list[float]]:
    weights: list[list[float]] = trace[name].weights.tolist()
    return weights


# One softmax as a function


@picture
def soft_grid() -> str:
    """Key weights of the paper's grid and of ours."""
    drawing, y = Drawing("weights of the keys of one softmax, over its argument"), 0.0
    for words, grid in (("paper's grid", "paper"), ("ours", "auto")):
        made = approximate("sin(3*t)", (-1, 1), points=9, grid=grid)
        s = torch.linspace(made.grid.lo, made.grid.hi, 121, dtype=torch.float64)
        weights = torch.softmax(s[:, None] * made.slopes + made.intercepts, dim=-1).T
        title = f"{words}: {made.keys} keys, error at most {made.certificate.bound:.1e}"
        lines = [("", s.tolist(), line.tolist()) for line in weights]
        y = curves(drawing, y, lines, title=title, width=420, height=80) + 6
    return drawing.svg(
        "sin 3t on (−1, 1): how much each key weighs as t goes from left to right. Sharp keys make steps; "
        "soft ones overlap, and their values undo the blur."
    )


# Hu et al. 2025


@picture
def residual_map() -> str:
    """The tokens of Theorem 3.1 and where its queries look."""
    made = ResidualMap("sin(t)", Domain(samples=3, features=2, x=1.0, y=1.0, w=0.6), points=8)
    with Trace() as trace:
        made(X, Y, W)
    holds = {
        "key_x": "slope · xᵢ",
        "key_y": "slope · yᵢ",
        "key_bias": "intercept",
        "key_code": "code of i",
        "value": "value · xᵢ",
        "query_x": "w",
        "query_y": "−1",
        "query_bias": "1",
        "query_code": "code asked for",
    }
    drawing = Drawing("tokens and attention weights of a residual map")
    y = strip(drawing, 0, [(name, made.slots.size(name), holds.get(name, "")) for name in made.slots])
    shades(drawing, y + 8, seen(trace, "residual map"), ["query 1", "query 2", "query 3"], ["x₁", "x₂", "x₃"])
    return drawing.svg(
        f"Above, what one of the {made.domain.samples * made.f.keys} tokens holds. Below, the head's attention on "
        f"three samples of {made.f.keys} keys each: the codes send query i to the tokens of xᵢ, and among these the "
        f"scores of w·xᵢ − yᵢ choose the keys. Error {made.certificate.bound:.0e}."
    )


@picture
def descent() -> str:
    """One step, and what is written back."""
    domain = Domain(samples=3, features=2, x=1.0, y=1.0, w=2.0)
    made = ResidualMap("t", domain, tolerance=1e-8)
    drawing = Drawing("one step of descent in context")
    head = ["frozen head", f"{made.domain.samples}·{made.f.keys} tokens"]
    stages = [["prompt", "x, y, w"], head, ["mean over samples", "w − η·∇"], ["new w"]]
    looped(drawing, stages, "written back into the prompt, T times")
    return drawing.svg(
        "The weights never change; w lives in the prompt. Shrinkage (ridge) is a factor on the w that "
        "the values carry, soft thresholding (lasso) a second application of the same template."
    )


@picture
def truncated_linear() -> str:
    """The printed heads, and ours, over w·x."""
    tokens, lo, hi = 41, -1.0, 1.0
    x = torch.linspace(-1.45, 1.45, tokens, dtype=torch.float64)[:, None]
    one = torch.ones(1, dtype=torch.float64)
    paper = TruncatedLinear(12, 1, lo, hi, heads=2, grid="paper")
    ours = TruncatedLinear(tokens, 1, lo, hi, tolerance=1e-4)
    chunks = [paper.heads(part, one[None])[:, 0] for part in torch.cat([x, x[-7:]]).split(12)]
    printed = torch.cat(chunks)[:tokens]
    at = x[:, 0].tolist()
    drawing = Drawing("a truncated linear map: printed heads and ours")
    lines = [("paper's heads", at, printed.tolist()), ("ours", at, ours(x, one).tolist())]
    curves(drawing, 0, lines, title="output over w·x, truncated to (−1, 1)")
    return drawing.svg(
        "Two sharp heads of twelve tokens share the range: a staircase inside, and silence, that is 0, "
        "outside. The piecewise grid is one head and stays at the ends."
    )


@picture
def linear_layer() -> str:
    """Tokens and weights of Remark 4.5."""
    made = LinearLayer(tokens=3, features=2, width=2, bound=2.0, tolerance=1e-6)
    theta = torch.tensor([[2.0, -0.5], [0.3, 2.2]], dtype=torch.float64)
    with Trace() as trace:
        made(X, theta)
    holds = {"x": "xᵣ", "key": "slopeᵣ · θ", "one": "1", "value": "valueᵣ", "bias": "interceptᵣ"}
    drawing = Drawing("tokens and attention weights of a linear layer")
    y = strip(drawing, 0, [(name, made.slots.size(name), holds[name]) for name in made.slots])
    weights = trace["linear layer"].weights
    for row in range(2):
        y = shades(drawing, y + 10, weights[row].tolist(), ["x₁", "x₂", "x₃"], [f"head {row + 1}: keys"])
    return drawing.svg(
        f"{made.width} heads with the same three matrices; head j sees row j of Θ in its tokens. "
        f"{made.f.keys} keys, error {made.certificate.bound:.0e}."
    )


@picture
def head_in_embedding() -> str:
    """Theorem 4.1's two layers."""
    made = HeadInEmbedding(tokens=8, features=4, width=3, bound=4.0, tolerance=1e-6)
    title, heads = "a head whose weights are in the embedding", made.layer.heads * made.layer.rows
    return two_layers(title, made, ["token j", "xⱼ, j·v, v, eⱼ"], heads, made.layer.length)


@picture
def head_in_tokens() -> str:
    """Theorem 4.2's two layers."""
    made = HeadInTokens(tokens=8, features=4, width=3, bound=4.0, tolerance=1e-6)
    prompt = ["prompt", "x; rows of", "W_K, W_Q, W_V"]
    return two_layers("a head whose weights are tokens", made, prompt, made.layer.width, made.layer.f.keys)


def two_layers(title: str, made: HeadInEmbedding | HeadInTokens, prompt: list[str], heads: int, keys: int) -> str:
    drawing = Drawing(title)
    first, second = ["layer 1", f"{heads} heads", f"{keys} keys each"], ["layer 2", "1 head", "softmax(QKᵀ)V"]
    boxes(drawing, [prompt, first, ["K | Q | V"], second, ["the emulated", "head's output"]])
    return drawing.svg(
        f"Built for {made.tokens} tokens of {made.features} features and a head of width {made.width}: one "
        "frozen head a row of the three matrices, then one that assembles. Whatever head is asked for, "
        "these weights stay."
    )


@picture
def interpreter() -> str:
    """The frozen module with two programs."""
    algorithms = Ridge(steps=10), LogCoshRegression(steps=10)
    programs = [compile(algorithm, data=(X, Y), tolerance=1e-6) for algorithm in algorithms]
    made = Interpreter.fitting(*programs)
    capacity = made.capacity
    drawing = Drawing("the interpreter")
    first = ["layer 1, frozen", f"{3 * capacity.width} heads", f"{len(made.slopes)} keys each"]
    prompt = ["prompt", "data, w, and the", "head's W_K, W_Q, W_V"]
    looped(drawing, [prompt, first, ["layer 2, frozen", "1 head"], ["mean or sum", "→ new w"]], "T steps")
    return drawing.svg(
        f"One module for ridge and log-cosh regression on one table: width {capacity.width}, up to {capacity.tokens} "
        f"tokens, sha256 {made.sha256[:12]}… before and after."
    )


@picture
def hopfield() -> str:
    """Which stored patterns a state retrieves."""
    made = HopfieldResidualMap("sin(t)", Domain(samples=3, features=2, x=1.0, y=1.0, w=0.6), points=8)
    with Trace() as trace:
        made(X, Y, W)
    drawing = Drawing("retrieval from stored patterns")
    names = ["state 1", "state 2", "state 3"]
    shades(drawing, 0, seen(trace, "hopfield"), names, ["patterns of x₁", "of x₂", "of x₃"])
    return drawing.svg(f"softmax(β·patterns·state), β = {made.beta:g}: the data are stored, w asks.")


# Akyürek et al. 2022


def program_picture(program: RegisterProgram) -> str:
    """Registers downwards, layers to the right: what each layer reads (rings) and writes (discs)."""
    made = program.compile()
    drawing, names, cell = Drawing(f"{program.name}, layer by layer"), list(program.registers), 26.0
    left = max(map(len, names)) * 6.5 + 10
    for row, name in enumerate(names):
        drawing.text(0, 28 + row * 20, name)
        drawing.line([(left, 25 + row * 20), (left + cell * made.depth, 25 + row * 20)], hue="#8885")
    for column, layer in enumerate(made.layers):
        x = left + cell * (column + 0.5)
        drawing.text(x, 10, str(column + 1), anchor="middle", faint=True)
        for instruction in layer.instructions:
            for name in instruction.reads:
                y = 25 + names.index(name) * 20
                ring = f'<circle cx="{x - 4:.1f}" cy="{y}" r="4" fill="none" stroke="currentColor"/>'
                drawing.parts.append(ring)
            y = 25 + names.index(instruction.target.name) * 20
            drawing.parts.append(f'<circle cx="{x + 5:.1f}" cy="{y}" r="4.5" fill="#d9694f"/>')
    drawing.reach(left + cell * made.depth, 30 + 20 * len(names))
    return drawing.svg(
        f"{program.name}: {len(program.instructions)} instructions in {made.depth} blocks of width "
        f"{made.width} with {made.heads} heads. A ring is read by the layer, a disc written."
    )


@picture
def register_machine() -> str:
    return program_picture(moving_average(samples=5))


@picture
def sgd_machine() -> str:
    return program_picture(sgd(features=2, samples=4, step_size=0.1))


@picture
def sherman_morrison_machine() -> str:
    return program_picture(sherman_morrison(features=2, samples=4))


# Gao et al. 2024


def frame_picture(made: LoopedTransformer) -> str:
    """pre, loop and post with the names and heads of their layers, and the slots of a token."""
    drawing = Drawing(f"{type(made).__name__}: pre, loop, post")
    stacks = {"pre": made.frame.pre, "loop": made.frame.loop, "post": made.frame.post}
    stages = [
        [name, *(f"{layer.name}: {layer.heads} head{'s' * (layer.heads != 1)}" for layer in stack)]
        for name, stack in stacks.items()
    ]
    places = boxes(drawing, stages, 24)
    left, right, middle = places[1]
    top = middle - (14.0 * max(map(len, stages)) + 10) / 2
    drawing.arrow((right - 12, top), (right - 12, top - 12), (left + 12, top - 12), (left + 12, top - 2))
    drawing.text((left + right) / 2, top - 15, "T times", anchor="middle", faint=True)
    strip(drawing, drawing.height + 14, [(name, made.slots.size(name), "") for name in made.slots])
    return drawing.svg(f"{type(made).__name__}: the three stacks with their heads, and the named slots of one token.")


SMALL = Domain(samples=6, features=2, x=1.0, y=1.0, w=2.0, spectrum=Spectrum(smallest=0.1, largest=0.9, norm=1.2))


def network(*sizes: int) -> RepresentationNetwork:
    draw = torch.Generator().manual_seed(0)
    layers: tuple[Tensor, ...] = tuple(
        torch.randn(after, before, dtype=torch.float64, generator=draw) / before**0.5
        for before, after in pairwise(sizes)
    )
    return RepresentationNetwork(layers, slope=0.1, bound=1.0)


@picture
def looped_descent() -> str:
    return frame_picture(LoopedGradientDescent(SMALL, 1e-5, horizon=20))


@picture
def auto_regression() -> str:
    return frame_picture(LoopedAutoRegression(SMALL, network(6, 2), 1e-5, order=3, horizon=20))


@picture
def chain_of_thought() -> str:
    return frame_picture(LoopedChainOfThought(SMALL, 1e-5, depth=3, horizon=20))


@picture
def newton() -> str:
    return frame_picture(LoopedNewton(SMALL, 1e-5, horizon=8))


@picture
def causal_descent() -> str:
    return frame_picture(CausalLoopedGradientDescent(SMALL, 1e-4, horizon=20))


# Known answers

ENGINES = (
    "transformers float32 sdpa",
    "onnxruntime float32",
    "llama.cpp F32",
    "llama.cpp F32 flash",
    "openvino float32",
    "openvino default",
    "ctranslate2 float32",
)


@picture
def bits_kept() -> str:
    """The fewest bits that a canary's register keeps in an engine, from the measured table."""
    records = {one["engine"]: one for one in json.loads((RESULTS / "canary" / "engines.json").read_text())}
    drawing = Drawing("bits kept by inference engines")
    for row, name in enumerate(ENGINES):
        analog = [(kept, wrong) for canary, _, kept, _, wrong in records[name]["rows"] if canary.startswith("analog")]
        least, wrong = min(kept for kept, _ in analog), any(wrong for _, wrong in analog)
        drawing.text(0, 16 + row * 22, name)
        drawing.box(160, 6 + row * 22, max(1.0, 9 * least), 14, hue=HUES[1] if wrong else HUES[0], shade=0.5)
        drawing.text(168 + 9 * least, 16 + row * 22, f"{least:g} bits{', a fault' if wrong else ''}", faint=not wrong)
    return drawing.svg("The fewest bits that a register of a float32 canary keeps in each engine.")


if __name__ == "__main__":
    (Path(__file__).parents[1] / "images" / "bits_kept.svg").write_text(as_file("bits_kept"), encoding="utf-8")
