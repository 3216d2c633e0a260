"""How much memory of a GPU a training step takes: traced, or by formula."""
