"""Anybody's model, asked in one line."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from torch import nn

from emulon.algorithms import LeastSquares
from emulon.core.errors import BadShape, EmulonError, OutOfDomain
from emulon.core.predictor import NotAPredictor
from emulon.identification import LAYOUTS, ModulePredictor, adapt, identify
from emulon.tasks import Linear

FEW = {"datasets": 16, "points": 8}


class GPT(nn.Module):
    """A user's model: (B, T, d + 1) in, (B, T, 1) out, in its own dtype, as it comes from training."""

    def __init__(self, width_in=5):
        super().__init__()
        self.into, self.out = nn.Linear(width_in, 16), nn.Linear(16, 1)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, prompt):
        return self.out(self.block(self.into(prompt)))


class SolvesIts(nn.Module):
    """Least squares behind a forward pass of some layout; refuses other dtypes than its own, and to be in training."""

    def __init__(self, read, dtype=torch.float32):
        super().__init__()
        self.read, self.scale = read, nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, *given):
        assert not self.training and all(part.dtype == self.scale.dtype for part in given)
        xs, ys, x = (part.double() for part in self.read(*given))
        return self.answers(xs, ys, x).to(self.scale.dtype)

    def answers(self, xs, ys, x):
        return LeastSquares().predict(xs, ys, x)


class ReadsTwo(SolvesIts):
    def forward(self, xs, ys):
        return super().forward(xs, ys).unsqueeze(-1)


class ReadsThree(SolvesIts):
    def forward(self, xs, ys, x):
        return super().forward(xs, ys, x)


