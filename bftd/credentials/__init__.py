"""Credentials: proofs by munge of who sent a request, and of who answered it."""
