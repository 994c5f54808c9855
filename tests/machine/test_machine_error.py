"""What an instruction adds to the error and what it passes on, term by term: the worst case, which no run shows."""

import math
from dataclasses import replace

import pytest
import torch

from emulon.core.errors import BadProgram
from emulon.machine import Average, Invariant, Matched, RegisterProgram
from emulon.machine.error import Budget, Division, LocalError, RegisterError, added, certify
from emulon.machine.normalisation import Normalisation, plan, square, steepness, up_to_power_of_two
from emulon.machine.ranges import Analysis, Range, analyse, range_of, slack, spectral
from emulon.machine.tokens import gap, sharpness

f64, U, TOKENS = torch.float64, 2.0**-53, 5
NORM = Normalisation(width=16, pad=2.0**10, content=4.0, mean=0.5, dtype=f64, divide_content=8.0)
SCALE = {"a": 2.0, "b": 1.0, "c": 4.0, "p": 0.25, "q": 1.0}
BEFORE = {"a": Range(-2.0, 1.0, 3.0), "c": Range(0.5, 4.0, 4.0), "p": Range(-0.25, 0.25, 0.25)}


def gamma(count: int) -> float:
    return count * U / (1 - count * U)


def read(terms: int, magnitude: float, coefficients: float, mean: float = 0.5) -> float:
    return (terms + 10) * U * (magnitude + 2 * coefficients * mean)


def scaling(pad: float = 2.0**10) -> float:
    return (4.0**2 + 2 * 8.0**2) / (2 * pad**2) + (32 + 4 * 4) * U


def attended(where, value: float, rounding: float, pad: float = 2.0**10) -> dict[str, float]:
    """Leak to unwanted tokens, twice; scores off by 2β times what their codes are; one more 8u for the softmax."""
    beta = sharpness(where, TOKENS, f64)
    score = 2 * beta * (scaling(pad) + 2 * read(2, 1.0, 2.0) + 4 * U)
    leak = TOKENS * math.exp(min(2 * score - beta * gap(where, TOKENS), 0.0))
    routing, spread = 2 * leak * value, 8 * U * value
    if isinstance(where, Average):
        routing += min(2 * value * math.tanh(score / 2), math.inf)
        spread += 2 * gamma(len(where.members) + 2) * value
    return {"normalisation": scaling(pad) * value, "routing": routing, "rounding": rounding + spread}


def plus(*terms: dict[str, float]) -> dict[str, float]:
    return {name: sum(each.get(name, 0.0) for each in terms) for each in terms for name in each}


@pytest.fixture
def program() -> RegisterProgram:
    made = RegisterProgram("terms", TOKENS)
    for name, size in (("a", 1), ("b", 1), ("c", 1), ("p", 1), ("q", (2, 2))):
        made.register(name, size)
    return made


def local(program: RegisterProgram, norm: Normalisation = NORM, **divisions: Division) -> LocalError:
    return LocalError(norm, {int(n[1:]): each for n, each in divisions.items()}, SCALE, program.here, TOKENS)


def test_layer_norm_costs_what_its_pads_leave_of_it() -> None:
    assert NORM.scaling == pytest.approx(scaling(), rel=1e-14, abs=0.0)
    assert NORM.read_error(3, 5.0, 2.0) == pytest.approx(read(3, 5.0, 2.0), rel=1e-14, abs=0.0)
    assert NORM.read_error(3, 5.0, 2.0, divided=7.0) == pytest.approx(read(3, 5.0, 2.0, 7.0), rel=1e-14, abs=0.0)
    assert NORM.divide_scaling(4.0, 0.5) == pytest.approx((16 + 16e-5) / (2 * 4.0) + 48 * U, rel=1e-14, abs=0.0)
    assert NORM.divide_mean(64.0) == pytest.approx(0.5 + 48 * U * 64, rel=1e-15, abs=0.0)
    more = NORM.holding(3.0)
    assert more.content == 5.0 and more.mean == 0.5 + 3.0 / 4
    assert NORM.gain == math.sqrt(2 * 2.0**20 / 16 + 1e-5) and NORM.divide_gain(3.0) == 3 * math.sqrt(1 / 8)


