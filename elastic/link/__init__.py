"""Connections: their messages, their authentication, and the set-up of a process at one end."""
