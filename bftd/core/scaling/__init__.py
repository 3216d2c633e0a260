"""A trainer's scaling curve and resize cost, learnt from its driver's reports."""
