"""Errors of the allocation problem; each message is one line that says what to do next."""

from __future__ import annotations


class MilpError(Exception):
    """The root of all errors that `milp` raises on purpose; `exit_code` is that of a command which fails with it."""

    exit_code = 1


class ProblemError(MilpError):
    """The problem is malformed; the message names the trainer and the field."""

    exit_code = 2


class UnsupportedError(MilpError):
    """The chosen solver does not exist, is not installed, or cannot handle a feature of the problem."""

    exit_code = 2


class PlanError(MilpError):
    """A plan breaks a rule of its problem; `violations` holds one sentence per broken rule."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        self.violations = violations
        super().__init__("the plan is not carried out: " + "; ".join(violations))
