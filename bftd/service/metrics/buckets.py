"""The bounds of all histograms, in seconds: each resolves the usual durations, and also covers excessive ones."""

from __future__ import annotations

# Slurm commands and snapshots: milliseconds on an idle controller, up to the time-out.
SLURM = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# A decision takes milliseconds; a mixed-integer program, or thousands of trainers, up to seconds.
DECISION = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
# An agent leaves within 0.12 s of Slurm's notice; a node that is still held after some seconds is an alarm.
GIVE_BACK = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
# A regular job starts in Slurm's next cycle: after a second to some minutes.
START = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# A resize stops training for a second or two, or longer if a large checkpoint is stored and loaded.
STALL = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
