"""Decisions in words, as `bft explain` prints them: most of the core's English is here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bftd.base.format import listed, rate, size, some
from bftd.config import hours
from bftd.config.hours import Zone
from bftd.core.model import timing
from bftd.core.model.decisions import (
    Cancelled,
    CancellingStopped,
    Decision,
    Ended,
    ForeignPilots,
    GaveBack,
    GetsFirst,
    Grew,
    GrowthPaused,
    Keeps,
    Left,
    Lost,
    MapKept,
    NodeAvoided,
    NodeOverdue,
    Noted,
    Notice,
    OrphanJobFound,
    PauseLifted,
    Resumed,
    Saved,
    Shrank,
    SolverReplaced,
    Started,
    Stays,
    Suspended,
    TrainerDecision,
    Tried,
    Waits,
)
from bftd.core.scaling.learning import ScalingModel
from bftd.protocol import changes
from bftd.protocol.changes import UNKNOWN_SPEED, nodes
from bftd.protocol.reports import ResizeReport
from slurm_plugin.nodeset import fold

# A fact, or a condition: a daemon in shadow mode only tells what it would have done.
Mood = Literal["indicative", "conditional"]

# Reasons why a trainer gets nothing.
REFUSED = "its last pilots were refused, it tries again with few"
STALE = "the last good snapshot of Slurm is too old"
SILENT = f"nothing was heard of its driver for {timing.GRANT_SILENT_S:.0f} s"
SETTLING = "Slurm is taking nodes back for a job, which may count on the free ones too"


def delayed(counted_s: float, budget_s: float) -> str:
    """Say that regular jobs were delayed by more than the site promises them."""
    return (
        f"regular jobs were delayed by {counted_s:.0f} s in the last hour, {budget_s:.0f} s are promised "
        "(delay_s_per_hour): nothing new is lent until it is less"
    )


_DAY_S = 86_400.0
# At most this many jobs or users are named.
_NAMED = 3


def sentence(decision: Decision, mood: Mood = "indicative") -> str:
    """Return a decision as a sentence. A notice has no conditional, so it gets a mark in front instead."""
    if isinstance(decision, Notice):
        text = _notice(decision)
        return text if mood == "indicative" else f"(shadow) {text}"
    verb = decision.verb.indicative if mood == "indicative" else f"would {decision.verb.conditional}"
    return f"{decision.who} {verb}{_rest(decision)}"


def _rest(decision: TrainerDecision) -> str:
    """Return the part of the sentence after the verb."""
    match decision:
        case Started() | Resumed():
            return f"{changes.begun(decision.size, fold(decision.added), decision.on)}: {_rate(decision)}"
        case Grew():
            size = decision.before + len(decision.added)
            return f"{changes.grown(decision.before, size, fold(decision.added))}: {_gain(decision)}"
        case Shrank():
            size = decision.before - len(decision.dropped)
            return f"{changes.shrunk(decision.before, size, fold(decision.dropped))}: {decision.why}"
        case Suspended():
            return f" {fold(decision.dropped)}: {decision.why}"
        case GaveBack():
            return f" {fold(decision.lost)} ({_still(decision.left)}): {decision.why}"
        case Left():
            by = f" by {decision.by}" if decision.by else ""
            return f" {fold(decision.lost)}{by} to {decision.to}, which can start there ({_still(decision.left)})"
        case Stays():
            return f" at {nodes(decision.held)}: {decision.why}"
        case Keeps():
            return (
                f" {nodes(decision.held)}: {decision.more} more would add {rate(decision.gain)} samples/s, which over "
                f"the next {decision.t_fwd_s:.0f} s does not outweigh {decision.stall_s:.1f} s of stall"
            )
        case GetsFirst():
            return f" within {decision.within_s:.0f} s: its user has had none for {decision.waited_s:.0f} s"
        case Tried():
            return (
                f" on {nodes(decision.nodes)} for {decision.for_s:.0f} s, after {decision.held}, to learn how it scales"
            )
        case Saved():
            return f" to disk at step {decision.step}"
        case Ended() if decision.cancelled:
            return f" at step {decision.step}" if decision.step else ""
        case Ended():
            return f" with exit code {decision.exit_code}{_because(decision.why)}"
        case Waits() | Lost() | Cancelled():
            return _because(decision.why)


def _notice(notice: Notice) -> str:
    match notice:
        case Noted():
            return f"{notice.who}: {notice.text}"
        case MapKept():
            return f"the current map is kept: {unsolved(notice.error)}"
        case SolverReplaced():
            return f"{solver_replaced(notice.error, notice.instead)}; it is tried again in {notice.for_s:.0f} s"
        case NodeAvoided():
            pilots = f"{notice.pilots} different pilots"
            return f"{notice.node} is in quarantine for {notice.for_s:.0f} s: {pilots} failed there"
        case NodeOverdue():
            return f"{notice.node} was asked back {notice.since_s:.1f} s ago and is still in use by {notice.trainer}"
        case OrphanJobFound():
            word = f", and which names another bftd ({notice.daemon})" if notice.daemon else ""
            return (
                f"{notice.user} has {fold(notice.nodes)} with job {notice.job_id}, which no lease stands behind{word}"
            )
        case GrowthPaused():
            released = " and asked back what was lent" if notice.release else ""
            return f"{notice.by} paused {notice.what}{released}: {notice.why}"
        case PauseLifted():
            return f"{notice.by} lifted the pause of {notice.what}"
        case CancellingStopped():
            return (
                f"operator mode has stopped: it would cancel {notice.jobs} jobs within an hour where {notice.running} "
                f"run, and {notice.most} is its bound: see `bft status`, then reload bftd to let it go on"
            )
        case ForeignPilots():
            return foreign_pilots(notice.identity, notice.job_ids, notice.users)


def _still(left: int) -> str:
    return f"{nodes(left)} left" if left else "none is left"


def _rate(decision: Started | Resumed) -> str:
    if decision.samples_per_s is None:
        return UNKNOWN_SPEED
    return f"{_about(decision.seen)}{rate(decision.samples_per_s)} samples/s expected"


def _gain(decision: Grew) -> str:
    if decision.gain is None:
        return UNKNOWN_SPEED
    gain = f"{_about(decision.seen)}+{rate(decision.gain)} samples/s"
    return f"{gain} over the next {decision.t_fwd_s:.0f} s outweigh {decision.stall_s:.1f} s of stall"


def _about(seen: bool) -> str:
    return "" if seen else "about "


def _because(why: str) -> str:
    return f": {why}" if why else ""


# Reasons, and other parts of a sentence.


def foreign_pilots(identity: str, job_ids: Sequence[str], users: Sequence[str]) -> str:
    """Say that another daemon harvests the same partition."""
    where = f"in this partition ({jobs_of(job_ids, users)})"
    return f"pilots of another bftd ({identity}) run {where}: stop one of the two, or see bftd --take-over"


def jobs_of(job_ids: Sequence[str], users: Sequence[str]) -> str:
    """Name some jobs with their users."""
    more = f" and {len(job_ids) - _NAMED} more" if len(job_ids) > _NAMED else ""
    return f"job{'s' if len(job_ids) > 1 else ''} {', '.join(job_ids[:_NAMED])}{more} of {', '.join(users[:_NAMED])}"


def unsolved(error: str) -> str:
    """Say that no plan could be made."""
    return f"the solver failed: {error}"


def solver_replaced(error: str, instead: str) -> str:
    """Say that another solver than the requested one makes the plans."""
    return f"{error}; {instead} solves in its place"


def paused(what: str, by: str, why: str) -> str:
    """Say that an administrator has paused something."""
    return f"{what} {'are' if what.startswith(('nodes ', 'users ', 'accounts ')) else 'is'} paused by {by}: {why}"


def begins_again(when: str) -> str:
    """Say that it is not an hour of harvesting; `when` is "" if no such hour comes."""
    return f"harvesting begins again at {when} (harvest_at)" if when else "no hour of harvesting comes (harvest_at)"


def ends_soon(when: str) -> str:
    """Say that too little is left of the hours of harvesting to begin anything."""
    return f"harvesting ends at {when} (harvest_at)"


def bounded(most: int, by: str) -> str:
    """Say that all trainers together have as many nodes as they may; `by` is the key that sets the bound."""
    return f"all trainers together may have {nodes(most) if most else 'no node'} ({by})"


def too_few_free(free: int, needed: int, holders: Sequence[str] = (), count: int = 0) -> str:
    """Say that a trainer needs more nodes than are free; `holders` are the first of the `count` that have some."""
    short = f"{nodes(free) if free else 'no node'} free, it needs {needed}"
    return f"{short}: {some(holders, count)}" if holders else short


def since(at_s: float, now_s: float, zone: Zone) -> str:
    """Format the time since when something lasts: with the weekday if that is a day ago or longer."""
    return (hours.time_of_day if now_s - at_s < _DAY_S else hours.weekday_and_time)(zone, at_s)


def holds(id_: str, name: str, user: str, held: int, since: str) -> str:
    """Say how many nodes a trainer has, and since when."""
    return f"{held} with trainer {id_} ({name}, {user}) since {since}"


def too_few_left(left: int, needed: int) -> str:
    """Say that a trainer needs more nodes than it has left."""
    return f"{nodes(left)} left, it needs {needed}"


def above_most(most: int) -> str:
    """Say that a trainer has more nodes than its user now wants."""
    return f"its user asks for at most {nodes(most)} now"


def no_place(places: int, before: str) -> str:
    """Say that a plan is made for other trainers, whose turns are before."""
    taken = "the one place is" if places == 1 else f"all {places} places are"
    return f"{taken} taken, users take turns; before it: {before}"


def resumes_later(loading: int) -> str:
    """Say why a suspended trainer does not take the nodes yet that are planned for it."""
    return f"only so many suspended trainers load their checkpoints at once: {loading} (resumes_at_once)"


def beneficiaries(names: Sequence[str]) -> str:
    """Name the trainers that get the nodes which another gives up."""
    if not names:
        return "fewer nodes are worth more to all trainers together"
    return f"{listed(names)} gain{'s' if len(names) == 1 else ''} more"


def newcomers(names: Sequence[str]) -> str:
    """Name the trainers without nodes that get those which another gives up."""
    return f"{listed(names)} had no node"


def first_nodes(names: Sequence[str]) -> str:
    """Say that nodes go to trainers whose users have none."""
    return f"{some(names)} {'is' if len(names) == 1 else 'are'} to have a first node"


def tried(names: Sequence[str]) -> str:
    """Say that trainers are on other numbers of nodes than usual, to learn how they scale."""
    return f"{some(names)} {'is' if len(names) == 1 else 'are'} tried, to learn how they scale"


# The speed of a trainer.

_POINTS_SHOWN = 12


def curve(knowledge: ScalingModel) -> str:
    """Return the estimate of a trainer's speed, its basis, and what was measured so far; "" without an estimate."""
    estimates = []
    for name, estimate in knowledge.estimates.items():
        on = f" on {name}" if len(knowledge.estimates) > 1 else ""
        out_of = f", from {estimate.basis}" if estimate.basis else ""
        estimates.append(f"{on} ({estimate.origin}{out_of}): {_points(estimate.points)} samples/s")
    if not estimates:
        return ""
    everywhere = {**knowledge.elsewhere, knowledge.node_class: knowledge.seen}
    seen = [
        f"measured{f' on {name}' if name and len(everywhere) > 1 else ''} at {_points(points)}"
        for name, points in everywhere.items()
        if points
    ]
    return f"its curve is an estimate{'; '.join([','.join(estimates), *seen])}"


