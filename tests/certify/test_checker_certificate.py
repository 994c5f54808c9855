"""A certificate of two keys to every softmax, all of whose numbers can be worked out by hand, and lies about it."""

import copy
import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest

from emulon.certify import checker
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter.certificate_file import _lowest, _of_curvature, _seen

Content = dict[str, Any]
FACTS, HALF = "program/facts", (0.5).hex()
UNKNOWN = {"largest": 0.0, "smallest": 0.0, "norm": 0.0}


def balls():
    return ball_arithmetic(checker.PRECISION, checker.ORDER + 1)


def tensor(*numbers: float, width: int = 0) -> Content:
    shape = [len(numbers) // width, width] if width else [len(numbers)]
    return {"dtype": "F64", "shape": shape, "numbers": [float(x).hex() for x in numbers]}


def tanh_of(size: float, prefix: str = "") -> Content:
    """Two keys whose softmax is size·tanh(t/size)."""
    keys = {"slopes": (-1 / size, 1 / size), "intercepts": (0.0, 0.0), "values": (-size, size)}
    return {prefix + name: tensor(*numbers) for name, numbers in keys.items()}


def described() -> Content:
    """Four steps of descent on two samples of one feature, on a line that is 1024·tanh(t/1024); nothing is claimed."""
    domain = {"samples": 2, "features": 1, "x": 1.0, "y": 0.5, "w": 0.5, "residual": 1.0, "absolute": 1.0}
    domain["spectrum"] = UNKNOWN
    facts = dict.fromkeys(checker.STEP, 0.0) | {"step_size": 0.5, "max_step_times_smoothness": 1.0, "steps": 4}
    loss = {"name": "made", "derivative": "t", "link": "residual", "curvature": 1.0}
    facts |= {"name": "Made", "accelerated": False, "step_from_data": False, "curvature_reach": 0.0, "loss": loss}
    facts |= {"rows": 2, "domain": domain, "proximal": None, "gradient": phase(domain, 1.0, "mean")}
    program = {"facts": facts, "gradient.codes": tensor(1.0, 0.0, 0.0, 1.0, width=2)} | tanh_of(1.0, "gradient.")
    # Codes of up to three numbers, and two keys to each of up to three samples.
    capacity = {"features": 16, "tokens": 6, "width": 6, "reach": 8.0}
    rows = [float(i == j) for i in range(18) for j in range(18)]
    layer = {name: tensor(*rows[k * 108 : k * 108 + 108], width=18) for k, name in enumerate(checker.LAYER)}
    interpreter = {"facts": {"dtype": "torch.float64", "capacity": capacity}} | layer | tanh_of(1024.0)
    for section, name in ((program, "program"), (interpreter, "interpreter")):
        section |= {"kind": name, "format": checker.FORMATS[name]}
    line = {"deviation": 1030.0, "size": 5.0, "matter": [0, 1]}
    # t³/3/1024² is 2.5e-6 at 2 and 1.63e-4 at 8.
    bands = [line | {"to": 2.0, "interpolation": 2.6e-6}, line | {"to": 8.0, "interpolation": 1.7e-4, "size": 17.0}]
    leak = math.exp(math.log(math.cosh(1.0)) + 0.1 - 40.0)
    gradient = {"interpolation": 0.25, "deviation": 1.25, "size": 1.0, "leak": leak * (1 + 1e-9)}
    claims = {"line": bands, "gradient": gradient}
    return bounded({"program": program, "interpreter": interpreter, "claims": claims})


def bounded(content: Content) -> Content:
    """The program says of its phases what the certificate claims."""
    for name in content["claims"].keys() - {"line"}:
        part = content["program"]["facts"][name]
        bands = [{"lo": lo, "hi": hi} for lo, hi in part["grid"]["bands"]]
        part["bounds"] = content["claims"][name] | {"proved": True, "bands": bands}
    return content


def phase(domain: Content, reach: float, readout: str) -> Content:
    grid = {"lo": -reach, "hi": reach, "bands": [], "way": "by hand"}
    return {"domain": copy.deepcopy(domain), "grid": grid, "readout": readout, "strength": 40.0, "gap": 0.25}


def with_penalty(content: Content, reach: float) -> Content:
    """The same with l1 = 0.2, of which a step takes 0.1: what a penalty is given may be as far out as `reach`."""
    content = copy.deepcopy(content)
    domain = {"samples": 1, "features": 1, "x": 1.0, "y": 0.0, "w": reach, "residual": reach, "absolute": reach}
    content["program"]["facts"] |= {"l1": 0.2, "proximal": phase(domain | {"spectrum": UNKNOWN}, reach, "sum")}
    content["program"] |= {"proximal.codes": tensor(1.0, width=1)} | tanh_of(1.0, "proximal.")
    content["claims"]["proximal"] = {"interpolation": 0.4, "deviation": 1.5, "size": 1.5, "leak": 0.0}
    return bounded(content)


def proved(content: Content) -> Content:
    """With cells for every proof, what follows, and hashes."""
    content = copy.deepcopy(content)
    with balls():
        whole = checker.Certificate(content)
        bands = [(0.0, content["claims"]["line"][0]), (2.0, content["claims"]["line"][1])]
        lines = [_seen(whole.line, "t", (-b["to"], b["to"]), [(-start, start)], b)[0] for start, b in bands]
        content["proofs"] = {"line": lines, "lowest": {}}
        for name, f in whole.phases().items():
            softmax, grid = checker.Softmax(content["program"], f"{name}."), content["program"]["facts"][name]["grid"]
            edges, _ = _seen(softmax, f, (grid["lo"], grid["hi"]), (), content["claims"][name])
            content["proofs"] |= {name: edges}
            content["proofs"]["lowest"][name] = _lowest(softmax, grid["lo"], grid["hi"])
        content["follows"] = whole.follows()
        content["proofs"]["curvature"] = _of_curvature(whole)
    return content | {"format": checker.FORMAT}


@pytest.fixture(scope="module")
def plain() -> Content:
    return proved(described())


@pytest.fixture(scope="module")
def penalised() -> Content:
    return proved(with_penalty(described(), 1.1))


def text_of(content: Content) -> str:
    return checker.canonical(content | {"sha256": checker.hashes(content)})


def checked(content: Content, **files: str) -> str:
    return checker.check(text_of(content), **files)


def changed(content: Content, path: str, value: Any) -> Content:
    """With another number, or what a function makes of the old one, at a path of names and places."""
    content = copy.deepcopy(content)
    place, *names = content, *path.split("/")
    for name in names[:-1]:
        place = place[int(name) if isinstance(place, list) else name]
    last = int(names[-1]) if isinstance(place, list) else names[-1]
    place[last] = value(place[last]) if callable(value) else value
    return content


def following(content: Content) -> Content:
    """A liar who knows the formulas."""
    return content | {"follows": checker.Certificate(bounded(content)).follows()}


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    with balls():
        yield


def test_it_holds_as_it_is(plain: Content, penalised: Content) -> None:
    for content in (plain, penalised):
        assert checked(content) == f"every weight is within {float(content['follows']['bound']):.3e}"


def test_bands_of_which_nothing_is_proved_are_said(plain: Content) -> None:
    """Widened by what the bound lets a residual of one feature of at most 1 move."""
    banded = following(changed(plain, f"{FACTS}/gradient/grid/bands", [[-0.25, 0.25]]))
    said = re.fullmatch(
        r"every .*, while residuals stay out of \((.+), (.+)\), and those of zero weights out of \((.+), (.+)\)",
        checked(banded),
    )
    assert said is not None
    for ends, wanted in ((said.groups()[:2], 0.25 + float(banded["follows"]["bound"])), (said.groups()[2:], 0.25)):
        assert wanted <= -float(ends[0]) == float(ends[1]) <= wanted * (1 + 3e-5)


OTHERS, COVERS = f"{FACTS}/gradient/domain: is not the program's", f"{FACTS}/gradient: does not cover its residuals"
SMALL = f"{FACTS}/proximal/domain: is too small"
# Beside what `tests/interpreter/test_certificate_file.py` asks of real certificates.
LIES = [
    ("interpreter/assemble.w_v/numbers/2", HALF, "interpreter: is none"),
    ("interpreter/assemble.w_q/numbers/0", HALF, "interpreter: is none"),
    ("interpreter/assemble.w_k/numbers", [], r"interpreter/assemble.w_k: is no tensor of \(6, 18\)"),
    ("program/gradient.values/dtype", "F32", "interpreter: has two dtypes"),
    (f"{FACTS}/gradient/domain/x", 0.5, OTHERS),
    (f"{FACTS}/gradient/domain/residual", 0.5, OTHERS),
    (f"{FACTS}/domain/w", 1.0, OTHERS),
    (f"{FACTS}/loss/link", "other", OTHERS),
    (f"{FACTS}/accelerated", 0.5, f"{FACTS}/accelerated: is no bool"),
    (f"{FACTS}/domain/x", -1.0, f"{FACTS}/domain/x: is negative, or no number"),
    (f"{FACTS}/l1", 0.1, f"{FACTS}/proximal: does not fit l1"),
    (f"{FACTS}/gradient/grid/lo", -0.99, COVERS),
    (f"{FACTS}/gradient/grid/hi", 0.99, COVERS),
    (f"{FACTS}/gradient/strength", 0.0, COVERS),
    (f"{FACTS}/gradient/readout", "sum", COVERS),
    ("follows/more", "1", "follows/more: is null"),
    ("proofs/gradient/0", -0.99, "proofs/gradient: leaves something out"),
    ("proofs/line/1", lambda edges: edges[1:], "proofs/line/1: leaves something out"),
    ("proofs/curvature", lambda edges: [-0.5, edges[-1]], "proofs/curvature: leaves something out"),
    ("proofs/lowest/gradient", [0.5], "claims/gradient/leak: is larger"),
    (f"{FACTS}/loss/curvature", 0.9, f"{FACTS}/loss/curvature: not proved near t = "),
    # A penalty is of every feature on its own.
    *((f"{FACTS}/proximal/domain/{name}", wrong, SMALL) for name, wrong in (("features", 2), ("x", 2.0), ("y", 0.1))),
    (f"{FACTS}/proximal/domain/absolute", 2.0, SMALL),
    (f"{FACTS}/proximal/readout", "mean", f"{FACTS}/proximal: does not cover its residuals"),
]


@pytest.mark.parametrize(("path", "value", "said"), LIES)
def test_what_does_not_fit_is_refused(plain: Content, penalised: Content, path: str, value: Any, said: str) -> None:
    with pytest.raises(checker.Refused, match=said):
        checked(changed(penalised if "proximal/" in path else plain, path, value))


@pytest.mark.parametrize("where", ["line/0", "line/1", "gradient", "proximal"])
@pytest.mark.parametrize("name", checker.PROVED)
def test_a_claim_below_what_is_so_is_not_proved(penalised: Content, where: str, name: str) -> None:
    """tanh is 0.24 off t at 1, and no key is nearer than 0.6 of its value: less is claimed, and all follows."""
    lie = following(changed(penalised, f"claims/{where}/{name}", lambda old: old / 8))
    with pytest.raises(checker.Refused, match=rf"(claims/{where}/{name}: not proved near t = |domain: is too small)"):
        checked(lie)


def require_sound(content: Content, said: str = "") -> None:
    """Facts and claims fit together, or are refused with these words."""
    if not said:
        checker.Certificate(content).require_sound()
        return
    with pytest.raises(checker.Refused, match=said):
        checker.Certificate(content).require_sound()


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"momentum": 0.5, "accelerated": True}, f"{FACTS}: is no algorithm"),
        ({"momentum": 0.5, "rows": 3}, f"{FACTS}: is no algorithm"),
        ({"accelerated": True, "rows": 3}, f"{FACTS}: is no algorithm"),
        ({"momentum": 0.5}, ""),
        ({"accelerated": True}, ""),
        ({"rows": 3}, ""),
        ({"strong_convexity": 0.1}, ""),
    ],
)
def test_algorithms_are_one_of_three_and_what_is_proved_of_quadratics_is_theirs(facts: Content, said: str) -> None:
    content = described()
    content["program"]["facts"] |= facts
    require_sound(content, said)
    content["program"]["facts"]["loss"]["derivative"] = "tanh(t)"
    only = next((name for name in ("momentum", "strong_convexity") if name in facts), "")
    require_sound(content, said or (f"{FACTS}/{only}: only quadratics have it" if only else ""))


