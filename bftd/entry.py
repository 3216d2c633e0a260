"""Running a click command so that whatever a user can cause ends in one line on standard error."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import NoReturn

import click

from bftd.protocol.fields import printable

# Called without what it needs, click 8.2 and later raise this; earlier ones print the help and end.
_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())

# Of a file that standard output was sent to, say.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def run(command: click.Command, program: str, prefix: str = "") -> NoReturn:
    """Run a command and exit: 2 for wrong usage, an error's own `exit_code`, 130 when interrupted.

    `prefix` stands before the line of an error.
    """
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a letter, of somebody's job name say, gets another
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream.errors == "strict" else stream.errors)
    output = sys.stdout
    try:
        code = command.main(prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        message = error.format_message()
        # The help is the one message of more than a line.
        click.echo(
            message if isinstance(error, _NO_ARGUMENTS) else f"{prefix}{program}: {_one_line(message)}", err=True
        )
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:  # the reader has seen enough
        _silence()
        code = 0
    except SystemExit:
        if sys.stdout is output:
            raise
        code = 0  # the same, seen by click, which then wraps the streams
    except Exception as error:
        known, told = getattr(error, "exit_code", None), str(error)
        if isinstance(error, OSError) and error.errno in _FULL:
            known, told = 1, f"cannot write {error.filename or 'what was asked for'}: {error.strerror}"
            _silence()
        if known is None:
            raise
        click.echo(f"{prefix}{program}: {_one_line(told)}", err=True)
        code = known
    sys.exit(code if isinstance(code, int) else 0)


def _silence() -> None:
    """Drop what is not written yet: the interpreter must not complain about it when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(message: str) -> str:
    return " ".join(printable(message).split())
