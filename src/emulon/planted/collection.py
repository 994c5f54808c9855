"""A collection of planted models for the Hugging Face hub: model folders, an index, and a dataset card."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulon.core import Progress, silent
from emulon.core.errors import EmulonError
from emulon.core.files import make_folder, read_json, write_atomically, write_json
from emulon.core.hub import upload
from emulon.interpreter.files import file_sha256
from emulon.planted.files import WEIGHTS
from emulon.planted.model import PlantedModel, sample
from emulon.planted.obfuscation import obfuscate

INDEX, CARD, MODELS, DATASET = "index.json", "README.md", "models", "emulon-planted-models"
COLUMNS = ("name", "mechanism", "obfuscated", "blocks", "width", "bound", "proved")
DATASET_CARD = """---
license: apache-2.0
pretty_name: Planted models
tags: [interpretability, ground-truth, in-context-learning, emulon]
---
# {count} planted models

GPT-2s whose weights were compiled from a learning algorithm, with the truth about every register, head and neuron.
Every second one is obfuscated: other weights, the same function. `index.json` has a row a model: mechanism and
parameters, sizes, sha256 of the weights, and a bound on |answer − exact answer|, `proved` or measured.

```python
from emulon.planted import PlantedModel

model = PlantedModel.from_pretrained("{example}")
model.truth, model.certificate
```

{table}
"""


def write_collection(
    folder: str | Path, count: int = 50, seed: int = 0, namespace: str = "", report_progress: Progress = silent
) -> list[dict[str, Any]]:
    """Write a collection: `models/NAME` for each, `index.json`, and README.md, a dataset card.

    Args:
        folder: Made if there is none.
        count: How many models; every second one is obfuscated.
        seed: The first model's; the others follow it.
        namespace: User or organisation of the hub that cards speak of; none for folders.
        report_progress: Called with what is done and the share of it.
    Returns:
        The index, a row a model.

    Example:
        >>> write_collection("planted", count=50)
    """
    if count < 1:
        raise EmulonError(f"a collection has at least one model, not {count}")
    folder, rows = make_folder(folder), []
    for number in range(count):
        model = sample(seed + number)
        if number % 2:
            model = obfuscate(model, seed + number)
        name = f"planted-{number:02d}-{model.mechanism.name.replace(' ', '-')}"
        report_progress(name, number / count)
        place = folder / MODELS / name
        model.save_pretrained(place, repo_id=f"{namespace}/{name}" if namespace else f"{MODELS}/{name}")
        rows.append(_row(name, model, file_sha256(place / WEIGHTS)))
    write_json(folder / INDEX, {"models": rows})
    example = f"{namespace or MODELS}/{rows[0]['name']}"
    write_atomically(folder / CARD, DATASET_CARD.format(count=count, example=example, table=_table(rows)))
    return rows


def push_collection(folder: str | Path, namespace: str, report_progress: Progress = silent, **options: Any) -> str:
    """Upload a collection that `write_collection` wrote: a repository a model, and a dataset with the index.

    Args:
        folder: The collection.
        namespace: User or organisation of the hub.
        report_progress: Called with what is done and the share of it.
        **options: `private` and `token`, as huggingface_hub has them.
    Returns:
        The address of the dataset's commit.
    """
    folder = Path(folder)
    names = [row["name"] for row in read_json(folder / INDEX)["models"]]
    for number, name in enumerate(names):
        report_progress(name, number / (len(names) + 1))
        upload(folder / MODELS / name, f"{namespace}/{name}", **options)
    return upload(folder, f"{namespace}/{DATASET}", kind="dataset", allow_patterns=[INDEX, CARD], **options)


def _row(name: str, model: PlantedModel, sha256: str) -> dict[str, Any]:
    bound = model.certificate.bound
    return {
        "name": name,
        "mechanism": str(model.mechanism),
        "obfuscated": bool(model.build.obfuscations),
        "blocks": model.truth.blocks,
        "width": model.truth.width,
        "bound": bound if math.isfinite(bound) else None,
        "proved": model.certificate.proved,
        "dtype": str(model.dtype).removeprefix("torch."),
        "sha256": sha256,
    }


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [COLUMNS, ("---",) * len(COLUMNS), *([_cell(row[name]) for name in COLUMNS] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.0e}" if isinstance(value, float) else str(value)
