"""Sizing of regular Slurm jobs: GPUs to ask for, by the memory that a model's training takes (Frenzy)."""
