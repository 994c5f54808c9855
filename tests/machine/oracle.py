"""What a register program must hold, instruction by instruction in Arb, and what rounding costs by the docstrings.

Nothing of `machine.error`, `machine.targets.llama_error` or `machine.carry_out` takes part in it.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
from flint import arb

from emulon.machine.tokens import Average, Lookup, Matched

exact = np.vectorize(lambda number: arb(float(number)), otypes=[object])


def interpreted(program, inputs):
    """Every register's stored entries at the end, (tokens, size) of balls, of one sequence of inputs."""
    ones = exact(np.ones((program.tokens, 1)))
    start = {name: ones * exact(values.numpy()) for name, values in program.initial.items()}
    held = start | {name: exact(values.numpy()) for name, values in {**program.constants, **inputs}.items()}

    def value(form):
        out = ones * exact(form.bias.numpy())
        for name, part in form.parts.items():
            out = out + held[name] @ exact(part.numpy().T)
        return out

    for one in program.instructions:
        raw, read = one.raw, value(one.raw.read)
        if raw.operator == "+":
            result = seen(read, one.where, held) + (0 if raw.local is None else value(raw.local))
        elif raw.operator == "⊓":
            limit = arb(raw.limit)
            result = np.vectorize(lambda x, limit=limit: x.max(-limit).min(limit), otypes=[object])(read)
        elif raw.operator == "÷":
            result = read / value(raw.local)
        else:
            products, result = read * value(raw.local), exact(np.zeros((program.tokens, one.target.size)))
            for column, into in enumerate(raw.into):
                result[:, into] += products[:, column]
        held[one.target.name] = result
    return held


def seen(values, where, held):
    """What each token reads of all: zeros where there is none."""
    out = exact(np.zeros(values.shape))
    for token in range(len(values)):
        if isinstance(where, Lookup):
            if where.table[token] is not None:
                out[token] = values[where.table[token] - 1]
        elif members := [member - 1 for member in where.members if member <= token + 1]:
            weights = [arb(1)] * len(members)
            if isinstance(where, Matched):
                query, key = held[where.query][token], held[where.key]
                weights = [(arb(where.sharp) * (query @ key[member])).exp() for member in members]
            whole = sum(weights, arb(0))
            out[token] = sum(w / whole * values[m] for w, m in zip(weights, members, strict=True))
    return out


def gamma(count, u):
    return count * u / (1 - count * u)


def total(*parts):
    """Terms by name, added."""
    out = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            out[name] += value
    return dict(out)


def span(form, ranges):
    """(lowest, highest, 2-norm) of a form: intervals entry by entry, cut at the norm, the norm at √entries of them."""
    low, high, norm = form.bias.numpy().copy(), form.bias.numpy().copy(), float(np.linalg.norm(form.bias.numpy()))
    for name, part in form.parts.items():
        matrix, one = part.numpy(), ranges[name]
        low += matrix.clip(min=0).sum(1) * one.low + matrix.clip(max=0).sum(1) * one.high
        high += matrix.clip(min=0).sum(1) * one.high + matrix.clip(max=0).sum(1) * one.low
        norm += np.linalg.norm(matrix, 2) * one.norm
    least, most = max(low.min(), -norm), min(high.max(), norm)
    return least, most, min(norm, math.sqrt(len(low)) * max(-least, most))


def peak(form, ranges):
    low, high, _ = span(form, ranges)
    return max(abs(low), abs(high))


