"""`bft doctor`: what is wrong with this host, its Slurm or the daemon, one line a check."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import click

from bftd.cli import common, options

if TYPE_CHECKING:
    from bftd.doctor.check import Check

# Each check is shown as it ends, so the columns are as wide as the longest name.
_LEVEL, _NAME = 7, 17
# The least width of a check's text on a narrow terminal; longer texts are folded.
_TEXT = 24


@click.command()
@options.config
@options.as_json
def doctor(config_path: str | None, as_json: bool) -> None:
    """Check programs, Slurm, munge, the daemon, plug-ins, limits and disks, and say what to do.

    Changes nothing and needs no rights. Ends with 1 if a check failed, else with 0; what you may not see is unknown.
    """
    from bftd.doctor.check import LEVELS
    from bftd.doctor.doctor import examine

    checks = []
    for check in examine(config_path):
        checks.append(check)
        if not as_json:
            common.echo(_lines(check))
    counts: dict[str, int] = {level: sum(check.level == level for check in checks) for level in LEVELS}
    if as_json:
        common.echo_json({**counts, "checks": [dataclasses.asdict(check) for check in checks]})
    else:
        common.echo(["", ", ".join(f"{count} {level}" for level, count in counts.items())])
    raise SystemExit(1 if counts["failure"] else 0)


def _lines(check: Check) -> Iterator[str]:
    from bftd.base import tables

    columns = [tables.Column(""), tables.Column(""), tables.Column("", least=_TEXT, folds=True)]
    row = (check.level.ljust(_LEVEL), check.name.ljust(_NAME), check.text)
    return chain.from_iterable(tables.blocks(columns, [row], common.terminal_width()))
