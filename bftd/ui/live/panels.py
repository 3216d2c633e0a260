"""The texts of the screen: headline, notices, nodes, one trainer, decisions; pure functions of a status."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from bftd.client import Curve, CurvePoints, Decision, Node, NodeGroup, PastLease, Status, Trainer
from bftd.protocol.fields import printable
from bftd.ui.live import charts, words
from bftd.ui.live.glyphs import Glyphs
from bftd.ui.live.history import PAST_S

# Colours that colour-blind people can tell apart (Okabe and Ito), on a dark background.
COLOURS = {
    "regular": "#a8a8a8",
    "planned": "#e69f00",
    "leased": "#56b4e9",
    "idle": "#f0e442",
    "away": "#d58bb5",
}
STATE_COLOURS = {"running": "#56b4e9", "waiting": "#e69f00", "suspended": "#d58bb5", "finished": "#a8a8a8"}
_WARNING = "#e69f00"
_ALARM = "bold #ff7b5a"


def headline(status: Status) -> Text:
    """Return the headline: version, age of the snapshot, shares that trained and were held, U, give-back times."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("bftd ", "bold")
    line.append(printable(f"{status.version} {status.mode}"), "")
    age_s = status.snapshot_age_s
    line.append("  snapshot " + ("none yet" if age_s is None else f"{age_s:.1f} s old"))
    if status.training_share is not None and status.held_share is not None:
        line.append(f"  training {words.share(status.training_share)}  held {words.share(status.held_share)}")
    for window in status.windows:
        if window.u is not None:
            line.append(f"  U {words.window(window.window_s)} {words.share(window.u)}")
    backs = status.give_back_s
    if backs.count and backs.p50 is not None and backs.max is not None:
        line.append(f"  give-back {backs.p50:.2f} s, most {backs.max:.2f} s")
    return line


def notices(status: Status, problem: str) -> list[Text]:
    """Return one line for each notice, the most pressing first."""
    found = [(problem, _ALARM)] if problem else []
    found += [(alarm.text, _ALARM) for alarm in status.alarms]
    found += [(f"{pause.text} (since {words.clock(pause.since_s)})", _WARNING) for pause in status.pauses]
    found += [(status.hold, _WARNING)] if status.hold else []
    found += [(item.text, _WARNING) for item in (status.hours, status.bound, *status.caps) if item and item.text]
    if orphans := status.orphan_jobs or status.strays:
        found.append((f"{len(orphans)} jobs of the partition without a lease: bft status names them", _ALARM))
    if status.silent:
        found.append((f"silent drivers: {', '.join(status.silent)}", _WARNING))
    return [Text(f"! {printable(text)}", style=style, no_wrap=True, overflow="ellipsis") for text, style in found]


def bar(status: Status, width: int, glyphs: Glyphs) -> Text:
    """Draw all nodes as one bar."""
    line = Text(no_wrap=True)
    for state, length in charts.parts(words.counts(status), width):
        line.append(glyphs.states[state] * length, COLOURS[state])
    return line


def legend(status: Status, width: int, glyphs: Glyphs) -> Text:
    """Return the number of nodes in each state, with the bar's characters; set closer if space is short."""
    counts = words.counts(status)
    every = f"{sum(counts.values()):,} nodes"
    line = Text()
    for head, between in ((every, "  "), (every, " "), ("", " ")):
        parts = [Text(head, "bold")] if head else []
        parts += [
            Text.assemble((f"{glyphs.states[state]} ", COLOURS[state]), f"{count:,} {state}")
            for state, count in counts.items()
        ]
        line = Text(between).join(parts)
        if line.cell_len <= width:
            break
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def sets(status: Status, most: int, width: int) -> Text:
    """Return the largest groups of nodes as folded sets with their use, in at most `most` lines."""
    groups = sorted(status.groups, key=lambda group: (words.STATES.index(words.state_of(group)), -words.size_of(group)))
    if len(groups) > most:
        groups = sorted(status.groups, key=words.size_of, reverse=True)[: max(0, most - 1)]
    lines = [_set(group, width) for group in groups]
    left = len(status.groups) - len(groups)
    if left:
        lines.append(Text(f"and {left} more: n shows all", style="dim"))
    return Text("\n").join(lines)


