"""What travels between the daemon and drivers: typed messages, their bounds, and the proofs of who sent them."""