def test_pads_are_where_rounding_and_truncation_meet() -> None:
    plain, factors = plan(16, 4.0, 32.0, [], f64)
    assert factors == [] and plain.pad == up_to_power_of_two(4 * (48 * U * U) ** (-1 / 3))
    assert plain.mean == pytest.approx(2.0 + 48 * U * plain.pad, rel=1e-15, abs=0.0)
    divided, factors = plan(16, 4.0, 32.0, [(0.5, 6.0), (1.0, 8.0)], f64)
    step = math.sqrt(1 / (48 * U * 12))
    assert factors == [up_to_power_of_two(4 * step / 0.5), up_to_power_of_two(4 * step)]
    assert divided.divide_content == max(factors[0] * 6.0, factors[1] * 8.0)
    assert divided.pad == up_to_power_of_two(divided.divide_content * step)
    assert plan(16, 0.25, 1.0, [], f64)[0].content == 1.0
    assert [up_to_power_of_two(x) for x in (4.0, 5.0, 8.0, 0.3)] == [4.0, 8.0, 8.0, 0.5]
    assert NORM.divide_scaling(2.0**40, 1.0) == pytest.approx(48 * U + (16 + 16e-5) / 2.0**81, rel=1e-14, abs=0.0)


@pytest.mark.parametrize("where", [None, Average("some", (1, 3, 4))], ids=["here", "average"])
def test_a_sum_reads_two_places_and_erases_what_was_there(program: RegisterProgram, where) -> None:
    a, b, c, p = (program.registers[name] for name in "abcp")
    program.aff(b, 3.0 * a - 2.0 * p + 1.0, at=where, plus=0.5 * c)
    program.aff(a, 3.0 * c)
    first, second = program.instructions
    place = program.here if where is None else where
    # |3a − 2p + 1| ≤ 3·2 + 2·0.25 + 1 at most, but entry by entry it lies in [−5.5, 4.5].
    reading = read(3, 3 * 2.0 + 2 * 0.25 + 1, 3 * 2.0 + 2 * 0.25 + 1)
    here = attended(program.here, 2.0, read(1, 2.0, 2.0))
    wanted = plus(attended(place, 5.5, reading), here, {"rounding": 6 * U * (5.5 + 2.0)})
    assert local(program).of(first, BEFORE) == pytest.approx(wanted, rel=1e-12, abs=0.0)
    # a holds numbers up to its scale, 2, which are read and taken out.
    erased = attended(program.here, 2.0, read(1, 2.0, 2.0))
    wanted = plus(attended(program.here, 12.0, read(1, 12.0, 12.0)), erased, {"rounding": 6 * U * (12.0 + 2 * 2.0)})
    assert local(program).of(second, BEFORE) == pytest.approx(wanted, rel=1e-12, abs=0.0)


def test_a_product_truncates_rounds_and_sums() -> None:
    """Two terms to an entry, a 2×2 target, so that everything is twice as large in the 2-norm."""
    made = RegisterProgram("products", TOKENS)
    left, right = made.register("a", (2, 2)), made.register("c", (2, 2))
    out = made.register("q", (2, 2))
    made.mul(out, left, right)
    made.mul(out, left, right)
    way, reads = square(f64), {}
    for name, peak in (("a", 2.0), ("c", 4.0)):
        reads[name] = read(1, peak, SCALE[name])
    slope = 0.5 + 0.8 * max(way.scales)
    skew = 4 * slope * (gamma(3) * (2 + 2 * 2 * 0.5) / 2 + gamma(3) * (4 + 2 * 4 * 0.5) / 4)
    depth = 4 * len(way.scales) * 2 + 4
    summed = 4 * slope * (8 * U + 0.55 * gamma(depth))
    for number, old in ((1, 0.0), (2, 1.0)):
        before = BEFORE | ({"q": Range(-1.0, 1.0, 2.0)} if old else {})
        erase = read(1, old, old) + (8 * U + 2 * gamma(depth)) * old
        rounding = 2 * (8.0 / 4 * way.cost * (skew + summed) + 1.1 * (2 * reads["c"] + 4 * reads["a"] + 8 * U * 8))
        wanted = {
            "product": 2 * 8.0 / 4 * way.truncation,
            "normalisation": 2.1 * scaling() * 2 * 8.0 + scaling() * old,
            "rounding": rounding + erase + 4 * U * (2 * 8.0 + 2 * old),
        }
        found = local(made).of(made.instructions[number - 1], before)
        assert found == pytest.approx({name: 2 * value for name, value in wanted.items()}, rel=1e-12, abs=0.0)


