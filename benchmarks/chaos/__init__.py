"""Faults on a real cluster while real trainers train: docs/evidence/reliability.md."""
