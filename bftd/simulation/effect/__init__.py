"""The effect of other settings: the daemon's last hours replayed with the present settings and with those."""

from __future__ import annotations
