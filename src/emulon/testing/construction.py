"""The contract of a construction: a frozen module that is within its certificate of an exact map, on a domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from emulon.certify import Certificate, Domain
from emulon.testing.contract import (
    ContractBroken,
    NamedCheck,
    named,
    require,
    require_agreement,
    require_refusal,
    require_same_bits,
    run_checks,
)

# How far two evaluations of the same inputs may be apart, next to their size: sharp gates amplify the last place.
APART = {torch.float64: 1e-9, torch.float32: 1e-3}
# As many random inputs, and as many at the edges, are tried.
TRIED = 32


@dataclass(frozen=True)
class Input:
    """One input of a construction: the sizes of its last dimensions, and |entry| ≤ bound, or one of `values`."""

    shape: tuple[int, ...]
    bound: float
    values: tuple[float, ...] = ()

    def inside(self, generator: torch.Generator, *batch: int) -> Tensor:
        """Anywhere in the domain."""
        if self.values:
            return self._one_of(self.values, generator, *batch)
        return self.bound * (
            2 * torch.rand(*batch, *self.shape, generator=generator, dtype=torch.float64, device="cpu") - 1
        )

    def corners(self, generator: torch.Generator, *batch: int) -> Tensor:
        return self._one_of(self.values or (-self.bound, self.bound), generator, *batch)

    def faces(self, generator: torch.Generator, *batch: int) -> Tensor:
        """Every entry at an extreme or at zero."""
        return self._one_of(self.values or (-self.bound, 0.0, self.bound), generator, *batch)

    def zeros(self, generator: torch.Generator, *batch: int) -> Tensor:
        return self._one_of(self.values[:1] or (0.0,), generator, *batch)

    def _one_of(self, values: tuple[float, ...], generator: torch.Generator, *batch: int) -> Tensor:
        which = torch.randint(len(values), (*batch, *self.shape), generator=generator, device="cpu")
        return torch.tensor(values, dtype=torch.float64, device="cpu")[which]


@dataclass(frozen=True)
class Subject:
    module: nn.Module
    exact: Callable[..., Tensor]
    inputs: Mapping[str, Input]

    @property
    def certificate(self) -> Certificate:
        certificate = getattr(self.module, "certificate", None)
        if not isinstance(certificate, Certificate):
            raise ContractBroken(f"its certificate is {certificate!r}")
        return certificate

    def draw(self, how: str, *batch: int, seed: int = 0) -> dict[str, Tensor]:
        """Inputs of this kind, by name, as the construction's dtype stores them."""
        generator, dtype = torch.Generator().manual_seed(seed), self.certificate.dtype
        return {name: getattr(one, how)(generator, *batch).to(dtype) for name, one in self.inputs.items()}

    def apply(self, parts: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.module(*parts.values())
        return out

    def apart(self, out: Tensor) -> float:
        """How far another evaluation of the same inputs may be from this one: both are within the bound."""
        size = max(1.0, out.abs().max().item())
        return min(2 * self.certificate.bound, APART[self.certificate.dtype] * size)


def construction_checks(
    module: nn.Module, exact: Callable[..., Tensor], inputs: Mapping[str, Input] | None = None
) -> Iterator[NamedCheck]:
    """`module(*inputs)` against `exact(*inputs)`, which computes in float64.

    `inputs` says, by the names that refusals use and in the order of the call, what the domain is: any inputs within
    these bounds must be in it. Without them they are x, y and w of `module.domain`, whose `residual` and `absolute`
    must then be those that follow from the others. A promise that leaves out bands is checked on inputs that
    stay clear of them: give such.
    """
    if inputs is None:
        domain = getattr(module, "domain", None)
        if not isinstance(domain, Domain):
            raise ContractBroken(f"{type(module).__name__} has no Domain; say what its inputs are with inputs=")
        inputs = _of(domain)
    return named(Subject(module, exact, inputs), CHECKS)


def check_construction(
    module: nn.Module, exact: Callable[..., Tensor], inputs: Mapping[str, Input] | None = None
) -> None:
    """All `construction_checks`, one after the other."""
    run_checks(construction_checks(module, exact, inputs))


def _of(domain: Domain) -> dict[str, Input]:
    n, d = domain.samples, domain.features
    return {"x": Input((n, d), domain.x), "y": Input((n,), domain.y), "w": Input((d,), domain.w)}


def weights_are_frozen(subject: Subject) -> None:
    """Buffers only: no optimiser can ever see them."""
    require(not list(subject.module.parameters()), "it has parameters")
    require(bool(list(subject.module.buffers())), "it has no buffers, so what it is cannot be moved or stored")
    require(not subject.apply(subject.draw("inside")).requires_grad, "its output asks for a gradient")


def certificate_is_a_finite_promise_for_the_domain(subject: Subject) -> None:
    """Named terms, none negative, and a finite bound that holds for every input."""
    certificate = subject.certificate
    require(certificate.scope == "domain", f"its scope is {certificate.scope}")
    require(0 <= certificate.bound < math.inf, f"its bound is {certificate.bound}")
    bad = [name for name, value in certificate.terms.items() if not value >= 0]
    require(bool(certificate.terms) and not bad, f"terms {list(certificate.terms)}, negative or NaN: {bad}")


def repr_shows_the_bound(subject: Subject) -> None:
    """What is printed of a construction says what it promises."""
    shown, bound = repr(subject.module), f"{subject.certificate.bound:.2e}"
    require(bound in shown, f"{shown!r} does not show the bound {bound}")


def inside_the_domain_the_promise_holds(subject: Subject) -> None:
    """|observed − exact| ≤ bound for random inputs."""
    _verify(subject, subject.draw("inside", TRIED))


def at_the_edges_the_promise_holds(subject: Subject) -> None:
    """|observed − exact| ≤ bound at corners, where entries are extreme or zero, and at zero."""
    for how in ("corners", "faces", "zeros"):
        _verify(subject, subject.draw(how, TRIED, seed=1))


def _verify(subject: Subject, parts: Mapping[str, Tensor]) -> None:
    exact = subject.exact(*(part.double() for part in parts.values()))
    out = subject.apply(parts)
    require(out.shape == exact.shape, f"its output has shape {tuple(out.shape)}, the exact one {tuple(exact.shape)}")
    subject.certificate.verify(out, exact)


def dtype_is_the_certificates(subject: Subject) -> None:
    """It computes in the dtype that the certificate is about."""
    out, dtype = subject.apply(subject.draw("inside")), subject.certificate.dtype
    require(out.dtype == dtype, f"its output is {out.dtype}, its certificate about {dtype}")


def repeated_calls_give_the_same_bits(subject: Subject) -> None:
    parts = subject.draw("inside", 3)
    require_same_bits(subject.apply(parts), subject.apply(parts), "two calls with the same inputs")


def inputs_are_left_alone(subject: Subject) -> None:
    """Nothing is written into what was given."""
    parts = subject.draw("inside", 3)
    before = {name: part.clone() for name, part in parts.items()}
    subject.apply(parts)
    for name, part in parts.items():
        require_same_bits(part, before[name], f"{name} before and after a call")


def leading_dimensions_are_batches(subject: Subject) -> None:
    """A batch of any shape is the loop over its elements."""
    parts = subject.draw("inside", 2, 3)
    together = subject.apply(parts)
    require(together.shape[:2] == (2, 3), f"a batch (2, 3) gives an output of shape {tuple(together.shape)}")
    for i in range(2):
        for j in range(3):
            alone = subject.apply({name: part[i, j] for name, part in parts.items()})
            require_agreement(together[i, j], alone, subject.apart(together), f"element ({i}, {j}) alone")


def batch_dimensions_broadcast(subject: Subject) -> None:
    """Each input may be given once for a whole batch of the others, or the others once for a batch of it."""
    parts = subject.draw("inside", 2, 3)
    for name, part in parts.items():
        for mixed in (
            parts | {name: part[0, 0]},
            parts | {name: part[:, :1]},
            {other: one if other == name else one[1, 2] for other, one in parts.items()},
            {other: one[:, :1] if other == name else one[1] for other, one in parts.items()},
        ):
            whole = {key: one.expand_as(parts[key]) for key, one in mixed.items()}
            expected = subject.apply(whole)
            require_agreement(subject.apply(mixed), expected, subject.apart(expected), f"{name} given once")


def non_finite_inputs_are_refused(subject: Subject) -> None:
    """NaN and infinity are refused in a line that names the input."""
    for name in subject.inputs:
        for bad in (math.nan, math.inf):
            parts = subject.draw("corners")
            parts[name].view(-1)[0] = bad
            require_refusal(partial(subject.apply, parts), f"{bad} in {name}", name)


def inputs_outside_the_domain_are_refused(subject: Subject) -> None:
    """A thousand times an extreme value of one input, the others at theirs, is refused in a line."""
    for name in subject.inputs:
        parts = subject.draw("corners")
        parts[name] = 1000 * parts[name]
        require_refusal(partial(subject.apply, parts), f"1000 times the largest {name}")


def wrong_shapes_are_refused(subject: Subject) -> None:
    """A size that is off by one, or a dimension too few, is refused in a line that names the input and its shape."""
    for name, one in subject.inputs.items():
        sizes = [(*one.shape[:k], one.shape[k] + 1, *one.shape[k + 1 :]) for k in range(len(one.shape))]
        for size in [*sizes, one.shape[1:]]:
            parts = subject.draw("inside") | {name: torch.zeros(size, dtype=subject.certificate.dtype, device="cpu")}
            require_refusal(partial(subject.apply, parts), f"{name} of shape {size}", name, str(size))


def batches_that_do_not_fit_are_refused(subject: Subject) -> None:
    first = next(iter(subject.inputs))
    parts = subject.draw("inside", 3)
    parts[first] = parts[first][:2]
    if len(parts) > 1:
        require_refusal(partial(subject.apply, parts), f"a batch of 2 for {first} and of 3 for the others", first)


CHECKS: tuple[Callable[[Subject], None], ...] = (
    weights_are_frozen,
    certificate_is_a_finite_promise_for_the_domain,
    repr_shows_the_bound,
    inside_the_domain_the_promise_holds,
    at_the_edges_the_promise_holds,
    dtype_is_the_certificates,
    repeated_calls_give_the_same_bits,
    inputs_are_left_alone,
    leading_dimensions_are_batches,
    batch_dimensions_broadcast,
    non_finite_inputs_are_refused,
    inputs_outside_the_domain_are_refused,
    wrong_shapes_are_refused,
    batches_that_do_not_fit_are_refused,
)
