"""Output of the commands of bft size."""
