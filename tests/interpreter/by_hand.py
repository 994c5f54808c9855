"""A program whose every number is known: what is promised and checked of it can be worked out by hand."""

import numpy as np
import torch

from emulon.algorithms import GradientDescent, as_loss
from emulon.attention.codes import Codes
from emulon.certify import Domain, Spectrum
from emulon.interpreter import Program
from emulon.interpreter.phase import Phase, ProvedBounds, ValueCoefficients
from emulon.interpreter.plan import Plan
from emulon.softmax import Grid

f64 = torch.float64
DOMAIN = Domain(samples=5, features=3, x=2.0, y=1.0, w=0.5, residual=1.5, spectrum=Spectrum(largest=1.0))
GRID = Grid.stored(
    np.array([-3.0, 1.0, 2.5]), np.array([0.5, -0.25, 0.0]), np.array([1.0, -4.0, 2.0]), f64, -2.0, 1.5, ""
)
BOUNDS = ProvedBounds(interpolation=3e-4, deviation=0.7, size=1.5, leak=2e-5, proved=True)


def phase(strength: float = 64.0, domain: Domain = DOMAIN, name: str = "gradient", readout: str = "mean") -> Phase:
    layout = GRID, domain, Codes(0.9 * torch.eye(domain.samples, dtype=f64), 0.5), strength
    values = ValueCoefficients(0.25, 0.9) if name == "gradient" else ValueCoefficients.of_penalty(readout)
    return Phase(*layout, name=name, readout=readout, values=values, proved=BOUNDS)


def program(proximal: Phase | None = None, **changes) -> Program:
    """With these changes of the plan or its descent."""
    plan = Plan(
        name="made",
        descent=GradientDescent(as_loss("squared"), 3, 0.25, l2=0.4),
        domain=DOMAIN,
        rows=5,
        strong_convexity=0.0,
        negative_curvature=0.0,
        curvature_reach=3.0,
        max_step_times_smoothness=2.0,
        step_from_data=False,
    )
    return Program(plan, phase(), proximal).changed(**changes)
