"""The pilots of one trainer: their submission, addresses, time limits and end."""
