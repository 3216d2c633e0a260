"""The imports of a training script: checkpoints, steps, batches, ranks, and hooks for a resize."""
