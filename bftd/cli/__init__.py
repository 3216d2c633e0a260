"""The command line `bft`."""
