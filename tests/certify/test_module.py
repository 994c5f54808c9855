"""A promise is about the numbers it was made for: other weights, another dtype, or no finite answer end it."""

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from emulon.algorithms import Ridge
from emulon.certify import Domain, Spectrum
from emulon.certify.certificate import SealedModule, fingerprint
from emulon.constructions import DescentInContext, GradientStep, LinearLayer, TruncatedLinear
from emulon.constructions.accuracy import aligned
from emulon.core.errors import NotCertified, OutOfDomain
from emulon.interpreter import Interpreter, compile
from emulon.looped import LoopedGradientDescent, LoopedNewton
from emulon.machine.programs import sgd
from emulon.softmax import approximate

f64 = torch.float64
DOMAIN = Domain(4, 2, 1.0, 1.0, 2.0)
LOOPED = Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(2.0, 0.0, 1.5))
X = torch.rand(4, 2, dtype=f64, generator=torch.Generator().manual_seed(0)) - 0.5
Y = X.sum(dim=-1)
MAKERS = {
    "approximation": lambda: approximate("tanh(t/3)", (-1, 1), tolerance=1e-6),
    "linear layer": lambda: LinearLayer(4, 2, 3, 2.0, 1e-6),
    "truncated linear map": lambda: TruncatedLinear(8, 2, -1.0, 1.0, heads=20, grid="paper"),
    "gradient step": lambda: GradientStep("huber", DOMAIN, 1e-3),
    "descent": lambda: DescentInContext("squared", DOMAIN, 1e-4, steps=3),
    "looped": lambda: LoopedGradientDescent(LOOPED, 1e-6, horizon=3),
    "machine": lambda: sgd(2, 3, 0.05).compile(),
}


@functools.cache
def first_made(name: str) -> torch.nn.Module:
    return MAKERS[name]()


def some_buffer(module: torch.nn.Module) -> torch.Tensor:
    return next(b for b in module.buffers() if b.numel() and (b != 0).any())


CHANGES = {
    "float": lambda module: module.float(),
    "half and back": lambda module: module.half().double(),
    "edited": lambda module: some_buffer(module).mul_(1.1),
    "edited behind autograd's back": lambda module: some_buffer(module).data.mul_(1.1),
    "loaded": lambda module: module.load_state_dict({name: 2 * part for name, part in module.state_dict().items()}),
}

# Certificates beside the first.
OTHERS = {"looped": [lambda module: module.certificate_after(2)], "machine": [lambda module: module.certificates]}


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_certificates_are_withdrawn_with_the_numbers_they_are_about_and_copies_keep_them(name: str) -> None:
    """Making one anew would take its proofs' time."""
    made = first_made(name)
    assert made.certificate.bound >= 0 and copy.deepcopy(made).certificate == made.certificate
    assert made.double().certificate == made.cpu().certificate
    for change in CHANGES.values():
        spoilt = copy.deepcopy(made)
        change(spoilt)
        for ask in (lambda module: module.certificate, *OTHERS.get(name, ())):
            with pytest.raises(NotCertified, match="not those it was certified with"):
                ask(spoilt)


def test_autocast_is_refused():
    step, looped = MAKERS["gradient step"](), MAKERS["looped"]()
    program = compile(Ridge(0.1, 2), data=(X, Y))
    interpreter = Interpreter.fitting(program)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for run in (
            lambda: step(X, Y, X[0]),
            lambda: looped.predict(X, Y, X[0], loops=2),
            lambda: interpreter.run(program, X, Y),
            lambda: approximate("tanh(t)", (-1, 1), points=9)(0.5),
        ):
            with pytest.raises(NotCertified, match="autocast computes in another dtype"):
                run()


def test_an_interpreter_of_other_numbers_is_refused():
    program = compile(Ridge(0.1, 2), data=(X, Y))
    interpreter = Interpreter.fitting(program)
    interpreter.values[3] += 0.5
    for ask in (lambda: interpreter.certificate(program), lambda: interpreter.run(program, X, Y)):
        with pytest.raises(NotCertified, match="withdrawn"):
            ask()


def test_an_answer_that_is_not_finite_is_no_answer():
    """Of a run, the last iterate after one step: no next step looks at it."""
    coarse = TruncatedLinear(8, 1, -1.0, 1.0, heads=20, grid="paper", dtype=torch.float16)
    with pytest.raises(OutOfDomain, match="overflowed float16"):
        coarse(torch.linspace(-1, 1, 8, dtype=torch.float16).unsqueeze(-1), torch.ones(1, dtype=torch.float16))
    x, y, query = torch.tensor([[-7e-16], [2.3e-15]]), torch.tensor([2.7e-4, 1.3e-4]), torch.tensor([-3.5e-16])
    looped = LoopedNewton(Domain.covering(x, y, query), dtype=torch.float32, horizon=1)
    assert looped.certificate.bound < 1e-6
    with pytest.raises(OutOfDomain, match="overflowed float32"):
        looped.predict(x, y, query, loops=1)
    run = Interpreter.fitting(PROGRAM).run(PROGRAM, X, Y)
    with pytest.raises(OutOfDomain, match="overflowed float64"):
        replace(run, iterates=run.iterates * torch.inf)


COMPLEX = {
    "compile": lambda z: compile(Ridge(0.1, 2), data=(z, Y)),
    "run": lambda z: Interpreter.fitting(PROGRAM).run(PROGRAM, X, z[:, 0]),
    "domain": lambda z: Domain.of(z, Y),
    "approximation": lambda z: MAKERS["approximation"]()(z),
    "construction": lambda z: aligned(f64, x=(z, (4, 2))),
    "construction of data": lambda z: DescentInContext.of(Ridge(0.1, 2), z, Y, 1e-3),
}
PROGRAM = compile(Ridge(0.1, 2), data=(X, Y))


@pytest.mark.parametrize("where", COMPLEX)
def test_complex_numbers_are_refused_and_not_halved(where: str):
    """Where shapes are annotated, annotations refuse them under test before the package can."""
    with pytest.raises(OutOfDomain, match="is complex; give real numbers"):
        COMPLEX[where](X + 0.1j)


class Two(SealedModule):
    """As small as they come: a buffer, and an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.tensor([[1.0, 2.0]]))

    def forward(self, x):
        return x / self.first


def test_the_seal_is_about_names_and_shapes_as_well_as_bits():
    module = Two()
    module.require_unchanged()
    module.first = module.first.mT.contiguous()
    with pytest.raises(NotCertified, match="not those it was certified with"):
        module.require_unchanged()
    other = Two()
    del other.first
    other.register_buffer("second", torch.tensor([[1.0, 2.0]]))
    assert fingerprint(other) != fingerprint(Two())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_on_either_device_is_seen(monkeypatch, device):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == device)
    with pytest.raises(NotCertified, match="autocast"):
        Two()(torch.ones(2))


class Same(SealedModule):
    def forward(self, *parts: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return parts[0] if len(parts) == 1 else parts


def test_what_is_no_tensor_is_given_back_as_it_is() -> None:
    assert Same()() == ()
    given, listed = Same()(X, [1.0, 2.0])
    assert given is X and listed.tolist() == [1.0, 2.0]


def test_products_of_fewer_bits_than_float32_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(Same()(X.numpy()), np.ndarray)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    with pytest.raises(NotCertified, match="of fewer bits here"):
        Same()(X)
