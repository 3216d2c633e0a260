"""The process inside a pilot: it starts the node process, watches it, and makes sure that it is gone in time.

It imports nothing heavy, so that it is up at once and can leave within 0.12 s of Slurm's notice. It never decides to
stay: without its driver it ends the node process, its allocation and itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NoReturn

from bftd.protocol.container import failed, last_of
from elastic.base.errors import WireError
from elastic.base.timing import (
    AGENT_LINK_S,
    BEAT_S,
    CONNECT_S,
    DRIVER_LOST_S,
    FAREWELL_S,
    HANDSHAKE_S,
    LEAVE_S,
    OUT_NOTE_S,
    OUT_QUEUE_BYTES,
    PING_S,
    REACH_S,
)
from elastic.link.address import split_address
from elastic.link.authentication import Seal
from elastic.link.channel import SealedReader, introduce
from elastic.link.child_process import adopt_orphans
from elastic.link.wire import MAX_LINE_BYTES, Message, encode, no_delay, notice_silence, receive
from elastic.node.container import Container, ContainerError
from elastic.node.machine import Machine, ThisMachine, interface_settings, node_name, workers_per_node
from elastic.node.output import LineSplitter, OutputAllowance
from elastic.node.process import NodeProcess

_PAUSE_S = 0.05
"""Shorter waits are accumulated: a sleep costs more than a line."""


class Agent:
    """The agent of one pilot; `run` returns when the pilot is to end, and `complaint` is what it has to say of it."""

    def __init__(self, machine: Machine) -> None:
        self.complaint = ""
        self._machine = machine
        self._environ: Mapping[str, str] = machine.environ
        self._driver: asyncio.StreamWriter | None = None
        self._seal: Seal | None = None
        self._node: NodeProcess | None = None
        self._last_line = ""
        self._image: Container | None = None
        self._to_node: asyncio.StreamWriter | None = None
        self._heard_s = time.monotonic()
        self._over = asyncio.Event()
        self._leaving = False
        self._lost_driver = False
        self._ended_by_driver = False
        self._allowance: OutputAllowance | None = OutputAllowance()
        self._next_note_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until Slurm, the driver or a loss of the driver ends it; returns the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._notice)
        # Slurm precedes SIGTERM with SIGCONT; its default action is right, but it must not interrupt anything.
        loop.add_signal_handler(signal.SIGCONT, lambda: None)
        # In a task beside the wait below, so that Slurm's notice ends an agent even while its driver does not answer.
        self._spawn(self._serve_driver())
        await self._over.wait()
        return 3 if self._lost_driver else 0

    def end(self) -> None:
        """Kill what is left on the node, give up the allocation if nothing else will, and clean up for a moment.

        Leftovers of a script do not delay this: the next agent removes the rest.
        """
        if self._node is not None:
            self._node.kill()
        # An allocation made without a shell outlives its steps. On Slurm's own notice it ends by itself.
        self._machine.leave(cancels=self._lost_driver or self._ended_by_driver)

    # -- signals and time ---

    def _notice(self) -> None:
        """Handle Slurm's notice: tell the driver, wait a moment for its answer, and leave."""
        if self._leaving:
            return
        self._leaving = True
        self._send({"op": "leaving", "at_s": time.time()})
        # Have the node process look a last time at which worker has which shared memory.
        self._send_to_node({"op": "leaving"})
        asyncio.get_running_loop().call_later(LEAVE_S, self._over.set)

    async def _watch_driver(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            if time.monotonic() - self._heard_s > DRIVER_LOST_S:
                self._lost_driver = True
                self._over.set()

    # -- the driver ---

    async def _serve_driver(self) -> None:
        try:
            reader = await asyncio.wait_for(self._connect(), CONNECT_S)
            if reader is not None:
                self._heard_s = time.monotonic()
                self._spawn(self._watch_driver())
                await self._commands(reader)
        except WireError as error:
            self.complaint = str(error)
        except (OSError, asyncio.TimeoutError):
            pass
        except Exception as error:  # else the error would go unreported, and the driver's orders unheard
            self._send({"op": "cannot", "text": f"its agent failed: {error!r}"})
        if not self._leaving and not self._over.is_set():
            self._lost_driver = True
        self._over.set()

    async def _connect(self) -> SealedReader | None:
        """Connect, with proof of both ends; None if the driver hangs up instead, as it does on a wrong secret."""
        reader, writer = await self._reach()
        no_delay(writer)
        sock = writer.get_extra_info("socket")
        notice_silence(sock, AGENT_LINK_S)
        # Urgent messages of this process must not wait behind much output, neither here nor in the kernel.
        writer.transport.set_write_buffer_limits(high=OUT_QUEUE_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, OUT_QUEUE_BYTES)
        about = {
            "role": "agent",
            "lease": self._environ["BFT_LEASE"],
            "node": self._environ.get("SLURMD_NODENAME", ""),
            "job_id": self._environ.get("SLURM_JOB_ID", ""),
            "pid": self._machine.pid,
        }
        seals = await asyncio.wait_for(introduce(reader, writer, self._environ["BFT_SECRET"], about), HANDSHAKE_S)
        if seals is None:
            return None
        self._driver, self._seal = writer, seals.outgoing
        return SealedReader(reader, seals.incoming)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the driver; on failure raises WireError with one line for the trainer's log."""
        driver = self._environ["BFT_DRIVER"]
        host, port = split_address(driver)
        try:
            return await asyncio.wait_for(asyncio.open_connection(host, port, limit=MAX_LINE_BYTES), REACH_S)
        except (OSError, asyncio.TimeoutError) as error:
            node = node_name(self._environ)
            raise WireError(f"node {node} cannot reach the driver at {driver} ({_why(error)})") from error

    async def _commands(self, reader: SealedReader) -> None:
        while (message := await reader.receive()) is not None:
            self._heard_s = time.monotonic()
            op = message["op"]
            if op == "configure":
                await self._start_node(message)
            elif op == "go":
                # Slurm's notice is answered: the driver needs nothing more of this node.
                self._over.set()
            elif op == "end":
                self._ended_by_driver = True
                self._over.set()
            elif op == "beat":
                # To the driver, silence means that this node is lost.
                self._send(message)
            elif op == "probe":
                self._machine.probe(message, self._send)
            elif op == "look":
                if self._node is not None and (answer := self._machine.detector.look(self._node.pid, message)):
                    self._send(answer)
            else:
                # Messages between the two halves of a back-end are passed on unread.
                self._send_to_node(message)

    def _send(self, message: Message) -> None:
        if self._driver is not None and self._seal is not None and not self._driver.is_closing():
            self._driver.write(self._seal.line(encode(message)))

    # -- the node process ---

    async def _start_node(self, message: Message) -> None:
        workers = int(message["workers_per_node"] or workers_per_node(self._environ))
        environ = {
            **message["defaults"],
            **self._environ,
            **message["env"],
            "BFT_WORKERS_PER_NODE": str(workers),
            "BFT_SCRIPT_DIR": message["script_dir"],
            "PYTHONUNBUFFERED": "1",
            "PYTHONSAFEPATH": "1",
            **self._machine.variables(workers),
            **self._interface(message["interface_variables"]),
        }
        interpreter, backend, argv, cwd = (message[key] for key in ("interpreter", "backend", "argv", "cwd"))
        self._image = Container.from_message(message["container"]) if message.get("container") else None
        if self._image is not None:
            environ["BFT_CONTAINER"] = self._image.image
        try:
            self._node, step = await self._machine.start(self._image, interpreter, backend, argv, cwd, environ)
        except ContainerError as error:
            self._cannot(str(error), sure=True)
            return
        except OSError as error:
            self._cannot(_missing(error, interpreter, cwd))
            return
        detector = self._machine.detector
        detector.frozen_s = float(message.get("frozen_s", detector.frozen_s))
        self._spawn(self._watch_node(self._node))
        self._send({"op": "node", "workers_per_node": workers})
        if step:
            self._send({"op": "step", "command": step})
        self._spawn(self._relay(self._node, self._spawn(self._output(self._node))))

    def _cannot(self, text: str, *, sure: bool = False) -> None:
        """Report why there is no node process; `sure`: it would fail on every other node too."""
        self._send({"op": "cannot", "text": text, **({"sure": True} if sure else {})})

    def _interface(self, variables: Sequence[str]) -> dict[str, str]:
        """Return the variables that name the interface of the connection to the driver; none if it is unknown."""
        interface = self._machine.interface_of(self._driver)
        if interface is None and not all(self._environ.get(name) for name in variables):
            self._send({"op": "out", "line": f"bft: no interface holds this node's address; set {variables[0]}"})
        return interface_settings(variables, interface, self._environ)

    async def _watch_node(self, node: NodeProcess) -> None:
        """End a node process that is stopped: its workers could be neither started nor ended any more."""
        detector = self._machine.detector
        while not node.is_over:
            await asyncio.sleep(PING_S)
            if node.pid and detector.node_is_frozen(node.pid):
                line = f"bft: the node process was stopped for {detector.frozen_s:g} s; it is ended"
                self._send({"op": "out", "line": line})
                node.kill()
                return

    def _send_to_node(self, message: Message) -> None:
        if self._to_node is not None and not self._to_node.is_closing():
            self._to_node.write(encode(message))

    async def _relay(self, node: NodeProcess, output: asyncio.Task[None]) -> None:
        sock = await node.linked()
        if sock is None:
            await asyncio.wait([output], timeout=FAREWELL_S)
            # Slurm's notice also ends a runtime that is fetching an image, and may arrive here a moment later.
            await asyncio.sleep(LEAVE_S)
            assert self._image is not None
            if not self._leaving:
                self._cannot(failed(self._image.image, [self._last_line]), sure=True)
            return
        reader, self._to_node = await asyncio.open_connection(sock=sock, limit=MAX_LINE_BYTES)
        while (message := await receive(reader)) is not None:
            self._report_kills(message)
            self._send(message)
        rc = await node.wait()
        # The driver ends this agent on the news, and the node process's last lines may say why it ended.
        self._allowance = None
        await asyncio.wait([output], timeout=FAREWELL_S)
        ended: Message = {"op": "node_exit", "rc": rc}
        self._report_kills(ended)
        self._send(ended)

    def _report_kills(self, message: Message) -> None:
        """Report an out-of-memory kill before the failure that it caused, directly or through another process."""
        if message.get("op") in ("exit", "node_exit") and message.get("rc") and self._machine.memory_kills.more():
            self._send({"op": "memory"})

    async def _output(self, node: NodeProcess) -> None:
        """Send the workers' output to the trainer's log; a worker that prints too fast waits in print."""
        lines = LineSplitter()
        while True:
            due_s = lines.due_s
            left_s = None if due_s is None else max(0.0, due_s - time.monotonic())
            try:
                data = await asyncio.wait_for(node.output.read(OUT_QUEUE_BYTES), left_s)
            except asyncio.TimeoutError:
                await self._print(lines.flush(time.monotonic()))
                continue
            if not data:
                await self._print(lines.end())
                return
            await self._print(lines.feed(data, time.monotonic()))

    async def _print(self, lines: list[str]) -> None:
        for line in lines:
            self._last_line = last_of([self._last_line, line])
            self._send({"op": "out", "line": line})
            if self._driver is not None and not self._driver.is_closing():
                with contextlib.suppress(OSError):
                    await self._driver.drain()
            if self._allowance is not None and (wait_s := self._allowance.take(line, time.monotonic())) > _PAUSE_S:
                self._note_slow()
                await asyncio.sleep(wait_s)

    def _note_slow(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_note_s:
            self._next_note_s = now_s + OUT_NOTE_S
            text = "bft: the script prints more here than travels to this log; print waits for it, so training is slow"
            self._send({"op": "out", "line": text})

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _why(error: Exception) -> str:
    """Describe why a connection was not made."""
    if isinstance(error, socket.gaierror):
        return "the name does not resolve there"
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer within {REACH_S:g} s"
    # If a name has several addresses, asyncio raises one error that lists the others in its text.
    number = error.errno if isinstance(error, OSError) and error.errno else None
    found = re.search(r"\[Errno (\d+)\]", str(error))
    number = number or (int(found[1]) if found else None)
    return os.strerror(number).lower() if number else str(error) or type(error).__name__


def _missing(error: OSError, interpreter: str, cwd: str) -> str:
    """Describe why the node process cannot be started, and what to do."""
    if error.filename == cwd != interpreter:
        todo = "submit from a folder that every node has, or name one with --chdir"
        return f"the working folder {cwd}: {error.strerror}; {todo}"
    todo = "the script's Python has to be there on every node: name one on a file system that all of them have"
    return f"{interpreter}: {error.strerror}; {todo}"


async def _run() -> NoReturn:
    adopt_orphans()
    try:
        agent = Agent(ThisMachine())
    except OSError as error:
        why = error.strerror or str(error)
        print(f"bft: no temporary folder can be made on {node_name(os.environ)}: {why}", file=sys.stderr, flush=True)
        os._exit(3)
    try:
        code = await agent.run()
        if agent.complaint:
            print(f"bft: {agent.complaint}", file=sys.stderr, flush=True)
    finally:
        agent.end()
    # The end of asyncio would wait for a look-up of the driver's name, and the interpreter's end takes longer than
    # giving the node back may.
    os._exit(code)


def main() -> None:
    """Entry point of `python -m elastic.node.agent`; everything it needs is in its environment (BFT_*)."""
    missing = [name for name in ("BFT_DRIVER", "BFT_SECRET", "BFT_LEASE") if name not in os.environ]
    if missing:
        print(f"bft: an agent is started by a trainer's driver; {missing[0]} is not set", file=sys.stderr)
        raise SystemExit(2)
    asyncio.run(_run())


if __name__ == "__main__":
    main()
