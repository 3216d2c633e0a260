"""`bft report`: a self-contained page on the benefit that bftd would have for a centre."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftd import __version__
from bftd.base.errors import UsageError
from bftd.base.format import counted, size
from bftd.cli import common
from bftd.cli.progress import progress_bar
from bftd.cli.whatif import replay_options
from bftd.simulation.replay.options import Options

if TYPE_CHECKING:
    from bftd.simulation.drivers.trainers import SimTrainer
    from bftd.simulation.report.gather import NamedLog, NamedTrace
    from bftd.simulation.report.model import Provenance
    from bftd.simulation.report.stored import Stored


@click.command()
@click.argument("paths", metavar="T...", nargs=-1, required=True)
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write the page: report.html.")
@click.option("--trainers", "trainers_path", metavar="X.json.gz", help="What is to be trained [seven networks].")
@replay_options.nodes
@replay_options.hours
@replay_options.t_fwd
@replay_options.pj_max
@replay_options.objective
@replay_options.accounting
@replay_options.rescale_model
@replay_options.endless
@click.option("--sweep/--no-sweep", "sweeping", default=True, help="Whether to try other t_fwd and pj_max [yes].")
@replay_options.price
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes [one for each core].")
def report(
    paths: Sequence[str],
    output: str,
    trainers_path: str | None,
    nodes: str | None,
    sweeping: bool,
    pricing: bool,
    jobs: int | None,
    **arguments: Any,
) -> None:
    """Write a page on what idle nodes are worth.

    T is a trace, which is replayed, a log of jobs, or a result that bft replay --json or bft advise -o has stored. What
    the regular jobs of a log would pay is simulated; the log beside a trace is found.
    """
    from bftd.simulation.report import canvas
    from bftd.simulation.report.gather import gather
    from bftd.simulation.report.page import page

    drawn_with = canvas.version()  # check this, like the rest, before minutes of work
    common.refuse_unwritable(Path(output))
    traces, stored, logs, files = _read(paths, nodes, pricing)
    trainers = _trainers(trainers_path)
    options = Options(**arguments | {"nodes": nodes, "endless": arguments["endless"] or trainers_path is None})
    with progress_bar("replays") as progress:
        cases = gather(traces, stored, trainers, options, logs=logs, jobs=jobs, sweeping=sweeping, progress=progress)
    made = page(cases, _provenance(files, traces, stored, trainers_path, trainers, drawn_with))
    try:
        Path(output).write_bytes(made)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from None
    click.echo(f"{output}: {size(len(made))}, {counted(len(cases), 'trace')}")


def _read(
    paths: Sequence[str], nodes: str | None, pricing: bool
) -> tuple[list[NamedTrace], list[Stored], list[NamedLog], list[Path]]:
    """Read traces, restricted to the requested nodes, stored results, and logs; return the files of all logs too."""
    from bftd.simulation.report import stored
    from bftd.simulation.report.gather import NamedLog, NamedTrace
    from bftd.simulation.trace import files, job_log

    traces, results, logs, used = [], [], [], list[Path]()
    of_traces = {replay_options.log_beside(path, pricing, nodes) for path in paths}
    for path in dict.fromkeys(paths):
        name = Path(path).name.partition(".")[0]
        if path.endswith(".json"):
            results.append(stored.read(Path(path)))
        elif Path(path) in of_traces:
            continue
        elif job_log.is_named(Path(path)):
            if not pricing:
                raise UsageError(f"{path} is a log of jobs, which serves the price alone: leave it or --no-price out")
            used.append(Path(path))
            logs.append(NamedLog(name, job_log.load(path)))
        else:
            trace = files.read(path)
            chosen = trace if nodes is None else trace.select(nodes)
            beside = replay_options.log_beside(path, pricing, nodes)
            used += [] if beside is None else [beside]
            log = None if beside is None else job_log.load(beside)
            traces.append(NamedTrace(trace.source or name, chosen, log))
    return traces, results, logs, used


def _trainers(path: str | None) -> tuple[SimTrainer, ...]:
    from bftd.simulation.drivers import trainers
    from bftd.simulation.drivers.networks import representative

    return representative() if path is None else trainers.read(path)


def _provenance(
    logs: Sequence[Path],
    traces: Sequence[NamedTrace],
    stored: Sequence[Stored],
    trainers_path: str | None,
    trainers: Sequence[SimTrainer],
    drawn_with: str,
) -> Provenance:
    import numpy as np

    from bftd.simulation.drivers.trainers import digest
    from bftd.simulation.report.model import Provenance

    inputs = [(named.name, f"trace, {len(named.trace.nodes):,} nodes", named.trace.digest()) for named in traces]
    if traces:
        name = Path(trainers_path).name if trainers_path else "the paper's Table 2"
        inputs.append((name, f"{len(trainers):,} trainers, of their content", digest(trainers)))
    inputs += [(log.name, "log of jobs", hashlib.sha256(log.read_bytes()).hexdigest()) for log in logs]
    inputs += [(Path(each.path).name, "stored result", hashlib.sha256(each.raw).hexdigest()) for each in stored]
    versions = {
        "bftd": __version__,
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "matplotlib": drawn_with,
    }
    return Provenance(shlex.join(["bft", *sys.argv[1:]]), versions, inputs)
