"""All waiting times of the training side, in seconds, each with its reason."""

# A node counts as given back when its last process is gone. Measured: if the agent is gone within 0.12 s of Slurm's
# notice, the node is idle at 0.19 s; if it is gone after 0.2-0.6 s, only at 0.69 s (Slurm looks at growing intervals).
LEAVE_S = 0.1

# When an agent leaves, it removes the script's files on the node's disk for this long; the next agent does the rest.
SCRATCH_S = 0.05

# How often to check which worker has which shared memory, which stays if its worker dies unseen. Costs one listing.
SAMPLE_S = 2.0

# A progress bar is shown in one state a second.
BAR_S = 1.0

# A node's output is read no faster than this, so that a script that prints endlessly slows itself down and not the
# driver: 2000 short lines a second, 8000 at once. Behind a queue of this size, Slurm's notice still comes in time.
OUT_BYTES_S = 1 << 20
OUT_BURST_BYTES = 4 << 20
OUT_QUEUE_BYTES = 64 << 10
OUT_NOTE_S = 60.0

# A graceful leave (revoked by bftd, nobody waits for the node) may take the rest of a step and a collective.
GRACEFUL_LEAVE_S = 15.0

# While a checkpoint being saved still grows, a graceful leave may take this long; at 60 s the daemon assumes a hang.
SAVING_LEAVE_S = 50.0

# An agent that hears nothing from its driver for DRIVER_LOST_S stops itself: the driver sends a beat every BEAT_S.
# Agents answer each beat, and the driver gives up an agent that is silent for as long.
BEAT_S = 0.5
DRIVER_LOST_S = 5.0

# If more than this passes between two beats, the driver itself was stopped or busy: that is not others' silence.
BEAT_LATE_S = 1.0

# The kernel cuts a connection whose other end acknowledges nothing for this long. An agent's connection carries beats
# both ways. On a worker's, which carries checkpoints, the time also runs while the other end takes no more: a
# store on a file system that stalls must not cut a worker off.
AGENT_LINK_S = 10.0
WORKER_LINK_S = 120.0

# An idle connection is probed after this, and again as often.
KEEPALIVE_S = 5.0

# srun returns at once when its step is over; it waits forever for a node that is dead or has a process in D state.
GONE_S = 15.0

# srun, Python's start and the connection take 0.3 s; a node that boots or a slow file system takes longer.
CONNECT_S = 30.0

# A node that gets no packet back reports that before its driver gives it up: four tries of the kernel.
REACH_S = 16.0

# A file server that does not take a few bytes within this time would hold up every save, and all ranks with it.
PROBE_S = 30.0

# How long both ends may take to prove themselves: three small messages, on a host that may be starting eight workers.
HANDSHAKE_S = 10.0

# A peer in the middle of its proof is not turned away for this long, even if very many connect at once.
STRANGER_S = 1.0

# The same for a peer that has sent nothing yet: a hello is on its way before the connection is accepted.
STRANGER_SILENT_S = 0.1

# Importing torch takes 2 s alone and 10 s when eight nodes start on two cores; a cold parallel file system is slower.
WARM_S = 120.0

# The first start on a host may fetch an image of 10 GB from a registry and unpack it: at 20 MB/s that is 500 s.
PULL_S = 900.0

# New nodes get warm 0.1-1 s apart. One resize for all of them costs less than one each.
COALESCE_S = 1.0

# How long workers may take to accept a save request: some round trips, on nodes that may be busy with the step itself.
SAVE_REQUEST_S = 2.0

# How long rank 0 may take to reach a step boundary and save there, before its last checkpoint is used instead. The
# time of two steps is added, as the boundary may be that far ahead; at most PAUSE_MOST_S in all, to leave time within
# SAVING_LEAVE_S.
PAUSE_S = 5.0
PAUSE_MOST_S = 40.0

# Workers are asked for their last checkpoint at least this often, so that losing every node at once loses little. If
# bftd chooses when to save, saves are at least this far apart, however little they cost: each one is uploaded.
UPLOAD_EVERY_S = 10.0

# How often to check whether a save is due; only then are the workers asked. If no save comes of it, the next check is
# UPLOAD_EVERY_S later.
SAVE_LOOK_S = 1.0

# Uploading in the background may take this share of a core's time. A tiny checkpoint goes to the driver's disk, which
# may be a parallel file system, no more often than every UPLOAD_APART_S.
UPLOAD_SHARE = 0.05
UPLOAD_APART_S = 0.2

# A distributed checkpoint is a folder of files, flushed, inspected and removed again: some twenty calls to a file
# server.
PUBLISH_APART_S = 2.0

