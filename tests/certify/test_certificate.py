"""A certificate is the sum of its terms, and does not let a larger error pass; every run is shown in one way."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from emulon import Certificate, Domain, compile, compile_network
from emulon.algorithms import Ridge
from emulon.certify import Band, Run, certificate
from emulon.certify.certificate import Bounds
from emulon.certify.rounding import EXP_ASSUMED
from emulon.constructions import DescentInContext
from emulon.core.errors import NotCertified
from emulon.looped import LoopedGradientDescent


def test_the_bound_is_not_below_the_exact_sum_of_the_terms() -> None:
    terms = {str(k): 0.1 + 1e-17 * 3**k for k in range(20)}
    bound = Certificate(terms, torch.float64).bound
    exact = sum(map(Fraction, terms.values()))
    assert exact <= Fraction(bound) <= exact * (1 + Fraction(1, 10**14))


def test_the_sum_is_lifted_by_a_few_last_places() -> None:
    assert Certificate({"a": 0.5, "b": 0.5}, torch.float64).bound == 1 + 1e-15 > 1 + 4 * 2.0**-53


def test_verify_returns_the_observed_error_and_refuses_a_larger_one_or_none() -> None:
    certificate = Certificate({"interpolation": 1e-3, "rounding": 1e-4}, torch.float32)
    exact = torch.full((2, 3), 2.75, dtype=torch.float64)
    observed = exact.clone()
    observed[1, 2] += 1e-3
    assert certificate.verify(observed, exact) == pytest.approx(1e-3) and certificate.verify(torch.empty(0)) == 0.0
    observed[0, 0] -= 1.2e-3
    with pytest.raises(NotCertified, match=r"1\.200e-03 is above the certified 1\.100e-03"):
        certificate.verify(observed, exact)
    for bad in (math.nan, math.inf):
        with pytest.raises(NotCertified):
            certificate.verify(torch.tensor([0.0, bad]))


def test_it_says_what_it_promises() -> None:
    terms = {"interpolation": 2e-9, "routing": 0.0, "rounding": 1e-9}
    text = str(Certificate(terms, torch.float32, bands=(Band(-0.5, 0.25),)))
    where = "for every input of the domain (proved, float32, outside (-0.5, 0.25)"
    assert text == f"≤ 3.00e-09 {where}: interpolation 2.00e-09 + rounding 1.00e-09)"
    assert str(Certificate(terms, torch.float32, scope="run")).startswith("≤ 3.00e-09 for this run only (proved, ")
    assert "sampled, not proved" in str(Certificate(terms, torch.float64, proved=False))
    assert "exact" in str(Certificate({"interpolation": 0.0}, torch.float64))


def test_promises_come_smallest_first_and_mark_what_says_nothing():
    tight = Certificate({"a": 1e-9}, torch.float64, scope="run")
    loose = Certificate({"a": 4.0}, torch.float64)
    both = Bounds(tight, loose, size=0.5)
    assert list(both) == [tight, loose] and next(iter(Bounds(replace(tight, terms={"a": 9.0}), loose, 10.0))) == loose
    assert both.bound == tight.bound and both.shown("run") == "1.0e-09" and both.shown("domain") == "–"
    first, second = str(both).splitlines()
    assert "for this run only" in first and "says nothing" not in first
    assert "for every input of the domain" in second and "says nothing: above the largest entry, 0.5" in second


@pytest.mark.parametrize("bound", [0.5, math.inf, math.nan])
def test_a_bound_as_large_as_what_it_bounds_says_nothing(bound):
    one = Certificate({"a": bound}, torch.float64)
    assert not one.is_informative(one.bound) and one.is_informative(one.bound * (1 + 1e-15)) == (bound == 0.5)


def test_a_certificate_says_what_it_assumes_and_an_audit_assumes_nothing() -> None:
    promise, audit = Certificate({}, torch.float64), Certificate({}, torch.float64, scope="run")
    assert promise.assumes == (EXP_ASSUMED,) and audit.assumes == ()
    assert replace(audit, note="x").assumes == () and Certificate({}, torch.float64, assumes=()).assumes == ()


BANDED = Certificate({"a": 0.125}, torch.float64, bands=(Band(-1.0, 1.0), Band(8.0, 9.0)))
ROWS = torch.tensor([[1.0, -3.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("residual", "left_out"),
    # Σ|x| = 4: a later residual may be off by half.
    [(0.0, True), (1.49, True), (1.51, False), (-1.51, False), (7.51, True), (7.49, False), (9.51, False)],
)
def test_bands_are_widened_by_what_the_bound_does_to_a_residual(residual: float, left_out: bool) -> None:
    path = torch.tensor([[20.0, 0.0], [residual + 4.0, 0.0]], dtype=torch.float64)
    assert BANDED.excludes(path, ROWS, torch.tensor([4.0], dtype=torch.float64)) is left_out


def test_the_first_iterate_is_exact_and_its_bands_are_as_they_are() -> None:
    y = torch.tensor([0.0], dtype=torch.float64)
    for start, left_out in ((1.25, False), (1.0, False), (0.75, True), (-1.0, False), (8.5, True)):
        path = torch.tensor([[start, 0.0], [20.0, 0.0]], dtype=torch.float64)
        assert BANDED.excludes(path, ROWS, y) is left_out
    assert not Certificate({"a": 0.125}, torch.float64).excludes(0 * path, ROWS, y)
    # Of several samples one in a band is enough, and the room is granted a billionth beyond the sum's own rounding.
    both = torch.cat([ROWS, 100 * ROWS])
    assert BANDED.excludes(path[1:] * 0 + path[:1], both, torch.tensor([0.0, 0.0], dtype=torch.float64))
    for beyond, left_out in ((4e-10, True), (6e-10, False)):
        path = torch.tensor([[20.0, 0.0], [1.5 + beyond, 0.0]], dtype=torch.float64)
        assert BANDED.excludes(path, ROWS, y) is left_out


def test_a_bound_that_is_infinite_leaves_out_all_but_the_start_and_rows_of_zeros() -> None:
    broken, y = BANDED.void_in_band(), torch.tensor([4.0], dtype=torch.float64)
    path = torch.tensor([[20.0, 0.0], [20.0, 0.0]], dtype=torch.float64)
    assert broken.bound == math.inf and broken.excludes(path, ROWS, y)
    assert not broken.excludes(path, 0 * ROWS, y) and not broken.excludes(path[:1], ROWS, y)


def test_what_a_promise_assumes_of_its_bands_is_said_once() -> None:
    said = ["no residual comes into (-1, 1)", "no residual comes into (8, 9)"]
    assert [each for each in BANDED.assumes or () if "residual" in each] == said
    broken = replace(BANDED.void_in_band(), note="again")
    assert [each for each in broken.assumes or () if "residual" in each] == [*said, certificate.IN_A_BAND_MEANS]


def test_every_dataset_of_a_batch_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    path = torch.full((3, 2, 2), 20.0, dtype=torch.float64)
    path[..., 1] = 0.0
    x, y = ROWS.expand(3, 4, 2), torch.zeros(3, 4, dtype=torch.float64)
    assert not BANDED.excludes(path, x, y)
    y = y.clone()
    y[2, 3] = 20.0
    assert BANDED.excludes(path, x, y)
    # Some rows at a time: those of one part are enough.
    monkeypatch.setattr(certificate, "ROWS", 3)
    assert BANDED.excludes(path, x, y) and not BANDED.excludes(path, x, 0 * y)


X = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def of_program() -> Run:
    return compile(Ridge(steps=3), data=(X, X[:, 0]))(X, X[:, 0])


def of_construction() -> Run:
    return DescentInContext.of(Ridge(steps=3), X, X[:, 0], 1e-4).run(X, X[:, 0])


def of_network() -> Run:
    return compile_network(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()).double(), data=X)(X)


def of_loop() -> Run:
    x = X[None, :4]
    return LoopedGradientDescent(Domain.of(x, x[..., 0], 4.0)).run(x, x[..., 0], x[:, 0], loops=2)


@pytest.mark.parametrize("make", [of_program, of_construction, of_network, of_loop])
def test_a_run_says_what_ran_and_what_is_certified(make):
    run = make()
    before = repr(run)
    assert isinstance(run, Run) and before.startswith(f"Run of {run.name}: ") and " in float64" in before
    assert f"≤ {run.certificate.bound:.2e} for every input of the domain" in before and "for this run" not in before
    assert run.audit is run.audit and run.bounds.audit is run.audit
    assert f"≤ {run.audit.bound:.2e} for this run only" in repr(run)
    title, *lines = str(run).splitlines()
    assert title == f"Run of {run.name}: {run._answer}" and 4 <= len(lines) <= 5
    assert lines[1].startswith(f"  audit       ≤ {run.audit.bound:.1e}") and "worst case" in lines[2]
    page = run._repr_html_()
    assert page.startswith("<table>") and "audit" in page and f"{run.last.flatten()[0].item():.6g}" in page


def test_a_certificate_that_says_nothing_is_called_so():
    run = of_program()
    void = replace(run.certificate, terms={"interpolation": 10.0})
    object.__setattr__(run, "certificate", void)
    assert "≤ 1.0e+01, a worst case over the domain that says nothing here" in str(run).splitlines()[3]
    void = replace(run.certificate, terms={"interpolation": 0.5 * run.last.abs().max().item()})
    object.__setattr__(run, "certificate", void)
    assert str(run).splitlines()[3].endswith("(proved), loose here: trust the audit")


def test_promises_is_the_name_of_0_2():
    run = of_program()
    with pytest.warns(DeprecationWarning, match=r"run.promises is run.bounds"):
        assert run.promises.certificate is run.certificate
