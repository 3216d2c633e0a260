"""`bft size comm`: times of collectives over the links of this centre, from nccl-tests or measured here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd import config_file
from bftd.base.errors import UsageError
from bftd.cli import common, options
from bftd.cli.progress import meanwhile
from bftd.cli.size.shared import inventory, size_options

if TYPE_CHECKING:
    from sizing.cells.comm.nccl import NcclRun
    from sizing.cells.comm.table import CommTables, Table
    from sizing.profiles.comm_tables import Added

_LINK = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,5})")


@click.group()
def comm() -> None:
    """Keep tables of how long collectives take, which estimates of run times need."""


@comm.command(name="import")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...|-")
@click.option("--gpu", "gpu_type", default="", metavar="TYPE", help="The type of GPU, where the log does not say it.")
@click.option("--link", "link_text", default="", metavar="GPUSxNODES", help="GPUs a node x nodes, if not in the log.")
@click.option("--kind", default="", metavar="KIND", help="The collective, where the log does not say it.")
@click.option("--force", is_flag=True, help="Replace also a table of more sizes.")
@click.option("--site", is_flag=True, help="For all users: write beside the configuration, as /etc/bftd/comm.json.")
@options.config
@options.as_json
def import_(
    logs: Sequence[str],
    gpu_type: str,
    link_text: str,
    kind: str,
    force: bool,
    site: bool,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Read what the programs of nccl-tests printed, and keep it.

    A later import of the same collective over the same link replaces the earlier one, if it has all its sizes.
    """
    from sizing.cells.comm import nccl
    from sizing.cells.comm.table import PROGRAMS
    from sizing.files.text import text_of
    from sizing.profiles import comm_tables

    if kind and kind not in PROGRAMS:
        raise UsageError(f"--kind {kind}: {', '.join(PROGRAMS)}")
    tables: list[Table] = []
    notes: list[str] = []
    for log in logs:
        name = "standard input" if log == "-" else Path(log).name
        for run in nccl.parse(text_of(log), name, kind or None):
            tables.append(_table(run, name, gpu_type, link_text, config_path))
            notes += [f"{name}, {run.kind}: {note}" for note in run.notes]
    path = site_path(config_path) if site else own_path()
    _report(tables, comm_tables.add(path, tables, force=force), notes, path, as_json)


@comm.command()
@click.option("--ranks", default=2, metavar="N", help="Processes on this machine, 2 (default) to 8.")
@click.option("--rounds", default=5, metavar="N", help="Of which the median counts; default 5.")
@click.option("--max-bytes", default=2**26, metavar="BYTES", help="Of the largest tensor; default 64 MiB.")
@click.option("--python", default="", metavar="P", help="The Python to measure with; it must have torch.")
@size_options.timeout(300.0, "For all of it; default 300 s.")
@click.option("--save/--no-save", default=True, help="Keep the tables (default).")
@click.option("--force", is_flag=True, help="Replace also a table of more sizes.")
@options.as_json
def bench(
    ranks: int, rounds: int, max_bytes: int, python: str, timeout_s: float, save: bool, force: bool, as_json: bool
) -> None:
    """Measure collectives between processes of this machine (gloo).

    It says nothing of GPUs: those are measured by nccl-tests, and imported.
    """
    from sizing.cells.comm.bench import bench as measured
    from sizing.profiles import comm_tables

    tables, notes = meanwhile(
        "measuring",
        lambda: measured(ranks, day=_today(), rounds=rounds, max_bytes=max_bytes, python=python, timeout_s=timeout_s),
    )
    cores = len(os.sched_getaffinity(0))
    if ranks > cores:
        notes = (*notes, f"{ranks} processes shared {cores} cores: these are times of such a machine only")
    path = own_path() if save else None
    added = comm_tables.add(path, tables, force=force) if path else comm_tables.Added()
    _report(tables, added, notes, path, as_json)


@comm.command()
@options.config
@options.as_json
def show(config_path: str | None, as_json: bool) -> None:
    """Show the tables that there are: the site's, and over them your own."""
    from sizing.cells.comm.table import to_json

    tables = found(config_path).tables
    if as_json:
        common.echo_json(to_json(tables))
    elif tables:
        common.echo(_shown(tables))
    else:
        common.echo(["no tables yet: bft size comm bench for this CPU, nccl-tests and bft size comm import for GPUs"])


def own_path() -> Path:
    """Return the path of the user's own file of tables."""
    from sizing.profiles import comm_tables

    return comm_tables.own_path()