def _set(group: NodeGroup, width: int) -> Text:
    name = printable(group.nodes)
    room = max(8, width // 3)
    line = Text(no_wrap=True, overflow="ellipsis")
    shown = name if len(name) <= room else f"{name[: room - 1]}+"
    line.append(f"{shown:<{room}} ", COLOURS[words.state_of(group)])
    line.append(f"{words.size_of(group):>5}  ", "dim")
    line.append(printable(does(group)))
    return line


def does(group: NodeGroup) -> str:
    """Describe the use of a group's nodes."""
    return f"trainer {group.trainer}: {group.lease_state}" if group.trainer else group.why


def facts(trainer: Trainer, sizes: Sequence[tuple[float, float]], now_s: float, width: int, glyphs: Glyphs) -> Text:
    """Describe one trainer in a few lines: owner, size, speed, and its sizes over the last hour."""
    lines = Text(overflow="ellipsis", no_wrap=True)
    lines.append(printable(f"{trainer.name}"), "bold")
    lines.append(printable(f"  {trainer.id or '(private)'} {trainer.user}"))
    lines.append(f"\n{trainer.state}", STATE_COLOURS.get(trainer.state, ""))
    lines.append(f" {size(trainer, glyphs)} of {trainer.nodes_min}-{trainer.nodes_max} nodes, {trainer.backend}")
    done = f"{trainer.step:,}" + (f" of {trainer.total_steps:,}" if trainer.total_steps else "")
    lines.append(f"\nstep {done}, {charts.rate_text(trainer.samples_per_s)} samples/s")
    if trainer.efficiency is not None:
        lines.append(f" at {words.share(trainer.efficiency)}")
    ending = words.ends(trainer, now_s)
    lines.append(f"\nends in {ending}" if trainer.expected_end_s and trainer.exit_code is None else "\nend not known")
    if trainer.loss is not None:
        lines.append(f", loss {trainer.loss:.4g}")
    lines.append(f"\n{trainer.resizes} resizes, {trainer.suspends} suspends, {trainer.steps_lost} steps lost", "dim")
    room = max(10, min(width - 2, 60))
    line = charts.spark(sizes, now_s - PAST_S, now_s, room, glyphs)
    most = max((value for at_s, value in sizes if at_s >= now_s - PAST_S), default=0.0)
    lines.append(f"\n{line}", STATE_COLOURS["running"])
    lines.append(f"\n{f'nodes, last hour, most {most:.0f}':<{room}}", "dim")
    return lines


def size(trainer: Trainer, glyphs: Glyphs) -> str:
    """Return the number of working nodes, and the number it is to have if that differs."""
    wanted = max(trainer.requested, trainer.planned) if not trainer.finished else trainer.requested
    return f"{trainer.working}" if trainer.working == wanted else f"{trainer.working}{glyphs.to}{wanted}"


def curve(trainer: Trainer, known: Curve | None, size_: tuple[int, int], glyphs: Glyphs) -> Text:
    """Draw a trainer's curve, with a line that explains the characters."""
    if known is None:
        return Text("its curve is being asked for", style="dim")
    measured = _main(known.measured)
    estimate = known.learned.points if known.learned else _main(known.estimates)
    width, height = size_
    lines = charts.curve(estimate, measured, trainer.working, (width, height - 1), glyphs, trainer.nodes_max)
    if not lines:
        return Text("nothing is known of its speed yet", style="dim")
    about = f"samples/s: {glyphs.measured} seen {glyphs.estimate} expected {glyphs.current} now"
    return Text("\n".join([about[:width], *lines]), no_wrap=True)


def _main(curves: Sequence[CurvePoints]) -> Sequence[tuple[int, float]]:
    """Return the points of the class of nodes with the most points."""
    return max((each.points for each in curves), key=len, default=())


def decisions(found: Sequence[Decision], most: int) -> Text:
    """Return the decisions, the newest first and in bold."""
    lines = []
    for at, each in enumerate(found[:most]):
        line = Text()
        line.append(f"{words.clock(each.at_s)} ", "dim")
        line.append(printable(each.text), "bold" if at == 0 else "")
        lines.append(line)
    return Text("\n").join(lines) if lines else Text("no decision yet", style="dim")


def node(one: Node) -> Text:
    """Describe a node without its past."""
    line = Text(printable(f"{one.name} {one.why} (Slurm: {one.state.lower() or 'not known'})"))
    if one.trainer:
        line.append(printable(f"\nit serves trainer {one.trainer}: {one.lease_state}"))
    if one.window_s is not None:
        line.append(f"\nSlurm plans to use it in {words.span(one.window_s)}")
    return line


def lease(one: PastLease) -> str:
    """Describe in one line who had a node, from when to when."""
    whose = " ".join(part for part in (one.trainer, one.name, one.user and f"({one.user})") if part)
    begun, ended = words.date(one.granted_s), words.date(one.ended_s)
    why = f": {one.why_revoked}" if one.why_revoked else ""
    return "\n" + printable(f"{begun} to {ended}  {whose}{why}")


def decisions_text(found: Sequence[Decision]) -> Text:
    """Return decisions with their dates, the oldest first."""
    lines = [Text(f"{words.date(each.at_s)}  {printable(each.text)}") for each in found]
    return Text("\n").join(lines) if lines else Text("the ledger has no decision on it", style="dim")
