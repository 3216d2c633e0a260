"""Measures the times of collectives between processes of this machine (gloo): the tables of links of type "cpu"."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sizing.base.errors import SizingError, UsageError
from sizing.cells.comm.protocol import Link
from sizing.cells.comm.table import BYTES, CPU, PROGRAMS, RANKS, Table, table
from sizing.child import launch

ROUNDS = 5
TIMEOUT_S = 300.0
_MOST_BYTES = 2**32


class BenchFailed(SizingError):
    """The processes did not finish; the message holds their error."""


def bench(
    ranks: int,
    *,
    day: str,
    rounds: int = ROUNDS,
    max_bytes: int = BYTES[-1],
    kinds: Sequence[str] = tuple(PROGRAMS),
    python: str = "",
    timeout_s: float = TIMEOUT_S,
) -> tuple[tuple[Table, ...], tuple[str, ...]]:
    """Return tables of 1 KiB to `max_bytes` with the median of `rounds`, and texts on kinds that this torch lacks.

    Each round measures every kind and size once, so that disturbances of the machine affect all alike. Raises
    UsageError and BenchFailed; no process is left behind in either case.
    """
    if not RANKS[0] <= ranks <= RANKS[1]:
        raise UsageError(f"--ranks {ranks}: {RANKS[0]} to {RANKS[1]} processes")
    if not 1 <= rounds <= 1000:
        raise UsageError(f"--rounds {rounds}: 1 to 1000")
    if not BYTES[0] <= max_bytes <= _MOST_BYTES:
        raise UsageError(f"--max-bytes {max_bytes}: {BYTES[0]} to {_MOST_BYTES}")
    if not timeout_s > 0:
        raise UsageError(f"--timeout {timeout_s:g}: seconds, more than 0")
    sizes = [max_bytes]
    while BYTES[0] * 4 ** (len(sizes) - 1) < max_bytes:
        sizes.insert(-1, BYTES[0] * 4 ** (len(sizes) - 1))
    request = {"ranks": ranks, "rounds": rounds, "kinds": list(kinds), "sizes": sizes}
    env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    try:
        said = launch.run(
            "sizing.tracer.ranks.gloo_bench", request, python=python, timeout_s=timeout_s, env=env, what="gloo"
        )
    except UsageError:
        raise
    except SizingError as error:
        raise BenchFailed(f"gloo between {ranks} processes: {error}; try fewer --rounds or --max-bytes") from None
    answer = json.loads(said)
    if "refused" in answer:
        raise BenchFailed(f"gloo between {ranks} processes: {answer['refused']}")
    link = Link(CPU, ranks, 1)
    source = f"gloo, torch {answer['torch']}"
    tables = tuple(
        table(kind, link, {int(nbytes): times for nbytes, times in by_size.items()}, source, day)
        for kind, by_size in answer["times"].items()
    )
    return tables, tuple(f"this torch has no {kind} for gloo" for kind in answer["lacking"])
