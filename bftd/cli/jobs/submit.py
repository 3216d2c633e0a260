"""`bft sbatch` and `bft run`: elastic jobs from a client, for sites without the plug-ins or single users."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd import api_client, config_file
from bftd.base.errors import UsageError
from bftd.cli import common, completion, options
from bftd.cli.jobs import sbatch_options

if TYPE_CHECKING:
    from bftd.config.keys import Config
    from bftd.core.model.classes import NodeClass
    from bftd.protocol.requirements import Requirements
    from elastic.options.elastic_option import ElasticSpec
    from slurm_plugin.clients.client import SlurmClient

# The part of a script's first line that the kernel reads.
_FIRST_LINE_BYTES = 120

# No -h here: click would find it in another program's option, such as -Jhorovod.
_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["--help"]}


@click.command(
    context_settings=_PASS_ON,
    options_metavar="--elastic=MIN-MAX[,backend=B][,sizes=1:2:4][,gpu=TYPE][,mix] [SBATCH OPTIONS]",
)
@click.option(
    "--elastic",
    "elastic",
    metavar="MIN-MAX[,...]",
    shell_complete=completion.elastic,
    help="How many nodes, and how: docs/howto/submit.md.",
)
@click.option("--config", "config_path", metavar="FILE", help="The daemon's configuration.")
@click.option("--step-batch", type=click.IntRange(min=1), metavar="N", help="The batch of one worker, for make_step.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARG...]", shell_complete=completion.script)
def sbatch(elastic: str | None, config_path: str | None, step_batch: int | None, words: tuple[str, ...]) -> None:
    """Submit SCRIPT as an elastic training job.

    The job itself is the trainer's driver, on one CPU of a service node; the training runs on 0 or MIN to MAX idle
    nodes. `#SBATCH --elastic=...` in the script works too. -p names the partition to harvest, -C features that its
    nodes must have; other options of sbatch (-J, -o, -A, -t, ...) are the driver's. -N MIN-MAX alone means
    --elastic=MIN-MAX. Where SCRIPT has a function make_step(batch_size), nodes whose GPUs are too small for a worker's
    step are left out.
    """
    from elastic.options import job_script as scripts

    line = sbatch_options.parse(words)
    sbatch_options.refuse_decided(line.options, "command line")
    if line.script is None:
        raise UsageError("name a script: bft sbatch --elastic=MIN-MAX SCRIPT [ARG...]")
    path, source = _read(line.script)
    inside = sbatch_options.of_script(source)
    sbatch_options.refuse_decided([option for option in inside if option.name != "elastic"], line.script)
    text = line.value("elastic") or elastic or scripts.elastic_option(source)
    if text is None and _last(inside, "elastic"):
        raise UsageError(f"{line.script}: give --elastic an #SBATCH line of its own")
    text = _with_nodes(text, line, inside)
    if text is None:
        raise UsageError("say how many nodes the job may use, for example --elastic=1-8")
    constraint = line.value("constraint") or _constraint(source, inside, line.script)
    settings = config_file.load_found(config_path)
    partition = line.value("partition") or _last(inside, "partition") or ""
    slurm = common.slurm_client(settings)
    spec = _checked(text, partition, constraint, settings, slurm)
    if partition and partition not in settings.slurm.harvested:
        raise UsageError(
            f"partition {partition} is not harvested: take {' or '.join(settings.slurm.harvested)}, or leave -p out"
        )
    partition = partition or _only(settings)
    scripts.backend_of(source, line.script, spec.backend)
    interpreter = scripts.interpreter_of(source, line.script, contained=bool(spec.container))
    daemon = api_client.find(config_path)
    daemon.status(folded=True)
    step_batch = _step_batch(line.value("step-batch")) or step_batch  # the last one counts, as in sbatch itself
    if spec.estimates and spec.estimate_batch is None:
        spec = replace(spec, estimate_batch=step_batch)
    spec = _fitted(spec, (path, interpreter), step_batch, partition, constraint, settings, slurm, config_path)
    header = scripts.Header(
        spec.format(),
        partition,
        daemon.address,
        str(path),
        interpreter,
        pilot_mode=settings.slurm.pilot_mode,
        constraint=constraint,
    )
    argv = [f"--partition={settings.slurm.driver_partition}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1"]
    if not (line.value("job-name") or _last(inside, "job-name")):
        argv.append(f"--job-name={path.name}")
    given = {option.name for option in line.options}
    shown = not {"wait", "test-only"}.isdisjoint(given | {option.name for option in inside})
    ours = ("elastic", "nodes", "partition", "constraint", "step-batch", *(() if shown else ("parsable", "quiet")))
    argv += [*line.words(*ours), "/dev/stdin", *line.arguments]
    script = scripts.rewrite(source, _driver(), header)
    if shown:
        raise SystemExit(slurm.submit_shown(argv, script))
    job_id = slurm.submit(argv, script)
    if "quiet" in given:  # sbatch prints nothing then, --parsable or not
        return
    if "parsable" in given:
        click.echo(job_id)
    else:
        where = partition or ",".join(settings.slurm.harvested)
        click.echo(f"Submitted batch job {job_id}")  # tools read this line of sbatch's
        click.echo(
            f"train: {spec.nodes_min} to {spec.nodes_max} nodes of {where}\n"
            f"watch: bft trainers {job_id}\nlog:   bft logs -f {job_id}",
            err=True,
        )


@click.command(context_settings=_PASS_ON)
@click.option(
    "--nodes",
    "text",
    required=True,
    metavar="MIN-MAX[,backend=B]",
    shell_complete=completion.elastic,
    help="As --elastic of bft sbatch.",
)
@click.option("--partition", "-p", default="", help="The partition to harvest.")
@click.option("--constraint", "-C", default="", metavar="FEATURE[&FEATURE...]", help="What each node must have.")
@options.config
@click.argument("script", shell_complete=completion.script)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    text: str, partition: str, constraint: str, config_path: str | None, script: str, arguments: tuple[str, ...]
) -> None:
    """Run SCRIPT as an elastic training job with its driver here, in the foreground; its exit code is the job's."""
    from elastic.driver import main as driver
    from elastic.driver.settings import DriverSettings, foreground_id, own_user
    from elastic.options import job_script as scripts
    from elastic.options.elastic_option import features_of
    from elastic.store import catalogue, restore
    from elastic.store.restore import Beginning

    path, source = _read(script)
    settings = config_file.load_found(config_path)
    spec = _checked(text, partition, constraint, settings, common.slurm_client(settings))
    backend = scripts.backend_of(source, script, spec.backend)
    contained = bool(spec.container)
    interpreter = "python3" if contained else sys.executable
    if source.startswith("#!"):
        interpreter = scripts.interpreter_of(source, script, contained=contained)
    daemon = api_client.find(config_path)
    daemon.status(folded=True)
    trainer_id = foreground_id()
    root = catalogue.root_of(os.environ)
    keep_state_s = catalogue.keep_state_s(os.environ)
    catalogue.sweep(root, time.time())
    begins = Beginning(trainer_id, resume=spec.resume or "", state_path=spec.state_path)
    state_dir = restore.begin(root, begins, Path.cwd(), lambda text: click.echo(f"bft: {text}"))
    code = driver.run(
        DriverSettings(
            trainer_id=trainer_id,
            name=path.name,
            spec=spec,
            backend=backend,
            interpreter=interpreter,
            argv=(str(path), *arguments),
            cwd=Path.cwd(),
            script_dir=path.parent,
            state_dir=state_dir,
            keep_state_s=keep_state_s,
            socket_path=daemon.address,
            partition=partition or _only(settings),
            user=own_user(),
            pilot_mode=settings.slurm.pilot_mode,
            features=features_of(constraint) if constraint else (),
        )
    )
    raise SystemExit(code)


