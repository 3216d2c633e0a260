"""A helper process beside the driver, in the user's interpreter, spoken to over its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence

from elastic.errors import WireError
from elastic.link.child import prepare_child
from elastic.link.wire import MAX_LINE_BYTES, Message, encode, receive


class Companion:
    """Runs `interpreter -m module args...`; its messages go to `on_message`, its end to `on_exit`."""

    def __init__(self, on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> None:
        self._on_message = on_message
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self, interpreter: str, module: str, *args: str) -> None:
        """Starts the process; raises OSError when the interpreter cannot be run."""
        self._process = await asyncio.create_subprocess_exec(
            *_command(interpreter, module, args),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            limit=MAX_LINE_BYTES,
            preexec_fn=prepare_child,
        )
        self._reader = asyncio.create_task(self._read())

    def send(self, message: Message) -> None:
        """Sends one message; a companion that is gone says so through `on_exit`."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(encode(message))

    async def stop(self) -> None:
        """Ends the process and waits for its end; `on_exit` is not called."""
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with contextlib.suppress(WireError):
            while (message := await receive(self._process.stdout)) is not None:
                self._on_message(message)
        self._on_exit(await self._process.wait())


def _command(interpreter: str, module: str, args: Sequence[str]) -> list[str]:
    return [interpreter, "-m", module, *args]
