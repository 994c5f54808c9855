"""Ridge regression on the examples so far: by Sherman–Morrison updates (Akyürek et al. 2022, Theorem 2), example by
example, and by elimination of symmetric equations, pivot after pivot."""

from __future__ import annotations

import math

import torch

from emulon.certify import Domain
from emulon.core.arrays import eye, zeros
from emulon.core.errors import BadProgram
from emulon.machine.instruction import AffineForm, Invariant, Register, constant
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples, gaussian

# Of `elimination_steps`: data may exceed their bounds by so much, errors included; products of errors.
EDGE = 1.02
SECOND_ORDER, NEAR = 1.4, 4 / 3


def sherman_morrison(
    features: int, samples: int, ridge: float = 1.0, *, domain: Domain | None = None
) -> RegisterProgram:
    """ŷ_i = w_i·x_i with w_i = (Σ_{j<i} x_j x_jᵀ + λI)⁻¹ Σ_{j<i} x_j y_j, the ridge solution on the examples before.

    With P = (Σ xxᵀ + λI)⁻¹, k = Px and l = k/(1 + x·k), Eq. 12 is P ← P − k lᵀ, and w ← w + l(y − w·x) is the ridge
    solution it leads to (for one example: the theorem's w′). Rounds run as in `sgd`: every token updates with its
    example, then reads from the example before. P is stored as its upper triangle, so it is symmetric whatever the
    rounding; and l, not the product of the two k, is divided: it stays below 1/(2√λ), where k kᵀ can reach
    (‖x‖/λ)². Cost: four layers a round, width O(d²).
    """
    if not ridge > 0:
        raise BadProgram(f"sherman_morrison needs ridge > 0 to start from I/ridge, got {ridge}")
    examples = Examples.of("sherman_morrison", gaussian(features, samples) if domain is None else domain)
    program, prompt, y, domain = examples.program, examples.prompt, examples.y, examples.domain
    features, samples = domain.features, domain.samples
    first = examples.first()
    identity = eye(features) / ridge
    inverse = examples.register("P", (features, features), initial=identity, symmetric=True)
    w = examples.register("w", features, initial=zeros(features))
    k, gain = examples.register("k", features), examples.register("l", features)
    leverage, guess = examples.register("leverage"), examples.register("guess")
    change = examples.register("change", (features, features), symmetric=True)
    move = examples.register("move", features)
    begin = first.map(identity.reshape(-1, 1), (features, features), "first·I/λ")
    invariants = _sherman_morrison_invariants(ridge, domain)

    x = examples.own_x()
    program.dot(guess, w, x)
    for _ in range(samples - 1):
        program.mul(k, inverse, x, invariant=invariants["k"])
        program.dot(leverage, x, k, invariant=invariants["leverage"])
        program.div(gain, k, 1.0 + leverage, invariant=invariants["l"])
        program.mul(change, k, gain.T)
        program.mul(move, gain, y - guess)
        program.aff(inverse, inverse - change, at=prompt.previous_example, plus=begin, invariant=invariants["P"])
        program.aff(w, w + move, at=prompt.previous_example, invariant=invariants["w"])
        program.dot(guess, w, x)
    return program.returns(guess)