def test_a_clip_reads_both_ends_and_rounds_its_kinks(program: RegisterProgram) -> None:
    a, b = program.registers["a"], program.registers["b"]
    program.clip(b, 3.0 * a, 0.5)
    program.clip(a, 3.0 * a, 0.5)
    for instruction, old in zip(program.instructions, (0.0, 2.0), strict=True):
        # |3a| ≤ 6, and 3a ± 0.5 is read: two terms, Σ|·| ≤ 6.5, weights 3·2 + 0.5.
        summed = (16 * U + 2 * gamma(6)) * 6.5
        erase = read(1, old, old) + (8 * U + 2 * gamma(6)) * old
        wanted = {
            "clipping": 0.341 / steepness(0.5, f64),
            "normalisation": 1.1 * scaling() * 6.5 + scaling() * old,
            "rounding": 2 * read(2, 6.5, 6.5) + summed + erase + 4 * U * (0.5 + 2 * old),
        }
        assert local(program).of(instruction, BEFORE) == pytest.approx(wanted, rel=1e-12, abs=0.0)
    assert 0.341 / steepness(0.5, f64) <= U * 0.5 < 2 * 0.341 / steepness(0.5, f64)


def test_a_match_adds_to_the_scores_what_reading_both_sides_costs(program: RegisterProgram) -> None:
    like = Matched("like", (1, 3, 4), True, "a", "c", 1, 0.5, 6.5)
    program.mov(program.registers["b"], program.registers["p"], at=like)
    beta = sharpness(like, TOKENS, f64)
    assert beta == pytest.approx((math.log(16 * TOKENS / U) + 13.0) / 0.5, abs=0.0)
    # ‖a‖ ≤ 3 with numbers up to 2, ‖c‖ ≤ 4 with numbers up to 4; stored by 2 and by 4.
    products = (2.1 * scaling() + gamma(4)) * 3.0 * 4.0 + 3.0 * read(1, 4.0, 4.0) + 4.0 * read(1, 2.0, 2.0)
    matched = 1.1 * 0.5 * products + gamma(4) * (beta + 6.5) + (4 + 13.0) * U
    score = 2 * beta * (scaling() + 2 * read(2, 1.0, 2.0) + 4 * U) + matched
    leak = TOKENS * math.exp(2 * score - (0.5 * beta - 13.0))
    found = local(program).of(program.instructions[0], BEFORE)
    assert found["routing"] == pytest.approx(0.5 * leak + 0.5 * math.tanh(score / 2), rel=1e-12, abs=0.0)


def test_where_pads_are_far_out_a_match_is_off_by_rounding_alone(program: RegisterProgram) -> None:
    """Four entries a side: both sides' reading twice as long, products of seven roundings, a leak of 1e-5 beside it."""
    like = Matched("like", (1, 3, 4), True, "a", "c", 4, 0.5, 6.5)
    far, beta = local(program, replace(NORM, pad=2.0**40)), sharpness(like, TOKENS, f64)
    products = (
        (2.1 * scaling(2.0**40) + gamma(7)) * 3.0 * 4.0 + 3.0 * 2 * read(1, 4.0, 4.0) + 4.0 * 2 * read(1, 2.0, 2.0)
    )
    matched = 1.1 * 0.5 * products + gamma(7) * (beta + 6.5) + (4 + 13.0) * U
    assert far._matched(like, BEFORE) == pytest.approx(matched, rel=1e-12, abs=0.0)
    score = 2 * beta * (scaling(2.0**40) + 2 * read(2, 1.0, 2.0) + 4 * U) + matched
    leak = TOKENS * math.exp(2 * score - (0.5 * beta - 13.0))
    found = far._attended(like, 3.0, 0.0, matched)["routing"]
    assert found == pytest.approx(6 * leak + 6 * math.tanh(score / 2), rel=1e-12, abs=0.0)


