"""Branches on unknown numbers that are only checks: one answer leads to an error, so the trace takes the other."""

from __future__ import annotations

import dis
from types import FrameType

_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_BETWEEN = {"TO_BOOL", "COMPARE_OP", "UNARY_NOT", "EXTENDED_ARG", "NOT_TAKEN"}


def passing(frame: FrameType) -> bool | None:
    """Return the answer with which a frame at a branch raises no error; None if not exactly one answer fails.

    It recognises `if ...: raise` and `assert ...`, and any code that leads to the error without a further branch.
    """
    code = [each for each in dis.get_instructions(frame.f_code) if each.opname != "CACHE"]
    at = next((place for place, each in enumerate(code) if each.offset >= frame.f_lasti), len(code))
    negated = False
    while at < len(code) and code[at].opcode not in _JUMPS:
        if code[at].opname not in _BETWEEN:
            return None
        negated ^= code[at].opname == "UNARY_NOT"
        at += 1
    if at == len(code) or "POP_JUMP" not in code[at].opname or "NONE" in code[at].opname:
        return None
    jumps_if_true = "IF_TRUE" in code[at].opname
    target = next(place for place, each in enumerate(code) if each.offset == code[at].argval)
    jump_fails, next_fails = _fails(code[target:]), _fails(code[at + 1 :])
    if jump_fails == next_fails:
        return None
    return (jumps_if_true == next_fails) != negated


def _fails(code: list[dis.Instruction]) -> bool:
    """Whether instructions raise an error before they branch or return."""
    for each in code:
        if each.opname == "RAISE_VARARGS":
            return True
        if each.opcode in _JUMPS or each.opname.startswith(("RETURN", "YIELD", "SEND")):
            return False
    return False
