"""The rule which waiting jobs keep pilots away from which nodes, for the daemon's pool and every driver. Pure.

The daemon earmarks nodes for the jobs that it sees waiting. So a driver keeps its pilots away from only two kinds of
regular jobs. A job that is planned on a node keeps it free from `min_window_s` before its start on. A job without a
plan keeps all nodes free that it may use, if it came after the daemon's last look, as the daemon cannot have considered
it. But if only backfill can start it, and no cycle comes before the daemon has looked again, it keeps nothing free:
otherwise no pilot would ever start at a site where a job is submitted every second. A job that came after the look and
is just being started also keeps all nodes free that it may use: Slurm preempts for it, and counts on idle nodes beside
those of its plan.

On the jobs that the daemon could see, both decide alike. One small difference is inherent, and it keeps a pilot away
for longer: the driver looks a moment later, when a window has shrunk by that much.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import fnmatchcase
from functools import lru_cache

from slurm_plugin.read.types import Job


@dataclass(frozen=True, slots=True)
class Rules:
    """The times by which a driver places pilots: the window that a plan keeps free, and the daemon's last look.

    A plan keeps its node free from `min_window_s` before its start. The daemon may not have seen a job that came at
    `looked_s` or later (by its clock, which is Slurm's). It will have seen the job, and earmarked nodes for it, before
    the next backfill cycle, which does not come before `calm_s`.
    """

    min_window_s: float
    looked_s: float
    calm_s: float = 0.0


# The greatest difference of Slurm's and the daemon's clocks, and rounding to whole seconds: later times are invalid.
_CLOCKS_APART_S = 1.0


class Standing(Enum):
    """The meaning of a pending job's reason for its start, the soonest first."""

    WAITS = auto()  # starts as soon as there are nodes: waits for a plan
    ONE_PARTITION = auto()  # barred from the partition that Slurm tried last, perhaps from no other
    BARRED = auto()  # barred for now by something other than a lack of nodes; a plan of Slurm for it counts
    HELD = auto()  # time alone never starts it: an old plan of Slurm for it no longer counts


# Slurm's reasons by name or pattern, with their meaning and cause. The names are those of releases 22.05 to 26.05. The
# text after a comma in a reason ("ReqNodeNotAvail, UnavailableNodes:n3") is detail. If unsure, a job waits for nodes:
# that costs some nodes for a while, the opposite error locks a regular job out.
REASONS: tuple[tuple[str, Standing, str], ...] = (
    ("", Standing.WAITS, "no reason given"),
    ("None", Standing.WAITS, "Slurm has not tried it yet"),
    ("Resources", Standing.WAITS, "first in line for nodes"),
    ("Priority", Standing.WAITS, "behind others for nodes"),
    ("ReqNodeNotAvail", Standing.WAITS, "its nodes are down or meant for others: they may be back"),
    ("Nodes required for job are *", Standing.WAITS, "another text for Resources"),
    ("SchedDefer", Standing.WAITS, "only not tried when it was submitted"),
    ("FedJobLock", Standing.WAITS, "tried again in the next cycle"),
    ("MpiPortsBusy", Standing.WAITS, "tried again in the next cycle"),
    ("Cleaning", Standing.WAITS, "requeued: eligible as soon as its last run is cleared away"),
    ("Prolog", Standing.WAITS, "no reason of a job that waits: not certain"),
    ("FrontEndDown", Standing.WAITS, "cleared each time a front end is up"),
    ("BlockMaxError", Standing.WAITS, "nodes of a kind that is gone: not certain"),
    ("BlockFreeAction", Standing.WAITS, "nodes of a kind that is gone: not certain"),
    ("PowerNotAvail", Standing.WAITS, "power is what nodes lack"),
    ("PowerReserved", Standing.WAITS, "power is what nodes lack"),
    ("MaxPoweredUpNodes", Standing.WAITS, "power is what nodes lack"),
    ("Constraints", Standing.WAITS, "Slurm keeps it in line: the nodes it wants may come, or --prefer is dropped"),
    ("MaxMemPerLimit", Standing.WAITS, "not certain that Slurm looks at no other partition"),
    ("AccountingPolicy", Standing.WAITS, "too general to be certain"),
    ("NodeDown", Standing.WAITS, "how its last run ended: requeued"),
    ("SystemFailure", Standing.WAITS, "how its last run ended: requeued"),
    ("JobLaunchFailure", Standing.WAITS, "how its last run ended: requeued"),
    ("NonZeroExitCode", Standing.WAITS, "how its last run ended: requeued"),
    ("RaisedSignal", Standing.WAITS, "how its last run ended: requeued"),
    ("TimeLimit", Standing.WAITS, "how its last run ended: requeued"),
    ("InactiveLimit", Standing.WAITS, "how its last run ended: requeued"),
    ("OutOfMemory", Standing.WAITS, "how its last run ended: requeued"),
    ("BeginTime", Standing.BARRED, "not before its time; Slurm takes the reason away then"),
    ("Licenses", Standing.BARRED, "waits for licences; backfill may plan it all the same"),
    ("NvidiaImexChannels", Standing.BARRED, "waits for a channel of NVIDIA IMEX"),
    ("Reservation", Standing.BARRED, "waits for its reservation, whose nodes no pilot gets"),
    ("JobArrayTaskLimit", Standing.BARRED, "starts when another task of its array ends"),
    ("BurstBufferResources", Standing.BARRED, "waits for its data"),
    ("BurstBufferStageIn", Standing.BARRED, "waits for its data"),
    ("Assoc*", Standing.BARRED, "over a limit of its account, which Slurm tests before it looks for nodes"),
    ("QOS*", Standing.BARRED, "over a limit of its QOS, which Slurm tests before it looks for nodes"),
    ("Max*PerAccount", Standing.BARRED, "over a limit of its QOS, which Slurm tests before it looks for nodes"),
    ("Max*RunMinsPerUser", Standing.BARRED, "over a limit of its QOS, which Slurm tests before it looks for nodes"),
    ("InvalidAccount", Standing.BARRED, "skipped in every cycle until its account is valid again"),
    ("InvalidQOS", Standing.BARRED, "skipped in every cycle until its QOS is valid again"),
    ("DeadLine", Standing.BARRED, "its deadline has passed: Slurm ends it"),
    ("PartitionNodeLimit", Standing.ONE_PARTITION, "too large for the partition"),
    ("PartitionTimeLimit", Standing.ONE_PARTITION, "too long for the partition"),
    ("PartitionDown", Standing.ONE_PARTITION, "the partition starts no job"),
    ("PartitionInactive", Standing.ONE_PARTITION, "the partition starts no job"),
    ("PartitionConfig", Standing.ONE_PARTITION, "the partition does not take it"),
    ("AccountNotAllowed", Standing.ONE_PARTITION, "the partition does not take its account"),
    ("QOSNotAllowed", Standing.ONE_PARTITION, "the partition does not take its QOS"),
    ("BadConstraints", Standing.ONE_PARTITION, "no node of the partition can ever do; held where there is no other"),
    ("JobHeld*", Standing.HELD, "held until somebody releases it"),
    ("JobHoldMaxRequeue", Standing.HELD, "held: requeued too often"),
    ("* requeued held", Standing.HELD, "held: its launch failed"),
    ("* in held state", Standing.HELD, "held: requeued so"),
    ("BurstBufferOperation", Standing.HELD, "held: its data could not be moved"),
    ("ReservationDeleted", Standing.HELD, "held: its reservation is gone"),
    ("ReservationInvalid", Standing.HELD, "held: its reservation is none"),
    ("Dependency*", Standing.HELD, "another job has to end first, if ever"),
)  # fmt: skip
_NAMED = {name: standing for name, standing, _ in REASONS if "*" not in name}
_PATTERNS = tuple((name, standing) for name, standing, _ in REASONS if "*" in name)


# squeue shows the waiting tasks of an array as one job, with the reasons of all: "JobHeldUser,Resources". A blank after
# the comma begins a detail.
_OTHER_TASKS = re.compile(r",([A-Za-z]\w*)(?=,|$)")


@lru_cache(maxsize=1 << 12)  # a queue of thousands has a dozen reasons
def standing(reason: str) -> Standing:
    """Return the meaning of a pending job's reason; an unknown reason may mean anything, so the job waits for nodes.

    If there are several reasons, the one that lets a task start soonest counts.
    """
    names = (reason.partition(",")[0], *_OTHER_TASKS.findall(reason))
    return min((_standing(name) for name in names), key=lambda known: known.value)


def _standing(name: str) -> Standing:
    name = name.replace("_", " ")  # scontrol writes underscores for blanks
    if (known := _NAMED.get(name)) is not None:
        return known
    return next((known for pattern, known in _PATTERNS if fnmatchcase(name, pattern)), Standing.WAITS)


def is_regular(job: Job, pilot_partition: str) -> bool:
    """Whether pilots must stay clear of a job: any that does not ask for their partition alone."""
    return job.partition != (pilot_partition,)


def may_use(job: Job, partitions: Collection[str]) -> bool:
    """Whether a job asked for one of some partitions, or may have, if its own could not be read."""
    return not job.partition or not set(job.partition).isdisjoint(partitions)


def whole(job: Job) -> str:
    """Return a job's id, for an array task the id of its array: its tasks come and go, and wait as one."""
    return job.id.partition("_")[0]


def waits_for_nodes(job: Job) -> bool:
    """Whether a job is pending and, by its reason, may start as soon as there are nodes."""
    if job.state != "PENDING":
        return False
    known = standing(job.reason)
    return known is Standing.WAITS or (known is Standing.ONE_PARTITION and len(job.partition) > 1)


def lacks_plan(job: Job, now_s: float, min_window_s: float) -> bool:
    """Whether a job waits for nodes and the scheduler has not said when and where it starts.

    A start without nodes is a plan only if it is at least `min_window_s` away. A start in the past never is: it is the
    time at which a job that had to wait became eligible.
    """
    if job.start_s is not None and (job.sched_nodes or (job.start_s > now_s and job.start_s - now_s >= min_window_s)):
        return False
    return waits_for_nodes(job)


def came_s(job: Job, now_s: float) -> float | None:
    """Return the time a job was submitted or became eligible, the later one, in whole seconds; None if unknown.

    A start in the past is the time at which a pending job that had to wait became eligible, if it is shown: squeue of
    22.05 shows N/A. There, only the age of a job that was held, or had a dependency, is known. The daemon sees at its
    next look that it waits now, and any job for which Slurm preempts pilots has a plan by then. A time in the future
    comes from a clock that was set, or is not Slurm's: it would keep pilots away until then.
    """
    if job.unreadable or job.submit_s > now_s + _CLOCKS_APART_S:
        return None
    if job.start_s is None or job.start_s > now_s + _CLOCKS_APART_S:
        return job.submit_s
    return max(job.submit_s, job.start_s)


def undated_since(before: Mapping[str, float], jobs: Iterable[Job], now_s: float) -> dict[str, float]:
    """Return for each job without a known time of arrival the time since which it has been there.

    The keys are `whole` ids, `before` is this function's last answer. No time in it is later than `now_s`, so that a
    clock that is set back lets no job keep pilots away for longer.
    """
    ids = {whole(job) for job in jobs if came_s(job, now_s) is None}
    return {id_: min(before.get(id_, now_s), now_s) for id_ in ids}


def is_news(job: Job, now_s: float, looked_s: float, since: Mapping[str, float]) -> bool:
    """Whether a job may have come after the daemon's look at `looked_s`, or in the same second.

    A job without a time counts from when it was first seen here (`since`, from `undated_since`). A job that was there
    before the daemon looked is no news, however little of it can be read, so none keeps pilots away for ever.
    """
    known_s = came_s(job, now_s)
    return (since.get(whole(job), now_s) if known_s is None else known_s) >= math.floor(looked_s)


def waits_for_backfill(job: Job) -> bool:
    """Whether the main scheduler passes a job over: others are before it in the one partition that it asked for."""
    return job.reason == "Priority" and len(job.partition) == 1 and not (job.reservation or job.unreadable)


def plan_window_s(job: Job, now_s: float) -> float | None:
    """Return the seconds until a pending job starts on its `sched_nodes`, or None without a valid plan.

    It is 0 if the start has passed: Slurm is just carrying it out, or the job is locked out.
    """
    if job.start_s is None or not job.sched_nodes or job.state != "PENDING":
        return None
    return None if standing(job.reason) is Standing.HELD else max(0.0, job.start_s - now_s)


def is_being_started(job: Job, now_s: float) -> bool:
    """Whether Slurm is just starting a waiting job: its plan is for now, once the jobs it preempted have left.

    Slurm may start it on other nodes than the plan names, and counts on idle nodes that the plan does not name.
    """
    window_s = plan_window_s(job, now_s)
    return window_s is not None and window_s <= _CLOCKS_APART_S and waits_for_nodes(job)


def planned_on(job: Job, node: str, now_s: float, min_window_s: float) -> bool:
    """Whether a pending job is planned on `node` sooner than `min_window_s` from now."""
    if node not in job.sched_nodes:
        return False
    window_s = plan_window_s(job, now_s)
    return window_s is not None and window_s < min_window_s
