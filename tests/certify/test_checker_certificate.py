"""A certificate of two keys to every softmax, all of whose numbers can be worked out by hand, and lies about it."""

import copy
import hashlib
import json
import math
import re
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from flint import arb

from emulon.certify import checker
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter.certificate_file import _lowest, _of_curvature, _seen

Content = dict[str, Any]
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
    with balls():
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
    with balls():
        return content | {"follows": checker.Certificate(bounded(content)).follows()}


def test_it_holds_as_it_is(plain: Content, penalised: Content) -> None:
    for content in (plain, penalised):
        said = checked(content)
        assert said == f"every weight is within {float(content['follows']['bound']):.3e}"


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


FACTS = "program/facts"
ZERO, HALF = (0.0).hex(), (0.5).hex()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("interpreter/assemble.w_v/numbers/2", HALF, "interpreter: is none"),
        ("interpreter/assemble.w_q/numbers/0", HALF, "interpreter: is none"),
        ("interpreter/assemble.w_k/numbers", [], r"interpreter/assemble.w_k: is no tensor of \(6, 18\)"),
        ("interpreter/facts/capacity/width", 2, r"interpreter/assemble.w_k: is no tensor of \(2, 6\)"),
        ("program/gradient.values/dtype", "F32", "interpreter: has two dtypes"),
        ("interpreter/facts/dtype", "torch.float32", "interpreter: has two dtypes"),
        (f"{FACTS}/gradient/domain/x", 0.5, f"{FACTS}/gradient/domain: is not the program's"),
        (f"{FACTS}/gradient/domain/residual", 0.5, f"{FACTS}/gradient/domain: is not the program's"),
        (f"{FACTS}/domain/w", 1.0, f"{FACTS}/gradient/domain: is not the program's"),
        (f"{FACTS}/loss/link", "other", f"{FACTS}/gradient/domain: is not the program's"),
        (f"{FACTS}/accelerated", 0.5, f"{FACTS}/accelerated: is no bool"),
        (f"{FACTS}/rows", 1, f"{FACTS}: is no algorithm"),
        (f"{FACTS}/strong_convexity", -1.0, f"{FACTS}/strong_convexity: is negative, or no number"),
        (f"{FACTS}/domain/x", -1.0, f"{FACTS}/domain/x: is negative, or no number"),
        (f"{FACTS}/l1", 0.1, f"{FACTS}/proximal: does not fit l1"),
        (f"{FACTS}/gradient/grid/lo", -0.99, f"{FACTS}/gradient: does not cover its residuals"),
        (f"{FACTS}/gradient/grid/hi", 0.99, f"{FACTS}/gradient: does not cover its residuals"),
        (f"{FACTS}/gradient/strength", 0.0, f"{FACTS}/gradient: does not cover its residuals"),
        (f"{FACTS}/gradient/readout", "sum", f"{FACTS}/gradient: does not cover its residuals"),
        ("format", "emulon certificate 1", "format: is not"),
        ("more", {}, "certificate: has other entries"),
        ("follows/bound", "1", "follows/bound: is "),
        ("follows/line/1", "1", "follows/line: is "),
        ("follows/more", "1", "follows/more: is null"),
        ("proofs/gradient/0", -0.99, "proofs/gradient: leaves something out"),
        ("proofs/line/1", lambda edges: edges[:-1], "proofs/line/1: leaves something out"),
        ("proofs/line/1", lambda edges: edges[1:], "proofs/line/1: leaves something out"),
        ("proofs/curvature", lambda edges: [-0.5, edges[-1]], "proofs/curvature: leaves something out"),
        ("claims/line/0/matter", [0, 1, 2], "claims/line/matter: names keys that are not among"),
        ("claims/line/1/matter", [0, -1], "claims/line/1/matter/1: is no count"),
        ("proofs/lowest/gradient", [0.5], "claims/gradient/leak: is larger"),
        (f"{FACTS}/loss/curvature", 0.9, f"{FACTS}/loss/curvature: not proved near t = "),
    ],
)
def test_what_does_not_fit_is_refused(plain: Content, path: str, value: Any, said: str) -> None:
    with pytest.raises(checker.Refused, match=said):
        checked(changed(plain, path, value))


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
@pytest.mark.parametrize("derivative", ["t", "tanh(t)"])
def test_algorithms_are_one_of_three_and_what_is_proved_of_quadratics_is_theirs(
    facts: Content, said: str, derivative: str
) -> None:
    content = described()
    content["program"]["facts"] |= facts
    content["program"]["facts"]["loss"]["derivative"] = derivative
    only = next((name for name in ("momentum", "strong_convexity") if name in facts), "")
    said = said or (f"{FACTS}/{only}: only quadratics have it" if only and derivative != "t" else "")
    with balls():
        whole = checker.Certificate(content)
        if not said:
            whole.require_sound()
        else:
            with pytest.raises(checker.Refused, match=said):
                whole.require_sound()


