"""`bft trace`: makes traces of idle nodes, from accounting or the live cluster, and their statistics."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd.base.errors import UsageError
from bftd.base.format import counted, duration, some
from bftd.cli import common, options
from bftd.protocol.fields import printable

if TYPE_CHECKING:
    from bftd.simulation.trace.accounting.conversion import TracePeriod
    from bftd.simulation.trace.accounting.job_rows import JobRows
    from bftd.simulation.trace.accounting.sacct import Accounts
    from bftd.simulation.trace.model import Trace
    from bftd.simulation.trace.stats import Stats
    from slurm_plugin.clients.client import SlurmClient
    from slurm_plugin.read.types import Snapshot

# A month of a large site's accounting takes minutes to read from its database.
_ACCOUNTING_TIMEOUT_S = 900.0


def _date(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    from slurm_plugin.read.dates import local

    if value is None:
        return None
    try:
        return float(value) if value.isdecimal() else local(value)[0]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no date such as 2026-01-31 or 2026-01-31T08:00.") from None


_hours = click.option("--hours", type=float, callback=options.above_zero, metavar="H", help="Only so many hours.")


@click.group()
def trace() -> None:
    """Make traces, which say which nodes were idle when, and tell what they amount to."""


@trace.command(short_help="Tell how many nodes were idle, how often that changed, and for how long.")
@click.argument("path", metavar="TRACE")
@click.option("--nodes", metavar="NODES", help='Only these nodes: "n[1-64]", or "0-1023" where they are numbered.')
@_hours
@options.as_json
def stats(path: str, nodes: str | None, hours: float | None, as_json: bool) -> None:
    """Tell how many nodes of TRACE were idle, how often that changed, and for how long a node stayed idle."""
    from bftd.simulation.trace import files
    from bftd.simulation.trace.accounting.notes import notes
    from bftd.simulation.trace.stats import stats as computed

    read = files.read(path)
    if nodes is not None:
        read = read.select(nodes)
    if hours is not None:
        read = read.first(hours)
    found = computed(read)
    if as_json:
        common.echo_json(found.to_json() | {"notes": dict(read.notes), "sha256": read.digest()})
        return
    common.echo([*_table(found), *(f"note: {sentence}" for sentence in notes(read.notes))])


@trace.command("from-sacct", short_help="Make a trace from Slurm's accounting.")
@click.argument("path", metavar="[FILE|-]", required=False)
@click.option("--since", "since_s", callback=_date, metavar="DATE", help="Start; without FILE, call sacct itself.")
@click.option("--until", "until_s", callback=_date, metavar="DATE", help="End.")
@click.option("--nodes", metavar="NODES|FILE", help="The nodes, or a file with the output of scontrol show nodes -o.")
@click.option("--events", metavar="FILE", help="Output of sacctmgr -P show event: nodes that were down or drained.")
@click.option("--reservations", metavar="FILE", help="Output of sacctmgr -P show reservation.")
@click.option("--ignore-partition", "ignored", multiple=True, metavar="NAME",
              help="Jobs here are no use of a node [the harvested partitions of the configuration].")  # fmt: skip
@click.option("--min-idle", "min_idle_s", type=float, default=10.0, show_default=True, callback=options.not_negative,
              metavar="SECONDS", help="Leave out idle periods that are shorter.")  # fmt: skip
@click.option("--names", is_flag=True, help="Keep the names of users and accounts in the log of jobs [numbers].")
@click.option("-o", "--output", required=True, metavar="TRACE", help="Where to write: .csv.gz or .csv.")
@options.config
def from_sacct(
    path: str | None,
    since_s: float | None,
    until_s: float | None,
    nodes: str | None,
    events: str | None,
    reservations: str | None,
    ignored: Sequence[str],
    min_idle_s: float,
    names: bool,
    output: str,
    config_path: str | None,
) -> None:
    """Make a trace of the output of sacct -P in FILE, or of what sacct says since a DATE.

    A log of the jobs is written beside it: T.jobs.csv.gz for T.csv.gz.
    """
    from bftd import config_file
    from bftd.simulation.trace import files, sidecar
    from bftd.simulation.trace.accounting import conversion
    from bftd.simulation.trace.accounting.job_rows import JobRows
    from bftd.simulation.trace.accounting.sacct import Accounts

    sidecar.path_of(Path(output))  # refuse a wrong name before minutes of work
    accounts = Accounts(logged=JobRows(names))
    # pilots do not count as use of a node: a replay would harvest it again
    ignored = [name for name in ignored if name] if ignored else config_file.load_found(config_path).slurm.harvested
    every = path is None and nodes is None
    slurm: dict[str, str] = {}
    if path is not None:
        accounts.add_jobs(_text(path), _named(path), ignored)
        if nodes is None:
            raise UsageError("give the node list: --nodes NODES, or a file with the output of scontrol show nodes -o")
    elif since_s is None:
        raise UsageError("give a FILE with the output of sacct, or --since DATE to call sacct")
    else:
        client = common.slurm_client(config_file.load_found(config_path))
        until_s = min(time.time(), math.inf if until_s is None else until_s)  # the future has no idle nodes yet
        if since_s >= until_s:
            raise UsageError("--since must be before --until, and before now")
        nodes = nodes or _ask(client, "scontrol", "show", "nodes", "-o")
        slurm = _ask_settings(client)
        _ask_accounts(client, accounts, since_s, until_s, ignored, events is None, reservations is None)
    if events is not None:
        accounts.add_events(_text(events), _named(events))
    elif path is not None:
        click.echo("bft: no --events given: nodes that were down or drained look idle", err=True)
    if reservations is not None:
        accounts.add_reservations(_text(reservations), _named(reservations))
    period = conversion.window(accounts, since_s, until_s)
    made = conversion.trace(accounts, _node_list(nodes), period, min_idle_s, every=every)
    _print_summary(files.write(made, output), output)
    _write_jobs(accounts.logged, period, made.nodes, every, slurm, Path(output))


@trace.command("from-slurm", short_help="Record the live cluster from now on.")
@click.option("-o", "--output", required=True, metavar="TRACE", help="Where to write or go on: .csv.gz or .csv.")
@click.option(
    "--poll", "poll_s", type=float, callback=options.above_zero, metavar="SECONDS", help="Time between polls [10]."
)
@_hours
@click.option("--partition", metavar="NAME", help="Only the nodes of a partition [that of the configuration].")
@click.option("--nodes", metavar="NODES", help="Only these nodes.")
@options.config
def from_slurm(
    output: str,
    poll_s: float | None,
    hours: float | None,
    partition: str | None,
    nodes: str | None,
    config_path: str | None,
) -> None:
    """Record from now on which nodes are idle, until --hours are over or a signal comes."""
    from bftd import config_file
    from bftd.simulation.trace import TraceError, files
    from bftd.simulation.trace.recording.session import RecordingClock, record

    settings = config_file.load_found(config_path)
    client = common.slurm_client(settings)
    watched = _watched(client, (partition,) if partition else settings.slurm.harvested, nodes)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    polls = record(client, Path(output), watched, RecordingClock(stop.wait), _complain, poll_s, hours, settings.pool)
    if not Path(output).exists():
        least = settings.pool.debounce_polls
        _complain(
            f"{output}: nothing is recorded after {polls} of {least} polls: give more --hours, or a shorter --poll"
        )
        raise SystemExit(1)
    try:
        _print_summary(files.read(output), output)
    except TraceError as error:  # no node was idle so far: the recording may be continued later
        _complain(str(error))


def _watched(
    client: SlurmClient, partitions: Sequence[str], nodes: str | None
) -> Callable[[Snapshot], Collection[str]]:
    """Return a function that selects the nodes to record, including nodes added to a partition later."""
    if nodes is not None:
        from bftd.simulation.trace.names import listed

        names = frozenset(listed(nodes))
        if unknown := names - client.snapshot().nodes.keys():
            raise UsageError(f"Slurm knows no node {some(sorted(unknown))}: see sinfo")
        return lambda snapshot: [name for name in snapshot.nodes if name in names]
    from slurm_plugin.errors import UnknownPartition

    try:
        for partition in partitions:
            client.partition(partition)
    except UnknownPartition as error:
        raise UsageError(f"{error}; name the one to record with --partition") from None
    wanted = frozenset(partitions)
    return lambda snapshot: [name for name, node in snapshot.nodes.items() if not wanted.isdisjoint(node.partitions)]


def _ask_accounts(
    client: SlurmClient,
    accounts: Accounts,
    since_s: float,
    until_s: float,
    ignored: Sequence[str],
    events: bool,
    reservations: bool,
) -> None:
    """Read jobs and, if requested, node events and reservations from Slurm's accounting."""
    from bftd.simulation.trace.accounting.sacct import EVENT_FIELDS, JOB_FIELDS, RESERVATION_FIELDS

    first, last = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s)) for at_s in (since_s, until_s))
    arguments = ("-a", "-D", "-X", "-P", f"--starttime={first}", f"--endtime={last}", f"--format={JOB_FIELDS}")
    accounts.add_jobs(_ask(client, "sacct", *arguments), "the answer of sacct", ignored)
    period = (f"start={first}", f"end={last}")
    if events:
        answer = _ask(client, "sacctmgr", "-P", "show", "event", *period, f"format={EVENT_FIELDS}")
        accounts.add_events(answer, "the answer of sacctmgr show event")
    if reservations:
        answer = _ask(client, "sacctmgr", "-P", "show", "reservation", *period, f"format={RESERVATION_FIELDS}")
        accounts.add_reservations(answer, "the answer of sacctmgr show reservation")


