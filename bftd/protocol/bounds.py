"""The most that any message may hold: one side refuses what the other must not send.

Each is far above what the largest machine needs; together they bound what one caller can make the daemon keep.
"""

from __future__ import annotations

# The version of these messages. A daemon serves drivers of an older one, which run on through its upgrade.
VERSION = 2

# The most nodes, workers or trainers that anybody may ask for: it only keeps senseless numbers out.
NODES_MOST = 1_000_000
# The most that any number may be: numbers far beyond what is measured would cost a solver the digits of all others'.
NUMBER_MOST = 10**12
WHOLE_MOST = 10**15
SAMPLES_MOST = 10**18
WEIGHT_MOST = 10**6
# Text that a driver sends is shown on one line, and cut here.
TEXT_MOST = 2_000
# Names of users, partitions, back-ends and jobs.
NAME_MOST = 256
# A trainer's id is a Slurm job id or run-<host>-<pid>.u<uid>.<random>; it stands in URLs.
TRAINER_ID_MOST = 128
# A lease's id is <node>.<sequence>.
LEASE_ID_MOST = 275
# The sizes that one trainer may name, and the points of its curve.
SIZES_MOST = 100_000
CURVE_POINTS_MOST = 100_000
# The leases that a driver may bring along: one a node.
HELD_MOST = 100_000
# The jobs without a plan that a list of leases names; where there are more, a new driver waits for the rest itself.
WAITED_OUT_MOST = 1_000
# Reports in one request; drivers send 500 at a time.
REPORTS_MOST = 10_000
# A request of that many reports; anything larger is a mistake.
BODY_BYTES_MOST = 4 * 2**20
