"""Interpreters and planted models on the Hugging Face hub, which is a folder here."""

import json
import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from emulon import Interpreter, compile
from emulon.algorithms import Ridge
from emulon.cli import main
from emulon.core import hub
from emulon.core.errors import EmulonError
from emulon.planted import PlantedModel, plant

EXAMPLE = Path(__file__).parents[2] / "examples" / "publish_collection.py"


class Hub:
    """What is used of huggingface_hub, with repositories as folders."""

    def __init__(self, folder):
        self.folder, self.made = folder, []

    def HfApi(self, token=None):
        return self

    def create_repo(self, repo_id, repo_type, private, exist_ok):
        assert exist_ok
        self.made.append((repo_id, repo_type, private))
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, folder_path, repo_id, repo_type, commit_message, allow_patterns=None):
        kept = None if allow_patterns is None else lambda at, names: [n for n in names if n not in allow_patterns]
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True, ignore=kept)
        return f"https://huggingface.co/{repo_id}/commit/0"

    def snapshot_download(self, name, **options):
        if not (self.folder / name).is_dir():
            raise OSError("404\n\nRepository Not Found")
        return str(self.folder / name)


@pytest.fixture
def there(tmp_path, monkeypatch):
    made = Hub(tmp_path / "hub")
    monkeypatch.setattr(hub, "_hub", lambda: made)
    return made


@pytest.fixture(scope="module")
def interpreter():
    x = torch.randn(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    program = compile(Ridge(steps=3), data=(x, x[:, 0]))
    return Interpreter.fitting(program), program, x


def test_an_interpreter_comes_back_from_a_folder(interpreter, tmp_path):
    frozen, program, x = interpreter
    folder = frozen.save_pretrained(tmp_path / "frozen", repo_id="me/frozen")
    again = Interpreter.from_pretrained(folder)
    assert again.sha256 == frozen.sha256
    assert torch.equal(again.run(program, x, x[:, 0]).weights, frozen.run(program, x, x[:, 0]).weights)
    card = (folder / "README.md").read_text(encoding="utf-8")
    _, head, text = card.split("---\n", 2)
    assert {line.partition(":")[0] for line in head.strip().splitlines()} == {
        "license",
        "library_name",
        "pipeline_tag",
        "tags",
    }
    assert 'from_pretrained("me/frozen")' in text and frozen.sha256 in text and "this folder" not in text


def test_models_come_back_from_the_hub(interpreter, there):
    model = plant("sgd", features=1, samples=3)
    assert model.push_to_hub("me/sgd", private=True) == "https://huggingface.co/me/sgd/commit/0"
    assert there.made == [("me/sgd", "model", True)]
    again = PlantedModel.from_pretrained("me/sgd")
    assert again.name == model.name and again.certificate.proved
    assert all(torch.equal(part, model.state[name]) for name, part in again.state.items())
    interpreter[0].save_pretrained(there.folder / "here", repo_id="me/frozen", push_to_hub=True)
    assert Interpreter.from_pretrained("me/frozen").sha256 == interpreter[0].sha256
    with pytest.raises(EmulonError, match="me/none is no folder here, and the hub did not give it: 404 Repository"):
        PlantedModel.from_pretrained("me/none")


def test_what_is_asked_of_the_hub_is_in_huggingface_hub():
    import inspect

    real = pytest.importorskip("huggingface_hub", reason="pip install 'emulon[hf]'")
    assert {"revision", "token", "cache_dir", "local_files_only"} <= set(
        inspect.signature(real.snapshot_download).parameters
    )
    assert {"repo_id", "repo_type", "private", "exist_ok"} <= set(inspect.signature(real.HfApi.create_repo).parameters)
    assert {"folder_path", "repo_id", "repo_type", "commit_message", "allow_patterns", "revision", "create_pr"} <= set(
        inspect.signature(real.HfApi.upload_folder).parameters
    )


def test_the_example_writes_a_collection_and_uploads_it(there, tmp_path, capsys):
    folder, example = tmp_path / "collection", runpy.run_path(str(EXAMPLE))
    example["main"]([str(folder), "--models", "4"])
    assert not there.made and "4 models" in capsys.readouterr().out
    rows = json.loads((folder / "index.json").read_text())["models"]
    assert [row["obfuscated"] for row in rows] == [False, True, False, True]
    for row in rows:
        model = PlantedModel.from_pretrained(folder / "models" / row["name"])
        assert (str(model.mechanism), model.truth.blocks) == (row["mechanism"], row["blocks"])
        assert model.certificate.proved == row["proved"] and re.fullmatch(r"[0-9a-f]{64}", row["sha256"])
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlicense:") and all(row["name"] in card for row in rows)

    example["main"]([str(folder), "--models", "1", "--namespace", "me"])
    (row,) = json.loads((folder / "index.json").read_text())["models"]
    assert [repo for repo, *_ in there.made] == [f"me/{row['name']}", f"me/{example['DATASET']}"]
    assert PlantedModel.from_pretrained(f"me/{row['name']}").truth.blocks == row["blocks"]
    dataset = sorted(path.name for path in (there.folder / "me" / example["DATASET"]).iterdir())
    assert dataset == ["README.md", "index.json"]
    assert main(["publish", str(folder)]) == 2 and "examples/publish_collection.py" in capsys.readouterr().err
