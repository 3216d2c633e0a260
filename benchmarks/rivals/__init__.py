"""Ways to train on idle nodes, on the same cluster beside the same queue: docs/evidence/impact.md#rivals."""
