"""What `bftd` does beside a daemon that may be running: `--dry-run` and `--take-over`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

from bftd.keys import Config
from bftd.service import dry_run as dry_runs
from bftd.service import neighbours
from bftd.service.ledger import Ledger
from bftd.service.neighbours import IDENTITY
from slurm_plugin.client import SlurmClient
from slurm_plugin.preemption import Preemption
from slurm_plugin.visibility import Visibility


def told(settings: Config) -> Iterator[str]:
    """What operator mode would do: read from Slurm and, beside a daemon that may be using it, from the ledger."""
    client = _client_of(settings)
    Visibility(client).check()
    preemption = Preemption(client, settings.slurm.harvested)
    preemption.check()
    if preemption.objection:
        yield f"bftd does not start, and cancels nothing: {preemption.objection}"
    yield from dry_runs.report(settings, client.snapshot(), *dry_runs.known(Path(settings.ledger.path)))


def taken_over(settings: Config) -> str:
    """Note in the ledger that pilots of other daemons are this one's own; returns a sentence."""
    ledger = Ledger(settings.ledger.path, settings.daemon.mode)
    try:
        kept = tuple(str(word) for word in ledger.kept(IDENTITY).get("words", ())) or (secrets.token_hex(4),)
        found = neighbours.foreign(_client_of(settings).snapshot(), settings.slurm.harvested, kept, {})
        ledger.keep(IDENTITY, {"words": [*kept, *found]})
    finally:
        ledger.close()
    if not found:
        return f"no pilot of another bftd runs in {', '.join(settings.slurm.harvested)}"
    return f"pilots of {' and '.join(found)} are taken for this bftd's own from now on"


def _client_of(settings: Config) -> SlurmClient:
    return SlurmClient(Path(settings.slurm.conf) if settings.slurm.conf else None, settings.slurm.timeout_s)
