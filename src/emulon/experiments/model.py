"""A fitted model as a small file: how a table's columns are read, the weights, and the way back to the target."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import emulon
from emulon.algorithms.link import Kind
from emulon.errors import nearest
from emulon.experiments.columns import GAP, Cells, Column, matrix
from emulon.experiments.data import Data
from emulon.experiments.tables import BadData, listed
from emulon.files import write_json
from emulon.interpreter import Run

FORMAT = 2
# A number this part of the training rows' range beyond its end is only a little outside.
MARGIN = 0.1
Response = Literal["number", "rate", "class"]


@dataclass(frozen=True)
class FittedModel:
    """Weights (classes, features) of the columns as they were scaled, and an intercept each; scores are in the target's
    units. `bound` is what the weights of this run may be off by, proved."""

    algorithm: str
    target: str
    kind: Kind
    response: Response
    classes: tuple[str, ...]
    columns: tuple[Column, ...]
    weights: tuple[tuple[float, ...], ...]
    intercepts: tuple[float, ...]
    bound: float

    @classmethod
    def of(cls, name: str, run: Run, data: Data) -> FittedModel:
        loss = run.program.loss
        units, ones = data.encoded(loss), data.with_ones(loss)
        rows = np.atleast_2d(run.weights.double().numpy())
        extra = rows[:, -1] if ones else np.zeros(len(rows))
        classes = tuple(map(str, data.classes)) if data.kind == "classification" else ()
        return cls(
            algorithm=name,
            target=data.target,
            kind=data.kind,
            response="class" if classes else "rate" if loss.link.name == "rate" else "number",
            classes=classes,
            columns=data.columns,
            weights=tuple(map(tuple, (units.scale * (rows[:, :-1] if ones else rows)).tolist())),
            intercepts=tuple((units.scale * extra + units.shift).tolist()),
            bound=run.promises.bound,
        )

    def predict(self, cells: Cells) -> np.ndarray:
        """For every row of a table: numbers, or the names of classes."""
        scores = matrix(self.columns, cells) @ np.array(self.weights).T + np.array(self.intercepts)
        if self.response != "class":
            answers: np.ndarray = np.exp(scores[:, 0]) if self.response == "rate" else scores[:, 0]
            return answers
        chosen = scores.argmax(axis=1) if len(self.classes) > 2 else (scores[:, 0] > 0).astype(int)
        classes: np.ndarray = np.array(self.classes)[chosen]
        return classes

    def require(self, columns: Mapping[str, Sequence[str]], name: str) -> None:
        """Refuse a table that lacks a column."""
        for source in dict.fromkeys(column.source for column in self.columns):
            if source not in columns:
                there = f"its columns are {listed(list(columns))}"
                raise BadData(
                    f"{name} has no column {source!r}, which the model needs{nearest(source, columns)}; {there}"
                )

    def notes(self, cells: Cells) -> list[str]:
        """What a reader of the predictions should know: gaps filled, levels never seen, numbers far outside."""
        said = []
        known: dict[str, set[str]] = {}
        for column in self.columns:
            if column.levels is not None:
                known.setdefault(column.source, set()).update(column.levels)
                continue
            if gaps := int(np.isnan(cells.numbers(column.source)).sum()):
                said.append(f"{gaps} missing in {column.source!r}, filled with the training rows' mean {column.fill:g}")
            values, room = column.values(cells), MARGIN * (column.high - column.low)
            far = (values < column.low - room) | (values > column.high + room)
            if far.any():
                worst = values[far][np.abs(values[far] - column.fill).argmax()]
                said.append(
                    f"{far.sum()} of {len(values)} rows lie outside the training rows in {column.source!r} (one has "
                    f"{worst:g}, those had {column.low:g} to {column.high:g}): the model extrapolates there"
                )
        for source, levels in known.items():
            new = sorted(set(cells.levels(source).tolist()) - levels - {GAP})
            rare = any(column.others for column in self.columns if column.source == source)
            if new and not rare:
                said.append(f"{source!r} has values that training rows did not: {listed(new, 3)}; they count as none")
        return said


def save_models(models: Sequence[FittedModel], path: Path) -> None:
    """One algorithm's models, one for each target, as JSON; every number reads back as the same number."""
    kept = [asdict(model) for model in models]
    write_json(path, {"format": FORMAT, "emulon": emulon.__version__, "models": kept})


def load_models(path: Path) -> tuple[FittedModel, ...]:
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if kept.pop("format") != FORMAT:
            raise BadData(f"{path} is of another format than this emulon reads; fit it again with emulon run")
        return tuple(map(_model, kept["models"]))
    except OSError as error:
        raise BadData(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, BadData):
            raise
        raise BadData(f"{path} is not a model that emulon run wrote (such as report/ridge.json)") from None


def _model(kept: dict[str, Any]) -> FittedModel:
    columns = tuple(
        Column(**{**column, "levels": None if column["levels"] is None else tuple(column["levels"])})
        for column in kept.pop("columns")
    )
    weights = tuple(map(tuple, kept.pop("weights")))
    classes, intercepts = tuple(kept.pop("classes")), tuple(kept.pop("intercepts"))
    return FittedModel(**kept, columns=columns, weights=weights, classes=classes, intercepts=intercepts)
