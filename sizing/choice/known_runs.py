"""The runs of a step that are known: the user's own, and those that the centre has published."""

from __future__ import annotations

from collections.abc import Collection

from sizing.choice import ran
from sizing.choice.ran import Ran
from sizing.choice.sources import Place
from sizing.choice.tracer import Tracer
from sizing.inventory.site import Site
from sizing.model import launch


def name_of(step: str) -> str:
    """Return the name under which runs of a step are stored."""
    path, function = launch.parts(step)
    return f"{path.name}:{function}"


def known(tracer: Tracer, places: Collection[Place], site: Site) -> tuple[list[Ran], list[str]]:
    """Return past runs of exactly this step on some GPUs, and notes; traces the step as those runs had it.

    With --precision, which times all arithmetic in one precision, no run counts.
    """
    name = name_of(tracer.step)
    own, note = ran.read(ran.usual_path(), name)
    published, other = ran.read(site.folder / ran.NAME, name)
    said = [each for each in (note, other) if each]
    mine = {each.job for each in own}
    own = [each for each in own if each.place in places]
    published = [each for each in published if each.place in places and each.job not in mine]
    if tracer.traces.precision and own:
        return [], [*said, f"with --precision no job counts that ran: {len(own)}"]
    if tracer.traces.precision or not own + published:
        return [], said
    found = ran.of_step(own, published, tracer.traces, tracer.measure)
    if found.same:
        last = max(found.same, key=lambda each: each.ended_s)
        said.append(f"jobs that ran and count: {len(found.same)}, the last of them {last.job}")
    if found.others:
        said.append(
            f"jobs that ran and do not count, since they trained another model or one that was changed: {found.others}"
        )
    if found.unknown:
        said.append(
            f"jobs that ran and were not compared, since the step was not traced as they had it: {found.unknown}"
        )
    return list(found.same), said