def test_noise_in_the_stream_is_read_with_everything(program: RegisterProgram) -> None:
    noisy = replace(NORM, noise=1e-6, skew=1e-7)
    assert noisy.read_error(3, 5.0, 2.0) == pytest.approx(read(3, 5.0, 2.0) + 4e-6, rel=1e-14, abs=0.0)
    form = 3.0 * program.registers["a"]
    more = local(program, noisy)._skew(form, BEFORE) - local(program)._skew(form, BEFORE)
    assert more == pytest.approx(2 * 6.0 * 1e-7, rel=1e-6, abs=0.0)


def test_errors_pass_through_clips_and_matches() -> None:
    """A clip moves nothing apart; scores move by sharp·(‖c‖·E_a + ‖a‖·E_c + E_a·E_c)."""
    made = RegisterProgram("passing", TOKENS)
    a, b, _, p = (made.register(name) for name in "abcp")
    made.clip(b, 2.0 * a, 0.5)
    made.mov(b, p, at=Matched("like", (1, 3, 4), True, "a", "c", 1, 0.5, 6.5))
    budget = Budget(Analysis(before=[BEFORE, BEFORE]), local(made))
    budget.errors = {name: RegisterError(fresh={"seed": error}) for name, error in (("a", 0.1), ("c", 0.2), ("p", 0.3))}
    first, second = (budget._passed(one, BEFORE) for one in made.instructions)
    assert first.fresh == pytest.approx({"seed": 0.2}, rel=1e-9)
    moved = 0.5 * (4.0 * 0.1 + 3.0 * 0.2 + 0.1 * 0.2)
    assert second.fresh == pytest.approx({"seed": 0.3, "matching": math.tanh(moved / 2) * 2 * 0.25}, rel=1e-9)


def test_a_factor_that_is_always_zero_counts_as_one() -> None:
    made = RegisterProgram("zero", TOKENS)
    made.mul(made.register("q", 1), made.register("a", 1), made.register("c", 1))
    zero = {"a": Range(0.0, 0.0, 0.0), "c": Range(0.0, 0.0, 0.0)}
    assert local(made).of(made.instructions[0], zero)["product"] == pytest.approx(square(f64).truncation / 4, abs=0.0)


