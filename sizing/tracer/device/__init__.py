"""The simulated GPU and host that a user's step sees."""
