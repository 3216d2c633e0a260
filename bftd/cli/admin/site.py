"""`bft site`: checks Slurm's settings for bftd, and prints the lines to change."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftd import config_file
from bftd.base.errors import BftError, UsageError
from bftd.cli import common, options

if TYPE_CHECKING:
    from slurm_plugin.site import Advised, DaemonSettings, Finding

_WIDTH = 110
# The least width of a setting and of its value on a narrow terminal; longer texts are folded.
_CELL = 24
_FILES = ("slurm.conf", "plugstack.conf", "job_submit.lua", "bftd.toml")


@click.group()
def site() -> None:
    """Compare a site's Slurm settings with what bftd needs."""


@site.command("check")
@click.option("--partition", metavar="NAME", help="The harvested partition to look at [of the configuration].")
@click.option("-a", "--all", "every", is_flag=True, help="Also what is right.")
@options.config
@options.as_json
def check_command(partition: str | None, every: bool, config_path: str | None, as_json: bool) -> None:
    """Say what must change and what costs something (advice), and count what is right.

    Ends with 0 when nothing must change, else with 1.
    """
    from bftd.doctor.slurm import wanted_of
    from slurm_plugin.site import RULES, check, read

    if as_json:
        options.refuse_idle(("every",), "is for people: --json has every finding")
    settings = config_file.load_found(config_path)
    found = read(common.slurm_client(settings), _looked_at(wanted_of(settings), partition))
    findings = check(found, RULES)
    if as_json:
        common.echo_json({"slurm": found.config["SLURM_VERSION"], **_counts(findings), **_rows(findings)})
    else:
        common.echo(_lines(findings, every))
    raise SystemExit(1 if any(finding.level == "must" for finding in findings) else 0)


