"""Saving and loading of checkpoints: large states, stalls of the training, and intervals against losses."""