@pytest.mark.parametrize(
    ("link", "outer", "inner"),
    [
        ("residual", {}, {}),
        ("residual", {"residual": 0.75, "absolute": 0.875}, {"residual": 0.75, "absolute": 0.875}),
        # Without labels a score is x·w: no further than 0.5, or what is known of it.
        ("margin", {}, {"y": 0.0, "residual": 0.5, "absolute": 0.5}),
        ("rate", {"residual": 0.25}, {"y": 0.0, "residual": 0.25, "absolute": 0.5}),
        ("margin", {"x": 0.5, "residual": 0.75, "absolute": 0.75}, {"y": 0.0, "residual": 0.25, "absolute": 0.25}),
        ("margin", {"features": 2, "residual": 1.5}, {"features": 2, "y": 0.0, "residual": 1.0, "absolute": 1.0}),
    ],
)
def test_a_gradients_domain_is_the_programs_as_its_link_sees_it(link: str, outer: Content, inner: Content) -> None:
    content = described()
    facts = content["program"]["facts"]
    facts["loss"]["link"] = link
    facts["domain"] |= outer
    facts["gradient"]["domain"] |= outer | inner
    facts["gradient"]["grid"] |= {"lo": -2.0, "hi": 2.0}
    require_sound(content)
    facts["loss"]["link"] = "other" if link != "residual" else link
    facts["gradient"]["domain"]["residual"] /= 2 if link == "residual" else 1
    require_sound(content, OTHERS)


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({}, 0.5 + 0.5 * 1.0),  # all of the state, and half of the largest value times |x|
        ({"l2": 1.0}, 0.25 + 0.5 * 1.0),
        ({"claimed": 0.5}, 0.5 + 0.5 * 0.5),
        ({"spectrum": UNKNOWN | {"largest": 0.25}}, 0.5 + 0.5 * 0.5),  # √λmax, where it is less
        ({"spectrum": UNKNOWN | {"norm": 0.5}}, 0.5 + 0.5 * 0.5),  # of rows no longer than that
        ({"link": "rate"}, 0.5 + 0.5 * (1.0 + 0.5)),  # and x·y, which is fixed
    ],
)
def test_a_penalty_covers_all_that_a_step_may_give_it(changes: Content, least: float) -> None:
    for reach, said in ((least * 1.001, ""), (least * 0.999, SMALL)):
        content = with_penalty(described(), reach)
        facts = content["program"]["facts"]
        facts["l2"] = changes.get("l2", 0.0)
        content["claims"]["gradient"]["size"] = changes.get("claimed", 1.0)
        for domain in (facts["domain"], facts["gradient"]["domain"]):
            domain["spectrum"] = changes.get("spectrum", UNKNOWN)
        if "link" in changes:
            facts["loss"]["link"] = changes["link"]
            facts["gradient"]["domain"] |= {"y": 0.0, "residual": 0.5, "absolute": 0.5}
        require_sound(content, said)