# How each layout is read again, written out.
READ = {
    "xs, ys, x": lambda xs, ys, x: (xs, ys, x),
    "xs, ys": lambda xs, ys: (xs[:, :-1], ys[:, :-1], xs[:, -1]),
    "tokens": lambda t: (t[:, 0:-1:2, 1:], t[:, 1::2, 0], t[:, -1, 1:]),
    "tokens, narrow": lambda t: (t[:, 0:-1:2], t[:, 1::2, 0], t[:, -1]),
    "rows": lambda t: (t[:, :-1, :-1], t[:, :-1, -1], t[:, -1, :-1]),
    "rows, y first": lambda t: (t[:, :-1, 1:], t[:, :-1, 0], t[:, -1, 1:]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_carries_the_examples_and_the_query(layout):
    model = SolvesIts(READ[layout], torch.float64).train()
    assert identify(model, Linear(4), adapter=layout, **FEW).algorithm == "ols"
    assert model.training, "it was left in another mode"


@pytest.mark.parametrize("kind, layout", [(ReadsTwo, "xs, ys"), (ReadsThree, "xs, ys, x")])
def test_a_forward_pass_of_two_or_three_tensors_needs_no_adapter(kind, layout):
    assert identify(kind(READ[layout], torch.float64), Linear(4), **FEW).algorithm == "ols"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_data_are_given_in_the_dtype_of_the_model(dtype):
    xs, ys = Linear(4).held_out(0, 300, 7).pairs  # more datasets than are read at once
    model = SolvesIts(READ["rows"], dtype)
    answers = ModulePredictor(model, "rows").predict(xs[:, :6], ys[:, :6], xs[:, 6])
    wanted = LeastSquares().predict(xs[:, :6], ys[:, :6], xs[:, 6])
    assert answers.dtype == torch.float64
    assert (answers - wanted).abs().median() < 10 * torch.finfo(dtype).eps * wanted.abs().median()


def test_a_users_gpt_or_a_random_llama_asked_in_words_is_none_of_these():
    torch.manual_seed(0)
    assert identify(GPT(), Linear(4), adapter="rows", **FEW).algorithm == "none of these"
    transformers = pytest.importorskip("transformers", reason="pip install 'emulon[hf]'")
    from test_checkpoints_of_others import tokenizer

    sizes = {"vocab_size": 96, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    assert identify(llama, adapter=tokenizer(), datasets=6, points=5).algorithm == "none of these"
    with pytest.raises(NotAPredictor, match="LlamaForCausalLM reads text: give its tokenizer, as adapter=tokenizer"):
        identify(llama)


class TabularPredictor:
    """Looks like TabPFN: fit and predict of numpy arrays, and no parameters that scikit-learn could clone."""

    def fit(self, x, y):
        self.weights = np.linalg.solve(x.T @ x + 0.5 * np.eye(x.shape[1]), x.T @ y)
        return self

    def predict(self, x):
        return x @ self.weights


@pytest.mark.parametrize(
    ("estimator", "task", "name", "parameters"),
    [
        (Ridge(), Linear(3), "ridge with intercept", {"ridge": 1.0}),
        (KNeighborsRegressor(3, weights="distance"), Linear(3, noise=0.3), "weighted knn", {"neighbours": 3}),
        (TabularPredictor(), None, "ridge", {"ridge": 0.5}),
    ],
)
def test_estimators_are_fitted_anew_on_every_dataset_and_identified_with_their_parameters(
    estimator, task, name, parameters
):
    found = identify(estimator, task, fewest=3, **FEW)
    assert found.algorithm == name and found.parameters == pytest.approx(parameters, rel=1e-3)


def test_an_answer_that_is_not_a_number_or_has_another_size_is_told_in_words():
    with pytest.raises(OutOfDomain, match="answers NaN or infinity to everything"):
        identify(lambda xs, ys, x: torch.full(ys.shape[:-1], torch.nan, dtype=xs.dtype), **FEW)
    with pytest.raises(BadShape, match=r"answered shape \(8,\) for 4 datasets"):
        adapt(nn.Flatten(0), "rows").predict(torch.ones(4, 1, 0), torch.ones(4, 1), torch.ones(4, 0))
    for module in (nn.Linear(5, 3, bias=False).requires_grad_(False), nn.Flatten()):  # read off any of its size
        assert adapt(module, "rows").predict(torch.ones(2, 3, 4), torch.ones(2, 3), torch.ones(2, 4)).shape == (2,)


def test_a_function_of_the_model_asks_it_where_no_layout_suits():
    class Yangs(ReadsTwo):
        def forward(self, xs, ys, start, loops):
            return [super(Yangs, self).forward(xs, ys) for _ in range(start, loops)]

    model = Yangs(READ["xs, ys"], torch.float64)

    def ask(model, xs, ys, x):
        return model(torch.cat([xs, x.unsqueeze(1)], 1), nn.functional.pad(ys, (0, 1)), 0, 3)

    assert identify(model, Linear(4), adapter=ask, **FEW).algorithm == "ols"
    assert identify("mean", adapter=lambda name, xs, ys, x: getattr(ys, name)(dim=-1), **FEW).algorithm == "mean target"


@pytest.mark.parametrize(
    ("model", "adapter", "reason"),
    [
        (GPT(), None, "GPT reads 1 tensor, and there are several ways .* 'rows'"),
        (GPT(), "row", "did you mean rows"),
        (GPT(7), "rows", r"GPT failed on xs of shape \(16, 1, 4\): RuntimeError.*another layout"),
        (LeastSquares(), "rows", "adapter='rows' is for modules"),
        (lambda xs, ys, x: ys, None, "wanted"),
        (object(), None, "object does not predict"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(model, adapter, reason):
    with pytest.raises(EmulonError, match=reason) as refused:
        identify(model, Linear(4), adapter=adapter, **FEW)
    assert "\n" not in str(refused.value)


def test_the_ranking_is_a_table():
    pandas = pytest.importorskip("pandas")
    found = identify(lambda xs, ys, x: ys.mean(dim=-1), **FEW)
    frame = found.to_frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(found.ranking)
    assert frame.index[0] == found.algorithm == "mean target"
    assert frame.loc["ols", "unexplained"] == found["ols"].unexplained.value
    assert set(frame.index[frame["ties"]]) == set(found.ties)
    page = found._repr_html_()
    assert page.startswith("<p>mean target") and page.count("<tr>") == 9


def test_the_task_is_the_models_own_where_it_has_one():
    class Mean:
        task = Linear(3, points=5)

        def predict(self, xs, ys, x_query):
            assert xs.shape[-1] == 3
            return ys.mean(dim=-1)

    assert identify(Mean(), **FEW).algorithm == "mean target"
