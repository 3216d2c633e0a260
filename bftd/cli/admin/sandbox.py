"""`bft sandbox`: private Slurm clusters on this machine."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd.base.errors import UsageError
from bftd.cli import common, options

if TYPE_CHECKING:
    from bftd.cli.admin.sandbox_site import SandboxSite


@click.group()
def sandbox() -> None:
    """Start, end and look at private clusters on this machine."""


@sandbox.command()
@click.option("--nodes", type=click.IntRange(min=1), default=8, show_default=True, help="Compute nodes.")
@click.option("--service-nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes for drivers.")
@click.option("--gpus", multiple=True, metavar="TYPE:N", help="GPUs per node; several types share the nodes.")
@click.option("--tuned", is_flag=True, help="Let the scheduler work once a second; default: Slurm's own settings.")
@click.option("--plugins", is_flag=True, help="Load the SPANK plug-in, which `make plugins` compiles.")
@click.option("--munge", is_flag=True, help="Authenticate by a private munged, as a real cluster does.")
@click.option("--root", type=click.Path(path_type=Path), help="Folder to keep it in; default: a new temporary one.")
@click.option("--daemon/--no-daemon", "with_daemon", default=True, show_default=True, help="Start bftd on it.")
def up(
    nodes: int,
    service_nodes: int,
    gpus: tuple[str, ...],
    tuned: bool,
    plugins: bool,
    munge: bool,
    root: Path | None,
    with_daemon: bool,
) -> None:
    """Start a private cluster with bftd on it, and print how to use it.

    A shell can evaluate what goes to standard output; what to do next goes to standard error. Both stay until
    bft sandbox down.
    """
    from bftd.cli.admin.sandbox_site import SandboxSite

    with _ended_as_by_control_c():
        site = SandboxSite(
            nodes=nodes,
            service_nodes=service_nodes,
            gpus=_gpus(gpus) or None,
            root=root,
            tuned=tuned,
            plugins=plugins,
            munge=munge,
        ).up()
        if with_daemon:
            try:
                site.start_daemon(detached=True)
            except BaseException:
                site.down()
                raise
    click.echo("\n".join(_exports(site, nodes, with_daemon)))
    if with_daemon:
        click.echo("\n".join(_next_steps(site, nodes)), err=True)


@contextmanager
def _ended_as_by_control_c() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt like SIGINT, so that a half-started cluster is taken down."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exports(site: SandboxSite, nodes: int, with_daemon: bool) -> Iterator[str]:
    """Yield the shell lines that point a shell at the cluster."""
    idle = f"{nodes} node{'s are' if nodes > 1 else ' is'} idle"
    yield f"# {idle}{', and bftd harvests them' if with_daemon else ''}; point a shell at them with:"
    path = [str(site.root / "bin")]
    if site.cluster.munge_socket:
        yield f"export BFTD_MUNGE_SOCKET={shlex.quote(site.cluster.munge_socket)}"
    if with_daemon:
        yield f"export BFTD_CONFIG={shlex.quote(str(site.config_path))}"
        path.append(str(Path(sys.executable).parent))
    else:
        yield "unset BFTD_CONFIG"
    yield f"export BFT_STATE_DIR={shlex.quote(site.cluster.env()['BFT_STATE_DIR'])}"
    yield f"export SLURM_CONF={shlex.quote(str(site.cluster.conf))} PATH={shlex.quote(':'.join(path))}:$PATH"
    yield f"# end it with: bft sandbox down --root {shlex.quote(str(site.root))}"


def _next_steps(site: SandboxSite, nodes: int) -> Iterator[str]:
    """Yield the commands for a first job; they work in any folder that the user may write to."""
    example = Path(__file__).resolve().parents[3] / "examples" / "train_torchrun.py"
    script = shlex.quote(str(example)) if example.exists() else "SCRIPT"
    yield "# then train on idle nodes, and watch it (--watch: live):"
    yield f"bft sbatch --elastic=1-{min(4, nodes)} {script}"
    yield "bft status"
    if not example.exists():
        yield "# a SCRIPT of yours: `bft sbatch --help` says what it may be"


@sandbox.command()
@click.option(
    "--root", type=click.Path(path_type=Path), help="Its folder; default: that of $SLURM_CONF, or the only one."
)
def down(root: Path | None) -> None:
    """End a private cluster and all that runs in it, bftd too."""
    from bftd.cli.admin.sandbox_site import SandboxSite

    found = _only_root(root)
    SandboxSite.attach(found).down()
    click.echo(f"{found} is down")


@sandbox.command()
@click.option("--root", type=click.Path(path_type=Path), help="Its folder; default: all that run.")
@options.as_json
def status(root: Path | None, as_json: bool) -> None:
    """Show the nodes of private clusters, and whether bftd runs there."""
    from bftd.cli.admin.sandbox_site import SandboxSite
    from slurm_plugin.nodeset import fold
    from slurm_plugin.sandbox import Sandbox

    sites = [SandboxSite.attach(path) for path in ([root] if root is not None else Sandbox.running())]
    seen = {str(site.root): site.cluster.status() for site in sites}
    if as_json:
        common.echo_json({"clusters": seen})
        return
    if not seen:
        click.echo("no private cluster runs")
    for site, (path, states) in zip(sites, seen.items(), strict=True):
        groups: dict[str, list[str]] = {}
        for node, state in states.items():
            groups.setdefault(state, []).append(node)
        shown = ", ".join(f"{fold(names)} {state}" for state, names in groups.items())
        pid = site.daemon_pid
        daemon = "bftd does not run" if pid is None else f"bftd runs (pid {pid})"
        click.echo(f"{path}: {shown or 'does not answer'}; {daemon}")


def _gpus(options_given: tuple[str, ...]) -> dict[str, int]:
    counts = {}
    for text in options_given:
        kind, _, count = text.rpartition(":")
        if not kind or not count.isdecimal() or int(count) < 1:
            raise UsageError(f"--gpus must be TYPE:N such as a100:4, not {text!r}")
        counts[kind] = int(count)
    return counts


def _only_root(root: Path | None) -> Path:
    from slurm_plugin.sandbox import Sandbox

    if root is not None:
        return root
    running = Sandbox.running()
    if not running:
        raise UsageError("no private cluster runs: start one with bft sandbox up")
    conf = os.environ.get("SLURM_CONF", "")
    if (mine := Path(conf).parent) in running:
        return mine
    if conf and not os.path.exists(conf):
        raise UsageError(f"the private cluster of this shell does not run: {conf} is gone; choose another with --root")
    if len(running) > 1:
        raise UsageError(f"several private clusters run: choose one with --root: {', '.join(map(str, running))}")
    return running[0]
