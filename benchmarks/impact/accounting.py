"""The QOS of pilots, for the recipe that decides by QOS; slurmdbd keeps it (`tools/setup.sh recipes`)."""

from __future__ import annotations

from slurm_plugin.sandbox.accounting import sacctmgr

PILOT_QOS = "pilot"


def add_pilot_qos(environ: dict[str, str]) -> None:
    """The QOS of pilots: every regular job may preempt it, and it counts more than they do in a job's priority."""
    sacctmgr(environ, "add", "qos", PILOT_QOS)
    sacctmgr(environ, "modify", "qos", PILOT_QOS, "set", "priority=1000")
    sacctmgr(environ, "modify", "qos", "normal", "set", f"preempt={PILOT_QOS}")
