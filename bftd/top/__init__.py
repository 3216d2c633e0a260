"""`bft top`: the live screen."""
