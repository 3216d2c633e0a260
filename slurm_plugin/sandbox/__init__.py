"""The private cluster: a real slurmctld and slurmds on this machine, for the demo, the tests and the benchmarks."""

from slurm_plugin.sandbox.cluster import Sandbox

__all__ = ["Sandbox"]