class Rule:
    """GPT-2: what an instruction adds to the error, by name, from ranges, scales and LayerNorm's pads."""

    kink = 0.341

    def __init__(self, program, norm, divisions, scale, tokens, u):
        self.program, self.norm, self.divisions, self.scale = program, norm, divisions, scale
        self.tokens, self.u, self.here = tokens, u, program.here
        self.roundings = 32 + 4 * math.log2(norm.width)
        self.scaling = (norm.content**2 + 2 * norm.divide_content**2) / (2 * norm.pad**2) + self.roundings * u

    def __call__(self, one, before):
        """In the 2-norm: entries that are only erased cost less than those that are written."""
        rule = {"+": self.sum, "⊙": self.product, "÷": self.quotient, "⊓": self.clip}[one.raw.operator]
        size, written = one.target.size, self.written(one)
        whole, fresh = rule(one, before, self.old(one, before)), rule(one, before, 0.0)
        fresh = whole if written == size else fresh
        return {
            name: math.sqrt(written) * fresh.get(name, 0.0) + math.sqrt(size) * (error - fresh.get(name, 0.0))
            for name, error in whole.items()
        }

    def written(self, one):
        """Entries that something goes into: of a product both factors, of a kept target what is added."""
        forms = [one.raw.read if one.increment is None else one.increment]
        forms += [one.raw.local] if one.raw.local is not None and one.raw.operator != "÷" else []
        used = [np.hstack([form.bias[:, None], *form.parts.values()]).any(axis=1) for form in forms]
        if one.raw.operator == "⊙":
            return len({into for into, a, b in zip(one.raw.into, *used, strict=True) if a and b})
        return int(np.any(used, axis=0).sum())

    def old(self, one, before):
        return self.scale[one.target.name] if one.target.name in before else 0.0

    def sizes(self, form, before):
        """Of the worst rows: terms, Σ|a·x|, Σ|a|·scale."""
        count, magnitude, weight = (form.bias.numpy() != 0) * 1, abs(form.bias.numpy()), abs(form.bias.numpy())
        for name, part in form.parts.items():
            rows = abs(part.numpy()).sum(1)
            one, count = before[name], count + (part.numpy() != 0).sum(1)
            magnitude, weight = magnitude + rows * max(-one.low, one.high), weight + rows * self.scale[name]
        return count.max(), magnitude.max(), weight.max()

    def functional(self, terms, magnitude, weight, mean=None):
        return (terms + 10) * self.u * (
            magnitude + 2 * weight * (mean or self.norm.mean)
        ) + 2 * weight * self.norm.noise

    def read(self, form, before):
        return self.functional(*self.sizes(form, before))

    def entry(self, name, before):
        return self.functional(1, max(-before[name].low, before[name].high), self.scale[name])

    def gap(self, where):
        return 0.5 if isinstance(where, Average) else 1 - math.cos(2 * math.pi / max(self.tokens, 2))

    def sharpness(self, where):
        return (math.log(16 * self.tokens / self.u) + 2 * getattr(where, "reach", 0.0)) / self.gap(where)

    def scored(self, where):
        """(relative error of a match's products, what else a match adds to a score)."""
        products = gamma(where.size + 3, self.u)
        return 2.1 * self.scaling + products, products * (self.sharpness(where) + where.reach)

    def matched(self, where, before):
        if not isinstance(where, Matched):
            return 0.0
        query, key, root = before[where.query], before[where.key], math.sqrt(where.size)
        relative, beside = self.scored(where)
        sides = query.norm * root * self.entry(where.key, before) + key.norm * root * self.entry(where.query, before)
        exponential = (4 + 2 * where.reach) * self.u
        return 1.1 * where.sharp * (relative * query.norm * key.norm + sides) + beside + exponential

    def attended(self, where, value, rounding, matched=0.0):
        beta, u = self.sharpness(where), self.u
        score = 2 * beta * (self.scaling + 2 * self.functional(2, 1.0, 2.0) + 4 * u) + matched
        leak = self.tokens * math.exp(min(2 * score - beta * self.gap(where) + 2 * getattr(where, "reach", 0.0), 0.0))
        routing, spread = 2 * leak * value, 8 * u * value
        if isinstance(where, Average):
            routing += 2 * value * math.tanh(score / 2)
            spread += 2 * gamma(len(where.members) + 2, u) * value
        return {"normalisation": self.scaling * value, "routing": routing, "rounding": rounding + spread}

    def erased(self, one, old):
        return self.attended(self.here, old, self.functional(1, old, old)) if old else {}

    def summed(self, parts, value, old):
        return 6 * self.u * (value + 2 * old)

    def sum(self, one, before, old):
        form = one.raw.read if one.increment is None else one.increment
        value, parts = peak(form, before), 1
        out = self.attended(one.where, value, self.read(form, before), self.matched(one.where, before))
        if (local := one.raw.local) is not None:
            out = total(out, self.attended(self.here, peak(local, before), self.read(local, before)))
            value, parts = value + peak(local, before), 2
        out = total(out, {} if one.increment is not None else self.erased(one, old))
        return total(out, {"rounding": self.summed(parts, value, old)})

    def skew(self, form, before):
        terms, magnitude, weight = self.sizes(form, before)
        return gamma(terms + 2, self.u) * (magnitude + 2 * weight * self.norm.mean) + 2 * weight * self.norm.skew

    def product(self, one, before, old):
        from emulon.machine.normalisation import square

        way, u, left, right = square(self.norm.dtype), self.u, one.raw.read, one.raw.local
        x, y, terms = peak(left, before) or 1.0, peak(right, before) or 1.0, len(one.raw.into) // one.target.size
        slope, rows = 0.5 + 0.8 * max(way.scales), 4 * len(way.scales) * terms + 4
        cost = sum(abs(w) * s for w, s in zip(way.weights, way.scales, strict=True))
        units = 4 * slope * (self.skew(left, before) / x + self.skew(right, before) / y + 8 * u + 0.55 * gamma(rows, u))
        shared = 1.1 * (x * self.read(right, before) + y * self.read(left, before) + 8 * u * x * y)
        erase = self.functional(1, old, old) + (8 * u + 2 * gamma(rows, u)) * old
        return {
            "product": terms * x * y / 4 * way.truncation,
            "normalisation": self.scaling * (2.1 * terms * x * y + old),
            "rounding": terms * (x * y / 4 * cost * units + shared) + erase + 4 * u * (terms * x * y + 2 * old),
        }

    def clip(self, one, before, old):
        limit, u = one.raw.limit, self.u
        end, value = one.raw.read + limit, peak(one.raw.read, before) + limit
        steep = 2.0 ** math.ceil(math.log2(self.kink / (u * limit)))
        return {"clipping": self.kink / steep, **self.clipped(one, self.read(end, before), value, limit, old)}

    def clipped(self, one, reading, value, limit, old):
        u, sums = self.u, 2 * gamma(6, self.u)
        erase = self.functional(1, old, old) + (8 * u + sums) * old
        rounding = 2 * reading + (16 * u + sums) * value + erase + 4 * u * (limit + 2 * old)
        return {"normalisation": self.scaling * (1.1 * value + old), "rounding": rounding}

    def quotient(self, one, before, old):
        division, u, norm = self.divisions[one.number], self.u, self.norm
        low, factor, local = division.low, division.factor, one.raw.local
        reading, c = self.read(local, before), peak(local, before)
        left = norm.divide_content / factor * (self.scaling + 20 * u) ** division.sweeps + 2 * norm.noise / factor
        divisor = reading + self.attended(self.here, c, reading)["routing"] + (left if division.sweeps else 0.0)
        inside = (norm.content**2 + norm.width * 1e-5) / (2 * (factor * low) ** 2) + self.roundings * u
        relative = inside + 1.1 * (self.scaling + 16 * u + divisor / low) + 16 * u
        mean = norm.mean + self.roundings * u * factor * division.high
        numerator = self.functional(*self.sizes(one.raw.read, before), mean)
        own = {"division": relative * peak(one.raw.read, before) / low, "rounding": numerator / low + 4 * u * old}
        return total(own, self.erased(one, old))


