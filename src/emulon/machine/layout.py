"""Where everything lives in the residual stream, and the shape of the blocks that carry it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from emulon.attention import Slots
from emulon.machine.affine import AffineForm
from emulon.machine.normalisation import up_to_power_of_two
from emulon.machine.tokens import START, Average, Lookup, Matched, Where, codes

if TYPE_CHECKING:
    from emulon.machine.program import RegisterProgram

PAD, DIVIDE, ZERO, ONE, IS_START, CODE = "pad", "divide", "zero", "one", "start", "code"


class RegisterLayout:
    """Named slots: pads for LayerNorm, a zero, ones, position codes, one query per timestep map, then the registers.

    `width` is `heads` times `head_width`, GPT-2's rule; slots that nothing uses are called filler. A register is stored
    divided by `scale[name]`, a power of two no smaller than anything it ever holds: a token's entries then all have
    size 1 at most, and LayerNorm's mean cannot drown a small register in a large one.
    """

    def __init__(
        self, program: RegisterProgram, maps: Iterable[Where], peaks: Mapping[str, float], *, divides: bool
    ) -> None:
        self.program = program
        self.scale = {name: up_to_power_of_two(peak) if peak > 0 else 1.0 for name, peak in peaks.items()}
        self.maps = tuple(maps)
        self.tokens = program.tokens + 1
        sizes = {PAD: 2, **({DIVIDE: 2} if divides else {}), ZERO: 1, ONE: 1, IS_START: 1, CODE: 2}
        for where in self.maps:
            sizes[self.key(where)] = 2 if isinstance(where, Lookup) else 1
        sizes |= {name: register.size for name, register in program.registers.items()}
        self._sizes = sizes
        self.heads = 1
        self.slots = Slots(**sizes)

    @staticmethod
    def key(where: Where) -> str:
        """The slot that holds a map's query (lookups) or its key (averages)."""
        return f"ask {where.name}" if isinstance(where, Lookup) else f"mark {where.name}"

    def shape_heads(self, demands: list[list[int]]) -> None:
        """Choose heads: `demands` lists, layer by layer, how many values each map in use has to carry.

        The smallest width wins, and of equal widths the fewest heads.
        """
        least = self.slots.width
        narrowest = max(3, *(1 + where.size for where in self.maps if isinstance(where, Matched)), 0)

        def width(heads: int) -> int:
            return max(narrowest, math.ceil(least / heads)) * heads

        def fits(heads: int) -> bool:
            size = width(heads) // heads
            return all(sum(math.ceil(values / size) for values in layer) <= heads for layer in demands)

        most = max((sum(layer) for layer in demands), default=1)
        self.heads = min((h for h in range(1, max(most, 1) + 1) if fits(h)), key=lambda h: (width(h), h))
        if (filler := width(self.heads) - least) > 0:
            self._sizes["filler"] = filler
        self.slots = Slots(**self._sizes)

    @property
    def width(self) -> int:
        return self.slots.width

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def row(self, expression: AffineForm) -> Tensor:
        """Each entry of an expression as a linear functional of the stream, (entries, width).

        LayerNorm subtracts the mean from everything: what is read is therefore always the difference from the zero
        slot.
        """
        rows = torch.zeros(expression.entries, self.width, dtype=torch.float64, device="cpu")
        for name, part in expression.parts.items():
            rows[:, self.slots[name]] = part * self.scale[name]
        rows[:, self.slots[ONE]] += expression.bias[:, None]
        return self.centred(rows)

    def centred(self, rows: Tensor) -> Tensor:
        rows[:, self.slots[ZERO]] -= rows.sum(dim=1, keepdim=True)
        return rows

    def read(self, name: str) -> Tensor:
        """The functionals that read the stored entries of a slot group."""
        rows = torch.zeros(self.slots.size(name), self.width, dtype=torch.float64, device="cpu")
        rows[:, self.slots[name]] = torch.eye(len(rows), dtype=torch.float64, device="cpu") * self.scale.get(name, 1.0)
        return self.centred(rows)

    def write(self, name: str) -> Tensor:
        """The unit vectors (size, width) that write a slot group."""
        columns = torch.zeros(self.slots.size(name), self.width, dtype=torch.float64, device="cpu")
        columns[:, self.slots[name]] = torch.eye(len(columns), dtype=torch.float64, device="cpu") / self.scale.get(
            name, 1.0
        )
        return columns

    def pads(self, pad: float) -> dict[str, Tensor]:
        """What the pad slots hold at every token."""
        return {PAD: torch.tensor([pad, -pad], dtype=torch.float64, device="cpu").expand(self.tokens, 2)}

    def positions(self, pad: float) -> Tensor:
        """The position embedding (tokens, width): pads, ones, codes, queries, constants and initial values."""
        code = codes(self.tokens)
        after = torch.ones(self.tokens, 1, dtype=torch.float64, device="cpu")
        after[START] = 0.0
        parts: dict[str, Tensor | float] = {
            **self.pads(pad),
            ONE: after,
            IS_START: 1.0 - after,
            CODE: code,
        }
        for where in self.maps:
            if isinstance(where, Average):
                parts[self.key(where)] = where.marks(self.tokens)[:, None]
            else:
                parts[self.key(where)] = code[where.targets()]
        for name, values in self.program.constants.items():
            parts[name] = torch.cat([torch.zeros_like(values[:1]), values]) / self.scale[name]
        for name, stored in self.program.initial.items():
            parts[name] = after * stored / self.scale[name]
        return self.slots.pack(**parts)
