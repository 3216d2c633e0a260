"""The messages between the daemon and drivers: their types and their bounds."""