GATE, SHUT = 2.0**20, 128.0


class LlamaRule(Rule):
    """Llama: norms are the identity, look-ups exact; `inexact` registers hold no float32 numbers."""

    kink = 0.557

    def __init__(self, *given, inexact=()):
        super().__init__(*given)
        self.scaling, self.inexact = 0.0, inexact

    def old(self, one, before):
        name = one.target.name
        return max(-before[name].low, before[name].high) if name in before else 0.0

    def functional(self, terms, magnitude, weight, mean=None):
        return gamma(terms + 2, self.u) * magnitude

    def read(self, form, before):
        terms, magnitude, _ = self.sizes(form, before)
        numbers = np.concatenate([form.bias.numpy(), *(part.numpy().ravel() for part in form.parts.values())])
        whole = all(math.frexp(number)[0] in (0.5, -0.5) for number in numbers[numbers != 0])
        rounded = (0 if whole else 2) + any(name in self.inexact for name in form.parts)
        return gamma(terms - 1 + rounded, self.u) * magnitude if terms else 0.0

    def sharpness(self, where):
        return 2.0 ** math.ceil(math.log2((220 + 2 * getattr(where, "reach", 0.0)) / self.gap(where)))

    def scored(self, where):
        return gamma(where.size + 6, self.u), 0.0

    def attended(self, where, value, rounding, matched=0.0):
        beta = self.sharpness(where)
        score, reach = 2 * beta * gamma(8, self.u) + matched, 2 * getattr(where, "reach", 0.0)
        routing = 2 * self.tokens * math.exp(min(2 * score - beta * self.gap(where) + reach, 0.0)) * value
        if isinstance(where, Average):
            routing += 2 * value * math.tanh(matched / 2)
            rounding += 2 * gamma(len(where.members) + 2, self.u) * value
        return {"routing": routing, "rounding": rounding}

    def erased(self, one, old):
        return self.attended(self.here, old, 0.0) if old else {}

    def summed(self, parts, value, old):
        return gamma(parts + 2, self.u) * (value + old)

    def product(self, one, before, old):
        u, (left, right) = self.u, (one.raw.read, one.raw.local)
        x, y, terms = peak(left, before), peak(right, before), len(one.raw.into) // one.target.size
        count, magnitude, _ = self.sizes(left, before)
        apart = min(1.1 * 2 * gamma(max(count - 1, 0), u) * magnitude, 0.56 / GATE)
        a, b = self.read(left, before), self.read(right, before)
        each = 2 * u * x * y + 8 * u * min(x, SHUT / GATE) * y + x * b + y * (a + apart) + a * b
        return {"rounding": terms * each + gamma(terms + 3, u) * (terms * x * y + old)}

    def clipped(self, one, reading, value, limit, old):
        return {"rounding": 2.2 * reading + 5 * self.u * value + gamma(7, self.u) * (value + old)}

    def quotient(self, one, before, old):
        division, u, local = self.divisions[one.number], self.u, one.raw.local
        divisor = sum(self.attended(self.here, peak(local, before), self.read(local, before)).values())
        inside = 2 * self.norm.content**2 / (2 * (division.factor * division.low) ** 2)
        relative = 1.1 * (inside + 20 * u) + 2 * u + 1.1 * divisor / division.low
        known = one.invariant and one.invariant.norm
        most = min(peak(one.raw.read, before) / division.low, 1.1 * known if known else math.inf)
        rounding = 1.1 * self.read(one.raw.read, before) / division.low + 2 * u * old
        return total({"division": relative * most, "rounding": rounding}, self.erased(one, old))


