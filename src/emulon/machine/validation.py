"""Refuse before building: every message names the instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulon.core.errors import BadProgram
from emulon.machine.instruction import Instruction
from emulon.machine.tokens import Average, Lookup

if TYPE_CHECKING:
    from emulon.machine.program import RegisterProgram


def validate(program: RegisterProgram) -> None:
    """Reads of unwritten registers, writes that overlap or are lost, foreign registers, maps of another length."""
    written = set(program.known)
    unread: dict[str, Instruction] = {}
    for instruction in program.instructions:
        _belongs(program, instruction)
        for name in instruction.reads:
            if name not in written:
                raise BadProgram(
                    f"{instruction.label} reads {name}, which nothing has written; write it or give it an initial value"
                )
            unread.pop(name, None)
        target = instruction.target.name
        if target in program.constants:
            raise BadProgram(f"{instruction.label} writes {target}, which is a constant; use another register")
        if target in unread:
            raise BadProgram(
                f"{instruction.label} overlaps the write of {unread[target].label}, which nothing has read"
            )
        written.add(target)
        unread[target] = instruction
    _groups(program)
    if program.output is not None and program.output.name not in written:
        raise BadProgram(f"program {program.name} returns {program.output.name}, which nothing has written")
    if not program.instructions:
        raise BadProgram(f"program {program.name} has no instruction")


def _belongs(program: RegisterProgram, instruction: Instruction) -> None:
    for name in (*instruction.reads, instruction.target.name):
        if name not in program.registers:
            raise BadProgram(f"{instruction.label} uses {name}, which is no register of program {program.name}")
    where = instruction.where
    if isinstance(where, Lookup) and len(where.table) != program.tokens:
        raise BadProgram(
            f"{instruction.label} reads by a map of {len(where.table)} tokens; the program has {program.tokens}"
        )
    if isinstance(where, Average) and not all(0 < member <= program.tokens for member in where.members):
        raise BadProgram(f"{instruction.label} averages tokens outside 1..{program.tokens}")


def _groups(program: RegisterProgram) -> None:
    groups: dict[int, list[Instruction]] = {}
    for instruction in program.instructions:
        if instruction.group is not None:
            groups.setdefault(instruction.group, []).append(instruction)
    for members in groups.values():
        for i, later in enumerate(members):
            for earlier in members[:i]:
                if later.target.name == earlier.target.name:
                    raise BadProgram(
                        f"{later.label} and {earlier.label} overlap: both write {later.target.name} in one layer"
                    )
                if earlier.target.name in later.reads:
                    raise BadProgram(
                        f"{later.label} reads {earlier.target.name}, which {earlier.label} writes in the same layer"
                    )
