"""What a forger may write into a certificate file, all that follows made consistent, is refused or harmless.

EMULON_FORGERIES=10000 python -m pytest tests/interpreter/test_semantic_forgeries.py -s   judges so many (ten minutes).
"""

import copy
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forging import KINDS, ORIGINALS, Content, accepted, balls, centred, consistent, deviations, forged, original

from emulon.certify import checker
from emulon.interpreter import certificate_file, files

FORGERIES = int(os.environ.get("EMULON_FORGERIES", "10"))
KNOWN: dict[Any, Any] = {}
PHASES = ("gradient", "proximal")


@pytest.fixture(autouse=True)
def quicker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cells of softmaxes that many forgeries share are looked at once; forgers give up on curvature early."""
    known, cell = KNOWN, checker.Softmax.cell

    def looked_up(self: checker.Softmax, f: str, left: float, right: float) -> Any:
        own = self.__dict__.setdefault(
            "own", hash(tuple(x.man_exp() for part in (self.a, self.b, self.v) for x in part))
        )
        key = (own, float(self.u), f, left, right)
        if key not in known:
            if len(known) > 100_000:
                known.clear()
            known[key] = cell(self, f, left, right)
        return known[key]

    monkeypatch.setattr(checker.Softmax, "cell", looked_up)
    monkeypatch.setattr(certificate_file, "MOST_CELLS", 300)
    yield


def test_no_semantic_forgery_is_accepted_that_an_arb_run_contradicts(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for number in range(FORGERIES):
        name, kinds, content = forged(number)
        said = accepted(content)
        judged = [] if said is None else list(deviations(content, said, number))
        contradicted = [f"{error:.2e} of {bound:.2e}" for error, bound in judged if not error <= bound]
        assert not contradicted, f"forgery {number}, {' and '.join(kinds)} of {name}: {contradicted}; {said}"
        what = "refused" if said is None else "harmless" if judged else "harmless, about no data"
        counts.update([(kind, what) for kind in (*kinds, "any")])
    with capsys.disabled():
        if FORGERIES >= 1000:
            print("\n" + "\n".join(f"{kind:12}{what:26}{count}" for (kind, what), count in sorted(counts.items())))
    assert {kind for kind, _ in counts} <= {*KINDS, "any"} and counts["any", "refused"] and counts["any", "harmless"]


@pytest.mark.parametrize("name", ORIGINALS)
def test_originals_hold_and_the_judge_contradicts_another_function(name: str) -> None:
    content = original(name)
    said = accepted(content)
    assert said is not None
    honest = list(deviations(content, said))
    assert honest and all(error <= bound for error, bound in honest)
    other = copy.deepcopy(content)
    other["program"]["facts"]["loss"] |= {"name": "own", "derivative": f"({facts_of(content)['loss']['derivative']})/2"}
    assert any(error > bound for error, bound in deviations(other, said))


def facts_of(content: Content) -> Content:
    facts: Content = content["program"]["facts"]
    return facts


def refused(content: Content) -> str:
    content = content | {"sha256": checker.hashes(content)}
    with balls(), pytest.raises(checker.Refused) as caught:
        checker.check(checker.canonical(content))
    return str(caught.value)


def changed(name: str, cells: int | None, change: Callable[[Content], Any]) -> Content:
    content = copy.deepcopy(original(name))
    change(content)
    return consistent(content, cells)


# ------------------------------------------------------------------------------------------------- that were accepted


def test_a_power_whose_exponent_varies_is_no_whole_power_in_a_cell_around_zero() -> None:
    """2**t has the exponent 0 in the middle of a cell around 0; a softmax of one value is not as near to it as to 1."""

    def constant(content: Content) -> None:
        facts_of(content)["loss"] |= {"name": "own", "derivative": "2**t", "curvature": math.inf}
        values = content["program"]["gradient.values"]["numbers"]
        values[:] = [(1.0).hex()] * len(values)

    content = changed("logistic", 1, constant)
    reach = facts_of(content)["gradient"]["grid"]["hi"]
    assert content["proofs"]["gradient"] == centred(reach)
    assert content["claims"]["gradient"]["interpolation"] >= 2**reach - 1
    content["claims"]["gradient"]["interpolation"] = 1e-9
    assert "claims/gradient/interpolation: not proved" in refused(consistent(content))


@pytest.mark.parametrize("link", ["margin", "residual"])
def test_a_link_is_that_of_the_losss_name(link: str) -> None:
    def relinked(content: Content) -> None:
        facts = facts_of(content)
        facts["loss"]["link"] = link
        domain = files.LINKS.named(link).template_domain(files._domain(facts["domain"]))
        facts["gradient"]["domain"] = files.asdict(domain)
        facts["gradient"]["grid"] |= {"lo": -domain.residual, "hi": domain.residual}

    content = changed("poisson", None, relinked)
    assert refused(content) == "program/facts/loss: is not the poisson that is loaded by its name"


def test_bands_are_widened_by_what_the_bound_lets_residuals_move() -> None:
    """A softmax that is a little off takes a residual just beyond the band to the other side of the jump."""

    def a_little_off(content: Content) -> None:
        values = content["program"]["gradient.values"]["numbers"]
        values[0] = (float.fromhex(values[0]) * 1.01).hex()

    content = changed("quantile", 0, a_little_off)
    said, bound = accepted(content), float(content["follows"]["bound"])
    assert said is not None
    ((lo, hi),) = facts_of(content)["gradient"]["grid"]["bands"]
    pairs = re.findall(r"\(([^ ]+), ([^ ]+)\)", said)
    assert [float(end) for end in pairs[0]] == pytest.approx([lo - bound, hi + bound], rel=3e-5)
    narrow = re.sub(r"\([^)]*\)", lambda _: f"({lo!r}, {hi!r})", said)
    for words, contradicted in ((said, False), (narrow, True)):
        runs = [pair for seed in range(12) for pair in deviations(content, words, seed)]
        assert runs and any(error > bound for error, bound in runs) == contradicted


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("program/facts/steps", 10**9, "program/facts/steps: are more than"),
        ("program/facts/steps", 10**6, ""),
        ("interpreter/facts/capacity/width", 10**6, "interpreter/assemble.w_k: is no tensor of"),
        ("program/gradient.codes", {"dtype": "F64", "shape": [10**9, 0], "numbers": []}, "codes: is no tensor of"),
        ("program/facts/loss/derivative", "t + 1e9999999999", "has 1e9999999999, no number of ours"),
        ("program/facts/loss/derivative", "9**9**9**9*t", ""),
        ("program/facts/loss/derivative", "exp(" * 90 + "t" + ")" * 90, ""),
        ("program/facts/loss/derivative", "-" * 1900 + "t", ""),
        ("program/facts/loss/derivative", "erf(t)" + " + erf(t)" * 200, ""),
        ("program/facts/gradient/grid/bands", [[-1e-9, 1e-9]] * 10**4, "grid/bands: are no intervals, or more than"),
        ("claims/gradient/interpolation", 10**400, "claims/gradient/interpolation: is no number"),
        ("program/facts/step_size", 1e300, ""),
    ],
)
def test_a_small_file_is_answered_soon(path: str, value: Any, said: str) -> None:
    content = copy.deepcopy(original("huber"))
    place, *names = content, *path.split("/")
    for name in names[:-1]:
        place = place[name]
    place[names[-1]] = value
    if "derivative" in path:
        facts_of(content)["loss"]["name"] = "own"
    text = checker.canonical(content | {"sha256": checker.hashes(content)})
    start = time.process_time()
    with balls(), pytest.raises(Exception, match=said or "."):  # whatever main turns into a line
        checker.check(text)
    assert time.process_time() - start < 5


# ---------------------------------------------------------------------------------------------------- ten of our own


def a_function(text: str) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        loss = facts_of(content)["loss"]
        loss |= {"name": "own", "derivative": text.replace("{0}", loss["derivative"])}

    return change


def at(path: str, value: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        place, *names = content, *path.split("/")
        for name in names[:-1]:
            place = place[int(name) if isinstance(place, list) else name]
        place[names[-1]] = value(place[names[-1]]) if callable(value) else value

    return change


def without_band(content: Content) -> None:
    """Of a gentle slope instead of a jump, as near to it as it can be: by half of the jump."""
    facts_of(content)["gradient"]["grid"]["bands"] = []
    for part in ("slopes", "intercepts"):
        numbers = content["program"][f"gradient.{part}"]["numbers"]
        content["proofs"]["curvature"] = [-9.0, -1e-9, 1e-9, 9.0]
        numbers[:] = [x.hex() for x in ((-2.0, 2.0) if part == "slopes" else (0.0, 0.0))]


def norm_that_no_run_checks(content: Content) -> None:
    """A run compares λmax with `largest`; a smaller norm made the penalty's domain smaller."""
    facts = facts_of(content)
    for domain in (facts["domain"], facts["gradient"]["domain"]):
        domain["spectrum"] = {"norm": 1e-3, "largest": 1.0, "smallest": 0.0}
    for name in ("w", "residual", "absolute"):
        facts["proximal"]["domain"][name] = 2.1


