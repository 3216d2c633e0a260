"""Stand-ins for many drivers at once, a probe of the API, and what /proc tells of the daemon."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bftd.base.errors import BftError
from bftd.cli.admin.sandbox_site import SandboxSite
from bftd.protocol.registration import Registration
from slurm_plugin.errors import SlurmError

_WAIT_S = 5.0
_STATUS_EVERY_S = 1.0
_LEASES_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """A process so far: its own and its finished children's processor time, and the most memory it ever had."""

    own_s: float
    children_s: float
    peak_bytes: int


class ProcessWatch:
    """Looks at one process from the outside."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def sample(self) -> Sample:
        """What /proc says now."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        tick = os.sysconf("SC_CLK_TCK")
        user, system, child_user, child_system = (int(field) / tick for field in fields[11:15])
        status = (self._folder / "status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return Sample(user + system, child_user + child_system, int(peak.split()[1]) * 1024)


def request(number: int, nodes: int) -> Registration:
    """What the core is told of the trainer that `Drivers` registers."""
    return Registration.from_json(_request(number, nodes))


def _request(number: int, nodes: int) -> dict[str, Any]:
    """What a driver registers: trainers of different efficiency, which together could use more than all nodes."""
    most = max(2, nodes // 16)
    sizes = sorted({max(1, most * share // 16) for share in range(1, 17)})
    efficiency = 0.6 + 0.39 * (number * 7 % 35) / 35
    return {
        "id": f"run-scale-{number}",
        "name": f"trainer-{number}",
        "backend": "torchrun",
        "nodes_min": min(most, 1 + number % 4),
        "nodes_max": most,
        "partition": "elastic",
        "user": "root",
        "curve": {"nodes": sizes, "samples_per_s": [100.0 * size**efficiency for size in sizes]},
        "up_cost_s": 20.0,
        "down_cost_s": 5.0,
        "held": [],
    }


_T = TypeVar("_T", bound="_Threads")


class _Threads:
    """Threads that run from entry to exit; each ends by itself once `_stop` is set."""

    _stop: threading.Event
    _threads: list[threading.Thread]

    def __enter__(self: _T) -> _T:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Drivers(_Threads):
    """So many registered trainers, whose pilots are real allocations in which nothing runs."""

    def __init__(self, site: SandboxSite, count: int, nodes: int) -> None:
        self.refused = 0
        self._site = site
        self._client = site.cluster.client(timeout_s=30.0)
        self._stop = threading.Event()
        self._jobs: dict[str, str] = {}
        self._threads = [threading.Thread(target=self._drive, args=(_request(n, nodes),)) for n in range(count)]

    @property
    def working(self) -> int:
        """Pilots that are held now."""
        return len(self._jobs)

    def _drive(self, request: dict[str, Any]) -> None:
        """Take leases by long poll until stopped; pilots end with the cluster."""
        api, path = self._site.client, f"/v1/trainers/{request['id']}"
        answer = api.request("POST", "/v1/trainers", request)
        epoch = answer["epoch"]
        while not self._stop.is_set():
            events = [event for lease in answer["leases"] for event in self._follow(request["id"], lease)]
            with contextlib.suppress(BftError):
                if events:
                    api.request("POST", f"{path}/report", {"epoch": epoch, "events": events})
                wait_s = 0 if self._stop.is_set() else _WAIT_S
                query = f"?epoch={epoch}&version={answer['version']}&wait_s={wait_s:g}"
                answer = api.request("GET", f"{path}/leases{query}", timeout_s=_WAIT_S + 30.0)

    def _follow(self, name: str, lease: dict[str, Any]) -> list[dict[str, Any]]:
        """Do what one lease asks for; returns what is to be reported."""
        id_, job = lease["id"], self._jobs.get(lease["id"])
        if lease["state"] == "revoked":
            if job is not None:
                self._client.cancel([self._jobs.pop(id_)])
            return [_told(id_, "ended", job)]
        if job is not None or self._stop.is_set():
            return []
        words = ["--immediate=1", "--no-shell", "--partition=elastic", f"--nodelist={lease['node']}", "--nodes=1"]
        words += ["--exclusive", f"--time={lease['limit_s'] // 60:.0f}", f"--comment=bft {name} {id_}"]
        try:
            said = self._client.run("salloc", *words)
        except SlurmError as error:
            self.refused += 1
            return [_told(id_, "refused", None, str(error))]
        if said.code != 0:
            self.refused += 1
            return [_told(id_, "refused", None, said.complaint)]
        job = self._jobs[id_] = said.err.split()[-1]
        return [_told(id_, state, job) for state in ("placed", "ready", "working")]


def _told(lease: str, state: str, job: str | None, reason: str = "") -> dict[str, Any]:
    return {"op": "lease", "id": lease, "state": state, "job_id": job, "reason": reason, "at_s": time.time()}


class Probe(_Threads):
    """Asks the daemon for its status once a second and for one trainer's leases twenty times, and times the answers."""

    def __init__(self, site: SandboxSite, only: str = "") -> None:
        """`only`: one of both, "status" or "leases"."""
        self._api = site.client
        self._stop = threading.Event()
        self._took_s: dict[str, list[float]] = {"status": [], "leases": []}
        request = {**_request(999, 16), "id": "run-scale-probe"}
        epoch = self._api.request("POST", "/v1/trainers", request)["epoch"]
        leases = f"/v1/trainers/run-scale-probe/leases?epoch={epoch}&version=0&wait_s=0"
        asked = (("status", "/v1/status", _STATUS_EVERY_S), ("leases", leases, _LEASES_EVERY_S))
        chosen = [asking for asking in asked if only in ("", asking[0])]
        self._threads = [threading.Thread(target=self._ask, args=asking) for asking in chosen]

    def summary(self) -> dict[str, dict[str, float]]:
        """Median, 99th percentile and maximum of each request, in seconds."""
        return {name: _summary(list(values)) for name, values in self._took_s.items() if values}

    def take(self, name: str) -> list[float]:
        """The seconds of each answer since this was asked last."""
        taken, self._took_s[name] = self._took_s[name], []
        return taken

    def _ask(self, name: str, path: str, every_s: float) -> None:
        while not self._stop.wait(every_s):
            start_s = time.perf_counter()
            self._api.request("GET", path, timeout_s=60.0)
            self._took_s[name].append(time.perf_counter() - start_s)


def _summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    count = len(ordered)
    return {
        "p50_s": ordered[(count - 1) // 2],
        "p99_s": ordered[math.ceil(count * 0.99) - 1],
        "max_s": ordered[-1],
        "count": count,
    }