def _read(script: str) -> tuple[Path, str]:
    path = Path(script).absolute()
    try:
        return path, path.read_text()
    except OSError as error:
        raise UsageError(f"{script}: {error.strerror}; name the training script") from error
    except UnicodeDecodeError:
        raise UsageError(f"{script}: not a text file; name the training script") from None


def _with_nodes(
    text: str | None, line: sbatch_options.CommandLine, inside: tuple[sbatch_options.Option, ...]
) -> str | None:
    """Return the value of --elastic, from --nodes if it is not given; raise UsageError if the two differ."""
    from elastic.options.elastic_option import ElasticSpec

    found = [
        (option, where)
        for where, options_there in ((line.script or "", inside), ("command line", line.options))
        for option in options_there
        if option.name == "nodes"
    ]
    if not found:
        return text
    option, where = found[-1]
    wanted = sbatch_options.elastic_of(option.value or "")
    if text is not None:
        asked, same = ElasticSpec.parse(text), ElasticSpec.parse(wanted)
        if (asked.nodes_min, asked.nodes_max) != (same.nodes_min, same.nodes_max) or same.sizes not in (
            None,
            asked.sizes,
        ):
            raise sbatch_options.decided(option, where)
    return text or wanted


def _only(settings: Config) -> str:
    """Return the harvested partition, "" if there are several: then the daemon chooses."""
    names = settings.slurm.harvested
    return names[0] if len(names) == 1 else ""