@pytest.mark.parametrize("readout, f", [("sum", "sign(t)*Max(Abs(t) - 0.1, 0)"), ("rest", "Max(-0.1, Min(0.1, t))")])
def test_a_penalty_is_a_threshold_of_a_step_or_what_it_takes_off(readout: str, f: str) -> None:
    content = with_penalty(described(), 1.1)
    content["program"]["facts"]["proximal"]["readout"] = readout
    assert checker.Certificate(content).phases() == {"gradient": "t", "proximal": f}
    require_sound(content)


def times(factor: float) -> Callable[[float], float]:
    return lambda old: old * factor


THREE = {f"{FACTS}/domain/samples": 3, f"{FACTS}/gradient/domain/samples": 3, f"{FACTS}/rows": 3}
THREE["program/gradient.codes"] = tensor(1, 0, 0, 0, 1, 0, 0, 0, 1, width=3)
NEAR = {"program/gradient.codes": tensor(1.0, 0.0, 0.6, 0.8, width=2)}


@pytest.mark.parametrize(
    ("changes", "enough", "less"),
    [
        # (samples − 1)·e^{log cosh 1 + 0.1 − 40·gap}: both ends of tanh's normaliser are log cosh 1 above its middle.
        ({}, {"claims/gradient/leak": times(1 - 0.5e-9)}, {"claims/gradient/leak": times(1 - 3e-9)}),
        # Codes 0.4 apart at a strength of 100 are as good as 1 at 40.
        (NEAR, {f"{FACTS}/gradient/strength": 100.0}, {f"{FACTS}/gradient/strength": 99.9}),
        # All other samples leak.
        (THREE, {"claims/gradient/leak": times(2.0)}, {"claims/gradient/leak": times(2 - 1e-8)}),
    ],
)
def test_what_leaks_is_claimed_to_the_last_digit(plain: Content, changes: Content, enough: Any, less: Any) -> None:
    for last, holds in ((enough, True), (less, False)):
        content = plain
        for path, value in (changes | last).items():
            content = changed(content, path, value)
        content = following(content)
        if changes:
            content["proofs"] = content["proofs"] | {"curvature": [-9.0, 9.0]}
        if holds:
            assert checked(content)
        else:
            with pytest.raises(checker.Refused, match="claims/gradient/leak: is larger"):
                checked(content)


