"""Runs of a user's command on some CPUs: confined, supervised, watched and measured."""
