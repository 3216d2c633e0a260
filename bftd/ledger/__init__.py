"""The ledger: one SQLite file with all that must survive the daemon."""
