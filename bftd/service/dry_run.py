"""A dry run of operator mode: names the jobs it would cancel, without touching Slurm or a ledger in use."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from bftd.base.errors import LedgerError
from bftd.config.keys import Config
from bftd.core.inputs import orphan_jobs
from bftd.core.model import foreign_jobs
from bftd.core.model.domain import Settings, State
from bftd.core.model.draft import Draft
from bftd.core.model.foreign_jobs import ElasticJob
from bftd.ledger.file import Ledger
from bftd.pool import membership
from bftd.pool.harvest import Harvest
from bftd.service.other_daemons import IDENTITY
from bftd.service.settings import settings_of
from slurm_plugin.nodeset import fold
from slurm_plugin.read.types import Snapshot


class _Peek(Ledger):
    """A ledger opened for reading only and without its lock, so that a daemon may go on using it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)

    def close(self) -> None:
        self._db.close()


def known(path: Path) -> tuple[State, frozenset[str]]:
    """Return a ledger's trainers and leases, and the words by which its daemon's pilots name it; empty without one."""
    if not path.exists():
        return State(), frozenset()
    try:
        ledger = _Peek(path)
        try:
            return ledger.load(time.time()), frozenset(ledger.kept(IDENTITY).get("words", ()))
        finally:
            ledger.close()
    except sqlite3.Error as error:
        raise LedgerError(f"cannot read the ledger {path} ({error}): run this as the user of bftd") from None


def report(config: Config, snapshot: Snapshot, state: State, identities: frozenset[str]) -> Iterator[str]:
    """Yield a line for each job of the partition that no lease stands behind, and a summary."""
    settings = replace(settings_of(config), identities=identities)
    leased = {lease.node: lease.job_id for lease in state.leases.values()}
    _, view = membership.observe(
        membership.PoolMemory(), snapshot, config.pool, Harvest.of(*config.slurm.harvested), leased, {}
    )
    turn = Draft(replace(state, settings=settings.changed(operator=False)), snapshot.time_s, explain=False)
    turn.pool = view
    orphan_jobs.follow(turn)
    theirs = {id_: word for word, ids in orphan_jobs.foreign(turn, view).items() for id_ in ids}
    would = 0
    for orphan in turn.orphan_jobs.values():
        job = orphan.job
        why = _spared(job, theirs, settings)
        would += why is None
        whose = f"{job.user} ({job.account})" if job.account else job.user
        verdict = "would be cancelled" if why is None else f"is left alone: {why}"
        yield f"job {job.id} of {whose} on {fold(job.nodes)} {verdict}"
    running, most = len(view.elastic), foreign_jobs.most(len(view.elastic))
    where = ", ".join(config.slurm.harvested)
    yield f"{would} of the {running} running jobs of {where} would be cancelled, {most} an hour may be"
    if would > most:
        yield "so operator mode would cancel none of them, stop, and raise an alarm"
    elif would:
        yield "of these it cancels those that were submitted after it had started"
    if not config.slurm.operator:
        yield "operator is false under [slurm]: none of them is cancelled"


def _spared(job: ElasticJob, theirs: Mapping[str, str], settings: Settings) -> str | None:
    """Return why a job would be left alone (`theirs` are pilots of other daemons); None if it would be cancelled."""
    if job.id in theirs:
        return f"it is a pilot of another bftd ({theirs[job.id]})"
    return orphan_jobs.spared_because(job, settings)
