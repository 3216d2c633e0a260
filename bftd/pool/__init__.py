"""The node pool and each node's window, from snapshots of Slurm. Pure."""