@pytest.mark.parametrize(
    ("link", "outer", "inner"),
    [
        ("residual", {}, {}),
        ("residual", {"residual": 0.75, "absolute": 0.875}, {"residual": 0.75, "absolute": 0.875}),
        # Without labels a score is x·w: no further than 0.5, or what is known of it.
        ("margin", {}, {"y": 0.0, "residual": 0.5, "absolute": 0.5}),
        ("rate", {"residual": 0.25}, {"y": 0.0, "residual": 0.25, "absolute": 0.5}),
        ("margin", {"x": 0.5, "residual": 0.75, "absolute": 0.75}, {"y": 0.0, "residual": 0.25, "absolute": 0.25}),
        ("margin", {"features": 2}, {"features": 2, "y": 0.0, "residual": 1.0, "absolute": 1.0}),
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
    with balls():
        checker.Certificate(content).require_sound()
        facts["loss"]["link"] = "other" if link != "residual" else link
        facts["gradient"]["domain"]["residual"] /= 2 if link == "residual" else 1
        with pytest.raises(checker.Refused, match="gradient/domain: is not the program's"):
            checker.Certificate(content).require_sound()


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({}, 0.5 + 0.5 * 1.0),  # all of the state, and half of the largest value times |x|
        ({"l2": 1.0}, 0.25 + 0.5 * 1.0),
        ({"claimed": 0.5}, 0.5 + 0.5 * 0.5),
        ({"spectrum": {"largest": 0.25, "smallest": 0.0, "norm": 0.0}}, 0.5 + 0.5 * 0.5),  # √λmax, where it is less
        ({"spectrum": {"largest": 0.0, "smallest": 0.0, "norm": 0.5}}, 0.5 + 0.5 * 0.5),  # of rows no longer than that
        ({"link": "rate"}, 0.5 + 0.5 * (1.0 + 0.5)),  # and x·y, which is fixed
    ],
)
def test_a_penalty_covers_all_that_a_step_may_give_it(changes: Content, least: float) -> None:
    for reach, holds in ((least * 1.001, True), (least * 0.999, False)):
        content = with_penalty(described(), reach)
        facts = content["program"]["facts"]
        facts |= {name: changes[name] for name in ("l2",) if name in changes}
        content["claims"]["gradient"]["size"] = changes.get("claimed", 1.0)
        for domain in (facts["domain"], facts["gradient"]["domain"]):
            domain["spectrum"] = changes.get("spectrum", UNKNOWN)
        if "link" in changes:
            facts["loss"]["link"] = changes["link"]
            facts["gradient"]["domain"] |= {"y": 0.0, "residual": 0.5, "absolute": 0.5}
        with balls():
            whole = checker.Certificate(content)
            if holds:
                whole.require_sound()
            else:
                with pytest.raises(checker.Refused, match="proximal/domain: is too small"):
                    whole.require_sound()


@pytest.mark.parametrize("name, value", [("samples", 2), ("features", 2), ("x", 2.0), ("y", 0.1), ("absolute", 2.0)])
def test_a_penalty_is_of_every_feature_on_its_own(penalised: Content, name: str, value: float) -> None:
    with pytest.raises(checker.Refused, match="proximal/domain: is too small"):
        few = changed(penalised, f"{FACTS}/proximal/domain/{name}", value)
        codes = {"program": few["program"] | {"proximal.codes": tensor(1, 0, width=1)}} if name == "samples" else {}
        checked(few | codes)


