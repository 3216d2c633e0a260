"""A worker's side of its driver's connection: progress, uploads and downloads of checkpoints."""