def _constraint(source: str, inside: tuple[sbatch_options.Option, ...], script: str) -> str:
    """Return the script's own --constraint, which must not apply to the driver's job.

    Raises UsageError if it shares its #SBATCH line with other options.
    """
    from elastic.options import job_script as scripts

    found = scripts.constraints(source)
    if len(found) < sum(option.name == "constraint" for option in inside):
        raise UsageError(f"{script}: give --constraint an #SBATCH line of its own")
    return found[-1] if found else ""


def _checked(text: str, partition: str, constraint: str, settings: Config, slurm: SlurmClient) -> ElasticSpec:
    """Return the parsed request; raise a one-line error if it is impossible on this cluster."""
    from elastic.options.elastic_option import ElasticSpec, features_of
    from elastic.options.job_script import NO_CONTAINERS

    spec = ElasticSpec.parse(text)
    if spec.container and not settings.elastic.container:
        raise UsageError(f"--elastic={text}: {NO_CONTAINERS}")
    features = features_of(constraint) if constraint else ()
    names = (partition,) if partition else settings.slurm.harvested
    size = len({node for name in names for node in slurm.partition(name).nodes})
    if spec.nodes_max > size:
        where = f"partition {names[0]} has" if len(names) == 1 else f"partitions {' and '.join(names)} have"
        if spec.nodes_min > size:
            raise UsageError(f"--elastic={text}: {where} {size} nodes; ask for a MIN of at most {size}")
        click.echo(f"bft: {where} {size} nodes: the job trains on at most as many", err=True)
    _refuse_unmet(spec.requirements(features), spec.nodes_min, partition, settings, slurm)
    return spec


def _refuse_unmet(
    requirements: Requirements, nodes_min: int, partition: str, settings: Config, slurm: SlurmClient
) -> None:
    """Raise UsageError if no harvested nodes satisfy the requirements, even when idle."""
    from bftd.core.model import classes

    if requirements.modest:
        return
    if why := classes.unmet(classes_of(settings, slurm), requirements, partition, nodes_min):
        raise UsageError(f"{why}; `bft nodes` shows the classes")


def classes_of(settings: Config, slurm: SlurmClient) -> Mapping[str, NodeClass]:
    """Return the classes of the harvested nodes, as the daemon forms them."""
    from bftd.pool.classes import classify

    harvested = settings.slurm.harvested
    nodes = {name: node for name, node in slurm.nodes().items() if not set(harvested).isdisjoint(node.partitions)}
    return classify(nodes, settings.pool.class_features, harvested).classes


def _fitted(
    spec: ElasticSpec,
    script: tuple[Path, str],
    step_batch: int | None,
    partition: str,
    constraint: str,
    settings: Config,
    slurm: SlurmClient,
    config_path: str | None,
) -> ElasticSpec:
    """Exclude GPUs that are too small for the script's `make_step`; raises UsageError if no GPU is large enough."""
    from bftd.cli.size.shared import inventory, worker_memory
    from bftd.core.model.classes import usable
    from elastic.options.elastic_option import features_of

    if worker_memory.find(script[0].read_text()) is None and step_batch is None:
        return spec
    features = features_of(constraint) if constraint else ()
    known = classes_of(settings, slurm)
    classes = {name: known[name] for name in usable(known, spec.requirements(features), partition)}
    own = inventory.own_types(config_path)
    left = worker_memory.fitted(
        spec, script, step_batch, classes, own, lambda line: click.echo(f"bft: {line}", err=True)
    )
    _refuse_unmet(left.requirements(features), left.nodes_min, partition, settings, slurm)
    return left


def _step_batch(text: str | None) -> int | None:
    """Return the value of --step-batch if it follows an sbatch option, where click stops parsing."""
    if text is not None and not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise UsageError(f"--step-batch={text}: give the batch of one worker, at least 1")
    return None if text is None else int(text)


def _driver() -> str:
    driver = Path(sys.executable).parent / "bft-driver"
    if len(str(driver)) > _FIRST_LINE_BYTES or " " in str(driver):
        raise UsageError(
            f"{driver}: too long a path, or one with a space, for a script's first line; install bftd elsewhere"
        )
    return str(driver)


def _last(found: tuple[sbatch_options.Option, ...], name: str) -> str | None:
    return next((option.value for option in reversed(found) if option.name == name), None)
