"""The error of a child whose step cannot be traced."""

from __future__ import annotations


class Refusal(Exception):
    """The step cannot be traced; with `usage` the request is wrong, not the step."""

    def __init__(self, reason: str, usage: bool = False) -> None:
        super().__init__(reason)
        self.usage = usage
