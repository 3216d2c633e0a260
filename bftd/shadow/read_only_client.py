"""A client of Slurm that can only read, whatever it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_plugin.client import Answer, SlurmClient
from slurm_plugin.errors import CommandError

_SHOWING = (("scontrol", "show"), ("sacctmgr", "show"))


class ReadingClient(SlurmClient):
    """Runs `squeue`, `scontrol show` and `sacctmgr show`, refuses every other command, and counts its `calls`."""

    calls = 0

    def run(
        self,
        command: str,
        *arguments: str,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Run a command that reads; raises CommandError for any other."""
        if command != "squeue" and (command, *arguments[:1]) not in _SHOWING:
            raise CommandError(f"{command} is not run: in shadow mode Slurm is only read")
        self.calls += 1
        return super().run(command, *arguments, stdin=stdin, env=env, timeout_s=timeout_s)
