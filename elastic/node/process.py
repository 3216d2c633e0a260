"""The node process as its agent sees it: a child in the host's Python, or a process inside a container.

A process inside connects to a socket in the pilot's own folder, because not every runtime passes descriptors on. There
it gets its environment and its output, and the kernel reports its process id as this host counts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence

from elastic.link.child_process import prepare_child
from elastic.link.wire import encode
from elastic.node import container
from elastic.node.container import Container
from elastic.node.orphans import kill_trees

_DOOR = ".bft-node"
_CREDENTIALS = struct.Struct("3i")


class NodeProcess:
    """One node process; `output` is what it and its workers print, `pid` its id on this host (0: not yet known)."""

    def __init__(self, process: asyncio.subprocess.Process | None, output: asyncio.StreamReader) -> None:
        self._process = process
        self.output = output
        self.pid = 0 if process is None else process.pid

    @property
    def is_over(self) -> bool:
        """Whether it is known to have ended."""
        return self._process is not None and self._process.returncode is not None

    async def linked(self) -> socket.socket | None:
        """Wait for its link to the agent; None if it ends before it has one."""
        raise NotImplementedError

    async def wait(self) -> int:
        """Wait for its end once its link has ended; returns its exit code."""
        return 0 if self._process is None else await self._process.wait()

    def kill(self) -> None:
        """Kill it; its workers die with it."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


class Child(NodeProcess):
    """A node process in the host's Python."""

    def __init__(self, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        assert process.stdout is not None
        super().__init__(process, process.stdout)
        self._link = link

    @classmethod
    async def start(cls, argv: Sequence[str], arguments: Sequence[str], cwd: str, environ: Mapping[str, str]) -> Child:
        """Start `argv`, followed by the number of the link and `arguments`; raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                str(theirs.fileno()),
                *arguments,
                cwd=cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=prepare_child,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours)

    async def linked(self) -> socket.socket | None:
        """See NodeProcess."""
        return self._link


class Contained(NodeProcess):
    """A node process inside a container: started here, or by a job step that the driver is asked for."""

    def __init__(
        self,
        process: asyncio.subprocess.Process | None,
        output: asyncio.StreamReader,
        door: socket.socket,
        environ: Mapping[str, str],
        output_fd: int,
    ) -> None:
        super().__init__(process, output)
        self._door = door
        self._environ = environ
        self._output_fd = output_fd

    @classmethod
    async def start(
        cls, image: Container, interpreter: str, backend: str, arguments: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[Contained, list[str]]:
        """Start it; if Slurm makes containers, return the command of the step that the driver is to start instead.

        $TMPDIR of `environ` is the pilot's own folder. Raises OSError, and ContainerError with what to do.
        """
        folder = environ["TMPDIR"]
        command = image.command(folder, interpreter, "elastic.node", [backend, f"{folder}/{_DOOR}", *arguments])
        container.pack(folder)
        door = _listen(folder)
        read_fd, write_fd = os.pipe()
        output = asyncio.StreamReader()
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_fd, "rb", 0))
            process = None
            if not image.is_step:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    cwd=image.cwd,
                    env=container.outside(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=write_fd,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=prepare_child,
                )
        except BaseException:
            door.close()
            os.close(write_fd)
            raise
        started = cls(process, output, door, container.inside(environ), write_fd)
        return started, command if process is None else []

    async def linked(self) -> socket.socket | None:
        """See NodeProcess."""
        loop = asyncio.get_running_loop()
        coming = asyncio.ensure_future(loop.sock_accept(self._door))
        ending = asyncio.ensure_future(self._process.wait() if self._process else asyncio.Event().wait())
        try:
            await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return None
            sock, _ = coming.result()
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self.pid = _CREDENTIALS.unpack(credentials)[0]
            sock.setblocking(True)
            line = encode({"op": "environment", "variables": dict(self._environ)})
            # A process that has read all of it may have printed why it cannot go on, and ended: its output is still
            # read.
            with contextlib.suppress(ConnectionError):
                sent = socket.send_fds(sock, [line], [self._output_fd])
                sock.sendall(line[sent:])
            return sock
        finally:
            coming.cancel()
            ending.cancel()
            self._door.close()
            os.close(self._output_fd)

    def kill(self) -> None:
        """See NodeProcess. A runtime may stand between, and a process in its own step is no child of this one."""
        if self.pid:
            kill_trees([self.pid])
        super().kill()


def _listen(folder: str) -> socket.socket:
    """Open a socket in a folder that no other user enters, however long the folder's name is."""
    door = socket.socket(socket.AF_UNIX)
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        door.bind(f"/proc/self/fd/{at}/{_DOOR}")
        door.listen(1)
        door.setblocking(False)
    finally:
        os.close(at)
    return door
