"""Reads a user's model as a chain of operators, in a separate process and without computing anything."""

from __future__ import annotations

import json

from sizing.base.errors import Untraceable, UsageError
from sizing.child import launch
from sizing.model import reply
from sizing.model.graph import Graph, GraphOrigin, Operator

TIMEOUT_S = 180.0
MEMORY_BYTES = 8 * 2**30
_ENTRY = "sizing.tracer.graphs.graphs"
_MOST_OPERATORS = 100_000
_ORIGINS: tuple[GraphOrigin, ...] = ("export", "modules")


def graph(
    step: str,
    batch: int,
    *,
    tp: int = 1,
    python: str = "",
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int | None = MEMORY_BYTES,
) -> Graph:
    """Return the operators of the model that "PATH.py:FUNCTION" makes for `batch` samples, as rank 0 of `tp` has it.

    The result is not cached. Raises Untraceable if neither torch.export nor a run by modules can read the model,
    UsageError if there is no such file or function, or if the function does not return a model.
    """
    if batch < 1:
        raise UsageError(f"a batch of {batch}: at least 1")
    if tp < 1:
        raise UsageError(f"tp={tp}: at least 1")
    path, name = launch.parts(step)
    data = launch.run(
        _ENTRY,
        {"path": str(path), "function": name, "batch": batch, "tp": tp},
        python=python,
        timeout_s=timeout_s,
        memory_bytes=memory_bytes,
        env={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        | (launch.ranks(tp) if tp > 1 else {}),
        what=path.name,
    )
    return read(data, batch)


def read(data: bytes, batch: int) -> Graph:
    """Read the graph that a child wrote and check each field; raises Untraceable or UsageError if it gave a reason."""
    try:
        said = json.loads(data)
        reply.refused(said)
        rows = said["operators"]
        if not 1 <= len(rows) <= _MOST_OPERATORS:
            raise ValueError(f"{len(rows)} operators")
        operators = tuple(
            Operator(reply.word(name), reply.word(module), reply.number(a), reply.number(b), reply.number(c))
            for name, module, a, b, c in rows
        )
        if len({each.name for each in operators}) < len(operators):
            raise ValueError("operators of one name")
        return Graph(
            model=reply.word(said["model"]),
            batch=batch,
            operators=operators,
            origin=_ORIGINS[_ORIGINS.index(said["origin"])],
            note=reply.word(said["note"], 2000),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Untraceable(f"the traced process answered what no graph is ({type(error).__name__}: {error})") from None