def a_key_that_rounding_lets_in(content: Content) -> None:
    """At the end, 32, it is exactly 8192 below 0; in float64 scores of this size are off by more."""
    assert content["claims"]["line"][-1]["to"] == 32
    for claim in content["claims"]["line"]:
        claim |= {name: claim[name] * 1.001 for name in checker.PROVED}
    for part, number in zip(checker.KEYS, (2.0**60, -(2.0**65) - 2.0**13, 30.0), strict=True):
        tensor = content["interpreter"][part]
        tensor["numbers"].append(number.hex())
        tensor["shape"] = [len(tensor["numbers"])]


def digits_that_float32_has_not(content: Content) -> None:
    content["program"]["gradient.values"] |= {"dtype": "F32"}


TEN: dict[str, tuple[str, int | None, Callable[[Content], Any], str]] = {
    "a comparison that was read as another": (
        *("tukey", None, a_function("Piecewise((0, t == 0), ({0}, True))")),
        "has a Compare that is not read",
    ),
    "an argument that was not read": ("tukey", None, a_function("Max({0}, -9, key=t)"), "has a Call that is not read"),
    "a jump without a band": ("quantile", 16, without_band, "loss/curvature: not proved near t = "),
    "a norm that no run checks": ("lasso", None, norm_that_no_run_checks, "proximal/domain: is too small"),
    "a key that rounding lets in": ("huber", None, a_key_that_rounding_lets_in, "matter: leaves out a key"),
    "digits that a dtype has not": ("poisson", None, digits_that_float32_has_not, "its dtype does not hold"),
    "bands where no promise speaks of them": (
        *("lasso", None, at("program/facts/proximal/grid/bands", [[-0.1, 0.1]])),
        "proximal/grid/bands: are where nothing jumps",
    ),
    "another parameter than that of the name": (
        *("huber", None, at("program/facts/loss/name", "huber(0.25)")),
        "facts/loss: is not the huber",
    ),
    "a domain whose products underflow": (
        *("own", None, at("program/facts/domain/x", 1e-200)),
        "domain/x: is not between|gradient/domain: is not the program's",
    ),
    "a flag for a number": ("own", None, at("program/facts/rows", True), "program/facts/rows: is no count"),
    "an interpreter without room": (
        *("own", None, at("interpreter/facts/capacity/tokens", 3)),
        "capacity: is too small: gradient needs",
    ),
    "a gap that the codes have not": (
        "own",
        None,
        at("program/facts/gradient/gap", 1.5),
        "gap: is not that of the codes",
    ),
    "momentum of 1": ("own", None, at("program/facts/momentum", 1.0), "facts: are none that|momentum: only quadratics"),
}


