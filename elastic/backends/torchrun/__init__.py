"""torch.distributed.elastic as a back-end."""