def _points(points: Sequence[tuple[int, float]]) -> str:
    """Return some of a curve's points: "1: 120, 2: 230"."""
    shown = points if len(points) <= _POINTS_SHOWN else (*points[: _POINTS_SHOWN - 1], points[-1])
    return ", ".join(f"{nodes_}: {rate(per_s)}" for nodes_, per_s in shown)


# The cost of a trainer's resizes.


def resize_costs(knowledge: ScalingModel, held: int) -> str:
    """Return the expected cost of resizing a trainer on `held` nodes, and that of the last resize; "" if unknown."""
    parts: list[str] = []
    if knowledge.up_stalls or knowledge.down_stalls or knowledge.save_s is not None:
        up_s, down_s = knowledge.up_cost_s(held), knowledge.down_cost_s(held)
        where = f"with {nodes(held)}, " if held else ""
        parts.append(f"{where}growing costs about {up_s:.1f} s and shrinking {down_s:.1f} s")
    if knowledge.last_resize is not None:
        parts.append(_last_resize(knowledge.last_resize))
    if knowledge.resumes_s:
        parts.append(f"a resume takes {knowledge.resume_s:.1f} s")
    if parts and knowledge.state_bytes:
        parts.append(f"its checkpoint has {size(knowledge.state_bytes)}")
    return "; ".join(parts)


def _last_resize(report: ResizeReport) -> str:
    stall_s = report.stall_s or 0.0
    named = {"saving": report.save_s, "rendezvous": report.rendezvous_s, "loading": report.load_s}
    parts = {name: part_s for name, part_s in named.items() if part_s is not None}
    if len(parts) == len(named):
        parts["to the first step"] = max(0.0, stall_s - sum(parts.values()))
    costs = ", ".join(f"{part_s:.1f} {name}" for name, part_s in parts.items())
    return f"the last, from {report.from_nodes} to {nodes(report.to_nodes)}, cost {stall_s:.1f} s{_because(costs)}"
