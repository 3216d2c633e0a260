"""The messages between the daemon and drivers: their types, their bounds, and the proofs of who sent them."""
