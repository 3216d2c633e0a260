"""The GPU memory that a training step takes: traced, or by formula."""