def _sherman_morrison_invariants(ridge: float, domain: Domain) -> dict[str, Invariant]:
    """Why nothing overflows and errors do not explode.

    0 ≺ P ⪯ I/λ, so ‖k‖ ≤ ‖x‖/λ, 0 ≤ x·k ≤ ‖x‖²/λ, and with a = P^½x: ‖l‖ ≤ λ^{−½}·‖a‖/(1 + ‖a‖²) ≤ 1/(2√λ).
    ‖w‖ ≤ ‖y‖·max σ/(σ² + λ) ≤ √n·|y|/(2√λ).
    Errors. For symmetric P, Q the update f obeys f(P) − f(Q) = M_P(P − Q)M_Qᵀ with M_P = f(P)P⁻¹ = I − l xᵀ,
    exactly. Now ‖f(P)^{−½}M_P P^{½}‖² = ‖f(P)^{½}P⁻¹f(P)^{½}‖ ≤ 1 because f(P) ⪯ P: measured as P̂^{−½}(P̂ −
    P)P^{−½} errors never grow. Back in the 2-norm a round's own error gains at most
    ‖P_t‖^{½}‖P̂_t‖^{½}·‖P_s^{−½}‖‖P̂_s^{−½}‖ ≤ κ = 1 + n‖x‖²/λ, one in w (multiplied by M_P̂ alone) at most √κ. The
    hats, and the rounds' own errors between f(P̂) and the next P̂, change this by less than a quarter while errors
    stay below 1/16 of the least eigenvalue 1/(λ + n‖x‖²) (else the bound says nothing).
    All this holds in Frobenius norm, which a stored triangle's norm meets within √2.
    """
    norm, features, samples = domain.norm, domain.features, domain.samples
    squared = norm**2
    kappa = 1 + (samples - 1) * squared / ridge
    root = 2 * math.sqrt(ridge)
    return {
        "k": Invariant("‖Px‖ ≤ ‖x‖/λ", norm=norm / ridge),
        "leverage": Invariant("0 ≤ xᵀPx ≤ ‖x‖²/λ", low=0.0, high=squared / ridge),
        "l": Invariant("‖Px‖/(1 + xᵀPx) ≤ 1/(2√λ)", norm=1 / root),
        "P": Invariant(
            "0 ≺ P ⪯ I/λ",
            low=-1 / ridge,
            high=1 / ridge,
            norm=math.sqrt(features) / ridge,
            total=1.25 * math.sqrt(2) * kappa,
            valid=1 / (16 * math.sqrt(2) * ridge * kappa),
        ),
        "w": Invariant(
            "‖w‖ ≤ √n·|y|/(2√λ), and the domain's |w|",
            low=-domain.w,
            high=domain.w,
            norm=min(math.sqrt(features) * domain.w, math.sqrt(samples) * domain.y / root),
            total=1.25 * math.sqrt(kappa),
        ),
    }


def elimination_steps(examples: Examples, ridge: float) -> Register:
    """ŷ_i = w_i·x_i with (A + λ/m)w_i = b, A and b the means of xxᵀ and x·y over the m = i − 1 examples before.

    Gauss's elimination takes A's rows one after the other as pivots and subtracts from A, b and x what makes their
    columns zero; then ŷ, which is returned, is the sum of b_k·x_k/pivot_k. Cost: three layers a feature, for any number
    of examples; width O(d²).
    """
    if not ridge > 0:
        raise BadProgram(f"elimination needs ridge > 0, got {ridge}: pivots may be zero without")
    program, prompt, size = examples.program, examples.prompt, examples.domain.features
    counts = torch.arange(1, program.tokens + 1, dtype=torch.float64, device="cpu")[:, None].div(2).floor()
    shift = program.constant(f"{examples.prefix}shift", ridge / counts.clamp(min=1.0))
    # What an example has, and later what a step takes away.
    square = examples.register("square", (size, size), symmetric=True)
    matrix = square if size == 1 else examples.register("A", (size, size), symmetric=True)
    cross, target = examples.register("cross", size), examples.register("b", size)
    pivot, share, guess = (examples.register(name) for name in ("pivot", "share", "guess"))
    known = _elimination_invariants(ridge, examples)

    x = rest = examples.own_x()
    program.mul(square, x, x.T, invariant=known["square"])
    program.mul(cross, x, examples.y, invariant=known["cross"])
    with program.together():
        if size > 1:
            program.mov(matrix, square, at=prompt.past_examples, invariant=known["A"])
        program.mov(target, cross, at=prompt.past_examples, invariant=known["b"])
        program.aff(pivot, _row(square, 0)[0], at=prompt.past_examples, plus=shift, invariant=known["pivot"])
    if size > 1:
        scaled, reduced = examples.register("l", size), examples.register("u", size)
        turn, part = examples.register("turn", size), examples.register("part")
    for k in range(size - 1):
        row = _below(_row(matrix, k), k)
        program.div(scaled, row, pivot, invariant=known["l"])
        program.div(share, target[k], pivot, invariant=known["share"])
        program.mul(square, scaled, row.T, invariant=known["square"])
        program.mul(cross, scaled, target[k], invariant=known["cross"])
        program.mul(turn, scaled, rest[k], invariant=known["turn"])
        program.dot(part, share, rest[k], invariant=known["part"])
        with program.together():
            corner = _row(matrix, k + 1)[k + 1] - _row(square, k + 1)[k + 1]
            program.aff(pivot, corner + shift, invariant=known["pivot"])
            program.aff(matrix, matrix - _corner(square, k), invariant=known["A"])
            program.aff(target, target - _below(cross, k), invariant=known["b"])
            program.aff(reduced, rest - _below(turn, k), invariant=known["u"])
            program.aff(guess, part if k == 0 else guess + part, invariant=known["sum"])
        rest = reduced
    program.div(share, target[size - 1], pivot, invariant=known["share"])
    last = rest[size - 1]
    if size == 1:
        program.dot(guess, share, last, invariant=known["guess"])
    else:
        program.dot(guess, _pair(guess, share), _pair(constant(1.0, (1, 1)), last), invariant=known["guess"])
    return guess


