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

# An agent that hears nothing from its driver for so long stops itself: the driver sends a beat every BEAT_S.
BEAT_S = 0.5
DRIVER_LOST_S = 5.0

# srun, Python's start and the connection take 0.3 s; a node that boots or a slow file system takes longer.
CONNECT_S = 30.0

# How long the proof of both ends may take: three small messages, on a host that may be busy starting eight workers.
HANDSHAKE_S = 10.0

# So long nobody is turned away who has not proved himself yet, even when very many connect at once.
STRANGER_S = 1.0

# Importing torch takes 2 s alone and 10 s when eight nodes start on two cores; a cold parallel file system is slower.
WARM_S = 120.0

# Newcomers get warm 0.1-1 s apart. One resize for all of them costs less than one each.
COALESCE_S = 1.0

# How long rank 0 may take to reach a step boundary and save there before its last saved state must do.
PAUSE_S = 5.0

# The last state is fetched from the workers so often at least, so that losing every node at once loses little.
SHIP_EVERY_S = 10.0

# Shipping in the background may take this share of a worker's time.
SHIP_SHARE = 0.05

# A worker whose side thread does not answer is stopped (SIGSTOP, a hung device): everybody else waits for it.
PING_S = 2.0
FROZEN_S = 15.0

# Gloo's own time-out is the second line of defence behind the driver's abort.
GLOO_TIMEOUT_S = 5

# A script that dies so often without a step in between dies for a reason of its own.
CRASHES_WITHOUT_A_STEP = 3

# Reports to the driver: one a second is enough for a curve and costs a worker microseconds.
REPORT_S = 1.0

# A pilot stops by itself before its time limit does it, so that its worker leaves in order.
LIMIT_MARGIN_S = 5.0

# Between tries to reach a daemon that is away; training goes on meanwhile.
DAEMON_RETRY_S = 1.0

# How long the long poll for leases may hang; also the sign of life that the daemon gets.
LONG_POLL_S = 10.0

# How long one worker may take to send its last state before another one is asked.
SHIP_S = 1.0

# How long a worker's last words may be behind the news of its end.
FAREWELL_S = 0.5
