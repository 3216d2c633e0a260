"""Connections: what goes over them, who may, and how a process at one end of one is prepared."""
