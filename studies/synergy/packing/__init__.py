"""Packers: CPUs and memory of servers by the jobs' needs."""
