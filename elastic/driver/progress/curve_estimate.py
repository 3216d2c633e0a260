"""The estimate of a trainer's speed for curve=estimate: made beside the driver, which never waits for it.

`bft size curve` makes it, in a process of the lowest priority with a time and a memory limit, which ends with the
driver. Whatever becomes of it, the trainer trains as it would without.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bftd.protocol import curves
from bftd.protocol.curves import CurveEstimate
from bftd.protocol.errors import Malformed
from bftd.protocol.fields import Fields, printable
from bftd.protocol.registration import NodeKind
from bftd.protocol.reports import CurveReport
from elastic.base.timing import ESTIMATE_S, ESTIMATE_STOP_S
from elastic.driver.context import TrainerContext

_MOST_BYTES = 2**20
_REASON_MOST = 500
_UNKNOWN = "its speed is not known yet: curve=estimate came to nothing"
_MEMORY_MOST = 8 * 2**30
_MEMORY_LEAST = 2**29
# The share of the driver job's memory: the rest is left to the driver itself.
_SHARE = 0.75


class Estimating:
    """One trainer's estimate, made once the daemon has sent the classes of nodes; `estimates` are the results."""

    def __init__(self, run: TrainerContext) -> None:
        self._run = run
        self._kinds: asyncio.Future[Sequence[NodeKind]] = asyncio.get_running_loop().create_future()
        self.estimates: tuple[CurveEstimate, ...] = ()

    def heard(self, kinds: Sequence[NodeKind]) -> None:
        """Takes the classes of nodes that the trainer may use; a daemon without a snapshot has none yet."""
        if kinds and not self._kinds.done():
            self._kinds.set_result(kinds)
        elif not kinds and self._run.settings.spec.estimates:
            self._run.log(f"{_UNKNOWN} so far: the daemon has told no classes of nodes")

    async def work(self) -> None:
        """Makes the estimate, sends it to the daemon and returns."""
        settings = self._run.settings
        if not settings.spec.estimates:
            return
        if settings.spec.container is not None:
            self._run.note(f"{_UNKNOWN}: its torch is in the image")
            return
        kinds = await self._kinds
        try:
            self.estimates, notes = await self._estimate(kinds)
        except (OSError, ValueError, Malformed, asyncio.TimeoutError) as error:
            self._run.note(f"{_UNKNOWN}: {_in_a_line(str(error)) or 'no end within its time'}; it trains as without")
            return
        for note in notes:
            self._run.log(f"estimate: {note}")
        self._run.report(CurveReport(time.time(), self.estimates))
        self._run.log(f"its speed is estimated (`bft explain {settings.trainer_id}` shows it)")

    async def _estimate(self, kinds: Sequence[NodeKind]) -> tuple[tuple[CurveEstimate, ...], list[str]]:
        """Returns the child's estimates and notes.

        Raises ValueError with the child's reason, OSError if it cannot be started, and asyncio.TimeoutError.
        """
        child = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_MOST_BYTES,
            start_new_session=True,
        )
        asked = json.dumps([kind.to_json() for kind in kinds]).encode()
        try:
            output, words = await asyncio.wait_for(child.communicate(asked), ESTIMATE_S)
        finally:
            await _end(child)
        if child.returncode:
            raise ValueError(words.decode(errors="replace")[-_REASON_MOST:].removeprefix("bft: "))
        if len(output) > _MOST_BYTES:
            raise ValueError("it said more than an estimate can be")
        fields = Fields(json.loads(output), "estimate")
        return curves.estimates(fields, "estimates"), [_in_a_line(str(note)) for note in fields.items("notes", 100)]

    def _command(self) -> list[str]:
        """Returns the child's command; the script is the kept copy, its modules are where the script was."""
        settings = self._run.settings
        return [
            str(Path(sys.executable).with_name("bft")),
            *("size", "curve", settings.argv[0], "--json", "--classes", "-"),
            *("--nodes", settings.spec.format()),
            *("--python", settings.interpreter, "--modules", str(settings.script_dir)),
            *("--memory-bytes", str(memory_bytes(os.environ)), "--background", str(os.getpid())),
        ]


def memory_bytes(environ: Mapping[str, str]) -> int:
    """Returns the child's memory limit: most of the job's memory, which Slurm gives in MiB, and at most 8 GiB."""
    job_mib = environ.get("SLURM_MEM_PER_NODE") or environ.get("SLURM_MEM_PER_CPU") or ""
    if not job_mib.isdecimal() or not int(job_mib):
        return _MEMORY_MOST
    return max(_MEMORY_LEAST, min(_MEMORY_MOST, int(int(job_mib) * 2**20 * _SHARE)))


async def _end(child: asyncio.subprocess.Process) -> None:
    """Has the child end what it started, and then itself."""
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(child.wait(), ESTIMATE_STOP_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()


def _in_a_line(text: str) -> str:
    return " ".join(printable(text[:_REASON_MOST]).split())
