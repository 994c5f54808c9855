"""A fitted model is a small file that predicts as the run did, by weights in the table's own units."""

import numpy as np
import pytest

from emulon.experiments.columns import Cells
from emulon.experiments.data import load
from emulon.experiments.model import FittedModel, load_models, save_models
from emulon.experiments.run import algorithm_named, answers, run_experiment
from emulon.experiments.tables import BadData


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A gap, words, and numbers far from zero."""
    draw = np.random.default_rng(2)
    rows = [(draw.normal(100, 20), draw.normal(5, 2), ("flat", "house")[draw.integers(2)]) for _ in range(40)]
    lines = [f"{a},{b},{kind},{3 * a - 10 * b + 50 * (kind == 'flat')}" for a, b, kind in rows]
    lines[7] = f"{rows[7][0]},,{rows[7][2]},300"
    path = tmp_path_factory.mktemp("model") / "mixed.csv"
    path.write_text("\n".join(["size,age,kind,price", *lines]))
    return str(path)


@pytest.mark.parametrize(("name", "standardize"), [("ridge", True), ("log_cosh", False), ("poisson", True)])
def test_a_saved_model_predicts_by_its_weights_in_original_units(tmp_path, table, name, standardize):
    data = load(table, "price", intercept=True, standardize=standardize)
    [result] = run_experiment([algorithm_named(name)], data, steps=5, tolerance=1e-4).results
    run, loss = result.run, result.run.program.loss
    save_models([FittedModel.of(name, run, data)], tmp_path / "model.json")
    [model] = load_models(tmp_path / "model.json")
    coefficients, intercept = data.original(run.weights.numpy(), loss)
    w = dict(zip(data.features, coefficients.tolist(), strict=True))
    rows = [("flat", 100, 5), ("house", 60, 9), ("castle", 500, 5)]
    scores = [intercept + w["size"] * a + w["age"] * b + w.get(f"kind={kind}", 0.0) for kind, a, b in rows]
    new = Cells(
        {name: [str(cell) for cell in cells] for name, *cells in zip(("kind", "size", "age"), *rows, strict=True)}
    )
    np.testing.assert_allclose(model.predict(new), np.exp(scores) if name == "poisson" else scores, rtol=1e-9)
    assert [note for note in model.notes(new) if "castle" in note] and model.bound == run.promises.bound
    raw = data.x_test.numpy() * [c.size for c in data.columns] + [c.center for c in data.columns]
    kinds = ["flat" if row[data.features.index("kind=flat")] > 0.5 else "house" for row in raw]
    own = {name: raw[:, data.features.index(name)].astype(str).tolist() for name in ("size", "age")}
    np.testing.assert_allclose(model.predict(Cells(own | {"kind": kinds})), answers(run, data, data.x_test), rtol=1e-9)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "model.json").write_text('{"format": 99}')
    with pytest.raises(BadData, match="another format"):
        load_models(tmp_path / "model.json")
    (tmp_path / "model.json").write_text('{"format": 2, "emulon": "1", "models": [{"columns": []}]}')
    with pytest.raises(BadData, match="not a model"):
        load_models(tmp_path / "model.json")
