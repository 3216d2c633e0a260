"""What other settings would have brought: the daemon's last hours replayed with the present ones and with those."""

from __future__ import annotations
