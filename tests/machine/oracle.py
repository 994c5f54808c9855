"""What a register program must hold, instruction by instruction in Arb; `machine.evaluate` takes no part in it."""

from __future__ import annotations

import numpy as np
import torch
from flint import arb

from emulon.machine.tokens import Lookup, Matched

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
            left, right = (value(form).reshape(program.tokens, *form.shape) for form in one.factors)
            result = (left @ right).reshape(program.tokens, -1)[:, one.target.stored.numpy()]
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


def expected(program, inputs, name):
    """Register `name` at the end of every sequence of a batch, (batch, tokens, entries), in float64."""
    batch = len(next(iter(inputs.values())))
    rows = [interpreted(program, {key: values[i] for key, values in inputs.items()})[name] for i in range(batch)]
    return program.registers[name].expand(torch.from_numpy(np.array(rows).astype(float)))