@site.command("config")
@click.option("--partition", metavar="NAME", help="The partition to harvest [of the configuration].")
@click.option("--driver-partition", metavar="NAME", help="The partition of the drivers [of the configuration].")
@click.option("--nodes", default="", metavar="NODESET", help="Nodes to harvest [those of the regular partitions].")
@click.option("--driver-nodes", default="", metavar="NODESET", help="Nodes for the drivers [those of no partition].")
@click.option("--keep", multiple=True, metavar="NAME", help="A line of bft site check that is to stay as it is.")
@click.option("--file", "only", type=click.Choice(_FILES), help="Print the lines for this file alone.")
@options.config
@options.as_json
def config_command(
    partition: str | None,
    driver_partition: str | None,
    nodes: str,
    driver_nodes: str,
    keep: tuple[str, ...],
    only: str | None,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Print the lines to add to slurm.conf, plugstack.conf, job_submit.lua and bftd.toml, each with its reason."""
    from bftd.doctor.slurm import wanted_of
    from slurm_plugin.site import RULES, advise, check, read

    _refuse_unknown(keep, [rule.name for rule in RULES])
    settings = config_file.load_found(config_path)
    configured = wanted_of(settings)
    wanted = dataclasses.replace(
        _looked_at(configured, partition), driver_partition=driver_partition or configured.driver_partition
    )
    if wanted.partition == wanted.driver_partition:
        raise UsageError("pilots and drivers need partitions of their own: give --partition and --driver-partition")
    found = read(common.slurm_client(settings), wanted)
    _refuse_unknown_nodes((nodes, driver_nodes), found.node_names)
    advised = advise(found, RULES, nodes=nodes, driver_nodes=driver_nodes, keep=keep, configured=configured)
    left = [finding for finding in check(advised.after, RULES) if finding.level != "ok"]
    if as_json:
        common.echo_json(_edits(advised, left))
    else:
        click.echo("\n".join(_files(advised, left, only)))


@site.command("plugin")
@click.option("--off", is_flag=True, help="Take the plug-in's line out of plugstack.conf: before an upgrade of Slurm.")
@click.option("--auto", is_flag=True, help="Take the line out where Slurm does not load the plug-in, else put it back.")
@click.option("--folder", metavar="PATH", help="Where Slurm's plug-ins are [asked of Slurm: PluginDir].")
@click.option("--file", "path", metavar="PATH", help="The file with the line [that of the packages].")
@options.config
def plugin_command(off: bool, auto: bool, folder: str | None, path: str | None, config_path: str | None) -> None:
    """Say whether this host's Slurm loads the SPANK plug-in, and take its line out or put it back.

    Ends with 1 where every sbatch prints an error for the plug-in, or where that cannot be read.
    """
    from slurm_plugin.site import plugin_folders, plugstack

    if off and auto:
        raise UsageError("--off and --auto exclude each other: give one")
    file = Path(path or plugstack.PACKAGED)
    try:
        line = plugstack.line_of(file)
        if line is None:
            raise BftError(f"{file} has no line for {plugstack.NAME}: give another --file")
        if off:
            plugstack.switch(file, on=False)
            click.echo(f"the line for {line.name} is out of {file}")
            return
        folders = folder or plugin_folders(common.slurm_client(config_file.load_found(config_path)))
        fault = plugstack.unfit(plugstack.place(line.name, folders), folders)
        if fault is None:
            raise BftError(f"whether Slurm loads {line.name} cannot be read from {folders}: nothing was changed")
        if auto:
            plugstack.switch(file, on=not fault)
    except (OSError, UnicodeError) as error:
        raise BftError(f"cannot read or change {file}: {getattr(error, 'strerror', None) or error}") from None
    if fault and line.on and not auto:
        raise BftError(f"{fault}: every sbatch of this host prints an error; --off takes its line out of {file}")
    if fault:
        click.echo(f"{fault}: its line is out of {file}")
    else:
        click.echo(f"Slurm loads {line.name}{'' if line.on or auto else ', whose line --auto puts back'}")


def _looked_at(configured: DaemonSettings, partition: str | None) -> DaemonSettings:
    """Return the keys for one harvested partition; raise UsageError if several are harvested and none is named."""
    if partition is None:
        if len(configured.partitions) > 1:
            several = ", ".join(configured.partitions)
            raise UsageError(f"several partitions are harvested: look at each with --partition NAME, of {several}")
        return configured
    together = configured.partitions if partition in configured.partitions else ()
    return dataclasses.replace(configured, partition=partition, partitions=together)


def _refuse_unknown(given: Sequence[str], known: Sequence[str]) -> None:
    import difflib

    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else "take one that bft site check prints"
            raise UsageError(f"--keep: there is no line {name!r}: {hint}")


def _refuse_unknown_nodes(given: Sequence[str], known: Sequence[str]) -> None:
    from slurm_plugin.errors import SlurmError
    from slurm_plugin.nodeset import expand, fold

    for text in given:
        try:
            unknown = set(expand(text)) - set(known)
        except SlurmError as error:
            raise UsageError(str(error)) from None
        if unknown:
            raise UsageError(f"Slurm has no nodes {fold(sorted(unknown))}: it has {fold(known)}")


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    return {level: sum(finding.level == level for finding in findings) for level in ("ok", "advice", "must")}


def _rows(findings: Sequence[Finding]) -> dict[str, list[dict[str, str]]]:
    return {
        "findings": [
            {
                "level": finding.level,
                "name": finding.rule.name,
                "seen": finding.seen,
                "right": finding.rule.right,
                "why": finding.rule.why,
                "loses": finding.rule.loses,
            }
            for finding in findings
        ]
    }


def _lines(findings: Sequence[Finding], every: bool) -> Iterator[str]:
    """Yield what must change, advice, and with `every` what is ok: a line each, and below it what is right and why."""
    from bftd.base import tables

    levels = ("must", "advice", "ok") if every else ("must", "advice")
    shown = [finding for level in levels for finding in findings if finding.level == level]

    columns = [
        tables.Column(""),
        tables.Column("", least=_CELL, folds=True),
        tables.Column("", least=_CELL, folds=True),
    ]
    rows = [(f"{finding.level:6}", finding.rule.name, finding.seen) for finding in shown]
    blocks = tables.blocks(columns, rows, common.terminal_width())
    for finding, lines in zip(shown, blocks, strict=True):
        rule = finding.rule
        yield from lines
        if finding.level != "ok":
            yield from _paragraph("right", rule.right)
            yield from _paragraph("why", rule.why)
            yield from _paragraph("loses", rule.loses)
    counts = _counts(findings)
    if shown:
        yield ""
    right = f"{counts['ok']} ok{'' if every else ' (--all shows them)'}"
    yield f"{right}, {counts['advice']} advice, {counts['must']} must change" + (
        "" if counts["ok"] == len(findings) else "; bft site config prints the lines"
    )


def _paragraph(title: str, text: str) -> list[str]:
    width = min(_WIDTH, common.terminal_width() or _WIDTH)
    return textwrap.wrap(
        text, width, initial_indent=f"        {title + ':':6} ", subsequent_indent=" " * 15, break_on_hyphens=False
    )


def _files(advised: Advised, left: Sequence[Finding], only: str | None) -> Iterator[str]:
    from slurm_plugin.site.lines import FILES, render

    for file in FILES:
        if only in (None, file):
            mark = "--" if file.endswith(".lua") else "#"
            if only is None:
                yield f"{mark} ======== {_path(advised, file)} ========"
            yield render(advised, file) or f"{mark} nothing to add\n"
    if only is None:
        yield from _rest(advised, left)


def _path(advised: Advised, file: str) -> str:
    before = advised.before
    paths = {
        "slurm.conf": before.config["SLURM_CONF"],
        "plugstack.conf": before.plugstack.path,
        "job_submit.lua": before.lua.path,
    }
    return paths.get(file, file)


def _rest(advised: Advised, left: Sequence[Finding]) -> Iterator[str]:
    for finding in left:
        yield from textwrap.wrap(
            f"left as it is: {finding.rule.name}: {finding.seen} ({finding.level}): {finding.rule.loses}",
            _WIDTH,
            initial_indent="# ",
            subsequent_indent="# ",
            break_on_hyphens=False,
        )


def _edits(advised: Advised, left: Sequence[Finding]) -> dict[str, Any]:
    from slurm_plugin.site.lines import FILES, render

    edits = [
        {**dataclasses.asdict(edit), "rule": rule.name, "why": rule.why, "path": _path(advised, edit.file)}
        for rule, edit in advised.edits
    ]
    return {
        "edits": edits,
        "text": {file: render(advised, file) for file in FILES},
        "left": _rows(left)["findings"],
    }
