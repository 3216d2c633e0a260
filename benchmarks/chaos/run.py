"""One run: the site, its trainers and regular jobs, fault after fault, and what came of it all."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from benchmarks.chaos import model, trainers
from benchmarks.chaos.faults import Faults, NotNow
from benchmarks.chaos.model import Struck, Violations
from benchmarks.chaos.observer import Observer, RegularJobs
from benchmarks.chaos.site import ChaosSite
from benchmarks.chaos.trainers import Trainers
from bftd.base.errors import BftError

BACKENDS = ("torchrun", "horovod")
_BEGINS_S = 120.0
_ENDS_S = 180.0
_CALM_S = 90.0
_STARTS_S = 60.0
# slurmctld asks a node that did not answer again about once a minute
_ORPHANS_S = 120.0
_POLL_S = 0.5


def perform(
    minutes: float, seed: int, kinds: Collection[str], folder: Path, log: Callable[[str], None]
) -> dict[str, Any]:
    """Strike a site for so many minutes and return what `--json` prints; logs go to the new folder `folder`."""
    violations = Violations()
    with ChaosSite() as site:
        try:
            fleet = Trainers(site, BACKENDS, violations)
            jobs, observer = RegularJobs(site, seed), Observer(site, fleet, violations)
            site.start_daemon()
            fleet.submit()
            _wait(_BEGINS_S, lambda: fleet.look() and all(trainer.top for trainer in fleet.all))
            jobs.start()
            observer.start()
            struck = _strike(minutes, model.faults(seed, kinds), Faults(site, fleet, jobs, violations), fleet, log)
            started = jobs.end(_STARTS_S)
            _calm(site, fleet, violations)
            fleet.stop()
            _wait(_ENDS_S, lambda: not fleet.look())
            observer.end()
            give_backs_s = site.client.status()["give_back_s"]
            twice = {trainer.backend: fleet.counted_twice(trainer) for trainer in fleet.all}
            orphans = _orphans(site, violations)
        finally:
            _keep(site, folder)
    for line in trainers.own_faults(folder):
        violations.add("daemon_error", line)
    ends = fleet.judge(folder, twice)
    found = model.figures(minutes, struck, started, ends, give_backs_s, orphans, violations)
    return {**found, "alarms_seen": sorted(observer.alarms)}


def _strike(minutes: float, drawn: Any, faults: Faults, fleet: Trainers, log: Callable[[str], None]) -> list[Struck]:
    """Strike fault after fault, and look after the trainers meanwhile."""
    struck: list[Struck] = []
    until_s = time.monotonic() + 60.0 * minutes
    for fault in drawn:
        if not _go_on(fault.after_s, until_s, fleet):
            return struck
        begin_s = time.time()
        try:
            whom, mend = faults.strike(fault)
        except NotNow:
            log(f"{fault.kind}: nobody to strike")
            continue
        if mend is not None:
            _go_on(fault.length_s, until_s + fault.length_s, fleet)
            mend()
        struck.append(Struck(fault.kind, whom, begin_s, time.time()))
        log(f"{len(struck)}: {fault.kind}: {whom}, {struck[-1].end_s - begin_s:.1f} s")
    return struck


def _go_on(for_s: float, until_s: float, fleet: Trainers) -> bool:
    """Let time pass; returns whether it is not over."""
    end_s = min(time.monotonic() + for_s, until_s)
    while (left_s := end_s - time.monotonic()) > 0:
        fleet.look()
        time.sleep(min(_POLL_S, max(0.0, left_s)))
    return time.monotonic() < until_s


def _calm(site: ChaosSite, fleet: Trainers, violations: Violations) -> None:
    """Wait until every trainer trains again and no alarm is left."""
    before = {trainer.backend: len(trainer.rows) for trainer in fleet.all}

    def is_calm() -> bool:
        fleet.look()
        try:
            quiet = not site.client.status()["alarms"]
        except BftError:
            return False
        return quiet and all(len(trainer.rows) > before[trainer.backend] for trainer in fleet.all)

    if not _wait(_CALM_S, is_calm):
        for alarm in site.client.status()["alarms"]:
            violations.add("alarm_left", alarm["text"])


def _orphans(site: ChaosSite, violations: Violations) -> int:
    """Return how many processes and pilots of trainers are left some time after these have ended."""
    _wait(_ORPHANS_S, lambda: not site.orphans() and not _pilots(site))
    site.stop_daemon()
    for job in _pilots(site):
        violations.add("pilot_left", job)
    for pid in (left := site.orphans()):
        violations.add("orphan", f"{pid}", Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
    return len(left)


def _pilots(site: ChaosSite) -> list[str]:
    return site.slurm("squeue", "-h", "-p", "elastic", "-o", "%i").split()


def _wait(most_s: float, condition: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > until_s:
            return False
        time.sleep(_POLL_S)
    return True


def _keep(site: ChaosSite, folder: Path) -> None:
    """Copy the logs of daemon, drivers and Slurm, and what the scripts wrote."""
    folder.mkdir(parents=True)
    for path in (site.log_path, *site.work.glob("*.log"), *site.work.glob("*.jsonl"), *site.root.glob("log/*.log")):
        if path.exists():
            shutil.copy(path, folder / path.name)
