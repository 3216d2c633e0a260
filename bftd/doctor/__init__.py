"""The checks of `bft doctor`: what may be wrong with a host, its Slurm, and the daemon that it reaches."""
