"""The live loop's state: the core with its ledger, drivers to wake and pilots to cancel."""
