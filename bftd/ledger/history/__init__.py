"""History in the ledger: samples a minute, thinned with age, and read in steps of time."""
