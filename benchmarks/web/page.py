"""The time until the web page is seen, and its size, with 5,000 nodes and 100 trainers.

    python -m benchmarks.web.page [--repeats N] [--nodes N] [--trainers N] [--json]

The daemon is that of `benchmarks.web.daemon`, in a process of its own; the browser is Debian's Chromium without a
screen, which begins each time with an empty cache. `first_paint_ms` is what it tells as first-contentful-paint, from
the click on. `made_ms` is what the daemon takes for a page of which nothing is kept, `kept_ms` for the next ones, and
`made_cpu_ms` what the first kind takes of a processor, with the snapshots that come meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import Measured, measured
from bftd.web.page import STEPS
from tests import browser

BOUND_MS = 1_000.0
BOUND_BYTES = 300_000
_PAINTED = """
new Promise((done) => {
  const told = (entries) => {
    const found = entries.find((entry) => entry.name === 'first-contentful-paint');
    if (found) done(found.startTime);
  };
  new PerformanceObserver((list) => told(list.getEntries())).observe({type: 'paint', buffered: true});
})
"""


def measure(nodes: int, trainers: int, repeats: int) -> dict[str, Any]:
    """Times in milliseconds and sizes in bytes."""
    with tempfile.TemporaryDirectory(prefix="bft-web-") as name:
        command = [sys.executable, "-m", "benchmarks.web.daemon", name, f"--nodes={nodes}", f"--trainers={trainers}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as daemon:
            try:
                assert daemon.stdout is not None
                line = daemon.stdout.readline()
                if not line:
                    raise SystemExit("the daemon did not come up")
                told = json.loads(line)
                busy = psutil.Process(daemon.pid)
                before_s = sum(busy.cpu_times()[:2])
                made = {f"{hours} h": _asked(told, f"/?hours={hours}") for hours in STEPS}
                cpu_ms = 1e3 * (sum(busy.cpu_times()[:2]) - before_s) / len(made)
                kept = [_asked(told, "/?hours=24")["ms"] for _ in range(repeats)]
                painted = asyncio.run(_painted(f"http://127.0.0.1:{told['port']}/?hours=24", repeats))
            finally:
                daemon.terminate()
    sizes = [page["bytes"] for page in made.values()]
    return {
        "nodes": nodes,
        "trainers": trainers,
        "bound_ms": BOUND_MS,
        "bound_bytes": BOUND_BYTES,
        "first_paint_ms": _spread(painted),
        "made_ms": {hours: page["ms"] for hours, page in made.items()},
        "made_cpu_ms": cpu_ms,
        "kept_ms": _spread(kept),
        "bytes": max(sizes),
        "bytes_compressed": max(page["zipped"] for page in made.values()),
        "within_bounds": max(sizes) <= BOUND_BYTES and max(painted) <= BOUND_MS,
    }


def _asked(told: dict[str, Any], path: str) -> dict[str, float]:
    """One page as an administrator sees it, who sees most: the time until it is there, and its sizes."""
    sizes = []
    begun_s = time.perf_counter()
    for headers in ({}, {"Accept-Encoding": "gzip"}):
        connection = http.client.HTTPConnection("127.0.0.1", told["port"], timeout=60)
        connection.request("GET", path, headers={"Authorization": f"Bearer {told['token']}", **headers})
        answer = connection.getresponse()
        sizes.append(len(answer.read()))
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"GET {path}: {answer.status}")
        if len(sizes) == 1:
            took_s = time.perf_counter() - begun_s
    return {"ms": 1e3 * took_s, "bytes": sizes[0], "zipped": sizes[1]}


async def _painted(url: str, repeats: int) -> list[float]:
    """First paints in tabs that have cached nothing."""
    found = []
    async with browser.browser() as address:
        for _ in range(repeats + 1):
            async with browser.tab(address, width=1600) as tab:
                await tab.go(url)
                found.append(float(await tab.value(_PAINTED)))
    return found[1:]  # the first one starts the browser's own processes


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "most": max(values),
        "count": len(values),
        "samples": [round(value, 2) for value in values],
    }


def table(result: Any) -> str:
    """The rows in Markdown."""
    paint, size = result["first_paint_ms"], result["bytes"]
    bound = f"{BOUND_MS / 1e3:.0f} s"
    sizes = f"{size / 1e3:.0f} kB, {result['bytes_compressed'] / 1e3:.0f} kB compressed"
    return measured(
        (
            Measured("first paint, median", f"{paint['median']:.0f} ms", bound, paint["median"] > BOUND_MS),
            Measured(
                f"first paint, the slowest of {paint['count']}",
                f"{paint['most']:.0f} ms",
                bound,
                paint["most"] > BOUND_MS,
            ),
            Measured("size, the largest of the four ranges", sizes, f"{BOUND_BYTES / 1e3:.0f} kB", size > BOUND_BYTES),
            Measured("a new page, processor time", f"{result['made_cpu_ms']:.0f} ms"),
            Measured("a cached page, median", f"{result['kept_ms']['median']:.1f} ms"),
        )
    )


EVIDENCE = {"web_page": Benchmark(("benchmarks.web.page", "--repeats", "12"), 1.0, {"table": table})}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--trainers", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if browser.executable() is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    found = measure(options.nodes, options.trainers, options.repeats)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(table(found))


if __name__ == "__main__":
    main()
