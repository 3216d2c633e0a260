"""What a regular job should ask Slurm for: GPUs by the memory that a model's training takes (Frenzy)."""
