"""The environment for Slurm commands, without variables that change their behaviour or output."""

from __future__ import annotations

from collections.abc import Mapping

# Variables with these prefixes are options to one of Slurm's commands: SQUEUE_FORMAT would change what we parse,
# SLURM_JOB_ID would make srun join the caller's own job, SLURM_TIME_FORMAT would change every date.
_OPTION_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_")
_KEPT = frozenset({"SLURM_CONF"})

# The output format that we read. Without a length, squeue cuts the id of a waiting job array after 31 characters, in
# the middle of a task; with the length of its manual it shortens the list of tasks to that length, with dots. Whole
# lists (a length of 0) cost squeue 18 s for one array of half a million tasks: more than any time-out.
READABLE = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "64"}


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """Copy `environ` without Slurm's variables, except the one that locates the cluster (SLURM_CONF)."""
    return {key: value for key, value in environ.items() if key in _KEPT or not key.startswith(_OPTION_PREFIXES)}
