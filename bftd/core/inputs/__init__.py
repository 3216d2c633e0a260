"""Inputs of a step: snapshots of Slurm and drivers' reports, folded into its draft."""