# A checkpoint being uploaded reports its progress this often, so that its worker does not count as frozen and is waited
# for.
SAVING_S = 1.0

# A checkpoint counts as not growing if its progress report is this late: a few times SAVING_S.
CHECKPOINT_QUIET_S = 3.0

# A sender that brings next to nothing of a checkpoint within this time wastes a thread of the driver. A
# worker may pause between two pieces for a while: it shares its cores with the training.
CHECKPOINT_STALL_S = 60.0

# The kernels of both hosts may hold bytes of a worker that is gone, but no longer than this.
CHECKPOINT_SETTLE_S = 1.0

# A worker whose side thread does not answer may be stopped (SIGSTOP, a hung device), and all others wait for it. It may
# also be busy with Python's lock held, so its node inspects it after two unanswered pings, and the kernel's view of it
# decides. Less than FROZEN_LEAST_S would leave too few looks.
PING_S = 2.0
FROZEN_S = 15.0
FROZEN_LEAST_S = 5.0

# A worker that does not answer but uses its CPU is ended after this many times as long: json.loads reads 23 MB/s, so at
# 15 s it may read 14 GB in one call, while a worker in an endless loop does not hold the others up for hours.
BUSY_TIMES = 40

# A killed process is gone within a second or two, even with much pinned memory; one in D state stays.
KILLED_S = 10.0

# Gloo's own time-out, the second line of defence behind the driver's abort.
GLOO_TIMEOUT_S = 5

# How long after an abort a worker may wait in a call of Horovod before it ends by itself: NCCL's own abort may hang
# with the device. The others wait for it meanwhile, and an abort that works takes less.
ABORTED_S = 10.0

# A node that cannot start workers, or not even its agent, is kept for a moment before that is reported: the daemon
# ignores reports on a pilot that Slurm has not yet shown it, and it looks once a second.
FAULT_SHOWN_S = 3.0

# A script refuses its arguments within this time of its start, imports of large frameworks included.
ARGUMENTS_S = 120.0

# A script that has reported nothing and saved nothing for this long never will.
SILENT_S = 300.0

# The CPU time that looking for progress= in one line may take. A sensible expression takes microseconds; nested repeats
# would keep the driver from its beats forever. This is less than a beat, on any machine.
MATCH_S = 0.2

# A restarted group is complete when no worker has been missing for this long.
REGROUPED_S = 5.0

# A restart costs a silent script the time since the previous one, unless it keeps checkpoints of its own, which are
# rarely further apart than this.
SILENT_COST_S = 600.0

# Reports to the driver: one a second is enough for a curve and costs a worker microseconds.
REPORT_S = 1.0

# The last lines of a log are sent this often at most: they are longer than reports.
TAIL_S = 10.0

# A pilot stops by itself this long before its time limit, so that its worker leaves in order.
LIMIT_MARGIN_S = 5.0

# Pilots whose limits fall together leave in parts this far apart: by then a node that was given back is lent again and
# warm.
EXPIRE_APART_S = 30.0

# Between tries to reach a daemon that does not answer; training goes on meanwhile.
DAEMON_RETRY_S = 1.0

# How long the long poll for leases may hang; it is also the daemon's sign of life from the driver.
LONG_POLL_S = 10.0

# How long one worker may take to send its last checkpoint before another one is asked.
UPLOAD_S = 1.0

# A checkpoint that the driver could not store, with its disk full for example, is asked for again after this long.
STORE_RETRY_S = 10.0

# How long a worker's last words may arrive after the news of its end.
FAREWELL_S = 0.5

# When a trainer is ended, a checkpoint that is complete on a file system still counts: that takes a small file and
# checks of others.
PUBLISH_S = 2.0

# How long the last lines of a driver may take to be written: its job ends even if a full disk takes none of them.
LAST_WORDS_S = 3.0

# A script may save as its last act: the checkpoint is waited for this long on its way to the disk.
LAST_CHECKPOINT_S = 120.0

# A worker that has lost its connection is usually ended by its agent; after this long it ends by itself.
LINK_LOST_S = 0.5

# Workers that write a checkpoint together wait for the slowest of them, whose file system may stall; a worker that is
# gone is noticed at once, by its connection.
WRITERS_S = 3600.0

# Workers reach a save within a step of each other; one that waits this long is told that all of them have to call it.
HINT_S = 30.0

# An estimate of a trainer's speed runs at the lowest priority, on a host that may be busy, and nothing waits for it.
ESTIMATE_S = 600.0

# How long the estimate's process may take to end what it has started, once it is not wanted any more.
ESTIMATE_STOP_S = 2.0

# The child that looks for a profile of the script reads a small file; the first pilot waits for its answer.
PROFILE_S = 10.0
