"""`bft top` on 5,000 nodes and 100 trainers: first picture, keys, processor time, redrawing everything.

    python -m benchmarks.scale.live_screen [--nodes N] [--trainers N] [--seconds S] [--json]

`bft top` is a process on a pseudo-terminal of 80 x 24, the daemon that of `benchmarks.scale.daemon`, another process.
The last part draws statuses in which every trainer differs from the second before, on 80 x 24 and 200 x 60.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import fcntl
import json
import os
import pty
import random
import re
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import Measured, measured, percent
from benchmarks.scale.hostile import serving
from bftd.client import Client, Status

KEYS = 30
REDRAWN = 30
SIZES = ((80, 24), (200, 60))


def measure(nodes: int, trainers: int, seconds: float) -> dict[str, Any]:
    """Milliseconds, and the share of one processor that the screen takes while nobody touches it."""
    with tempfile.TemporaryDirectory(prefix="bft-top-") as name:
        folder = Path(name)
        with serving(folder, trainers, nodes):
            address = str(folder / "socket")
            found = _on_a_terminal(address, f"{nodes:,} nodes".encode(), seconds)
            status = Client(address).status()
    redrawn = {f"{width}x{height}": asyncio.run(_redrawn(status, (width, height))) for width, height in SIZES}
    return {"nodes": nodes, "trainers": trainers, **found, "redrawn": redrawn}


def _on_a_terminal(address: str, awaited: bytes, seconds: float) -> dict[str, Any]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    given = os.environ | {"BFTD_SOCKET": address, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    begun_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "bftd.cli.main", "top"], stdin=theirs, stdout=theirs, stderr=theirs, env=given
    )
    try:
        seen = b""
        while awaited not in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen):
            seen += _written(ours, 30.0)
        first_s = time.perf_counter() - begun_s
        watched = psutil.Process(process.pid)
        _drain(ours, 3.0)
        before, before_s = watched.cpu_times(), time.perf_counter()
        _drain(ours, seconds)
        after, after_s = watched.cpu_times(), time.perf_counter()
        keys_ms = [_key(ours, b"\x1b[B" if at < KEYS // 2 else b"\x1b[A") for at in range(KEYS)]
        os.write(ours, b"q")
        _drain(ours, 0.5)
        code = process.wait(10)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
        os.close(theirs)
    used_s = after.user + after.system - before.user - before.system
    return {
        "first_picture_ms": 1e3 * first_s,
        "processor_share": used_s / (after_s - before_s),
        "key_ms": {
            "median": statistics.median(keys_ms),
            "slowest": max(keys_ms),
            "samples": [round(each, 1) for each in keys_ms],
        },
        "exit_code": code,
    }


def _written(terminal: int, most_s: float) -> bytes:
    if not select.select([terminal], [], [], most_s)[0]:
        raise SystemExit("bft top draws nothing")
    return os.read(terminal, 65536)


def _drain(terminal: int, seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    while (left_s := end_s - time.perf_counter()) > 0:
        if select.select([terminal], [], [], left_s)[0]:
            os.read(terminal, 65536)


def _key(terminal: int, key: bytes) -> float:
    """Milliseconds from a key to what it changes, while nothing else is being drawn."""
    _drain(terminal, 0.1)
    begun_s = time.perf_counter()
    os.write(terminal, key)
    _written(terminal, 10.0)
    return 1e3 * (time.perf_counter() - begun_s)


async def _redrawn(status: Status, size: tuple[int, int]) -> dict[str, Any]:
    """Processor time of one refresh in which every trainer has changed, in milliseconds."""
    from bftd.ui.live.app import Looked, Top
    from bftd.ui.live.poller import Look

    top = Top(Client("/nowhere/socket"))
    chance = random.Random(7)
    took_ms = []
    async with top.run_test(size=size) as pilot:
        top._watcher.stop()
        for at in range(REDRAWN):
            changed = tuple(
                dataclasses.replace(
                    item, working=chance.randint(0, 64), samples_per_s=chance.uniform(1, 1e5), step=item.step + at
                )
                for item in status.trainers
            )
            now = dataclasses.replace(status, trainers=changed, time_s=status.time_s + at)
            begun_s = time.process_time()
            top.on_looked(Looked(Look(now)))
            await pilot.pause(0)
            took_ms.append(1e3 * (time.process_time() - begun_s))
    return {
        "median_cpu_ms": statistics.median(took_ms),
        "slowest_cpu_ms": max(took_ms),
        "samples_cpu_ms": [round(each, 1) for each in took_ms],
    }


def table(result: Any) -> str:
    """The rows in Markdown."""
    key = result["key_ms"]
    return measured(
        (
            Measured("first picture", f"{result['first_picture_ms'] / 1e3:.1f} s"),
            Measured("a key until it shows: median, most", f"{key['median']:.0f} ms, {key['slowest']:.0f} ms"),
            Measured("left alone on 80 x 24: share of a processor", percent(result["processor_share"])),
            *(
                Measured(
                    f"a refresh in which all trainers change, {width} x {height}: processor time",
                    f"{result['redrawn'][f'{width}x{height}']['median_cpu_ms']:.0f} ms",
                )
                for width, height in SIZES
            ),
        )
    )


EVIDENCE = {"live_screen": Benchmark(("benchmarks.scale.live_screen",), 1.5, {"table": table})}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--trainers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.nodes, options.trainers, options.seconds)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(table(found))


if __name__ == "__main__":
    main()