@pytest.mark.parametrize("readout, f", [("sum", "sign(t)*Max(Abs(t) - 0.1, 0)"), ("rest", "Max(-0.1, Min(0.1, t))")])
def test_a_penalty_is_a_threshold_of_a_step_or_what_it_takes_off(readout: str, f: str) -> None:
    content = with_penalty(described(), 1.1)
    content["program"]["facts"]["proximal"]["readout"] = readout
    with balls():
        whole = checker.Certificate(content)
        assert whole.phases() == {"gradient": "t", "proximal": f}
        whole.require_sound()
        content["program"]["facts"]["proximal"]["readout"] = "mean"
        with pytest.raises(checker.Refused, match="proximal: does not cover its residuals"):
            checker.Certificate(content).require_sound()


@pytest.mark.parametrize("where", ["line/0", "line/1", "gradient", "proximal"])
@pytest.mark.parametrize("name", checker.PROVED)
def test_a_claim_below_what_is_so_is_not_proved(penalised: Content, where: str, name: str) -> None:
    """tanh is 0.24 off t at 1, and no key is nearer than 0.6 of its value: less is claimed, and all follows."""
    lie = following(changed(penalised, f"claims/{where}/{name}", lambda old: old / 8))
    with pytest.raises(checker.Refused, match=rf"(claims/{where}/{name}: not proved near t = |domain: is too small)"):
        checked(lie)


def test_a_check_in_another_precision_is_none(plain: Content) -> None:
    text = text_of(plain)
    for precision, order in ((100, checker.ORDER + 1), (checker.PRECISION, 3)):
        with ball_arithmetic(precision, order), pytest.raises(checker.Refused, match="flint: has another precision"):
            checker.check(text)


def require_leak(content: Content, holds: bool) -> None:
    if holds:
        assert checked(content)
    else:
        with pytest.raises(checker.Refused, match="claims/gradient/leak: is larger"):
            checked(content)


def test_what_leaks_is_claimed_to_the_last_digit(plain: Content) -> None:
    """(samples − 1)·e^{log cosh 1 + 0.1 − 40·gap}: both ends of tanh's normaliser are log cosh 1 above its middle."""
    for factor, holds in ((1 - 0.5e-9, True), (1 - 3e-9, False)):
        require_leak(following(changed(plain, "claims/gradient/leak", lambda old, by=factor: old * by)), holds)


def test_what_leaks_is_held_back_by_the_codes_gap(plain: Content) -> None:
    """Codes 0.4 apart at a strength of 100 are as good as 1 at 40."""
    near = changed(plain, "program/gradient.codes", tensor(1.0, 0.0, 0.6, 0.8, width=2))
    for strength, holds in ((100.0, True), (99.9, False)):
        lie = following(changed(near, f"{FACTS}/gradient/strength", strength))
        lie["proofs"]["curvature"] = [-9.0, 9.0]
        require_leak(lie, holds)


def gap_of(*codes: float, width: int, samples: int) -> Any:
    content = described()
    content["program"]["gradient.codes"] = tensor(*codes, width=width)
    content["program"]["facts"]["gradient"]["domain"]["samples"] = samples
    with balls():
        return float(checker.Certificate(content).gap("gradient"))


def test_codes_are_as_far_apart_as_the_shortest_is_from_the_likest() -> None:
    assert gap_of(1.0, 0.0, 0.6, 0.8, width=2, samples=2) == pytest.approx(0.4)
    assert gap_of(1.0, 0.0, 0.0, 0.5, width=2, samples=2) == pytest.approx(0.25)
    assert gap_of(1.0, 0.0, 0.6, 0.8, -0.6, 0.8, width=2, samples=3) == pytest.approx(0.4)
    assert gap_of(1.0, width=1, samples=1) == 1.0
    assert gap_of(1.0004, 0.0, width=2, samples=1) == 1.0
    for codes, width, samples in (((1.001, 0.0, 0.0, 1.0), 2, 2), ((1.0, 0.0, 0.0, 1.0), 2, 3)):
        with pytest.raises(checker.Refused, match="codes: are longer than 1, or not one to a sample"):
            gap_of(*codes, width=width, samples=samples)


