"""Shadow mode: the daemon's own core on the live cluster, with imaginary trainers instead of real ones.

Nothing is submitted, lent or cancelled. The core sees Slurm's snapshots with imaginary pilots added, and the work of
the imaginary trainers on their nodes is computed from the time of the snapshots.
"""