def _ask_settings(client: SlurmClient) -> dict[str, str]:
    """Return the settings of Slurm that a log of jobs keeps, none if slurmctld does not answer."""
    from bftd.simulation.trace.job_model import SETTINGS
    from slurm_plugin.errors import SlurmError
    from slurm_plugin.read.settings import parse_config

    try:
        config = parse_config(client.run("scontrol", "show", "config").out)
    except SlurmError:
        return {}
    return {name: config[name] for name in SETTINGS if name in config}


def _ask(client: SlurmClient, command: str, *arguments: str) -> str:
    from slurm_plugin.errors import CommandError

    answer = client.run(command, *arguments, timeout_s=_ACCOUNTING_TIMEOUT_S)
    if answer.code != 0:
        raise CommandError(f"{command} failed: {answer.complaint}; is there accounting? Else use bft trace from-slurm")
    return answer.out


def _node_list(given: str) -> Sequence[str]:
    """Return the nodes in scontrol's output, in a file, or in a list as given."""
    from bftd.simulation.trace.accounting.sacct import node_names
    from bftd.simulation.trace.names import listed

    if given.startswith("NodeName="):
        return node_names(given, "the answer of scontrol")
    if len(given) < 4096 and Path(given).is_file():
        return node_names(_text(given), given)
    return listed(given)


