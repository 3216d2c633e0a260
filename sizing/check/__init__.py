"""What is told of steps, held against what they take on a GPU: `bft size check`."""
