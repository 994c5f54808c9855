"""A planted model's folder is not believed: truth and certificate are derived again, damage is refused in a line."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from damage import alter_json, cases, damage_bytes
from safetensors.torch import load_file, save_file

from emulon import planted
from emulon.core.errors import EmulonError
from emulon.planted import PlantedModel

pytest.importorskip("transformers", reason="planted models are GPT2Models (pip install 'emulon[hf]')")
WEIGHTS, TRUTH, CONFIG = "model.safetensors", "truth.json", "config.json"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    plain = planted.plant("last value", features=1, samples=2)
    sgd = planted.plant("sgd", samples=3)
    mixed = planted.plant("mixture", samples=3)
    made = [plain, sgd, planted.obfuscate(sgd, seed=1), planted.obfuscate(mixed, seed=2, strength=0.5)]
    parent = tmp_path_factory.mktemp("planted models")
    return [planted.save(one, parent / str(i)) for i, one in enumerate(made)]


def error_of(model: PlantedModel) -> float:
    xs, ys = model.draw(64, seed=11)
    return float((model(xs, ys) - model.algorithm(xs, ys)).abs().max())


def change_weights(folder: Path, name: str, by: float) -> None:
    weights = load_file(folder / WEIGHTS)
    weights[name] = weights[name] * by
    save_file(weights, folder / WEIGHTS)


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to, dirs_exist_ok=True))


MATRIX = "transformer.h.2.attn.c_proj.weight"


def test_a_bound_is_of_the_weights_in_the_folder(folders: list[Path], tmp_path: Path) -> None:
    """A little off is noise, which the certificate counts; more than that is measured, and not called proved."""
    for place in (1, 2):
        was = planted.load(folders[place])
        assert was.certificate.proved
        one = copied(folders[place], tmp_path / str(place))
        change_weights(one, MATRIX, 1 + 1e-13)
        near = planted.load(one)
        assert near.certificate.proved and was.certificate.bound < near.certificate.bound < 1e-5
        assert 0 < error_of(near) <= near.certificate.bound
        change_weights(one, MATRIX, 1.01)
        far = planted.load(one)
        assert (
            not far.certificate.proved
            and 1e-4 < error_of(far) <= far.certificate.bound
            and "measured" in far.error_bound
        )


@pytest.mark.parametrize("name", ["transformer.h.1.ln_1.weight", "transformer.h.0.attn.c_proj.bias"])
def test_gains_and_pads_that_differ_at_all_are_not_noise(name: str, folders: list[Path], tmp_path: Path) -> None:
    one = copied(folders[1], tmp_path / "one")
    change_weights(one, name, 1 + 1e-9)
    changed = load_file(one / WEIGHTS)[name].any()
    assert planted.load(one).certificate.proved is not bool(changed)


def test_no_word_of_the_file_about_its_certificate_is_believed(folders: list[Path], tmp_path: Path) -> None:
    one, wanted = copied(folders[3], tmp_path / "one"), planted.load(folders[3]).certificate
    table = json.loads((one / TRUTH).read_text())
    for change in ({"terms": {"all": 1e-300}}, {"proved": True, "note": "sure"}, {"proved": None}):
        (one / TRUTH).write_text(json.dumps(table | {"certificate": table["certificate"] | change}))
        assert planted.load(one).certificate == wanted


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("certificate", "dtype"), "load", "not one of float64, float32"),
        (("certificate", "dtype"), "float32", "says otherwise .under instructions"),
        (("mechanism", "step_size"), 0.4, "says otherwise .under program"),
        (("mechanism", "step_size"), "0.5", "step_size of sgd is a number, got"),
        (("mechanism", "samples"), 10**9, "has other sizes than"),
        (("mechanism", "features"), 10**9, "has other sizes than"),
        (("build", "seed"), 2, "says otherwise .under program"),
        (("build", "strength"), 1e300, "no obfuscation"),
        (("build", "obfuscations"), ["load"], "no obfuscation"),
        (("build", "distractors"), 10**15, "has other sizes than"),
        (("truth", "blocks"), 3, "says otherwise .under blocks"),
        (("truth", "instructions", 0, "heads"), [1, 2], "says otherwise .under instructions"),
        (("truth", "registers", 0, "read", 0, 0), 0.25, "says otherwise .under registers"),
        (("truth", "unused", "heads"), [], "says otherwise .under unused"),
        (("program",), "w ← 0", "says otherwise .under program"),
    ],
)
def test_what_truth_says_otherwise_than_the_compiler_is_refused(
    path: tuple[str | int, ...], value: object, message: str, folders: list[Path], tmp_path: Path
) -> None:
    one = copied(folders[2], tmp_path / "one")
    table = place = json.loads((one / TRUTH).read_text())
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (one / TRUTH).write_text(json.dumps(table))
    with pytest.raises(EmulonError, match=message):
        planted.load(one)


def test_another_config_is_refused(folders: list[Path], tmp_path: Path) -> None:
    one = copied(folders[1], tmp_path / "one")
    config = json.loads((one / CONFIG).read_text())
    for change in ({"layer_norm_epsilon": 1e-6}, {"activation_function": "relu"}, {"n_head": 1}):
        (one / CONFIG).write_text(json.dumps(config | change))
        with pytest.raises(EmulonError, match=f"config.json has not .* as {next(iter(change))}"):
            planted.load(one)


def damage(draw: random.Random, folder: Path, others: list[Path]) -> str:
    how = draw.choice(("delete", "bytes", "truth", "truth", "truth", "config", "weights", "weights", "swap"))
    name = draw.choice((WEIGHTS, TRUTH, CONFIG))
    if how == "delete":
        (folder / name).unlink()
    elif how == "bytes":
        damage_bytes(draw, folder / name)
    elif how == "truth":
        alter_json(draw, folder / TRUTH)
    elif how == "config":
        alter_json(draw, folder / CONFIG)
    elif how == "swap":
        shutil.copy(draw.choice(others) / name, folder / name)
    else:
        how = damage_weights(draw, folder / WEIGHTS)
    return f"{how} {name}"


def damage_weights(draw: random.Random, path: Path) -> str:
    weights = load_file(path)
    name, other = draw.sample(sorted(weights), 2)
    part = weights[name]
    how = draw.choice(("nan", "scale", "noise", "rename", "drop", "add", "swap", "cut", "transpose", "dtype", "zero"))
    if how == "nan":
        part.flatten()[draw.randrange(part.numel())] = draw.choice((float("nan"), float("inf")))
    elif how == "scale":
        weights[name] = part * (1 + 10.0 ** draw.uniform(-16, 3))
    elif how == "noise":
        size = 10.0 ** draw.uniform(-16, 0)
        torch.manual_seed(draw.randrange(1 << 30))
        weights = {key: one * (1 + size * torch.randn_like(one)) for key, one in weights.items()}
    elif how == "swap":
        weights[name], weights[other] = weights[other].clone(), part.clone()
    elif how == "add":
        weights["transformer.more"] = part.clone()
    elif how in ("rename", "drop"):
        del weights[name]
        weights |= {f"{name}s": part} if how == "rename" else {}
    else:
        changes = {"cut": lambda: part[:-1], "transpose": lambda: part.reshape(-1, len(part)), "zero": lambda: 0 * part}
        weights[name] = changes.get(how, part.float)().contiguous()
    save_file(weights, path)
    return f"{how} {name}"


@pytest.mark.usefixtures("unchecked")
def test_a_damaged_folder_is_refused_or_keeps_what_it_promises(folders: list[Path], tmp_path: Path) -> None:
    refused = proved = measured = 0
    for seed in cases(50):
        draw = random.Random(seed)
        place = draw.randrange(len(folders))
        folder = copied(folders[place], tmp_path / str(seed))
        what = f"{seed}: {damage(draw, folder, folders)} of {place}"
        try:
            one = planted.load(folder)
        except EmulonError as error:
            assert "\n" not in str(error) and len(str(error)) < 600, what
            refused += 1
            continue
        finally:
            shutil.rmtree(folder)
        assert error_of(one) <= one.certificate.bound, what
        proved, measured = proved + one.certificate.proved, measured + (not one.certificate.proved)
    print(f"{refused} refused, {proved} proved, {measured} measured")
    assert min(refused, proved, measured) > 0


def test_a_folder_of_02_is_read_with_the_names_of_today(tmp_path: Path) -> None:
    """Format 2 said `disguises`, and had other names for three of them."""
    model = planted.obfuscate(planted.plant("last value", samples=2), 3, only=("dead blocks", "permuted", "rotated"))
    path = planted.save(model, tmp_path) / "truth.json"
    table = json.loads(path.read_text())
    assert table["format"] == 3 and table["build"].pop("obfuscations") == ["dead blocks", "permuted", "rotated"]
    table["build"]["disguises"] = ["idle blocks", "permuted", "turned"]
    path.write_text(json.dumps(table | {"format": 2}))
    again, (xs, ys) = planted.load(tmp_path), model.draw(4)
    assert again.build == model.build and again.certificate == model.certificate
    assert torch.equal(again(xs, ys), model(xs, ys))
    path.write_text(json.dumps(table | {"format": 1}))
    with pytest.raises(EmulonError, match="has format 1, and this version reads 3"):
        planted.load(tmp_path)


def test_names_of_02_warn_and_are_those_of_today() -> None:
    for old, new in {"Specimen": "PlantedModel", "specimen_named": "plant", "DISGUISES": "OBFUSCATIONS"}.items():
        with pytest.warns(DeprecationWarning, match=f"{old} is {new} since 0.3"):
            assert getattr(planted, old) is getattr(planted, new)
    plain = planted.plant("last value", features=1, samples=2)
    with pytest.warns(DeprecationWarning, match="'turned' is 'rotated'"):
        assert planted.obfuscate(plain, only=("turned",)).build.obfuscations == ("rotated",)
    with pytest.warns(DeprecationWarning, match="network"):
        assert plain.model is plain.network
    with pytest.raises(AttributeError, match="no attribute 'specimen'"):
        _ = planted.specimen