def _row(matrix: Register, k: int) -> AffineForm:
    """Row k as a column."""
    size = matrix.shape[0]
    taken = eye(size * size)[k * size : (k + 1) * size]
    return matrix.map(taken, (size, 1), f"{matrix.name}[{k}]")


def _corner(matrix: Register, k: int) -> AffineForm:
    """The entries whose row and column are after k; the others are zero."""
    size = matrix.shape[0]
    after = (torch.arange(size, device="cpu") > k).to(torch.float64)
    return matrix.map(torch.diag((after[:, None] * after).flatten()), matrix.shape, f"{matrix.name}[>{k}]")


def _below(column: AffineForm, k: int) -> AffineForm:
    """The entries after k; the others are zero."""
    kept = torch.diag((torch.arange(column.entries, device="cpu") > k).to(torch.float64))
    return column.map(kept, column.shape, f"{column.text}[>{k}]")


def _pair(first: AffineForm, second: AffineForm) -> AffineForm:
    """Two numbers as a column."""
    upper, lower = eye(2)[:, :, None]
    text = f"({first.text}, {second.text})"
    return (first.map(upper, (2, 1), "") + second.map(lower, (2, 1), "")).named(text)


def _elimination_invariants(ridge: float, examples: Examples) -> dict[str, Invariant]:
    """How large everything gets, and what errors do to ŷ.

    Let s be the least λ/m, ‖x‖ ≤ X, |y| ≤ Y, W = Y/(2√s) ≥ ‖w‖. A state (A, b, u, g) of the elimination stands for F =
    g + uᵀ(A + s)⁻¹b, and an exact step leaves F as it is. Errors δ of one step move F by exactly
        δg + δuᵀw' + vᵀδb − vᵀδA w',   v = (A + s)⁻¹u before, w' = (A' + s)⁻¹b' after,
    and v, w lose an entry in an exact step. So ŷ errs by at most the sum over all steps of
        SECOND_ORDER·(|δg| + W‖δu‖ + (X/s)‖δb‖ + (XW/s)‖δA‖),
    while ε = Σ ‖δA‖/s + ‖δu‖/X + ‖δb‖/(sW) ≤ 1/8. Proof. Schur complements are monotone and homogeneous: from states
    between (1 ± q) times the exact ones an exact step leads to such states. Bordered by τb, τ = 2√s/Y, and τ²Y² + s
    (at least s, being ZᵀZ + s for Z = (X, τy)/√m), and by tx, t = s/X, and 4.75s (at least ¾s), errors are a part
    16/9·ε of it at most: all states stay between 3/4 and 4/3 of the exact ones. v and w grow by (4/3)(δA/s)·themselves,
    (4/3)δu/s and (4/3)δb/s: by SECOND_ORDER at most, together, which is e^{8ε/3}. And XW·ε is at most a bound on ŷ. QED
    The same order bounds what is held, errors included: pivots by ¾s and 4/3(X² + s), entries of a bordered matrix by
    the roots of its corners (b where W ≤ 1, with τ = 1, by half of what extreme eigenvalues differ by), ‖l‖ by
    (4/3)√(X² + s)/(2√s), b_k/pivot by ¾Y/√s.
    A divisor that is read wrong is a δA, and so is a numerator; as products read A_k once more, a numerator's
    misreading e also adds l·eᵀ. An error of l, and for |l·A_k| ≤ 4/3(X² + s) a relative one, too, is multiplied by A_k,
    b_k and u_k. Where examples are read wrong by e, F's derivative is the mean of (v·e)(y − x·w) − (v·x)(w·e); the mean
    of (v·x)² is at most v·(A + s)v ≤ X²/s, that of (y − x·w)² at most Y²: together 1.5XY/s, and W for the query. The
    partial sums of ŷ are predictions from the first features alone. Stored triangles count √2 in the Frobenius norm,
    and √(2d/(d + 1)) where all their entries err by as much.
    """
    domain, many = examples.domain, examples.domain.features > 1
    x, y = EDGE * domain.norm, EDGE * domain.y
    s = ridge / max(domain.samples - 1, 1)
    most, weights = x**2 + max(s, ridge), y / (2 * math.sqrt(s))
    a, b, u = (SECOND_ORDER * gain for gain in (x * weights / s, x / s, weights))
    l_norm, largest_share = NEAR * math.sqrt(most / s) / 2, 0.75 * y / math.sqrt(s)
    whole = NEAR * x**2 + max(s, ridge)
    largest_b = (NEAR * (x**2 + y**2) + 0.6 * max(s, ridge)) / 2 if weights <= 1 else 1.5 * y * math.sqrt(most)
    largest_u = (NEAR * math.sqrt(4.75 * most / s) if many else 1.0) * x
    size, kept = domain.features, math.sqrt(2.0)
    every = math.sqrt(2 * size / (size + 1))
    valid = min(0.175 * x * weights, (EDGE - 1) * (1.5 * x * y / s + weights))
    gains = {
        "x": 1.5 * x * y / s + weights,
        **dict.fromkeys(("square", "A"), every * a),
        **dict.fromkeys(("cross", "b"), b),
        **dict.fromkeys(("u", "turn"), u),
        **dict.fromkeys(("pivot", "l / divisor"), a),
        "l / numerator": kept * a * (1 + l_norm),
        **dict.fromkeys(("l", "l / relative"), kept * a * NEAR * most + b * largest_b + u * largest_u),
        "share / numerator": b * (1 + l_norm) if many else b,
        "share": SECOND_ORDER * largest_u,
        "share / relative": SECOND_ORDER * largest_u * largest_share,
        "part": SECOND_ORDER,
        **({"guess": SECOND_ORDER} if many else {"share / divisor": a}),
    }
    named = {name if name == "x" else examples.prefix + name: gain for name, gain in gains.items()}
    reason = "Schur complements are monotone, and ŷ is one of them"

    def bounded(norm: float, low: float | None = None, high: float | None = None) -> Invariant:
        return Invariant(reason, low=low, high=high, norm=norm, gains={})

    return {
        "square": bounded(math.sqrt(domain.features) * whole, -whole, whole),
        "cross": bounded(largest_b),
        "A": bounded(math.sqrt(domain.features) * whole, -whole, whole),
        "b": bounded(largest_b),
        "u": bounded(largest_u),
        "pivot": bounded(NEAR * most, s / NEAR, NEAR * most),
        "l": bounded(l_norm),
        "share": bounded(largest_share),
        "turn": bounded(largest_u),
        "part": bounded(2.5 * x * weights),
        "sum": bounded(1.25 * x * weights),
        "guess": Invariant(reason, norm=1.25 * x * weights, gains=named, valid=valid),
    }
