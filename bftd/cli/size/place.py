"""`bft size inventory` and `bft size place`: the GPUs that exist, and those on which plans would run now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from bftd.base.format import size
from bftd.cli import common, options
from bftd.cli.size.shared import inventory as size_inventory

if TYPE_CHECKING:
    from sizing.choice.place import NotPlaceable, Placement, PlacementRequest
    from sizing.inventory.inventory import GpuNodes, Inventory


@click.command()
@click.option("--inventory", "path", metavar="FILE", help="Read this file and not Slurm; - is standard input.")
@options.config
@options.as_json
def inventory(path: str | None, config_path: str | None, as_json: bool) -> None:
    """Show which GPUs this centre has.

    With --json as a file that can be corrected, and is read by --inventory or as /etc/bftd/gpus.json.
    """
    from sizing.inventory.file import to_json

    found = size_inventory.found(path, config_path)
    if as_json:
        common.echo_json(to_json(found))
        return
    common.echo(_shown(found))


@click.command()
@click.argument("plans", metavar="PLANS.json|-")
@click.argument("inventory_path", metavar="INVENTORY.json")
@click.option("--empty", is_flag=True, help="As if no job ran.")
@options.as_json
def place(plans: str, inventory_path: str, empty: bool, as_json: bool) -> None:
    """Tell on which nodes plans would be placed, and why better ones would not.

    Reads what bft size fit --json and bft size inventory --json write. This is a what-if: Slurm places the job.
    """
    from sizing.base.errors import DoesNotFit
    from sizing.choice.place import Placement, check, parse, trial
    from sizing.files.text import text_of
    from sizing.functions.site import in_file
    from sizing.inventory.inventory import emptied

    wanted = parse(text_of(plans), name="standard input" if plans == "-" else plans)
    there = in_file(inventory_path)
    check(wanted, there)
    answers = list(trial(wanted, emptied(there) if empty else there))
    placed = answers[-1] if isinstance(answers[-1], Placement) else None
    refusals = [answer for answer in answers if not isinstance(answer, Placement)]
    if as_json:
        passed = [{"plan": at.index + 1, "why": at.why, "lacking": at.lacking} for at in refusals]
        common.echo_json({"placed": placed and placed.to_json(), "passed_over": passed})
    else:
        common.echo(_lines(wanted, refusals, placed))
    if placed is None:
        later = None if empty else next((at for at in trial(wanted, emptied(there)) if isinstance(at, Placement)), None)
        raise DoesNotFit(_missing(wanted, refusals, later, empty=empty))


def _shown(found: Inventory) -> Iterable[str]:
    """Yield the groups of each partition, and notes on assumptions."""
    from bftd.base.tables import Column
    from slurm_plugin.nodeset import fold

    columns = [
        Column("PARTITION", least=12),
        Column("NODES", least=16, folds=True),
        Column("GPUS"),
        Column("TYPE"),
        Column("MEMORY", right=True),
        Column("ORIGIN"),
        Column("IDLE", right=True),
        Column("CPUS", rank=1, right=True),
        Column("RAM", rank=2, right=True),
    ]
    alike: dict[tuple[str, str, int, int, int], list[GpuNodes]] = {}
    for offer in found.offers:
        for group in offer.groups:  # differences in features, such as the rack, are not shown
            key = (offer.partition, group.gpu_type, group.gpus, group.cpus, group.memory_bytes)
            alike.setdefault(key, []).append(group)
    rows = []
    for (partition, gpu_type, gpus, cpus, memory_bytes), groups in alike.items():
        nodes = [name for group in groups for name in group.nodes]
        known = found.types[gpu_type]
        rows.append(
            (
                partition,
                fold(nodes),
                f"{len(nodes)} x {gpus}",
                gpu_type,
                size(known.memory_bytes),
                "assumed" if "memory_bytes" in known.assumed else "measured",
                f"{sum(map(_idle, groups))} of {len(nodes) * gpus}",
                str(cpus),
                size(memory_bytes),
            )
        )
    if rows:
        yield from common.table(columns, rows)
    else:
        yield "no partition that is up has GPUs of a type that is known"
    yield from found.notes


def _idle(group: GpuNodes) -> int:
    return sum(group.idle.get(node, group.gpus) for node in group.nodes)


def _lines(
    requests: Sequence[PlacementRequest], refusals: Sequence[NotPlaceable], placed: Placement | None
) -> Iterable[str]:
    """Yield a line for each plan that was tried."""
    from bftd.base.tables import Column
    from slurm_plugin.nodeset import fold

    columns = [Column("PLAN", right=True), Column("ASKS FOR"), Column("GOES TO", least=24, folds=True)]
    rows = [(str(at.index + 1), _request(requests[at.index]), f"nowhere: {at.why}") for at in refusals]
    if placed is not None:
        by_count: dict[int, list[str]] = {}
        for node, count in placed.nodes.items():
            by_count.setdefault(count, []).append(node)
        spread = ", ".join(f"{fold(names)} ({count} each)" for count, names in by_count.items())
        where = f"{spread.replace(' each)', ')') if len(placed.nodes) == 1 else spread} of {placed.partition}"
        rows.append((str(placed.index + 1), _request(requests[placed.index]), f"{where}, {placed.gpu_type}"))
    yield from common.table(columns, rows)
    if placed is not None and (per_node := requests[placed.index].per_node):
        uneven = [count for count in placed.nodes.values() if count != per_node]
        if uneven:
            yield (
                f"The plan's own lines ask for {per_node} GPUs of each node, which Slurm cannot start on these now: "
                f"--gpus={requests[placed.index].gpus} instead of --nodes and --gres would let it"
            )


def _request(request: PlacementRequest) -> str:
    kind = f" {request.gpu_type}" if request.gpu_type else ""
    groups = f", tp={request.tp}" if request.tp > 1 else ""
    where = f" in {request.partition}" if request.partition else ""
    return f"{request.gpus} x {size(request.need_bytes)}{kind}{where}{groups}"


def _missing(
    requests: Sequence[PlacementRequest], refusals: Sequence[NotPlaceable], later: Placement | None, *, empty: bool
) -> str:
    """Say in one line what the nearest plan lacks, and whether waiting helps."""
    nearest = min(refusals, key=lambda refusal: (refusal.lacking is None, refusal.lacking or 0, refusal.index))
    lacks = f" (it lacks {nearest.lacking} GPUs)" if nearest.lacking else ""
    line = f"no plan can be placed: plan {nearest.index + 1} {nearest.why}{lacks}"
    if later is not None:
        return (
            f"{line}; plan {later.index + 1} could once other jobs have ended: submit it and Slurm will wait for that"
        )
    if empty:
        return f"{line}; none can without any other job either"
    return f"{line}; no plan could on the empty cluster either: ask bft size fit for others"
