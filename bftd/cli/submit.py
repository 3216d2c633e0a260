"""`bft sbatch` and `bft run`: elastic jobs from a client, for sites without the plug-ins and for single users."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd import config
from bftd.cli import common, options, sbatch_options
from bftd.errors import UsageError
from bftd.http import client

if TYPE_CHECKING:
    from elastic.spec import ElasticSpec
    from slurm_plugin.client import SlurmClient

# The kernel reads so much of a script's first line.
_FIRST_LINE_BYTES = 120

_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["--help"]}


@click.command(
    context_settings=_PASS_ON, options_metavar="--elastic=MIN-MAX[,backend=B][,sizes=1:2:4] [SBATCH OPTIONS]"
)
@click.option("--config", "config_path", metavar="FILE", help="The daemon's configuration.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARG...]")
def sbatch(config_path: str | None, words: tuple[str, ...]) -> None:
    """Submit SCRIPT as an elastic training job.

    The job itself is the trainer's driver, on one CPU of a service node; the training runs on 0 or MIN to MAX idle
    nodes. `#SBATCH --elastic=...` in the script works too. -p names the partition to harvest; other options of sbatch
    (-J, -o, -A, -t, ...) are the driver's.
    """
    from elastic import script as scripts

    line = sbatch_options.parse(words)
    sbatch_options.refuse_decided(line.options, "command line")
    if line.script is None:
        raise UsageError("name a script: bft sbatch --elastic=MIN-MAX SCRIPT [ARG...]")
    path, source = _read(line.script)
    inside = sbatch_options.of_script(source)
    sbatch_options.refuse_decided([option for option in inside if option.name != "elastic"], line.script)
    text = line.value("elastic") or scripts.elastic_option(source)
    if text is None and _last(inside, "elastic"):
        raise UsageError(f"{line.script}: give --elastic an #SBATCH line of its own")
    if text is None:
        raise UsageError("say how many nodes the job may use, for example --elastic=1-8")
    settings = config.load_found(config_path)
    partition = line.value("partition") or _last(inside, "partition") or settings.slurm.partition
    slurm = common.slurm_client(settings)
    spec = _checked(text, source, partition, slurm)
    if partition != settings.slurm.partition:
        raise UsageError(f"partition {partition} is not harvested: take {settings.slurm.partition}, or leave -p out")
    interpreter = scripts.interpreter_of(source, line.script)
    daemon = client.find(config_path)
    daemon.status()
    header = scripts.Header(
        spec.format(), partition, daemon.address, str(path), interpreter, pilot_mode=settings.slurm.pilot_mode
    )
    argv = [f"--partition={settings.slurm.driver_partition}", "--ntasks=1", "--cpus-per-task=1"]
    if not (line.value("job-name") or _last(inside, "job-name")):
        argv.append(f"--job-name={path.name}")
    argv += line.words("elastic", "partition", "parsable")
    job_id = slurm.submit([*argv, "/dev/stdin", *line.arguments], scripts.rewrite(source, _driver(), header))
    if any(option.name == "parsable" for option in line.options):
        click.echo(job_id)
    else:
        click.echo(f"Submitted elastic job {job_id}: {spec.nodes_min} to {spec.nodes_max} nodes of {partition}")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--nodes", "text", required=True, metavar="MIN-MAX[,backend=B]", help="As --elastic of bft sbatch.")
@click.option("--partition", "-p", help="The partition to harvest.")
@options.config
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(text: str, partition: str | None, config_path: str | None, script: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT as an elastic training job with its driver here, in the foreground; its exit code is the job's."""
    from elastic import script as scripts
    from elastic.driver import main as driver
    from elastic.driver.settings import DriverSettings, foreground_id, own_user

    path, source = _read(script)
    settings = config.load_found(config_path)
    partition = partition or settings.slurm.partition
    spec = _checked(text, source, partition, common.slurm_client(settings))
    interpreter = scripts.interpreter_of(source, script) if source.startswith("#!") else sys.executable
    daemon = client.find(config_path)
    daemon.status()
    trainer_id = foreground_id()
    state_dir = Path.cwd() / ".bft" / trainer_id
    code = driver.run(
        DriverSettings(
            trainer_id=trainer_id,
            name=path.name,
            spec=spec,
            backend=spec.backend or scripts.default_backend(source),
            interpreter=interpreter,
            argv=(str(path), *arguments),
            cwd=Path.cwd(),
            script_dir=path.parent,
            state_dir=state_dir,
            socket_path=daemon.address,
            partition=partition,
            user=own_user(),
            pilot_mode=settings.slurm.pilot_mode,
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


def _checked(text: str, source: str, partition: str, slurm: SlurmClient) -> ElasticSpec:
    """The wanted range, possible on this cluster; raises a one-line error before anything is submitted."""
    from elastic.spec import ElasticSpec

    spec = ElasticSpec.parse(text)
    size = len(slurm.partition(partition).nodes)
    if spec.nodes_max > size:
        raise UsageError(f"--elastic={text}: partition {partition} has {size} nodes; ask for at most {size}")
    return spec


def _driver() -> str:
    driver = Path(sys.executable).parent / "bft-driver"
    if len(str(driver)) > _FIRST_LINE_BYTES or " " in str(driver):
        raise UsageError(
            f"{driver}: too long a path, or one with a space, for a script's first line; install bftd elsewhere"
        )
    return str(driver)


def _last(found: tuple[sbatch_options.Option, ...], name: str) -> str | None:
    return next((option.value for option in reversed(found) if option.name == name), None)
