"""The word of the child that a step cannot be traced."""

from __future__ import annotations


class Refusal(Exception):
    """The step cannot be traced; `usage` where what was asked for is wrong rather than the step."""

    def __init__(self, reason: str, usage: bool = False) -> None:
        super().__init__(reason)
        self.usage = usage
