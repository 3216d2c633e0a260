"""What a solving process is asked and answers: pickles behind their length, over pipes between the two alone."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import BinaryIO, Literal

from milp.problem import Problem
from milp.solver import Limits

HEADER = struct.Struct("!Q")


@dataclass(frozen=True)
class Request:
    """A problem, which model of it to build, and the engine that solves that."""

    problem: Problem
    model: Literal["counts", "nodes"]
    engine: Literal["highs", "gurobi"]
    limits: Limits


@dataclass(frozen=True)
class Answer:
    """News of a request: a map if there is a better one, and the bound proven so far; the last one is `final`.

    `error` is why there is nothing to be had, `refused` whether that is the user's to mend. `died` is for the reader to
    set: no more will come.
    """

    assignment: dict[str, tuple[str, ...]] | None = None
    bound: float = float("inf")
    final: bool = False
    error: str = ""
    refused: bool = False
    died: bool = False


def write(stream: BinaryIO, message: object) -> None:
    """Send one message."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()
