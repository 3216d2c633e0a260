"""Groups whose commands are imported when they are called."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from bftd.base.errors import UsageError

Entry = tuple[str, str, str]
"""A command's module, its name there, and one line of help."""


class LazyGroup(click.Group):
    """A group whose commands are imported on use: `table` is heading -> name -> entry, in the order of the help.

    Commands below the heading "" are not shown. `old` is former name -> name: a former name works for one release, with
    a line on standard error. `gone` is former name -> the command line that replaces it, in a clone of bftd.
    """

    def __init__(
        self,
        *arguments: Any,
        table: Mapping[str, Mapping[str, Entry]],
        old: Mapping[str, str] | None = None,
        gone: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._table = table
        self._entries = {name: entry for entries in table.values() for name, entry in entries.items()}
        self._old = old or {}
        self._gone = gone or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of the table."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None if the table has no such name."""
        if cmd_name not in self._entries:
            return None
        module, name, _ = self._entries[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of `args`, also by its former name; a shell that completes is told of no error."""
        if ctx.resilient_parsing:
            return super().resolve_command(ctx, [self._old.get(args[0], args[0]), *args[1:]])
        if args and args[0] in self._gone:
            raise UsageError(f"{ctx.command_path} {args[0]} is now {self._gone[args[0]]}, in a clone of bftd")
        if args and args[0] in self._old:
            name = self._old[args[0]]
            click.echo(f"{ctx.command_path} {args[0]} is now {ctx.command_path} {name}: use that name", err=True)
            args = [name, *args[1:]]
        if args and args[0] not in self._entries and not args[0].startswith("-"):
            shown = [name for heading, entries in self._table.items() if heading for name in entries]
            near = difflib.get_close_matches(args[0], shown, n=1)
            more = f"did you mean {ctx.command_path} {near[0]}?" if near else f"{ctx.command_path} -h lists them"
            raise UsageError(f"{ctx.command_path} has no command {args[0]}: {more}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing them."""
        shown = [entry for heading, entries in self._table.items() if heading for entry in entries.items()]
        found = [CompletionItem(name, help=line) for name, (_, _, line) in shown if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        for heading, entries in self._table.items():
            if heading:
                with formatter.section(heading):
                    formatter.write_dl([(name, help_line) for name, (_, _, help_line) in entries.items()])
