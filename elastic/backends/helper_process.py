"""A helper process beside the driver, in the user's interpreter, with messages on its standard input and output.

If a trainer has an image, its libraries exist only there: its helpers run inside, on the driver's host.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence

from bftd.protocol.container import last_of
from elastic.base.errors import ElasticError, WireError
from elastic.base.timing import FAREWELL_S
from elastic.link.child_process import prepare_child
from elastic.link.wire import MAX_LINE_BYTES, Message, decode, encode, read_line
from elastic.node import container
from elastic.node.container import Container, ContainerError

_SHORT_OF = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY}
"""Errors for lack of a resource that may be free again in a moment."""

_STEP = ("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--mpi=none", "--unbuffered")
"""Options of a step beside the driver, in the driver's own job."""

_PAUSES_S = (0.2, 0.5, 1.0, 2.0)


class Companion:
    """A process `interpreter -m module args...`; its messages go to `on_message`, its end to `on_exit`."""

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_exit: Callable[[int], None],
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """`on_line` takes the process's lines on standard error; without it they go to the driver's own."""
        self._on_message = on_message
        self._on_exit = on_exit
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.last_line = ""
        """The last line of the process on standard error."""

    async def start(self, interpreter: str, module: str, *args: str, image: Mapping[str, object] | None = None) -> None:
        """Start the process, inside an `image` if given (see DriverSettings.container_message).

        Raises ElasticError if the interpreter cannot be run here, or no container can be started.
        """
        command, environ = _command(interpreter, module, args), dict(os.environ)
        if image is not None:
            self._folder = tempfile.TemporaryDirectory(prefix="bft-driver-")
            command = _inside(Container.from_message(image), self._folder.name, interpreter, module, args)
            environ = container.outside(environ)
        pauses = iter(_PAUSES_S)
        while self._process is None:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE if self._on_line else None,
                    env={**environ, "PYTHONUNBUFFERED": "1"},
                    limit=MAX_LINE_BYTES,
                    preexec_fn=prepare_child,
                    start_new_session=True,  # a Ctrl-C in the terminal is for the driver, which ends its children
                )
            except OSError as error:
                pause_s = next(pauses, None)
                if error.errno not in _SHORT_OF or pause_s is None:
                    where = f"on {socket.gethostname()}, where the driver runs"
                    raise ElasticError(f"{interpreter} cannot be run {where}: {error.strerror}") from error
                await asyncio.sleep(pause_s)
        self._readers = [asyncio.create_task(self._read())]
        if self._process.stderr is not None and self._on_line is not None:
            self._readers.append(asyncio.create_task(_lines(self._process.stderr, self._take_line)))

    def send(self, message: Message) -> None:
        """Send one message; if the companion is gone, `on_exit` reports it."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(encode(message))

    async def stop(self) -> None:
        """End the process and wait for its end; `on_exit` is not called."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._folder is not None:
            self._folder.cleanup()

    def _take_line(self, line: str) -> None:
        self.last_line = last_of([self.last_line, line])
        if self._on_line is not None:
            self._on_line(line)

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            while (line := await read_line(self._process.stdout)) is not None:
                if self._folder is not None and not line.startswith(b"{"):
                    self._take_line(
                        line.decode(errors="replace").rstrip("\n")
                    )  # from its runtime, which fetches an image
                    continue
                self._on_message(decode(line))
        except (WireError, KeyError, ValueError, TypeError):
            # A companion that sends nonsense is of no use any more; `on_exit` reports its end.
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        code = await self._process.wait()
        # Its last line tells why it ended. A process that it left behind may hold the pipe open for longer.
        if others := [reader for reader in self._readers if reader is not asyncio.current_task()]:
            await asyncio.wait(others, timeout=FAREWELL_S)
        self._on_exit(code)


async def _lines(stream: asyncio.StreamReader, on_line: Callable[[str], None]) -> None:
    """Read to the end, so that the process never waits for a reader of its output."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the buffer
            continue
        if not line:
            return
        on_line(line.decode(errors="replace").rstrip("\n"))


def _command(interpreter: str, module: str, args: Sequence[str]) -> list[str]:
    return [interpreter, "-m", module, *args]


def _inside(image: Container, folder: str, interpreter: str, module: str, args: Sequence[str]) -> list[str]:
    """Return the command that runs one of our modules in an image on this host; raises ContainerError."""
    words = image.command(folder, interpreter, module, args)
    container.pack(folder)
    if not image.is_step:
        return words
    job_id = os.environ.get("SLURM_JOB_ID")
    if job_id is None:
        raise ContainerError(f"container={image.image} is started by Slurm here: submit with bft sbatch, not bft run")
    return [words[0], f"--jobid={job_id}", *_STEP, *words[1:]]