@pytest.mark.parametrize("sweeps", [0, 1, 2])
@pytest.mark.parametrize("pad", [2.0**10, 2.0**40], ids=["the bypass counts", "rounding counts"])
def test_a_quotient_errs_with_its_divisor(program: RegisterProgram, sweeps: int, pad: float) -> None:
    factor = 64.0 if pad == 2.0**10 else pad
    a, b, c = (program.registers[name] for name in "abc")
    program.div(b, 3.0 * a, c)
    division = Division(factor=factor, low=0.5, high=4.0, sweeps=sweeps)
    c_read = read(1, 4.0, 4.0)
    routing = attended(program.here, 4.0, c_read, pad)["routing"]
    left = 8.0 / factor * (scaling(pad) + 20 * U) ** sweeps if sweeps else 0.0
    relative = 1.1 * (scaling(pad) + 16 * U + (c_read + routing + left) / 0.5) + 16 * U
    mean = 0.5 + 48 * U * factor * 4.0
    for old in (0.0, 1.0):
        before = BEFORE | ({"b": Range(-1.0, 1.0, 1.0)} if old else {})
        wanted = {
            "division": (NORM.divide_scaling(factor, 0.5) + relative) * 6.0 / 0.5,
            "rounding": read(1, 6.0, 6.0, mean) / 0.5 + 4 * U * old,
        }
        wanted = plus(wanted, attended(program.here, old, read(1, old, old), pad)) if old else wanted
        found = local(program, replace(NORM, pad=pad), _1=division).of(program.instructions[0], before)
        assert found == pytest.approx(wanted, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("sweeps", [0, 1, 2])
def test_what_was_divided_by_before_is_swept_out_and_its_noise_is_not(program: RegisterProgram, sweeps: int) -> None:
    """Pads of 2³⁰ for c, of which 68u stay behind at every sweep, and twice the stream's noise."""
    a, b, c = (program.registers[name] for name in "abc")
    program.div(b, 3.0 * a, c)
    norm = replace(NORM, pad=2.0**60, divide_content=2.0**30, noise=1e-9)
    budget = local(program, norm, _1=Division(factor=64.0, low=0.5, high=4.0, sweeps=sweeps))
    reading = norm.read_error(1, 4.0, 4.0)
    left = 2.0**30 / 64 * (norm.scaling + 20 * U) ** sweeps + 2e-9 / 64 if sweeps else 0.0
    routing = budget._attended(program.here, 4.0, reading)["routing"]
    relative = 1.1 * (norm.scaling + 16 * U + (reading + routing + left) / 0.5)
    found = budget.of(program.instructions[0], BEFORE)["division"]
    assert found == pytest.approx((norm.divide_scaling(64.0, 0.5) + relative) * 12.0, rel=1e-12, abs=0.0)


def test_reading_out_costs_a_layer_norm_and_the_zero_slot(program: RegisterProgram) -> None:
    found = local(program).read_out("a", Range(-3.0, 2.0, 5.0), 4)
    assert found == pytest.approx(
        {"normalisation": scaling() * 5.0, "rounding": 2 * read(1, 3.0, 2.0)}, rel=1e-14, abs=0.0
    )


class Fixed(LocalError):
    """An instruction adds 1 of its own kind."""

    def of(self, instruction, before):
        return {instruction.name: 1.0}

    def read_out(self, name, reach, size):
        return {"out": 0.5}


def fixed(program: RegisterProgram) -> Fixed:
    return Fixed(NORM, {}, SCALE, program.here, TOKENS)


def by_hand(program: RegisterProgram, ranges: dict[str, Range]) -> Analysis:
    """Ranges that do not change, and room for any error."""
    count = len(program.instructions)
    after = [ranges[one.target.name] for one in program.instructions]
    return Analysis([ranges] * count, after, [math.inf] * count, dict(ranges))


RANGES = {"a": Range(-2.0, 2.0, 3.0), "b": Range(-1.0, 1.0, 5.0), "c": Range(0.5, 4.0, 4.0), "p": Range(-7.0, 7.0, 7.0)}


def test_errors_pass_through_sums_products_and_quotients(program: RegisterProgram) -> None:
    a, b, c, p = (program.registers[name] for name in "abcp")
    program.aff(a, 0.0)
    program.aff(c, 2.0 * a)
    program.aff(b, 3.0 * a, plus=2.0 * c)
    program.mul(p, 2.0 * a, c)
    budget = Budget(by_hand(program, RANGES), fixed(program))
    for instruction in program.instructions:
        budget.step(instruction)
    assert budget.terms(budget.errors["b"]) == pytest.approx({"aff": 3 + 2 * 3 + 1.0})
    # |2a| ≤ 4 and |c| ≤ 4: each error times the other factor, both times each other, and its own.
    assert budget.terms(budget.errors["p"]) == pytest.approx(
        {"aff": 2 * 4.0 + 3 * 4.0, "mul": 1.0, "second order": 6.0}
    )
    assert budget.size(budget.errors["p"]) == pytest.approx(27.0)
    program.div(b, 3.0 * a, c)
    budget = Budget(by_hand(program, RANGES), fixed(program))
    for instruction in program.instructions:
        budget.step(instruction)
    # 3a's error over the least divisor, and c's times the result's norm over it.
    assert budget.terms(budget.errors["b"]) == pytest.approx({"aff": 3 / 0.5 + 3 * 5 / 0.5, "div": 1.0})


def test_every_instruction_has_its_own_ranges_and_its_own_room(program: RegisterProgram) -> None:
    """Ranges that grow from one to the next: a product and a quotient are off by what theirs were before and after."""
    a, b, c, p = (program.registers[name] for name in "abcp")
    program.aff(a, 0.0)
    program.aff(c, 2.0 * a)
    program.mul(p, a, c)
    program.div(b, 3.0 * a, c)
    program.aff(a, 0.0)
    before = [
        {name: Range(k * one.low, k * one.high, k * one.norm) for name, one in RANGES.items()} for k in range(1, 6)
    ]
    after = [before[k][one.target.name] for k, one in enumerate(program.instructions)]
    # a is off by 1, c by 3, and they are up to 6 and 12: 1·12 + 3·6 and 1·3, and 1; 3/2 + 3·20/2, and 1.
    for room in (34.1, 33.9):
        budget = Budget(Analysis(before, after, [1.1, 3.1, room, 32.6, 1.1], dict(RANGES)), fixed(program))
        for instruction in program.instructions:
            budget.step(instruction)
        wanted = {"aff": 30.0, "second order": 3.0, "mul": 1.0} if room > 34 else {"unbounded": math.inf}
        assert budget.terms(budget.errors["p"]) == pytest.approx(wanted)
        assert budget.terms(budget.errors["b"]) == pytest.approx({"aff": 1.5 + 30.0, "div": 1.0})


def test_an_invariant_says_how_a_states_error_grows(program: RegisterProgram) -> None:
    a, b = program.registers["a"], program.registers["b"]
    program.aff(b, 1.0)
    for _ in range(3):
        program.aff(a, 10.0 * a + b, invariant=Invariant("halves", growth=0.5))
    program.aff(b, 4.0 * a)
    certificate = certify(program, by_hand(program, RANGES), fixed(program))
    # Each round: its own 1, b's 1, and half of what was there.
    assert certificate["a"].terms == pytest.approx({"aff": 2 + 1 + 0.5, "out": 0.5})
    assert certificate["b"].terms == pytest.approx({"aff": 4 * 3.5 + 1, "out": 0.5})


def test_a_total_bounds_any_number_of_rounds_and_what_read_the_state_before_keeps_what_it_was(
    program: RegisterProgram,
) -> None:
    a, b = program.registers["a"], program.registers["b"]
    keep = Invariant("total", total=3.0)
    program.aff(a, 1.0, invariant=keep)
    program.aff(b, 2.0 * a)
    program.aff(a, 10.0 * a, invariant=keep)
    certificate = certify(program, by_hand(program, RANGES), fixed(program))
    assert certificate["a"].terms == pytest.approx({"aff": 3 * 2.0, "out": 0.5})
    assert certificate["b"].terms == pytest.approx({"aff": 2 * 3.0 + 1, "out": 0.5})


@pytest.mark.parametrize("room, valid, holds", [(1.0, math.inf, True), (0.9, math.inf, False), (9.0, 0.9, False)])
def test_an_error_beyond_its_room_or_its_invariant_promises_nothing(program, room, valid, holds) -> None:
    program.aff(program.registers["a"], 1.0, invariant=Invariant("", growth=0.0, valid=valid))
    analysis = by_hand(program, RANGES)
    analysis.room[0] = room
    certificate = certify(program, analysis, fixed(program))["a"]
    assert math.isfinite(certificate.bound) is holds
    assert (certificate.note == "") is holds


def test_terms_add_up_by_name_and_factor() -> None:
    assert added({"x": 1.0}, {"x": 2.0, "y": 3.0}, 2.0) == {"x": 5.0, "y": 6.0}
    one = RegisterError({"s": 1.0}, {"f": 2.0}).plus(RegisterError({"s": 1.0}, {"f": 1.0}), 3.0)
    assert (one.carried, one.fresh) == ({"s": 4.0}, {"f": 5.0})


def test_ranges_are_interval_and_norm_arithmetic(program: RegisterProgram) -> None:
    a, c = program.registers["a"], program.registers["c"]
    found = range_of(3.0 * a - 2.0 * c + 1.0, RANGES)
    assert (found.low, found.high) == (-6 - 8 + 1, 6 - 1 + 1.0)
    assert range_of(0.5 * a, RANGES).norm == pytest.approx(1.0)
    assert Range.of(-5.0, 2.0, 3.0, 4) == Range(-3.0, 2.0, 3.0) and Range.of(-1.0, 1.0, 9.0, 4).norm == 2.0
    assert Range(-1.0, 2.0, 2.0).hull(Range(0.0, 5.0, 5.0)) == Range(-1.0, 5.0, 5.0)
    assert slack(Range(-3.0, 2.0, 3.0), f64) == 3 * max(U**0.25, 2.0**-10)
    assert slack(Range(0.25, 8.0, 8.0), f64) == max(U**0.25, 2.0**-10)
    assert slack(Range(-3.0, 2.0, 3.0), torch.float32) == 3 * 2.0**-6 and slack(Range(0.0, 0.0, 0.0), f64) == 2.0**-10
    assert spectral(torch.tensor([[0.0, 3.0], [4.0, 0.0]], dtype=f64)) == pytest.approx(4 + 4e-12, rel=1e-14, abs=0.0)
    program.div(program.registers["b"], a, c)
    program.known |= {"a": Range(-2.0, 2.0, 2.0), "c": Range(0.5, 4.0, 4.0)}
    after = analyse(program, f64).after[0]
    assert after.high - slack(Range(-4.0, 4.0, 4.0), f64) == pytest.approx(4.0)


def test_ranges_of_sums_and_products_are_those_of_all_their_terms() -> None:
    """Entries of a in [−2, 1], of c in [½, 4]; what rounding may add widens them by a part of the largest, 2⁻¹⁰."""
    made = RegisterProgram("ranges", TOKENS)
    a, c, q = (made.register(name, (2, 2)) for name in "acq")
    made.known |= {"a": Range(-2.0, 1.0, 2.5), "c": Range(0.5, 4.0, 6.0)}
    made.aff(q, 3.0 * a, plus=2.0 * c)
    made.mul(q, a, c)
    added, multiplied = analyse(made, f64).after
    room = 11 * 2.0**-10
    assert (added.low, added.high) == (-6 + 1 - room, 3 + 8 + room)
    assert added.norm == pytest.approx(3 * 2.5 + 2 * 6.0 + room, rel=1e-11)
    # Two products to an entry, and ‖AC‖ ≤ ‖A‖·‖C‖.
    room = 15 * 2.0**-10
    assert (multiplied.low, multiplied.high) == pytest.approx((-15.0 - room, 8.0 + room), rel=1e-11)
    assert multiplied.norm == pytest.approx(2.5 * 6.0 + room, rel=1e-11)
    made.known["c"] = Range(0.5, 4.0, 8.0)
    assert analyse(made, f64).after[1].low == -16 * (1 + 2.0**-10)


def test_programs_are_refused_from_where_a_match_a_bound_or_a_dtype_ends(program: RegisterProgram) -> None:
    program.known |= {"a": Range(-2.0, 2.0, 2.0), "c": Range(-3.0, 3.0, 3.0), "p": Range(-1.0, 1.0, 1.0)}

    def analysed(reach: float, bound: float, size: float) -> Analysis:
        made = RegisterProgram("edges", TOKENS)
        a, b, c, p = (made.register(name) for name in "abcp")
        made.known |= program.known
        made.bounds["b"] = bound
        made.mov(b, p, at=Matched("like", (1, 3, 4), True, "a", "c", 1, 0.75, reach))
        made.aff(b, 2.0 * a)
        made.aff(c, size * p)
        return analyse(made, torch.float32)

    largest = torch.finfo(torch.float32).max ** 0.25
    assert len(analysed(4.5, 4.0 / (1 + 9e-13), 0.999 * largest).after) == 3
    for reach, bound, size, message in (
        (4.499, 4.0, 1.0, "made for"),
        (4.5, 4.0 * (1 - 1e-11), 1.0, "declared"),
        (4.5, 4.0, 1.001 * largest, "beyond what"),
    ):
        with pytest.raises(BadProgram, match=message):
            analysed(reach, bound, size)
