"""A client of Slurm that can only read."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_plugin.clients.client import CommandResult, SlurmClient
from slurm_plugin.errors import CommandError

_SHOWING = (("scontrol", "show"), ("sacctmgr", "show"))
_LOAD = ("sdiag",)  # with options it may reset the controller's counters


class ReadingClient(SlurmClient):
    """A client that runs `squeue`, `scontrol show`, `sacctmgr show` and plain `sdiag` only, and counts its `calls`."""

    calls = 0

    def run(
        self,
        command: str,
        *arguments: str,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run a command that reads; raise CommandError for any other."""
        shows = (command, *arguments[:1]) in _SHOWING or (command, *arguments) == _LOAD
        if command != "squeue" and not shows:
            raise CommandError(f"{command} is not run: in shadow mode Slurm is only read")
        self.calls += 1
        return super().run(command, *arguments, stdin=stdin, env=env, timeout_s=timeout_s)
