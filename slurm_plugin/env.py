"""The environment for Slurm commands: without the variables that change what they do or print."""

from __future__ import annotations

from collections.abc import Mapping

# Each of these prefixes is read as options by one of Slurm's commands: SQUEUE_FORMAT would change what we parse,
# SLURM_JOB_ID would make srun join the caller's own job, SLURM_TIME_FORMAT would change every date.
_OPTION_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_")
_KEPT = frozenset({"SLURM_CONF"})


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """Copy `environ` without Slurm's variables, except the one that says where the cluster is (SLURM_CONF)."""
    return {key: value for key, value in environ.items() if key in _KEPT or not key.startswith(_OPTION_PREFIXES)}
