"""Every waiting time of the training side in one place, in seconds, each with its reason."""

# A node counts as given back when its last process is gone. Measured: an agent gone within 0.12 s of Slurm's notice
# gives an idle node at 0.19 s, one gone after 0.2-0.6 s only at 0.69 s (Slurm looks again at growing intervals).
LEAVE_S = 0.1

# What a script left on the node's disk is removed for so long when the agent leaves; the rest is the next agent's.
SCRATCH_S = 0.05

# How often it is looked which worker has which shared memory: it stays when its worker dies unseen. Costs one listing.
SAMPLE_S = 2.0

# One state a second is what is shown of a progress bar.
BAR_S = 1.0

# Faster than this a node's output is read no more, so a script that prints without end waits for itself and not the
# driver for it: 2000 short lines a second, 8000 at once. With so much queued, Slurm's notice comes through in time.
OUT_BYTES_S = 1 << 20
OUT_BURST_BYTES = 4 << 20
OUT_QUEUE_BYTES = 64 << 10
OUT_NOTE_S = 60.0

# A graceful leave (bftd's own revocation, nobody waits for the node) may take the rest of a step and a collective.
GRACEFUL_LEAVE_S = 15.0

# As long as a state grows that is being saved, a graceful leave may take so long; at 60 s the daemon takes it to hang.
SAVING_LEAVE_S = 50.0

# An agent that hears nothing from its driver for so long stops itself: the driver sends a beat every BEAT_S. Agents
# answer each beat, and one that says nothing for as long is lost to the driver.
BEAT_S = 0.5
DRIVER_LOST_S = 5.0

# What a driver that was stopped or busy itself does not count as silence of others: more than this between two beats.
BEAT_LATE_S = 1.0

# A connection whose other end acknowledges nothing for so long is cut by the kernel. An agent's carries beats both
# ways. The time of one that carries a state also runs while the other end has no room for more: a store on a file
# system that stalls must not cut a worker off.
AGENT_LINK_S = 10.0
WORKER_LINK_S = 120.0

# An idle connection is asked for a sign of life after this, and again as often.
KEEPALIVE_S = 5.0

# srun comes back at once when its step is over; it waits for ever for a node that is dead or has a process in D state.
GONE_S = 15.0

# srun, Python's start and the connection take 0.3 s; a node that boots or a slow file system takes longer.
CONNECT_S = 30.0

# A node that no packet comes back to says so before its driver gives it up; four tries of the kernel's.
REACH_S = 16.0

# A file server that takes none of a few bytes for so long would hold up every save, and all ranks with it.
PROBE_S = 30.0

# How long the proof of both ends may take: three small messages, on a host that may be busy starting eight workers.
HANDSHAKE_S = 10.0

# So long nobody is turned away who is in the middle of his proof, even when very many connect at once.
STRANGER_S = 1.0

# The same for who has said nothing yet: a hello is on its way before the connection is accepted.
STRANGER_SILENT_S = 0.1

# Importing torch takes 2 s alone and 10 s when eight nodes start on two cores; a cold parallel file system is slower.
WARM_S = 120.0

# The first start on a host may fetch an image of 10 GB from a registry and unpack it: at 20 MB/s that is 500 s.
PULL_S = 900.0

# Newcomers get warm 0.1-1 s apart. One resize for all of them costs less than one each.
COALESCE_S = 1.0

# How long workers may take to agree on a step: some round trips, on nodes that may be busy with the step itself.
AGREE_S = 2.0

# How long rank 0 may take to reach a step boundary and save there before its last saved state must do. The time of two
# steps is added, since so far ahead the boundary may be; together no more than leaves time for SAVING_LEAVE_S.
PAUSE_S = 5.0
PAUSE_MOST_S = 40.0

# The last state is fetched from the workers so often at least, so that losing every node at once loses little. Where
# bftd says when to save, it has no save sooner after another, however little they cost: each one travels.
SHIP_EVERY_S = 10.0

# How often it is looked whether a save is due; only then are the workers asked; if it comes to none, SHIP_EVERY_S
# later again.
SAVE_LOOK_S = 1.0

# Shipping in the background may take this share of a core's time. So often at most a state that is tiny goes to the
# driver's disk, which may be a parallel file system.
SHIP_SHARE = 0.05
SHIP_APART_S = 0.2

# By path each state is a folder of files, flushed, looked at and removed again: some twenty calls of a file server.
PUBLISH_APART_S = 2.0