@pytest.mark.parametrize(
    ("codes", "width", "samples", "gap"),
    [
        ((1.0, 0.0, 0.6, 0.8), 2, 2, 0.4),
        ((1.0, 0.0, 0.0, 0.5), 2, 2, 0.25),
        ((1.0, 0.0, 0.6, 0.8, -0.6, 0.8), 2, 3, 0.4),
        ((1.0,), 1, 1, 1.0),
        ((1.0004, 0.0), 2, 1, 1.0),
        ((1.001, 0.0, 0.0, 1.0), 2, 2, None),
        ((1.0, 0.0, 0.0, 1.0), 2, 3, None),
    ],
)
def test_codes_are_as_far_apart_as_the_shortest_is_from_the_likest(codes, width, samples, gap) -> None:
    content = changed(described(), "program/gradient.codes", tensor(*codes, width=width))
    certificate = checker.Certificate(changed(content, f"{FACTS}/gradient/domain/samples", samples))
    if gap is None:
        with pytest.raises(checker.Refused, match="codes: are longer than 1, or not one to a sample"):
            certificate.gap("gradient")
    else:
        assert float(certificate.gap("gradient")) == pytest.approx(gap)


def test_residuals_of_the_exact_path_are_off_by_the_bound_of_every_feature(plain: Content) -> None:
    content = changed(changed(plain, "follows/bound", "0.25"), f"{FACTS}/domain/features", 3)
    content = changed(content, f"{FACTS}/domain/x", 0.5)
    assert float(checker.Certificate(content).reach()) == pytest.approx(1 + 3 * 0.5 * 0.25 * (1 + 1e-8), rel=1e-12)