def _text(path: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return raw.decode("utf-8", "replace")


def _named(path: str) -> str:
    return "standard input" if path == "-" else path


def _complain(message: str) -> None:
    click.echo(f"bft: {' '.join(printable(message).split())}", err=True)


def _print_summary(made: Trace, output: str) -> None:
    from bftd.simulation.trace.accounting.notes import notes
    from bftd.simulation.trace.stats import stats as computed

    found = computed(made)
    click.echo(
        f"{output}: {duration(made.duration_s)} from {made.start}, {found.nodes:,} nodes, {len(made.times_s):,} rows, "
        f"{found.eq_nodes:.1f} nodes idle on average ({found.ratio:.1%})"
    )
    common.echo(f"note: {sentence}" for sentence in notes(made.notes))


def _write_jobs(
    rows: JobRows, period: TracePeriod, nodes: Sequence[str], every: bool, slurm: dict[str, str], output: Path
) -> None:
    """Write the log of jobs beside the trace and print what it amounts to, or why there is none."""
    from bftd.simulation.trace import job_log

    beside = job_log.path_of(output)
    if rows.lacks:
        beside.unlink(missing_ok=True)  # one of before would tell of other jobs than the trace
        common.echo([f"note: {rows.lacks}"])
        return
    log = replace(rows.log(period.start_s, period.end_s, nodes, every=every), slurm=slurm)
    job_log.write(log, beside)
    users, accounts = len({job.user for job in log.jobs} - {""}), len({job.account for job in log.jobs} - {""})
    common.echo([
        f"{beside}: {counted(len(log.jobs), 'job')} of {counted(users, 'user')} and {counted(accounts, 'account')}",
        *(f"note: {sentence}" for sentence in log.notes),
    ])  # fmt: skip


def _table(found: Stats) -> Iterable[str]:
    """Yield the trace's row of the paper's Table 1, then its Figure 1 as numbers."""
    from bftd.base.tables import Column

    pieces = found.fragments
    columns = [Column("SYSTEM", least=16), *map(Column, ("DURATION", "INC/h", "DEC/h", "RATIO", "EQ-NODES"))]
    rates = (f"{found.inc_per_h:.1f}", f"{found.dec_per_h:.1f}", f"{found.ratio:.1%}", f"{found.eq_nodes:.1f}")
    yield from common.table(columns, [(found.source or "-", duration(found.duration_s), *rates)])
    yield ""
    yield (
        f"{found.nodes:,} nodes, {found.idle_nodes_min:,} to {found.idle_nodes_max:,} idle at once, "
        f"{found.node_hours:,.0f} node-hours"
    )
    yield (
        f"{found.events:,} events, {found.events_per_h:.1f}/h: nodes join at {found.joined_per_h:.1f}/h "
        f"and leave at {found.left_per_h:.1f}/h of them"
    )
    cut = f", {pieces.cut:,} of them cut by its start or end" if pieces.cut else ""
    yield f"{pieces.count:,} fragments, {duration(pieces.mean_s)} on average{cut}"
    yield ""
    yield from common.table(
        [Column("SHORTER THAN"), Column("FRAGMENTS"), Column("IDLE NODE TIME")],
        [(duration(limit_s), f"{share:.1%}", f"{time_share:.1%}") for limit_s, share, time_share in pieces.shorter],
    )
    yield ""
    yield from common.table(
        [Column("PERCENTILE"), Column("LENGTH")], [(rank, duration(s)) for rank, s in pieces.percentiles_s.items()]
    )
