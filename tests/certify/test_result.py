"""Every run is shown in one way: name, answer, certificate, and the audit once it is made."""

from dataclasses import replace

import pytest
import torch

from emulon import Domain, compile, compile_network
from emulon.algorithms import Ridge
from emulon.certify import Run
from emulon.constructions import DescentInContext
from emulon.looped import LoopedGradientDescent

f64 = torch.float64


def of_program() -> Run:
    x = torch.randn(6, 2, dtype=f64, generator=torch.Generator().manual_seed(0))
    return compile(Ridge(steps=3), data=(x, x[:, 0]))(x, x[:, 0])


def of_construction() -> Run:
    x = torch.randn(6, 2, dtype=f64, generator=torch.Generator().manual_seed(0))
    return DescentInContext.of(Ridge(steps=3), x, x[:, 0], 1e-4).run(x, x[:, 0])


def of_network() -> Run:
    x = torch.rand(5, 2, dtype=f64)
    return compile_network(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()).double(), data=x)(x)


def of_loop() -> Run:
    x = torch.randn(1, 4, 2, dtype=f64, generator=torch.Generator().manual_seed(0))
    domain = Domain.of(x, x[..., 0], 4.0)
    return LoopedGradientDescent(domain).run(x, x[..., 0], x[:, 0], loops=2)


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
