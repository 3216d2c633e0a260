"""A picture of every node over time: regular jobs, and nodes that trainers hold, by what they do there.

It shows only what happened, from the daemon's ledger and Slurm's record of the jobs, and nothing that was only planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bftd.simulation.report import canvas, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = Literal["regular", "starting", "training", "resizing"]

_HEIGHT = 380
_BAR = 0.78  # of the height of a node's row
_COLORS = (style.OURS, style.EQUAL, style.MUTED)
_PHASES = {"regular": style.RIGID, "starting": style.START, "resizing": style.RESIZE}


@dataclass(frozen=True, slots=True)
class Span:
    """The use of one node from `start_s` to `end_s` (unix seconds); `who` is the trainer's name or the job's id."""

    node: str
    start_s: float
    end_s: float
    kind: Kind
    who: str


class _Pilot:
    """A pilot, and the present use of its node with its start."""

    def __init__(self, event: Mapping[str, Any], who: str, since_s: float, spans: list[Span]) -> None:
        self.trainer = event["trainer"]
        self.kind: Kind = "starting"
        self._node = event["node"]
        self._who = who
        self._since_s = since_s
        self._spans = spans

    def turns(self, kind: Kind, at_s: float) -> None:
        """Change to another kind of use from `at_s` on."""
        if at_s > self._since_s:
            self._spans.append(Span(self._node, self._since_s, at_s, self.kind, self._who))
            self._since_s = at_s
        self.kind = kind

    def stood_still(self, stall_s: float, at_s: float) -> None:
        """Record that its workers, if it had any before, went on at `at_s` after a stall."""
        if self.kind == "training" and at_s - stall_s > self._since_s:
            self.turns("resizing", at_s - stall_s)
            self.turns("training", at_s)


def held(events: Iterable[Mapping[str, Any]], names: Mapping[str, str], end_s: float) -> list[Span]:
    """Return the time that pilots were on nodes, from events of the ledger, oldest first.

    `names` maps trainer id to name. A pilot is starting from when Slurm has given its node until its first worker has
    ended a step, and again while its trainer is suspended. A pilot that has not ended lasts to `end_s`. Times are the
    driver's own if it gives them.
    """
    spans: list[Span] = []
    pilots: dict[str, _Pilot] = {}
    for event in events:
        data, kind, trainer = event["data"], event["kind"], event["trainer"]
        lease, at_s = data.get("lease"), data.get("at_s", event["at_s"])
        own = [pilot for pilot in pilots.values() if pilot.trainer == trainer]
        if kind == "resize":
            for pilot in own:
                pilot.stood_still(data.get("stall_s") or 0.0, at_s)
        elif kind == "suspend":
            for pilot in own:
                pilot.turns("starting", at_s)
        elif kind == "lease" and data["state"] in ("placed", "ready", "working"):
            pilot = pilots.setdefault(lease, _Pilot(event, names.get(trainer, trainer), at_s, spans))
            if data["state"] == "working" and pilot.kind == "starting":
                pilot.turns("training", at_s)
        elif lease in pilots and (kind == "ended" or (kind == "lease" and data["state"] in ("ended", "refused"))):
            pilots.pop(lease).turns("starting", at_s)
    for pilot in pilots.values():
        pilot.turns("starting", end_s)
    return sorted(spans, key=lambda span: (span.start_s, span.node))


def timeline(spans: Sequence[Span], nodes: Sequence[str], begin_s: float, end_s: float) -> canvas.Draw:
    """Draw a row for each node, the first on top, from `begin_s`, which is 0 on the axis, to `end_s`."""
    trainers = sorted({span.who for span in spans if span.kind != "regular"})
    colors = {who: _COLORS[at % len(_COLORS)] for at, who in enumerate(trainers)}

    def draw(axes: Axes, narrow: bool) -> None:
        from matplotlib.ticker import MaxNLocator

        rows = {name: at for at, name in enumerate(nodes)}
        for span in spans:
            since_s, until_s = max(span.start_s, begin_s), min(span.end_s, end_s)
            if span.node not in rows or until_s <= since_s:
                continue
            color = _PHASES.get(span.kind) or colors[span.who]
            axes.barh(
                y=rows[span.node],
                width=until_s - since_s,
                height=_BAR,
                left=since_s - begin_s,
                color=color.light,
                linewidth=0,
            )
        axes.set_xlim(0, end_s - begin_s)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6 if narrow else 10, steps=[1, 2, 5, 10]))
        axes.set_xlabel("seconds since the trainers were submitted")
        axes.set_ylim(len(nodes) - 0.5, -0.5)
        axes.set_yticks(range(len(nodes)), nodes)
        axes.set_ylabel("node")
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        _legend(axes, trainers, narrow)

    return draw


def _legend(axes: Axes, trainers: Sequence[str], narrow: bool) -> None:
    from matplotlib.patches import Patch

    shown = {f"{who} trains": _COLORS[at % len(_COLORS)] for at, who in enumerate(trainers)}
    shown |= {"starts (imports, joins)": style.START, "is resized": style.RESIZE, "regular job": style.RIGID}
    handles = [Patch(facecolor=color.light, linewidth=0, label=label) for label, color in shown.items()]
    handles.append(Patch(facecolor=style.PAPER.light, edgecolor=style.MUTED.light, linewidth=0.8, label="idle"))
    axes.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=2 if narrow else 3,
        frameon=False,
        handlelength=1.4,
        columnspacing=1.4,
    )


def picture(title: str, spans: Sequence[Span], nodes: Sequence[str], begin_s: float, end_s: float) -> bytes:
    """Return the timeline as a separate SVG file; raise UsageError if matplotlib is missing."""
    canvas.version()
    drawn, _ = canvas.plot("nodes", title, timeline(spans, nodes, begin_s, end_s), height=_HEIGHT)
    return canvas.standalone(drawn, title)