def test_a_line_is_no_better_far_out_than_near_and_unknown_beyond(plain: Content) -> None:
    """A band after another is at least as far off; codes of √40 beyond one that ends at 6 let everything leak."""
    near, far = map(float, plain["follows"]["line"])
    assert 2.6e-6 < near < 2.7e-6 < 1.7e-4 < far < 1.71e-4
    turned = changed(plain, "claims/line/0/interpolation", 1e-3)
    assert [float(e) for e in following(turned)["follows"]["line"]] == [pytest.approx(1e-3, rel=1e-3)] * 2
    # Four times half of what the softmax may be off when all weight is on other samples: 1 + 1.
    leaked = following(changed(plain, "claims/line/1/to", 6.0))["follows"]["terms"]["routing leak"]
    assert float(leaked) == pytest.approx(4.0, rel=1e-6)


def test_bounds_are_the_sum_of_terms_that_grow_with_the_root_of_features(plain: Content) -> None:
    follows = plain["follows"]
    assert float(follows["bound"]) == pytest.approx(sum(map(float, follows["terms"].values())), rel=1e-15)
    # A step of 0.5 with |x| ≤ 1, four times over, and read out over two samples.
    assert float(follows["terms"]["interpolation"]) == pytest.approx(4 * 0.5 * 0.25, rel=1e-6)
    # Values up to 0.5 and the state, as far, are read once each.
    values = 4 * 2 * float(follows["line"][0])
    assert float(follows["terms"]["emulated values"]) == pytest.approx(values, rel=1e-6)
    wide = following(changed(plain, f"{FACTS}/domain/features", 4))["follows"]["terms"]["interpolation"]
    assert float(wide) == pytest.approx(2 * 4 * 0.5 * 0.25, rel=1e-6)
    one = following(changed(plain, f"{FACTS}/steps", 1))["follows"]["terms"]["interpolation"]
    assert float((Fraction(one) * 8 - 1) * 2**53) == pytest.approx(4.0)


def test_facts_are_read_with_a_part_in_a_hundred_million_to_spare_and_momentum_by_its_root() -> None:
    assert float(checker.Certificate(described()).known["top"] - 1) == pytest.approx(3e-8, rel=1e-6)
    heavy = changed(changed(described(), f"{FACTS}/momentum", 0.81), f"{FACTS}/l2", 1.0)
    assert float(checker.Certificate(heavy).known["ratio"]) == pytest.approx(1.8, rel=1e-12)


def test_acceleration_of_many_steps_grows_with_what_is_granted_of_their_length() -> None:
    steps = 10**6
    content = changed(changed(described(), f"{FACTS}/accelerated", True), f"{FACTS}/steps", steps)
    wanted = steps + math.sqrt(2 * math.exp((steps + 1) * math.log1p(15e-8))) * steps * (steps - 1) / 2
    assert float(checker.Certificate(content).growth()) == pytest.approx(wanted, rel=1e-9, abs=0.0)


@pytest.mark.parametrize("words", [[], ["a", "--program"], ["a", "--other", "b"], ["a", "b"]])
def test_other_words_are_told_how_it_is_called(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert checker.main(words) == 2
    assert "usage: " in capsys.readouterr().err
