"""How fast a mean loss's gradient can change: a default step size is one over it.

Where the derivative jumps or grows without bound there is no such number. A stand-in then says what takes its place,
and what the step size that comes out is good for.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify.spectrum import largest_eigenvalue


def of_counts(
    x: Float[Tensor, "*batch samples features"], y: Float[Tensor, "*batch samples"], steps: int
) -> Float[Tensor, "*batch 1"]:
    """Smoothness of the Poisson objective wherever it is not above its value at zero.

    Claim: with L = 2·max‖x_i‖²·(1 + mean(y log 2y − y)), (proximal) gradient descent from w = 0 with η ≤ 1/(L + l2)
    never increases F(w) = mean(e^{t_i} − y_i t_i) + penalties, t_i = w·x_i, although e^t has no bounded curvature.
    Assumes: y ≥ 0, no momentum.
    Proof. F(0) = 1. Where F ≤ 1: e^t/2 − yt ≥ y − y log 2y for all t, so 1 ≥ mean(e^t)/2 + mean(y − y log 2y), that is
    mean e^t ≤ 2(1 + mean(y log 2y − y)); the Hessian mean(e^t x xᵀ) is at most max‖x‖²·mean e^t ≤ L. The set F ≤ 1 is
    convex. Follow one step as η grows from 0: up to where it would first leave the set, the segment lies inside it, so
    the descent lemma holds and F has not grown; at the border F would be 1 again, so it is never crossed. QED
    """
    mean_rate = 2 * (1 + (torch.xlogy(y, 2 * y) - y).mean(dim=-1, keepdim=True))
    return mean_rate * x.square().sum(dim=-1).amax(dim=-1, keepdim=True)


def of_jump(
    x: Float[Tensor, "*batch samples features"], y: Float[Tensor, "*batch samples"], steps: int, *, height: float
) -> Float[Tensor, "*batch 1"]:
    """The stand-in for a residual loss with |ℓ′| ≤ height whose derivative jumps: η = rms(y)/(height·λmax·√steps).

    Claim: the best of the iterates is within (height·rms(y)/(2√steps))·(1 + λmax‖w*‖²/rms(y)²) of the minimum F(w*).
    Assumes: convex ℓ, no penalties, no momentum.
    Proof. A subgradient is at most G = height·√λmax long, since ‖Xᵀg‖/n ≤ √(nλmax)·√n·height/n. The classical bound is
    (‖w*‖²/(η·steps) + ηG²)/2; put η = R/(G√steps) with R = rms(y)/√λmax. QED
    The iterates do not settle: with a fixed step they end in a cloud around the minimum, of the size of one step. R is
    ‖w*‖ as estimated from the data's scale, so rescaling x or y rescales the weights and nothing else.
    """
    scale = y.square().mean(dim=-1, keepdim=True).sqrt()
    return height * math.sqrt(max(steps, 1)) * largest_eigenvalue(x) / scale


def of_margin_jump(
    x: Float[Tensor, "*batch samples features"], y: Float[Tensor, "*batch samples"], steps: int
) -> Float[Tensor, "*batch 1"]:
    """The stand-in for the perceptron: η = 1/√λmax, so that one step is at most 1 long.

    Claim: on data separable with margin γ (some unit u has label·x·u ≥ γ for all samples) the weights stop changing
    after at most n·max‖x‖²/γ² steps, whatever η: from w = 0 it only scales the weights.
    Proof. Let e be the fraction of samples with margin ≤ 0. A step adds ηeγ or more to w·u, and at most η²e²·max‖x‖² to
    ‖w‖² as the samples added have w·x ≤ 0. So (γΣe)² ≤ max‖x‖²·Σe², Σe ≤ max‖x‖²/γ², and e ≥ 1/n until it is 0. QED
    """
    return largest_eigenvalue(x).sqrt()
