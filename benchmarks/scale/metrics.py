"""The time of a scrape with a daemon of 5,000 nodes and 100 trainers, and its cost to the daemon's loop.

    python -m benchmarks.scale.metrics [--repeats N] [--nodes N] [--trainers N] [--json]

The daemon is that of `benchmarks.scale.daemon`, a process of its own with all nodes lent, which takes in a snapshot a
second. Each scrape is made anew: they are further apart than an answer is kept.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.evidence.model import Benchmark
from benchmarks.scale.daemon import Site, spread
from benchmarks.scale.hostile import serving
from bftd import __version__
from bftd.http.handlers.metrics import KEPT_S
from bftd.service.metrics.counters import Counters
from bftd.service.metrics.exposition import Exposition

BOUND_MS = 50.0
FORMS = {"prometheus": "text/plain", "openmetrics": "application/openmetrics-text; version=1.0.0"}


class _Connection(http.client.HTTPConnection):
    """HTTP on a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        """See http.client."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def measure(nodes: int, trainers: int, repeats: int) -> dict[str, Any]:
    """Times in milliseconds, from the connection to the last byte; the loop's turns with scrapes and without."""
    found: dict[str, Any] = {"nodes": nodes, "trainers": trainers, "bound_ms": BOUND_MS}
    found["made_cpu_ms"] = {form: _made(nodes, trainers, accept, repeats) for form, accept in FORMS.items()}
    for name in ("scraped", "idle"):
        folder = Path(tempfile.mkdtemp(prefix="bft-metrics-"))
        with serving(folder, trainers, nodes) as daemon:
            if name == "scraped":
                for form, accept in FORMS.items():
                    found[form] = _scraped(folder / "socket", accept, repeats)
            else:
                time.sleep(2 * repeats * (KEPT_S + 0.05))
            daemon.terminate()
            told = json.loads(daemon.communicate(timeout=60)[0])
        shutil.rmtree(folder)
        found[f"daemon_{name}"] = {key: told[key] for key in ("loop_lag_ms", "turn_ms", "tick_ms")}
    return found


def _made(nodes: int, trainers: int, accept: str, repeats: int) -> dict[str, Any]:
    """Processor time of making the text, which another load of the machine changes little."""
    folder = Path(tempfile.mkdtemp(prefix="bft-metrics-"))
    site = Site(folder, trainers, nodes)
    measured, took_s = Counters(), []
    for _ in range(repeats):
        begun_s = time.thread_time()
        Exposition(measured, site.service.figures(), __version__).encoded(accept)
        took_s.append(time.thread_time() - begun_s)
    site.service.ledger.close()
    shutil.rmtree(folder)
    return spread(took_s) | {"samples": _samples_ms(took_s)}


def _scraped(path: Path, accept: str, repeats: int) -> dict[str, Any]:
    took_s, text = [], b""
    for _ in range(repeats):
        time.sleep(KEPT_S + 0.05)
        begun_s = time.perf_counter()
        connection = _Connection(path)
        connection.request("GET", "/metrics", headers={"Accept": accept})
        answer = connection.getresponse()
        text = answer.read()
        took_s.append(time.perf_counter() - begun_s)
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"the daemon answered {answer.status}: {text.decode()}")
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    return {"scrape_ms": spread(took_s) | {"samples": _samples_ms(took_s)}, "bytes": len(text), "series": series}


def _samples_ms(took_s: Sequence[float]) -> list[float]:
    return [round(1e3 * each, 2) for each in took_s]


def table(result: Any) -> str:
    """The rows in Markdown."""
    asked = [(result[form], result["made_cpu_ms"][form]) for form in FORMS]
    missed = any(form["scrape_ms"]["p50"] > BOUND_MS for form, _ in asked)
    turns = [f"{result[f'daemon_{name}']['turn_ms']['max_cpu']:.1f} ms" for name in ("scraped", "idle")]
    bound = f"{BOUND_MS:.0f} ms{', **missed**' if missed else ''}"
    rows = [
        (
            "a scrape: median, most",
            *(f"{a['scrape_ms']['p50']:.1f} ms, {a['scrape_ms']['max']:.0f} ms" for a, _ in asked),
            bound,
        ),
        ("making the text, processor time: median", *(f"{made['p50']:.1f} ms" for _, made in asked), ""),
        ("size", *(f"{form['bytes'] / 1e3:.0f} kB, {form['series']} series" for form, _ in asked), ""),
        ("longest turn of the loop, processor time: with scrapes, without", ", ".join(turns), "", ""),
    ]
    lines = ["| what | Prometheus | OpenMetrics | bound |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


EVIDENCE = {"metrics": Benchmark(("benchmarks.scale.metrics", "--repeats", "25"), 4.0, {"table": table})}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--trainers", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.nodes, options.trainers, options.repeats)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(table(found))


if __name__ == "__main__":
    main()
