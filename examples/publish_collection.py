"""Write a collection of planted models for the Hugging Face hub, and upload it.

    python examples/publish_collection.py FOLDER                  models/NAME, index.json and README.md, a dataset card
    python examples/publish_collection.py FOLDER --namespace me   the same, uploaded: a repository each, and a dataset

Fifty models by default, every second one obfuscated; 41 MB and 8 seconds. Uploads need huggingface_hub (pip install
'emulon[hf]') and its login, hf auth login.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulon.core.files import make_folder, write_atomically, write_json
from emulon.core.hub import upload
from emulon.interpreter.files import file_sha256
from emulon.planted import PlantedModel, obfuscate, sample

INDEX, CARD, DATASET = "index.json", "README.md", "emulon-planted-models"
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


def write_collection(folder: Path, count: int, seed: int, namespace: str) -> list[dict[str, Any]]:
    """Write models, index and card; a row a model."""
    rows = []
    for number in range(count):
        model = sample(seed + number)
        if number % 2:
            model = obfuscate(model, seed + number)
        name = f"planted-{number:02d}-{model.mechanism.name.replace(' ', '-')}"
        place = folder / "models" / name
        model.save_pretrained(place, repo_id=f"{namespace}/{name}" if namespace else f"models/{name}")
        rows.append(row_of(name, model, file_sha256(place / "model.safetensors")))
    write_json(make_folder(folder) / INDEX, {"models": rows})
    example = f"{namespace or 'models'}/{rows[0]['name']}"
    lines = [COLUMNS, ("---",) * len(COLUMNS), *([cell(row[name]) for name in COLUMNS] for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    write_atomically(folder / CARD, DATASET_CARD.format(count=count, example=example, table=table))
    return rows


def row_of(name: str, model: PlantedModel, sha256: str) -> dict[str, Any]:
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


def cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.0e}" if isinstance(value, float) else str(value)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first model; the others follow it")
    parser.add_argument("--namespace", default="", help="user or organisation of the hub; without, nothing is uploaded")
    parser.add_argument("--private", action="store_true", help="make the repositories private")
    options = parser.parse_args(words)
    rows = write_collection(options.folder, options.models, options.seed, options.namespace)
    print(f"{len(rows)} models in {options.folder}, {sum(row['proved'] for row in rows)} with a proved bound")
    if options.namespace:
        for row in rows:
            place = options.folder / "models" / row["name"]
            upload(place, f"{options.namespace}/{row['name']}", private=options.private)
        name, files = f"{options.namespace}/{DATASET}", [INDEX, CARD]
        print(upload(options.folder, name, kind="dataset", private=options.private, allow_patterns=files))


if __name__ == "__main__":
    main(sys.argv[1:])
