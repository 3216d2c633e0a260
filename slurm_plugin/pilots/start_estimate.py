"""Slurm's own estimate of a job's start, from `sbatch --test-only`, which submits nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import CommandError

_START = re.compile(r"^Job \d+ (to start at .+)$", re.MULTILINE)
_MOMENT = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?: |$)")
_PREFIX = re.compile(r"^sbatch: (?:error: )?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Said:
    """Slurm's reply to a request, on one line, and whether it would accept it."""

    taken: bool
    words: str

    @property
    def start_s(self) -> float | None:
        """The start in unix seconds; None if Slurm names none."""
        found = _MOMENT.match(self.words) if self.taken else None
        if found is None:
            return None
        try:
            return datetime.fromisoformat(found[1]).timestamp()
        except (ValueError, OverflowError):
            return None


def asked(slurm: SlurmClient, lines: Sequence[str]) -> Said:
    """Ask when a job with these #SBATCH lines would start, with the default time limit of its partition.

    Raise CommandError if no slurmctld answers, and SlurmMissing if there is no sbatch.
    """
    return asked_of(slurm, "\n".join(["#!/bin/sh", *lines, "exit 0", ""]))


def asked_of(slurm: SlurmClient, script: str, *options: str) -> Said:
    """Ask when a job of this script with these options of sbatch would start; raises as `asked` does."""
    answer = slurm.run("sbatch", "--test-only", *options, stdin=script)
    words = _PREFIX.sub("", answer.err or answer.out).strip()
    if answer.code == 0 and (found := _START.search(words)):
        return Said(True, found[1])
    if answer.is_unheard or "fatal:" in answer.err:  # sbatch found no cluster to ask
        raise CommandError(f"sbatch --test-only: {answer.complaint.removeprefix('sbatch: ')}")
    return Said(False, " ".join(words.split()) or f"exit code {answer.code}")
