"""The worth of scaling curves: those of estimates, and those that are learned, against curves that are known."""
