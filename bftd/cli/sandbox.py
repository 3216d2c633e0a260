"""`bft sandbox`: private Slurm clusters on this machine."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from bftd.cli import options
from bftd.errors import UsageError


@click.group()
def sandbox() -> None:
    """Start, end and look at private clusters on this machine."""


@sandbox.command()
@click.option("--nodes", type=click.IntRange(min=1), default=8, show_default=True, help="Compute nodes.")
@click.option("--service-nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes for drivers.")
@click.option("--gpus", multiple=True, metavar="TYPE:N", help="GPUs per node; several types share the nodes.")
@click.option("--plugins", is_flag=True, help="Load the SPANK plug-in, which `make plugins` compiles.")
@click.option("--munge", is_flag=True, help="Authenticate by a private munged, as a real cluster does.")
@click.option("--root", type=click.Path(path_type=Path), help="Folder to keep it in; default: a new temporary one.")
def up(nodes: int, service_nodes: int, gpus: tuple[str, ...], plugins: bool, munge: bool, root: Path | None) -> None:
    """Start a private cluster and print how to use it."""
    from slurm_plugin.sandbox import Sandbox

    started = Sandbox(
        nodes=nodes,
        service_nodes=service_nodes,
        gpus=_gpus(gpus) or None,
        root=root,
        plugins=plugins,
        munge=munge,
    ).up()
    click.echo(f"# {nodes} nodes are idle; end it with: bft sandbox down --root {shlex.quote(str(started.root))}")
    if started.munge_socket:
        click.echo(f"export BFTD_MUNGE_SOCKET={shlex.quote(started.munge_socket)}")
    click.echo(
        f"export SLURM_CONF={shlex.quote(str(started.conf))} PATH={shlex.quote(str(started.root / 'bin'))}:$PATH"
    )


@sandbox.command()
@click.option("--root", type=click.Path(path_type=Path), help="Its folder; may be left out when only one runs.")
def down(root: Path | None) -> None:
    """End a private cluster and all that runs in it."""
    from slurm_plugin.sandbox import Sandbox

    found = _only_root(root)
    Sandbox.attach(found).down()
    click.echo(f"{found} is down")


@sandbox.command()
@click.option("--root", type=click.Path(path_type=Path), help="Its folder; default: all that run.")
@options.as_json
def status(root: Path | None, as_json: bool) -> None:
    """Show the nodes of private clusters."""
    from slurm_plugin.nodeset import fold
    from slurm_plugin.sandbox import Sandbox

    roots = [root] if root is not None else Sandbox.running()
    seen = {str(path): Sandbox.attach(path).status() for path in roots}
    if as_json:
        click.echo(json.dumps(seen, indent=2))
        return
    if not seen:
        click.echo("no private cluster runs")
    for path, states in seen.items():
        groups: dict[str, list[str]] = {}
        for node, state in states.items():
            groups.setdefault(state, []).append(node)
        shown = ", ".join(f"{fold(names)} {state}" for state, names in groups.items())
        click.echo(f"{path}: {shown or 'does not answer'}")


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
    if len(running) > 1:
        raise UsageError(f"several run: choose one with --root: {', '.join(map(str, running))}")
    return running[0]