# A state on its way tells so often how far it is: it keeps a worker from being taken for frozen, and is waited for.
SAVING_S = 1.0

# What is told of a state's growth may come so late before it counts as one that does not grow: a few times SAVING_S.
STATE_QUIET_S = 3.0

# Who sends a state and brings next to nothing within this time holds a thread of the driver's for no good. A worker may
# be between two pieces for a while: it shares its cores with the training.
STATE_STALL_S = 60.0

# Bytes of a worker that is gone may be in the kernels of both hosts yet; more than this apart they are not.
STATE_SETTLE_S = 1.0

# A worker whose side thread does not answer may be stopped (SIGSTOP, a hung device): everybody else waits for it. It
# may also be at work with Python's lock held, so its node looks at it after two pings without an answer, and what the
# kernel says of it decides. Less than FROZEN_LEAST_S would leave too few looks.
PING_S = 2.0
FROZEN_S = 15.0
FROZEN_LEAST_S = 5.0

# A worker that does not answer but uses its CPU is ended after so many times as long: json.loads reads 23 MB/s, so at
# 15 s it may read 14 GB in one call, while one that spins for ever does not hold the others up for hours.
BUSY_TIMES = 40

# A process that was killed is gone within a second or two, with much pinned memory; one in D state stays.
KILLED_S = 10.0

# Gloo's own time-out is the second line of defence behind the driver's abort.
GLOO_TIMEOUT_S = 5

# So long after an abort a worker may wait in a call of Horovod's before it ends by itself: NCCL's own abort may hang
# with the device. The others wait for it meanwhile, and an abort that works is over in less.
ABORTED_S = 10.0

# A node that cannot start workers, or not even its agent, is kept for a moment before that is told: the daemon believes
# nothing of a pilot that Slurm has not yet shown it, and it looks once a second.
FAULT_SHOWN_S = 3.0

# A script that has told nothing and saved nothing for so long is one that never will.
SILENT_S = 300.0

# So much CPU time looking for progress= in one line may take: a sensible expression takes microseconds, and nested
# repeats would keep the driver from its beats for ever. Less than a beat, on any machine.
MATCH_S = 0.2

# A group that was restarted is complete when so long nobody has been missing.
REGROUPED_S = 5.0

# What a restart costs a silent script is the time since the one before, unless it keeps checkpoints of its own: those
# are rarely further apart than this.
SILENT_COST_S = 600.0

# Reports to the driver: one a second is enough for a curve and costs a worker microseconds.
REPORT_S = 1.0

# A pilot stops by itself before its time limit does it, so that its worker leaves in order.
LIMIT_MARGIN_S = 5.0

# Pilots whose limits fall together leave in parts so far apart: by then a node that was given back is lent again and
# warm.
EXPIRE_APART_S = 30.0

# Between tries to reach a daemon that is away; training goes on meanwhile.
DAEMON_RETRY_S = 1.0

# How long the long poll for leases may hang; also the sign of life that the daemon gets.
LONG_POLL_S = 10.0

# How long one worker may take to send its last state before another one is asked.
SHIP_S = 1.0

# A state that the driver could not store, its disk being full say, is asked for again after so long.
STORE_RETRY_S = 10.0

# How long a worker's last words may be behind the news of its end.
FAREWELL_S = 0.5

# What is whole on a file system when a trainer is ended is counted still: a small file, and some looks at others.
PUBLISH_S = 2.0

# How long the last lines of a driver may take to be written: its job ends also when a full disk takes none of them.
LAST_WORDS_S = 3.0

# A script may save as its last act: its state is waited for so long on its way to the disk.
LAST_STATE_S = 120.0

# A worker whose connection has gone is as a rule being ended by its agent; by itself it ends after so long.
LINK_LOST_S = 0.5

# Workers that write a state together wait for the slowest of them, whose file system may stall; one that is gone is
# noticed by its connection, at once.
WRITERS_S = 3600.0

# Workers come to a save within a step of each other; one that waits so long is told that all have to.
HINT_S = 30.0

# An estimate of a trainer's speed is made at the lowest priority, on a host that may be busy, and nobody waits for it.
ESTIMATE_S = 600.0

# What its process may take to end what it has started, once it is not wanted any more.
ESTIMATE_STOP_S = 2.0

# The child that looks for a profile of the script reads a small file; the first pilot waits for its word.
PROFILE_S = 10.0
