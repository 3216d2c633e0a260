"""One trainer's driver with many nodes, and what plays its Slurm, its daemon and its workers."""
