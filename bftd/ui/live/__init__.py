"""`bft top`: the live screen of the daemon."""
