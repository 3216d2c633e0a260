"""The texts of the screen: headline, notices, nodes, one trainer, decisions; pure functions of a status."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from bftd.base import view
from bftd.base.format import UNKNOWN, clock, counted, moment, percent, period, rate, span
from bftd.client import Curve, CurvePoints, Decision, Node, NodeGroup, PastLease, Status, Trainer
from bftd.client.decode import written
from bftd.protocol.fields import printable
from bftd.ui.live import charts, node_groups
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
STATE_COLOURS = {
    "running": "#56b4e9",
    "waiting": "#e69f00",
    "suspended": "#d58bb5",
    "finished": "#a8a8a8",
    "cancelled": "#a8a8a8",
}
_WARNING = "#e69f00"
_ALARM = "bold #ff7b5a"
_NOTED = ("alarms", "strays", "hold", "pauses", "hours", "bound", "caps", "silent", "tuned")


def headline(status: Status) -> Text:
    """Return the headline: version, age of the snapshot, shares that trained and were held, U, give-back times."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("bftd ", "bold")
    line.append(printable(f"{status.version} {status.mode}"), "")
    line.append(f"  {view.snapshot_age(status.snapshot_age_s)}")
    if status.training_share is not None and status.held_share is not None:
        line.append(f"  training {percent(status.training_share)}  held {percent(status.held_share)}")
    for window in status.windows:
        if window.u is not None:
            line.append(f"  U {period(window.window_s)} {percent(window.u)}")
    backs = status.give_back_s
    if backs.count and backs.p50 is not None and backs.max is not None:
        line.append(f"  give-back {backs.p50:.2f} s, most {backs.max:.2f} s")
    return line


def notices(status: Status, problem: str) -> list[Text]:
    """Return one line for each notice, the most pressing first."""
    fields = written({name: getattr(status, name) for name in _NOTED})
    found = [(problem, _ALARM)] if problem else []
    found += [(text, _ALARM) for text in view.alarms(fields)] + [(text, _WARNING) for text in view.warnings(fields)]
    return [Text(f"! {printable(text)}", style=style, no_wrap=True, overflow="ellipsis") for text, style in found]


def bar(status: Status, width: int, glyphs: Glyphs) -> Text:
    """Draw all nodes as one bar."""
    line = Text(no_wrap=True)
    for state, length in charts.parts(node_groups.counts(status), width):
        line.append(glyphs.states[state] * length, COLOURS[state])
    return line


def legend(status: Status, width: int, glyphs: Glyphs) -> Text:
    """Return the number of nodes in each state, with the bar's characters; set closer if space is short."""
    counts = node_groups.counts(status)
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
    groups = node_groups.in_order(status.groups)
    if len(groups) > most:
        groups = sorted(status.groups, key=node_groups.size_of, reverse=True)[: max(0, most - 1)]
    lines = [_set(group, width) for group in groups]
    left = len(status.groups) - len(groups)
    if left:
        lines.append(Text(f"and {left} more: n shows all", style="dim"))
    return Text("\n").join(lines)


def _set(group: NodeGroup, width: int) -> Text:
    name = printable(group.nodes)
    width_most = max(8, width // 3)
    line = Text(no_wrap=True, overflow="ellipsis")
    shown = name if len(name) <= width_most else f"{name[: width_most - 1]}+"
    line.append(f"{shown:<{width_most}} ", COLOURS[node_groups.state_of(group)])
    line.append(f"{node_groups.size_of(group):>5}  ", "dim")
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
    line = trainer.line(now_s)
    lines.append(f"\n{line.state}", STATE_COLOURS.get(trainer.state, ""))
    lines.append(f", {line.backend}" if trainer.finished else f" {line.nodes} of {line.range} nodes, {line.backend}")
    lines.append(f"\nstep {line.step}, {rate(trainer.samples_per_s)} samples/s")
    if trainer.efficiency is not None:
        lines.append(f" at {line.efficiency}")
    lines.append("\nend not known" if line.left == UNKNOWN else f"\nends in {line.left}")
    if trainer.loss is not None:
        lines.append(f", loss {line.loss}")
    counts = ((trainer.resizes, "resize"), (trainer.suspends, "suspend"), (trainer.steps_lost, "step"))
    lines.append(f"\n{', '.join(counted(*each) for each in counts)} lost", "dim")
    width_most = max(10, min(width - 2, 60))
    past = charts.spark(sizes, now_s - PAST_S, now_s, width_most, glyphs)
    most = max((value for at_s, value in sizes if at_s >= now_s - PAST_S), default=0.0)
    lines.append(f"\n{past}", STATE_COLOURS["running"])
    lines.append(f"\n{f'nodes, last hour, most {most:.0f}':<{width_most}}", "dim")
    return lines


def curve(trainer: Trainer, known: Curve | None, size_: tuple[int, int], glyphs: Glyphs) -> Text:
    """Draw a trainer's curve, with a line that explains the characters."""
    if known is None:
        return Text("asking the daemon for its curve", style="dim")
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
    lines = [
        Text.assemble((f"{clock(each.at_s)} ", "dim"), (printable(each.text), "" if at else "bold"))
        for at, each in enumerate(found[:most])
    ]
    return Text("\n").join(lines) if lines else Text("no decision yet", style="dim")


def node(one: Node) -> Text:
    """Describe a node without its past."""
    line = Text(printable(f"{one.name} {one.why} (Slurm: {one.state.lower() or 'not known'})"))
    if one.trainer:
        line.append(printable(f"\nit serves trainer {one.trainer}: {one.lease_state}"))
    if one.window_s is not None:
        line.append(f"\nSlurm plans to use it in {span(one.window_s)}")
    return line


def lease(one: PastLease) -> str:
    """Describe in one line who had a node, from when to when."""
    whose = " ".join(part for part in (one.trainer, one.name, one.user and f"({one.user})") if part)
    begun, ended = moment(one.granted_s), "now" if one.ended_s is None else moment(one.ended_s)
    why = f": {one.why_revoked}" if one.why_revoked else ""
    return "\n" + printable(f"{begun} to {ended}  {whose}{why}")


def decisions_text(found: Sequence[Decision]) -> Text:
    """Return decisions with their dates, the oldest first."""
    lines = [Text(f"{moment(each.at_s)}  {printable(each.text)}") for each in found]
    return Text("\n").join(lines) if lines else Text("the ledger has no decision on it", style="dim")
