"""The time that one reading of a large cluster takes, by each of Slurm's own forms: text, JSON and its metrics.

    python -m benchmarks.scale.reads [--nodes N] [--jobs N] [--json]

The cluster is that of benchmarks.scale.cluster: a real controller, with stand-ins for nodes. Another release than the
machine's: tools/slurm_root.sh SUITE, with the same command.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import markdown
from benchmarks.scale.cluster import SMALLEST, fill, stand_ins
from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.read import parse
from slurm_plugin.sandbox.cluster import release_of

_CONF = "SlurmdTimeout=0\nMaxJobCount=100000\nMessageTimeout=60\n"
_METRICS = "MetricsType=metrics/openmetrics\n"
_NODES_SINCE, _METRICS_SINCE = (23, 2), (25, 11)
_SEPARATOR = "\x1freads"
_LONG_S = 120.0


def measure(nodes: int, jobs: int, repeats: int, log: Callable[[str], None]) -> dict[str, Any]:
    """Read a cluster of that size `repeats` times in each form: seconds to the answer, and to objects from it.

    JSON becomes only dictionaries here: making ours out of them comes on top.
    """
    release = release_of(Path("slurmctld"))
    metrics = release >= _METRICS_SINCE
    conf = _CONF + (_METRICS if metrics else "")
    with SandboxSite(nodes=1, tuned=False, extra_conf=conf, stand_ins=stand_ins(nodes - 1)) as site:
        fill(site, nodes, jobs)
        log(f"{nodes} nodes are up, {jobs} jobs in the queue")
        client = site.cluster.client(timeout_s=_LONG_S)
        form = f"--format={parse.job_format(_SEPARATOR)}"
        reads: dict[str, tuple[Callable[[], str], Callable[[str], object]]] = {
            "nodes, text": (lambda: _said(client, "scontrol", "show", "nodes", "-o"), parse.nodes),
            "jobs, text": (lambda: _said(client, "squeue", form), lambda text: parse.jobs(text, _SEPARATOR)),
            "jobs, JSON": (lambda: _said(client, "squeue", "--json"), json.loads),
        }
        if release >= _NODES_SINCE:
            reads["nodes, JSON"] = (lambda: _said(client, "scontrol", "show", "nodes", "--json"), json.loads)
        if metrics:
            port = re.findall(r"(?m)^SlurmctldPort=(\d+)", site.cluster.conf.read_text())[-1]
            for what in ("nodes", "jobs", "scheduler"):
                reads[f"{what}, metrics"] = (lambda what=what: _fetched(port, what), str.splitlines)  # type: ignore[misc]
        says = client.run("scontrol", "--version").out.split()[-1]
        found = {name: _timed(read, parsed, repeats) for name, (read, parsed) in reads.items()}
    return {"release": says, "nodes": nodes, "jobs": jobs, "reads": found}


def _timed(read: Callable[[], str], parsed: Callable[[str], object], repeats: int) -> dict[str, Any]:
    took_s, parse_s, text = [], [], ""
    for _ in range(repeats):
        begin_s = time.perf_counter()
        text = read()
        took_s.append(time.perf_counter() - begin_s)
        parsed(text)
        parse_s.append(time.perf_counter() - begin_s - took_s[-1])
    return {"bytes": len(text.encode()), "answer_s": took_s, "parse_s": parse_s}


def _said(client: SlurmClient, *words: str) -> str:
    answer = client.run(*words)
    if answer.code:
        raise SystemExit(f"scale.reads: {' '.join(words[:3])} failed: {answer.complaint}")
    return answer.out


def _fetched(port: str, what: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics/{what}", timeout=_LONG_S) as answer:
        text: str = answer.read().decode()
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table, or JSON alone with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=5000, help="nodes of the cluster (default 5000)")
    parser.add_argument("--jobs", type=int, default=3000, help="jobs in the queue (default 3000)")
    parser.add_argument("--repeats", type=int, default=7, help="readings in each form (default 7)")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    options = parser.parse_args(arguments)
    if options.nodes < SMALLEST or options.jobs < 1 or options.repeats < 1:
        parser.error(f"--nodes is at least {SMALLEST}, --jobs and --repeats are at least 1")
    log = (lambda text: None) if options.json else (lambda text: print(text, file=sys.stderr))
    found = measure(options.nodes, options.jobs, options.repeats, log)
    print(json.dumps(found, indent=1) if options.json else table(found))


def table(found: dict[str, Any]) -> str:
    """Return the medians as a Markdown table."""
    head = ("read", "answer, ms", "with parsing, ms", "bytes")
    rows = []
    for name, one in found["reads"].items():
        whole_s = [answer + parsing for answer, parsing in zip(one["answer_s"], one["parse_s"], strict=True)]
        times = (statistics.median(one["answer_s"]), statistics.median(whole_s))
        rows.append((name, *(f"{1000 * seconds:.0f}" for seconds in times), f"{one['bytes']:,}"))
    return markdown.table(head, rows)


if __name__ == "__main__":
    main()
