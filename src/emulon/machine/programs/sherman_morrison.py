"""Ridge regression by Sherman–Morrison updates, example by example (Akyürek et al. 2022, Theorem 2)."""

from __future__ import annotations

import math

import torch

from emulon.certify import Domain
from emulon.core.errors import BadProgram
from emulon.machine.instruction import Invariant, Register
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples, gaussian


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
    return examples.program.returns(ridge_rounds(examples, ridge))


def ridge_rounds(examples: Examples, ridge: float) -> Register:
    """The instructions of `sherman_morrison` on these examples; the register that holds ŷ."""
    program, prompt, y, domain = examples.program, examples.prompt, examples.y, examples.domain
    features, samples = domain.features, domain.samples
    first = examples.first()
    identity = torch.eye(features, dtype=torch.float64, device="cpu") / ridge
    inverse = examples.register("P", (features, features), initial=identity, symmetric=True)
    w = examples.register("w", features, initial=torch.zeros(features, device="cpu"))
    k, gain = examples.register("k", features), examples.register("l", features)
    leverage, guess = examples.register("leverage"), examples.register("guess")
    change = examples.register("change", (features, features), symmetric=True)
    move = examples.register("move", features)
    begin = first.map(identity.reshape(-1, 1), (features, features), "first·I/λ")
    invariants = _invariants(ridge, domain)

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
    return guess


def _invariants(ridge: float, domain: Domain) -> dict[str, Invariant]:
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
