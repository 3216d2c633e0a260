"""A real Prometheus with our rules, on a port and in a folder of its own."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import waiting
from tests.support.ports import free_port

_CONFIG = """
global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}
rule_files: [rules.yml]
scrape_configs:
"""


class Prometheus:
    """A Prometheus that runs in `folder`."""

    def __init__(self, folder: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self._folder = folder
        self._base = f"http://127.0.0.1:{port}"
        self._process = process

    def ask(self, path: str, **query: str) -> Any:
        """What its API answers; an error of its own is raised with what it says."""
        url = f"{self._base}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None

    def value(self, expr: str) -> float | None:
        """The first value of a query, None where there is none."""
        found = self.ask("query", query=expr)["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        """The alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"}

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something is so."""
        waiting.until("what is wanted", reached, self.firing, lambda: self.ask("targets")["activeTargets"])

    async def fires(self, *alerts: str) -> None:
        """Wait, beside the loop, until all these fire."""
        await asyncio.to_thread(self.until, lambda: self.firing().issuperset(alerts))

    def watch(self, targets: Mapping[str, str]) -> None:
        """Scrape these jobs from now on: each an address, with a token behind a space where there is one."""
        write_config(self._folder, targets)
        urllib.request.urlopen(urllib.request.Request(f"{self._base}/-/reload", method="POST"), timeout=10).close()

    def ready(self) -> bool:
        """Whether it serves."""
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            urllib.request.urlopen(f"{self._base}/-/ready", timeout=1).close()
        except OSError:
            return False
        return True


def write_config(folder: Path, targets: Mapping[str, str]) -> None:
    """Its configuration file; see `Prometheus.watch`."""
    text = _CONFIG if targets else _CONFIG.replace("scrape_configs:", "scrape_configs: []")
    for job, target in targets.items():
        address, _, token = target.partition(" ")
        text += f'  - {{job_name: {job}, static_configs: [{{targets: ["{address}"]}}]'
        text += f", authorization: {{credentials: {token}}}}}\n" if token else "}\n"
    (folder / "prometheus.yml").write_text(text)


@contextmanager
def watching(folder: Path, rules: str, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """A Prometheus with these rules, which scrapes these targets; see `Prometheus.watch`."""
    folder.mkdir()
    (folder / "rules.yml").write_text(rules)
    write_config(folder, targets)
    program, port = shutil.which("prometheus"), free_port()
    assert program is not None
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(program, "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.enable-lifecycle"),
                *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
            ],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    prometheus = Prometheus(folder, port, process)
    try:
        waiting.until("prometheus serves", prometheus.ready, waiting.written(folder))
        yield prometheus
    finally:
        process.terminate()
        process.wait()