def site_path(config_path: str | None = None) -> Path:
    """Return the path of the site's file of tables, next to the configuration in use."""
    from sizing.profiles import comm_tables

    return config_file.find(config_path).with_name(comm_tables.NAME)


def found(config_path: str | None = None, *, extrapolate: bool = False) -> CommTables:
    """Return all tables in use; the user's own take precedence over the site's."""
    from sizing.profiles import comm_tables

    return comm_tables.load(site_path(config_path), own_path(), extrapolate=extrapolate)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _table(run: NcclRun, name: str, gpu_type: str, link_text: str, config_path: str | None) -> Table:
    """Return a run as a table; raises UsageError if neither the log nor an option gives its GPUs and link."""
    from sizing.cells.comm.protocol import Link
    from sizing.cells.comm.table import table

    gpu = gpu_type or run.gpu
    if gpu is None:
        raise UsageError(f"{name} does not list its GPUs: name their type by --gpu, such as --gpu a100-sxm-80gb")
    per_node, nodes = run.per_node, run.nodes
    if link_text:
        match = _LINK.fullmatch(link_text)
        if match is None or int(match[1]) * int(match[2]) < 2:
            raise UsageError(f"--link {link_text}: GPUs a node x nodes, two or more in all, such as 8x2")
        per_node, nodes = int(match[1]), int(match[2])
    if per_node is None or nodes is None:
        raise UsageError(f"{name} does not list its ranks: say GPUs a node x nodes by --link, such as --link 8x2")
    return table(run.kind, Link(_type(gpu, name, config_path), per_node, nodes), run.samples, name, _today())


def _type(gpu: str, name: str, config_path: str | None) -> str:
    """Return the catalogue's or the site's name of a type of GPU."""
    from sizing.functions.site import CORRECTIONS
    from sizing.inventory.gpus import CATALOGUE, recognise

    if gpu in CATALOGUE or gpu == "cpu":
        return gpu
    own = inventory.own_types(config_path)
    if gpu in own:
        return own[gpu].name
    known = recognise(gpu)
    if known is None:
        where = config_file.find(config_path).with_name(CORRECTIONS)
        raise UsageError(f"{name}: {gpu} is no known type of GPU: name one by --gpu, or describe it in {where}")
    return known.type.name


def _report(tables: Sequence[Table], added: Added, notes: Sequence[str], path: Path | None, as_json: bool) -> None:
    from sizing.cells.comm.table import named, shown, to_json

    notes = [
        *notes,
        *(
            f"{old.kind} over {named(old.link)} replaces that of {old.day or 'before'} ({old.source})"
            for old in added.replaced
        ),
        *(
            f"{old.kind} over {named(old.link)} stays that of {old.day or 'before'} ({old.source}), which has times of "
            f"{shown(old.points[0].nbytes)} to {shown(old.points[-1].nbytes)}; --force replaces it"
            for old in added.stayed
        ),
    ]
    if len(added.stayed) == len(tables):
        path = None
    if as_json:
        common.echo_json({**to_json(tables), "saved": path and str(path), "notes": notes})
        return
    common.echo(_shown(tables))
    common.echo(f"note: {note}" for note in notes)
    if path:
        common.echo([f"kept in {path}"])


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _shown(tables: Sequence[Table]) -> Iterable[str]:
    """Yield a line for each table, with its range and its results."""
    from bftd.base.tables import Column
    from sizing.cells.comm.table import named, shown

    columns = [
        Column("KIND"),
        Column("LINK"),
        Column("FROM", right=True),
        Column("TO", right=True),
        Column("LATENCY", right=True),
        Column("AT THE LARGEST", right=True),
        Column("SPREAD", rank=1, right=True),
        Column("SIZES", rank=2, right=True),
        Column("SOURCE", rank=3, least=12),
        Column("DAY", rank=4),
    ]
    rows = []
    for each in tables:
        first, last = each.points[0], each.points[-1]
        spread = max((point.high_s - point.low_s) / point.value_s for point in each.points)
        rows.append(
            (
                each.kind,
                named(each.link),
                shown(first.nbytes),
                shown(last.nbytes),
                _duration(first.value_s),
                f"{last.nbytes / last.value_s / 1e9:.3g} GB/s",
                f"{spread:.0%}",
                str(len(each.points)),
                each.source,
                each.day,
            )
        )
    yield from common.table(columns, rows)
    yield "GB/s: bytes of the whole tensor over the time; spread: most less least time over the median, at its widest"