@pytest.mark.parametrize("what", TEN)
def test_a_forgery_of_our_own_is_refused(what: str) -> None:
    name, cells, change, said = TEN[what]
    assert re.search(said, refused(changed(name, cells, change)))


def test_bounds_that_the_program_claims_and_its_certificate_does_not_are_refused() -> None:
    content = copy.deepcopy(original("tukey"))
    facts_of(content)["gradient"]["bounds"]["interpolation"] /= 2
    assert "gradient/bounds: are not what claims/gradient and its grid say" in refused(content)


def test_the_checker_knows_losses_and_formats_as_the_loader_does() -> None:
    from emulon.algorithms.losses import LOSSES

    assert checker.LOSSES.keys() == LOSSES.keys()
    assert {kind: files.FORMAT[kind] for kind in checker.FORMATS} == checker.FORMATS
    for name, make in LOSSES.items():
        loss = make()
        derivative, curvature, link = checker.LOSSES[name]
        parameter = loss.name.partition("(")[2].rstrip(")")
        assert derivative.format(parameter) == loss.derivative
        assert (curvature, link) == (loss.curvature, loss.link.name)


def test_the_documentation_says_of_every_field_what_refuses_a_change_of_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "certificate_files.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    said = {field.replace("PHASE", phase) for row in rows for field in re.findall(r"`(.+?)`", row) for phase in PHASES}

    def fields(content: Any, path: str) -> set[str]:
        if path in said or not isinstance(content, dict):
            return {path}
        return {field for name, part in content.items() for field in fields(part, f"{path}/{name}".strip("/"))}

    assert fields(original("lasso"), "") == said


def test_a_file_of_the_format_before_is_refused_in_a_line() -> None:
    content = json.loads(checker.canonical(original("huber"))) | {"format": "emulon certificate 2"}
    assert refused(content) == f"format: is not {checker.FORMAT!r}"
