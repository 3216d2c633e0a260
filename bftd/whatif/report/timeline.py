"""What every node did over time, as one picture: regular jobs, pilots that warm up, and trainers at work.

It shows what happened, by the daemon's ledger and by Slurm's record of the jobs, and nothing that was only planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bftd.whatif.report import canvas, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = Literal["regular", "warming up", "training"]

_HEIGHT = 380
_BAR = 0.78  # of the room that a node has
_LIGHTER = 0.35
_COLORS = (style.OURS, style.EQUAL, style.RESIZE, style.PREEMPT)


@dataclass(frozen=True, slots=True)
class Span:
    """What one node did from `start_s` to `end_s` (unix seconds); `who` is the trainer's name, or the job's id."""

    node: str
    start_s: float
    end_s: float
    kind: Kind
    who: str


def harvested(events: Iterable[Mapping[str, Any]], names: Mapping[str, str], end_s: float) -> list[Span]:
    """The time that pilots were on nodes, by events of the ledger, oldest first; `names` maps trainer id to name.

    A pilot warms up from when Slurm has started it until its first worker works. One that is still there lasts to
    `end_s`. Times are the driver's own where it gives them.
    """
    spans: list[Span] = []
    placed: dict[str, tuple[Mapping[str, Any], float]] = {}
    working: dict[str, float] = {}

    def close(lease: str, at_s: float) -> None:
        event, placed_s = placed.pop(lease)
        node, who = event["node"], names.get(event["trainer"], event["trainer"])
        works_s = min(working.pop(lease, at_s), at_s)
        for kind, since_s, until_s in (("warming up", placed_s, works_s), ("training", works_s, at_s)):
            if until_s > since_s:
                spans.append(Span(node, since_s, until_s, kind, who))  # type: ignore[arg-type]

    for event in events:
        data = event["data"]
        lease, at_s = data.get("lease"), data.get("at_s", event["at_s"])
        if event["kind"] == "ended" and lease in placed:
            close(lease, at_s)
        if event["kind"] != "lease":
            continue
        if data["state"] in ("placed", "ready", "working"):
            placed.setdefault(lease, (event, at_s))
        if data["state"] == "working":
            working.setdefault(lease, at_s)
        elif data["state"] in ("ended", "refused") and lease in placed:
            close(lease, at_s)
    for lease in list(placed):
        close(lease, end_s)
    return sorted(spans, key=lambda span: (span.start_s, span.node))


def timeline(spans: Sequence[Span], nodes: Sequence[str], begin_s: float, end_s: float) -> canvas.Draw:
    """A row for each node, first on top, from `begin_s`, which is 0 on the axis, to `end_s`."""
    trainers = sorted({span.who for span in spans if span.kind != "regular"})
    colors = {who: _COLORS[at % len(_COLORS)] for at, who in enumerate(trainers)}

    def draw(axes: Axes, narrow: bool) -> None:
        from matplotlib.ticker import MaxNLocator

        rows = {name: at for at, name in enumerate(nodes)}
        for span in spans:
            since_s, until_s = max(span.start_s, begin_s), min(span.end_s, end_s)
            if span.node not in rows or until_s <= since_s:
                continue
            color = style.RIGID if span.kind == "regular" else colors[span.who]
            place: dict[str, Any] = {
                "y": rows[span.node],
                "width": until_s - since_s,
                "height": _BAR,
                "left": since_s - begin_s,
            }
            if span.kind == "warming up":  # the grid must not show through
                axes.barh(**place, color=style.PAPER.light, linewidth=0)
            axes.barh(**place, color=color.light, alpha=_LIGHTER if span.kind == "warming up" else None, linewidth=0)
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

    handles = [Patch(facecolor=style.RIGID.light, linewidth=0, label="regular job")]
    for at, who in enumerate(trainers):
        color = _COLORS[at % len(_COLORS)].light
        handles.append(Patch(facecolor=color, linewidth=0, label=f"{who}, trains"))
        handles.append(Patch(facecolor=color, linewidth=0, alpha=_LIGHTER, label=f"{who}, warms up"))
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
    """The timeline as an SVG file of its own; raises ReportError where matplotlib is missing."""
    canvas.version()
    drawn, _ = canvas.plot("nodes", title, timeline(spans, nodes, begin_s, end_s), height=_HEIGHT)
    return canvas.standalone(drawn, title)
