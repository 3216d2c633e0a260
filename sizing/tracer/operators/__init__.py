"""Operators on tensors without contents: their memory, FLOPs and traffic."""
