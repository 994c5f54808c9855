"""Runs of looped transformers: what they answer, and which promise is about what."""

import pytest
import torch
from exact_solvers import regression

from emulon.certify import Domain
from emulon.core.errors import OutOfDomain
from emulon.looped import CausalLoopedGradientDescent, CausalLoopedNewton, LoopedGradientDescent, LoopedNewton

PROBLEM = regression(6, 2, seed=4, batch=(2,))
XS, YS, X_QUERY = (part / 3 for part in PROBLEM)
DOMAIN = Domain.covering(XS, YS, X_QUERY, 1.01)
BUILD = {
    "gradient descent": lambda: LoopedGradientDescent(DOMAIN, horizon=6),
    "newton": lambda: LoopedNewton(DOMAIN, horizon=6),
    "causal gradient descent": lambda: CausalLoopedGradientDescent(DOMAIN, horizon=6),
    "causal newton": lambda: CausalLoopedNewton(DOMAIN, DOMAIN.norm**2, horizon=6),
}


@pytest.fixture(params=BUILD, scope="module")
def model(request):
    return BUILD[request.param]()


def test_a_run_ends_where_its_predictions_end_and_labels_may_have_a_last_dimension(model):
    run = model.run(XS, YS, X_QUERY, loops=4)
    assert len(run.predictions) == 5 and torch.equal(run.prediction, run.predictions[-1])
    vectors = model.run(XS, YS.unsqueeze(-1), X_QUERY, loops=4)
    assert torch.equal(vectors.prediction.squeeze(-1), run.prediction)
    assert model.predict(XS, YS, X_QUERY, loops=4).shape == (2,)
    torch.testing.assert_close(
        model.predict(XS, YS.unsqueeze(-1), X_QUERY, loops=4).squeeze(-1), model.predict(XS, YS, X_QUERY, loops=4)
    )


def test_the_certificate_is_for_every_number_of_loops_and_a_runs_for_its_own(model):
    bounds = [model.certificate_after(loops).bound for loops in range(7)]
    assert model.certificate.bound == max(bounds) and model.certificate.scope == "domain"
    run = model.run(XS, YS, X_QUERY, loops=3)
    assert run.certificate.bound == bounds[3] and run.certificate.scope == "domain"
    assert "for every input of the domain" in repr(model)


def test_an_audit_is_for_this_run_only_and_tighter(model):
    run = model.run(XS, YS, X_QUERY, loops=5)
    assert run.audit.scope == "run" and "for this run only" in str(run.audit)
    assert run.audit.bound < run.certificate.bound


def test_a_run_is_refused_before_it_starts(model):
    with pytest.raises(OutOfDomain, match="loops"):
        model.run(XS, YS, X_QUERY, loops=7)
    with pytest.raises(OutOfDomain):
        model.run(2 * XS, YS, X_QUERY, loops=1)


def test_a_domain_without_inputs_is_refused():
    with pytest.raises(OutOfDomain, match="nothing is learned"):
        LoopedGradientDescent(Domain(3, 2, 0.0, 1.0, 0.0))


def test_the_eigenvalues_that_a_domain_knows_choose_the_step():
    assert LoopedGradientDescent(Domain.of(XS, YS)).step_size == 1 / Domain.of(XS, YS).largest


def test_targets_of_zero_are_answered_exactly():
    run = LoopedGradientDescent(DOMAIN, 1e-3, horizon=1).run(XS, 0 * YS, X_QUERY, loops=1)
    assert run.audit.bound == 0.0
