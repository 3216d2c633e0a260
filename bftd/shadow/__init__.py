"""Shadow mode: the daemon's own core on the live cluster, with imaginary trainers in the place of real ones.

Nothing is submitted, lent or cancelled. Slurm's snapshots are shown to the core with the pilots that would be there,
and what the imaginary trainers make of their nodes is reckoned with the time of the snapshots.
"""