def propagated(program, analysis, added, read_out):
    """Certificates' terms: `added` is what instructions add, `read_out` what the final reading does, by register.

    An error is a number by the state that it comes from (or None) and the name of its term. A state is a register under
    an invariant of growth; what others took from it before stays as it was.
    """
    errors, states, sums = defaultdict(dict), {}, defaultdict(dict)

    def times(error, factor):
        return {key: factor * value for key, value in error.items()}

    def of(form):
        parts = [] if form is None else form.parts.items()
        return total(*(times(errors[name], np.linalg.norm(part.numpy(), 2)) for name, part in parts))

    for one, before, after in zip(program.instructions, analysis.before, analysis.after, strict=True):
        raw, name, invariant = one.raw, one.target.name, one.invariant
        error = of(raw.read)
        if raw.operator == "+":
            error = total(error, of(raw.local))
            if isinstance(one.where, Matched):
                q, k = (sum(errors[each].values()) for each in (one.where.query, one.where.key))
                moved = one.where.sharp * (before[one.where.key].norm * q + before[one.where.query].norm * k + q * k)
                error = total(error, {(None, "matching"): 2 * span(raw.read, before)[2] * math.tanh(moved / 2)})
        elif raw.operator == "÷":
            low = span(raw.local, before)[0]
            error = total(times(error, 1 / low), times(of(raw.local), after.norm / low))
        elif raw.operator == "⊙":
            left, right = one.factors
            a, b = of(left), of(right)
            error = total(times(a, span(right, before)[2]), times(b, span(left, before)[2]))
            error = total(error, {(None, "second order"): sum(a.values()) * sum(b.values())})
        error = total(error, {(None, term): value for term, value in added(one, before).items()})
        if invariant is not None and (invariant.growth is not None or invariant.total is not None):
            fresh = total(*({term: value} for (state, term), value in error.items() if state != name))
            for other in errors:
                errors[other] = total(*({(None if s == name else s, t): v} for (s, t), v in errors[other].items()))
            sums[name] = total(sums[name], fresh)
            grown = total(fresh, times(states.get(name, {}), invariant.growth or 0.0))
            states[name] = grown if invariant.total is None else times(sums[name], invariant.total)
            error = {(name, term): value for term, value in states[name].items()}
        errors[name] = error
    return {
        name: total(*({term: value} for (_, term), value in error.items()), read_out(name))
        for name, error in errors.items()
    }
