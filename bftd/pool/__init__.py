"""From snapshots of Slurm to the node pool and each node's window. Pure."""
