"""Timing constants that no site needs to change, each with its reason; `bftd.config.keys` has the others."""

# A refusal is mostly a race lost to Slurm: try again at the next poll, then ever later, as a site's limits refuse too.
BACKOFF_FIRST_S = 1.0
BACKOFF_MOST_S = 60.0
# A node that only one user was refused is kept from others no longer than this: it may be that user's limit, or a lie.
BACKOFF_ONE_USER_S = 4.0
# Rounds of placements in which a trainer was refused before it counts as being at a limit: fewer are lost races.
REFUSED_ROUNDS = 3
# Node-seconds that a trainer's grants left idle are made up for by this multiple of node-seconds with pilots.
IDLED_WEIGHT = 10.0
# Refusals of one node are forgotten when it was left alone this long.
BACKOFF_FORGET_S = 120.0

# Pilots have time limits of whole minutes, and at least one.
MINUTE_S = 60.0
# The window of the submission rate.
RATE_WINDOW_S = 60.0

# A pilot takes 5-10 ms to be granted or refused; a driver that has not even tried by then is stuck.
PLACE_WITHIN_S = 30.0
# Snapshots in a row without a pilot before it counts as gone: one may have been read before it was placed.
MISSED_POLLS = 2
# The driver and its agent leave within 0.2 s when Slurm needs the node; after this the daemon cancels the pilot itself.
VACATE_GRACE_S = 1.5
# A graceful leave takes as long as the step in flight and one commit; after this the worker is taken to hang.
GRACEFUL_GRACE_S = 60.0
# If Slurm's next backfill cycle is further away, the pilots on a job's nodes may leave at a step's end until this long,
# plus a poll, before it: the cycle may come early, and a pilot whose time is over takes VACATE_GRACE_S at most.
LEAVE_AHEAD_S = 0.5 + VACATE_GRACE_S
# A shorter time is not worth a deadline: few steps end in less.
LEAVE_LEAST_S = 1.0
# A finished trainer's driver ends its pilots before it exits.
FINISHED_GRACE_S = 5.0
# A driver reports a pilot within a second of placing it; one without a lease for longer was left behind.
ORPHAN_GRACE_S = 15.0
# A job of the harvested partition that no driver claims within this is named: a poll or two more than a claim takes.
ORPHAN_NAMED_S = 3.0
# After this, no lease of an orphan job without a pilot's comment can still be on its way.
ORPHAN_UNMARKED_GRACE_S = 5.0
# If scancel fails, for want of rights or in a busy controller, trying each second helps nobody.
CANCEL_AGAIN_S = 60.0
# A revoked lease that never had a pilot, and that its driver does not acknowledge, ends after this.
UNPLACED_GRACE_S = 30.0
# The pilot is given back this long before its time limit, so that Slurm never has to kill a worker in mid-step.
EXPIRY_AHEAD_S = 10.0

# Before harvesting ends for the day, as long as a graceful leave can take: then the nodes are free by the hour.
CLOSE_AHEAD_S = GRACEFUL_GRACE_S

# A clock that deviates from elapsed time by no more was slewed, or read late; by more, it was set.
CLOCK_STEP_S = 3.0

# A driver asks every 10 s, or at least every 30 s, and gives a request up after 20 s. After two lost requests it still
# gets nodes; a driver that is silent for longer would leave them idle.
GRANT_SILENT_S = 45.0
# A driver's reports reach a running daemon within a second; those queued while the link was down take longer.
ENDED_KEPT_S = 60.0
# A suspended trainer that has nodes loads its checkpoint, which others wait for. A trainer that takes longer, or hangs,
# holds up nobody: loading a terabyte takes as long.
LOADS_MOST_S = 120.0
# A worker that trained this long on a node shows that the node is sound, whatever failed there before.
SOUND_AFTER_S = 60.0

# A driver polls at least every 30 s; after two missed polls, and with its job gone from Slurm, it is lost.
DRIVER_SILENT_S = 60.0
# A finished trainer stays in `bft status` for an hour.
FORGET_FINISHED_S = 3600.0
# A failed solver is left alone this long: if a licence server is away, say, each try may take most of the time that a
# decision has. A reload tries at once.
SOLVER_REST_S = 300.0
# Backfill preempts in one cycle and starts the job in the next, a second later at best; a busy controller needs two.
PREEMPTED_REST_S = 5.0


def whole_minutes(length_s: float) -> float:
    """Return the longest time limit of a pilot within `length_s`, or the shortest that there is."""
    return max(MINUTE_S, length_s // MINUTE_S * MINUTE_S)
