"""The daemon's process: its start, its loop, and its duties to systemd."""
