"""The runner of click commands: every error that a user can cause ends in one line on standard error."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import NoReturn

import click

from bftd.protocol.fields import printable

# click 8.2 and later raise this for a command without arguments; earlier versions print the help and end.
_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())

# Errors of a file that standard output is redirected to, for example.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def run(command: click.Command, program: str, prefix: str = "") -> NoReturn:
    """Run a command and exit: 2 for wrong usage, an error's own `exit_code`, 130 when interrupted.

    `prefix` precedes an error's line.
    """
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character, of a job name say, shows another
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream.errors == "strict" else stream.errors)
    output = sys.stdout
    try:
        code = command.main(prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        message = error.format_message()
        # The help is the only message longer than a line.
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
        code = 0  # a closed pipe too: click has caught it and wrapped the streams
    except Exception as error:
        known, text = getattr(error, "exit_code", None), str(error)
        if isinstance(error, OSError) and error.errno in _FULL:
            known, text = 1, f"cannot write {error.filename or 'what was asked for'}: {error.strerror}"
            _silence()
        if known is None:
            raise
        click.echo(f"{prefix}{program}: {_one_line(text)}", err=True)
        code = known
    sys.exit(code if isinstance(code, int) else 0)


def _silence() -> None:
    """Discard unwritten output: the interpreter must not complain about it when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(message: str) -> str:
    return " ".join(printable(message).split())