def test_a_leak_is_of_all_other_samples(plain: Content) -> None:
    three = changed(plain, "program/gradient.codes", tensor(1, 0, 0, 0, 1, 0, 0, 0, 1, width=3))
    for path in (f"{FACTS}/domain/samples", f"{FACTS}/gradient/domain/samples", f"{FACTS}/rows"):
        three = changed(three, path, 3)
    for factor, holds in ((2.0, True), (2 - 1e-8, False)):
        lie = following(changed(three, "claims/gradient/leak", lambda old, by=factor: old * by))
        lie["proofs"]["curvature"] = [-9.0, 9.0]
        require_leak(lie, holds)


def test_residuals_of_the_exact_path_are_off_by_the_bound_of_every_feature(plain: Content) -> None:
    content = changed(changed(plain, "follows/bound", "0.25"), f"{FACTS}/domain/features", 3)
    content = changed(content, f"{FACTS}/domain/x", 0.5)
    with balls():
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


def file(tmp_path: Path, section: Content, letter: dict[str, str]) -> str:
    """As safetensors has it: how long the header is, the header, the numbers."""
    tensors = {name: part for name, part in section.items() if name not in ("kind", "format", "facts")}
    header: Content = {"__metadata__": {"emulon": json.dumps(of_ours(section))}}
    content = b""
    for name, part in tensors.items():
        own = struct.pack(f"<{len(part['numbers'])}{letter[part['dtype']]}", *map(float.fromhex, part["numbers"]))
        header[name] = part | {"data_offsets": [len(content), len(content) + len(own)]}
        del header[name]["numbers"]
        content += own
    words = json.dumps(header).encode()
    path = tmp_path / "file"
    path.write_bytes(struct.pack("<Q", len(words)) + words + content)
    return str(path)


def of_ours(section: Content) -> Content:
    return {"kind": section["kind"], "format": section["format"], "facts": json.dumps(section["facts"])}


def test_files_are_read_number_by_number(plain: Content, tmp_path: Path) -> None:
    section = {"kind": "program", "format": "4", "facts": {"a": [1, 2.5]}, "x": tensor(1.5, -2.25, width=1)}
    section["y"] = {"dtype": "F32", "shape": [3], "numbers": [x.hex() for x in (0.5, 0.25, -8.0)]}
    path = file(tmp_path, section, {"F64": "d", "F32": "f"})
    assert checker.section_of(path) == section
    with pytest.raises(checker.Refused, match="program: is not what is in"):
        checked(plain, program=path)


