"""The limits of all messages: one side refuses what the other must not send.

Each is far above what the largest machine needs; together they bound what one caller can make the daemon keep.
"""

from __future__ import annotations

# The version of these messages. A daemon serves drivers of an older version, which run on through its upgrade.
VERSION = 2

# The most nodes, workers or trainers that anybody may ask for: it only keeps senseless numbers out.
NODES_MOST = 1_000_000
# The largest numbers: numbers far beyond what is measured would cost a solver the precision of all others.
NUMBER_MOST = 10**12
WHOLE_MOST = 10**15
SAMPLES_MOST = 10**18
WEIGHT_MOST = 10**6
# Text from a driver is shown on one line, and cut here.
TEXT_MOST = 2_000
# Names of users, partitions, back-ends and jobs.
NAME_MOST = 256
# A trainer's id is a Slurm job id or run-<host>-<pid>.u<uid>.<random>; it stands in URLs.
TRAINER_ID_MOST = 128
# A lease's id is <node>.<sequence>.
LEASE_ID_MOST = 275
# The sizes that one trainer may name, and the points of its curve: both are written to the ledger with each report.
SIZES_MOST = 4_096
CURVE_POINTS_MOST = 256
# Estimates of a trainer's speed: classes of nodes, and points on each. They are written as often.
ESTIMATE_CLASSES_MOST = 32
ESTIMATE_POINTS_MOST = 32
# Estimates below this many samples/s are refused: measurements are divided by estimates.
ESTIMATE_RATE_LEAST = 1e-6
# The classes of nodes that a daemon tells a driver.
CLASSES_MOST = 1_000
# The features that one trainer may ask its nodes to have.
FEATURES_MOST = 32
# The leases that a driver may bring along: one per node, and those that are still being given back.
HELD_MOST = 5_000
HELD_PER_NODE_MOST = 4
# The limits of [slurm] timeout_s, after which a Slurm command, also a driver's, has failed.
COMMAND_LEAST_S = 0.5
COMMAND_MOST_S = 60.0
# Reports in one request: drivers send no more at a time.
REPORTS_MOST = 500
# The last lines of a trainer's log that its driver sends, and the letters of each.
TAIL_LINES_MOST = 20
TAIL_LINE_MOST = 200
# Notes of one trainer that are accepted, after an initial few at once; the daemon counts the others and drops them.
NOTES_PER_S_MOST = 1.0
NOTES_AT_ONCE_MOST = 10
# A ledger whose last steps may be lost goes on with epochs of the next block: a driver with one of another block may
# have been registered by a step that is lost, and registers again.
EPOCHS_OF_A_BLOCK = 10_000
# A request of that many reports or leases; anything larger is a mistake. Its values are counted by its commas, brackets
# and braces: decoding many small ones takes longer than a few large ones.
BODY_BYTES_MOST = 2**20
BODY_VALUES_MOST = 25_000
