"""Code that several commands of bft size share: inventories, traces, submission."""