def test_entries_are_named_by_what_their_hash_says(plain: Content) -> None:
    stated = checker.hashes(plain)
    entry = json.dumps(plain["claims"]["line"], sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    assert stated["claims/line"] == hashlib.sha256(entry.encode()).hexdigest()
    assert len(stated) == sum(len(plain[name]) for name in checker.SECTIONS)
    for wrong, path in ((stated | {"claims/line": "0"}, "claims/line"), (stated | {"claims/x": "0"}, "claims/x")):
        text = checker.canonical(plain | {"sha256": wrong})
        with balls(), pytest.raises(checker.Refused, match=f"{path}: was altered"):
            checker.check(text)
    with balls(), pytest.raises(checker.Refused, match="certificate: is not in canonical form"):
        checker.check(json.dumps(plain | {"sha256": stated}))


@pytest.mark.parametrize("words", [[], ["a", "--program"], ["a", "--other", "b"], ["a", "b"]])
def test_other_words_are_told_how_it_is_called(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert checker.main(words) == 2
    assert "usage: " in capsys.readouterr().err


def test_files_that_hold_do_not_hold_or_cannot_be_read_are_told_apart(
    plain: Content, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, code, said in (
        (text_of(plain), 0, "holds: every weight is within"),
        (text_of(changed(plain, "follows/bound", "1")), 1, "does not hold: follows/bound"),
        ("{", 2, "cannot be read: JSONDecodeError"),
    ):
        (tmp_path / "one").write_text(text)
        with balls():
            assert checker.main([str(tmp_path / "one")]) == code
        printed = capsys.readouterr()
        assert said in (printed.err if code else printed.out)
    program = file(tmp_path, plain["program"], {"F64": "d"})
    whole = plain | {"program": checker.section_of(program)}
    (tmp_path / "one").write_text(text_of(whole))
    with balls():
        assert checker.main([str(tmp_path / "one"), "--program", program]) == 0
        assert checker.main([str(tmp_path / "one"), "--interpreter", program]) == 1


def softmax(slopes: list[float], intercepts: list[float], values: list[float]) -> checker.Softmax:
    return checker.Softmax(
        dict(zip(("slopes", "intercepts", "values"), (tensor(*x) for x in (slopes, intercepts, values)), strict=True))
    )


def test_keys_left_out_count_by_their_number_and_the_largest_value() -> None:
    """Two of e⁻¹¹⁰ at most, and both values up to 1e44: the mean moves by 2·2e44·e⁻¹¹⁰, and the deviation twice so."""
    keys = softmax([0.0, 0.0, 0.0], [0.0, -130.0, -111.0], [1e44, -1e44, 1.0])
    with balls():
        (error, deviation, size), matter = keys.cell(str(int(1e44)), -1.0, 1.0)
        lost = 4e44 * math.exp(-110)
        assert float(error) == pytest.approx(lost, rel=1e-9) and float(deviation) == pytest.approx(2 * lost, rel=1e-9)
        assert float(size - arb(1e44)) == pytest.approx(lost, rel=1e-6) and matter == {0}


def test_keys_matter_where_they_come_near_and_are_kept_where_they_may() -> None:
    """In log weight below the first: −100 in the middle and −40 at an end matters, −60 does not, −109 is looked at."""
    slopes, intercepts = [-25.0, 5.0, -5.0, -25.0, -55.0], [-300.0, -400.0, -400.0, -409.0, -400.0]
    with balls():
        (error, _, _), matter = softmax(slopes, intercepts, [0.0, 0.0, 0.0, 1e47, 0.0]).cell("0", -2.0, 2.0)
    assert matter == {0, 1, 4} and 0.9 * 1e47 * math.exp(-109) < float(error) < 1.1e47 * math.exp(-109)


def test_what_a_polynomial_leaves_out_is_counted() -> None:
    """1/(1.05 − t) is 20 at the end; its first 16 terms around 0 are 10.8 there."""
    with balls():
        nothing = softmax([0.0], [0.0], [0.0])
        for left in (-1.0, 0.75):
            assert nothing.cell("1/(1.05 - t)", left, 1.0)[0][0].upper() >= 20
        # 2e-6 of e³, whatever its sign.
        for f in ("exp(3*t)", "-exp(3*t)"):
            assert arb(3).exp() <= nothing.cell(f, -1.0, 1.0)[0][0].upper() <= arb(3).exp() * 1.01


@pytest.mark.parametrize("f", ["t", "Abs(t - 3/8)", "exp(2*t)", "0"])
def test_bounds_of_a_cell_are_above_what_is_so_and_not_by_much(f: str) -> None:
    """Of 3·tanh(t/3) on [0.25, 0.5], where everything is a number that can be worked out."""
    of = {
        "t": lambda t: t,
        "Abs(t - 3/8)": lambda t: abs(t - 0.375),
        "exp(2*t)": lambda t: math.exp(2 * t),
        "0": lambda _: 0,
    }
    points = [0.25 + k / 4000 for k in range(1001)]
    means = [3 * math.tanh(t / 3) for t in points]
    wanted = [
        max(abs(mean - of[f](t)) for t, mean in zip(points, means, strict=True)),
        max(3 * (1 - (mean / 3) ** 2) for mean in means),
        max(means),
    ]
    with balls():
        found, _ = softmax([-1 / 3, 1 / 3], [0.0, 0.0], [-3.0, 3.0]).cell(f, 0.25, 0.5)
    for bound, true, room in zip(found, wanted, (0.3 if "Abs" in f else 0.12, 0.4, 0.35), strict=True):
        assert true * (1 - 1e-12) <= float(bound.upper()) <= true + room


def test_around_its_zero_a_softmax_is_as_large_as_its_error_says() -> None:
    with balls():
        (error, _, size), _ = softmax([-1 / 3, 1 / 3], [0.0, 0.0], [-3.0, 3.0]).cell("0", -0.25, 0.25)
    for bound in (error, size):
        assert 3 * math.tanh(0.25 / 3) <= float(bound.upper()) < 0.26


@pytest.mark.parametrize("f", ["9", "-1/2"])
def test_a_softmax_that_falls_further_than_it_rises_is_as_large_as_it_falls(f: str) -> None:
    """−1/(1 + e^{−4t}) from −0.018 over −0.12 to −0.5, whatever it stands for."""
    with balls():
        (_, _, size), _ = softmax([0.0, 4.0], [0.0, 0.0], [0.0, -1.0]).cell(f, -1.0, 0.0)
        assert 0.5 <= float(size.upper()) < 1.3
        assert softmax([0.0], [0.0], [-5.0]).cell("-5", -1.0, 1.0)[0][2].upper() >= 5


def test_remainders_of_both_sides_add_up() -> None:
    """e^{3t}, nearly, for −e^{3t}: both leave out 2e-6 at the end, and what they are apart is twice that."""
    value = math.exp(40)
    with balls():
        error = softmax([0.0, 3.0], [0.0, -40.0], [0.0, value]).cell("-exp(3*t)", -1.0, 1.0)[0][0]
        true = arb(value) * arb(-37).exp() / (1 + arb(-37).exp()) + arb(3).exp()
        assert true <= error.upper() <= true * 1.01


def test_a_softmax_is_as_large_as_its_largest_key_of_those_that_are_asked_for() -> None:
    keys = softmax([1.0, -3.0, 2.0], [-5.0, 1.0, 4.0], [7.0, -8.0, 2.0])
    wanted = {"keys": 3, "slope": 3.0, "bias": 5.0, "largest": 8.0, "score": 8.0}  # 2·2 + 4
    assert {name: float(x) for name, x in keys.sizes(2.0).items()} == wanted
    wanted = {"keys": 2, "slope": 2.0, "bias": 5.0, "largest": 7.0, "score": 44.0}
    assert {name: float(x) for name, x in keys.sizes(20.0, [0, 2]).items()} == wanted
    assert float(keys.largest) == 8.0


def test_curvature_is_granted_a_part_of_itself_and_no_more() -> None:
    """A slope of 1 within 1e-8 of itself of what is allowed is let pass; at a kink, both slopes are asked."""
    with balls():
        for limit, holds in ((1 - 0.9e-8, True), (1 - 1.1e-8, False)):
            assert checker.flat("t*1", -1.0, 1.0, 0.0, limit) == holds
            assert checker.flat("-t", -1.0, 1.0, limit, 0.0) == holds
        # f″·(t − c) beside f′(c): the slope of t² on [0, 1] is 1 ± 1.
        assert checker.flat("t**2", 0.0, 1.0, 0.0, 2.0) and not checker.flat("t**2", 0.0, 1.0, 0.0, 1.9)
        assert checker.flat("-t**2", 0.0, 1.0, 2.0, 0.0) and not checker.flat("-t**2", 0.0, 1.0, 1.9, 0.0)
        assert checker.flat("t**3", 1.0, 2.0, 0.0, 13.0) and not checker.flat("t**3", 1.0, 2.0, 0.0, 11.9)
        assert checker.flat("100*t", -1.0, 1.0, 0.0, 100 * (1 - 0.9e-8))
        assert checker.flat("Max(t, 3*t)", -1.0, 1.0, 0.0, 3.0) and not checker.flat("Max(t, 3*t)", -1.0, 1.0, 0.0, 2.9)
