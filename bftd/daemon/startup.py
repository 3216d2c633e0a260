"""`bftd --dry-run` and `bftd --take-over`, which work beside a daemon that may be running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bftd.config.keys import Config
from bftd.ledger.file import Ledger
from bftd.service import dry_run as dry_runs
from bftd.service import other_daemons
from bftd.service.settings import settings_of
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.clients.visibility import Visibility
from slurm_plugin.site.preemption import Preemption


def lines(settings: Config) -> Iterator[str]:
    """Say what operator mode would do, from Slurm and the ledger, which a running daemon may be using."""
    client = _client_of(settings)
    Visibility(client).check()
    preemption = Preemption(client, settings.slurm.harvested)
    preemption.check()
    if preemption.objection:
        yield f"bftd does not start, and cancels nothing: {preemption.objection}"
    yield from dry_runs.report(settings, client.snapshot(), *dry_runs.known(Path(settings.ledger.path)))


def taken_over(settings: Config) -> str:
    """Record in the ledger that other daemons' pilots belong to this one; returns one line per daemon."""
    ledger = Ledger(settings.ledger.path, settings.daemon.mode)
    try:
        snapshot = _client_of(settings).snapshot()
        return other_daemons.take_over(ledger, snapshot, settings.slurm.harvested, settings_of(settings).spared)
    finally:
        ledger.close()


def _client_of(settings: Config) -> SlurmClient:
    return SlurmClient(Path(settings.slurm.conf) if settings.slurm.conf else None, settings.slurm.timeout_s)
