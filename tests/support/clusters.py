"""Running clusters for one module after another: a cluster that is handed on is as it was when it began."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.errors import SlurmError
from slurm_plugin.sandbox import Sandbox, processes
from slurm_plugin.sandbox.config import ClusterShape

_KEPT_MOST = 2
"""Clusters without a module: each takes a share of the processors, also with nothing to do."""

_EMPTY_S = 20.0
"""For jobs to end that nobody waits for any more; a node that takes longer is not handed on."""

_CHANGING = ("BootTime=", "CPULoad=", "FreeMem=", "LastBusyTime=")
"""What the controller tells of a node that changes by itself."""


class Clusters:
    """The clusters of one test process; all are of the Slurm release that this process finds."""

    def __init__(self) -> None:
        self._free: dict[ClusterShape, _Known] = {}

    @contextlib.contextmanager
    def lend(self, **shape: Any) -> Iterator[Sandbox]:
        """A running cluster with nothing on it; `shape` is what Sandbox takes."""
        made = Sandbox(**shape)
        known = self._free.pop(made.shape, None) or _Known.of(made.up())
        try:
            yield known.cluster
        finally:
            self._take_back(known)

    def _take_back(self, known: _Known) -> None:
        """Keep a cluster that is whole, and end any other; of those that are kept, the newest."""
        if known.cluster.shape not in self._free and known.is_whole():
            known.clean()
            self._free[known.cluster.shape] = known
        else:
            known.cluster.down()
        while len(self._free) > _KEPT_MOST:
            self._free.pop(next(iter(self._free))).cluster.down()

    @contextlib.contextmanager
    def site(self, config: Mapping[str, Mapping[str, Any]] | None = None, **shape: Any) -> Iterator[SandboxSite]:
        """The same with what a site has beside its cluster; its daemon is not started."""
        with self.lend(**shape) as cluster:
            site = SandboxSite(config)
            site.cluster = cluster
            for folder in (site.work, Path(site.env()["TMPDIR"])):
                folder.mkdir()
            try:
                yield site
            finally:
                site.stop_daemon()

    def end(self) -> None:
        """End the clusters that no module has."""
        while self._free:
            self._free.popitem()[1].cluster.down()


@dataclass(frozen=True)
class _Known:
    """A cluster, and what a module must leave as it found it: daemons, what they read, and what the controller says."""

    cluster: Sandbox
    names: frozenset[str]
    daemons: frozenset[int]
    files: dict[str, bytes]
    told: tuple[str, ...]

    @classmethod
    def of(cls, cluster: Sandbox) -> _Known:
        client, root = cluster.client(), cluster.root
        told = (
            client.run("scontrol", "--all", "show", what, "-o").out for what in ("node", "partition", "reservation")
        )
        return cls(
            cluster,
            frozenset(path.name for path in root.iterdir()),
            frozenset(found.pid for found in processes.of_root(root)),
            {path.name: path.read_bytes() for path in root.iterdir() if path.suffix in (".conf", ".lua")},
            tuple(word for word in " ".join(told).split() if not word.startswith(_CHANGING)),
        )

    def is_whole(self) -> bool:
        """Whether the cluster is as it was, once all that ran there has been ended."""
        try:
            if not self._emptied():
                return False
            now = _Known.of(self.cluster)
        except SlurmError:
            return False
        return replace(now, names=self.names) == self

    def clean(self) -> None:
        """Remove what a module has put beside the cluster's own files, and what the daemons have logged for it."""
        root = self.cluster.root
        for path in root.iterdir():
            if path.name not in self.names:
                # Processes of jobs that have just ended may still remove what is theirs.
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for log in (root / "log").iterdir():
            os.truncate(log, 0)

    def _emptied(self) -> bool:
        """End all jobs; False where a job or a node does not come to rest."""
        client, deadline_s = self.cluster.client(), time.monotonic() + _EMPTY_S
        while time.monotonic() < deadline_s:
            if jobs := [job.id.split("_")[0] for job in client.snapshot().jobs]:
                client.cancel(jobs, signal="KILL")
            states = set(self.cluster.status().values())
            running = {found.pid for found in processes.of_root(self.cluster.root)}
            if any("DRAIN" in state or "DOWN" in state for state in states) or not self.daemons <= running:
                return False
            if not jobs and states == {"IDLE"} and self.daemons == running:
                return True
            time.sleep(0.05)
        return False
