"""A worker's link to its driver: progress out; requests to upload (`ship`), pause and abort in.

A side thread reads the commands. It runs while the main thread waits in a collective (the GIL is free there), so the
last checkpoint of a hung worker can still be uploaded. Checkpoints have connections of their own (elastic.worker.upload
and, the other way, elastic.worker.download), so nothing here ever waits for one.

A worker that has lost its link ends, to be started again: its saves would not be kept, and the driver could not stop
it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from elastic.base.errors import EXIT_LINK_LOST, ElasticError, LinkLostError
from elastic.base.timing import FAREWELL_S, LINK_LOST_S, REPORT_S
from elastic.link.channel import BlockingChannel
from elastic.link.step_barrier import QUESTIONS, StepBarrier
from elastic.link.wire import Message
from elastic.worker.download import Download, Downloader, answer_of
from elastic.worker.node_cache import CheckpointOffer
from elastic.worker.progress_pipe import progress_pipe
from elastic.worker.upload import PendingCheckpoint, Uploader

__all__ = ["Download", "DriverLink", "PendingCheckpoint", "current", "install", "new_page", "read_page"]

STEPS_MOST = 10**15
"""No training has more steps: a larger number, such as sys.maxsize, stands for no end."""

ERROR_BYTES = 2048
"""The most of a script's error that is sent to the driver: its end, which says what went wrong."""

_PAGE = struct.Struct("=qd")
"""The last step and the time it ended, in memory that the parent reads after a SIGKILL."""

_PAUSES_S = (0.1, 0.4, 1.0)
"""Between tries to connect: a driver may be short of file descriptors, or busy with strangers for a moment."""

_LOST = "the connection to the trainer's driver is gone; this worker ends and is started again"


def new_page() -> mmap.mmap:
    """Allocate memory for a worker's last step; to be called before the fork."""
    page = mmap.mmap(-1, _PAGE.size)
    _PAGE.pack_into(page, 0, -1, 0.0)
    return page


def read_page(page: mmap.mmap) -> tuple[int, float]:
    """Return the last step that a worker wrote (-1 for none) and its time in unix seconds."""
    step, at_s = _PAGE.unpack_from(page, 0)
    return int(step), float(at_s)


class DriverLink:
    """One worker's link to its driver; without a channel (a script run outside bftd) every call does nothing."""

    def __init__(
        self,
        channel: BlockingChannel | None = None,
        page: mmap.mmap | None = None,
        open_transfer: Callable[[Message], BlockingChannel] | None = None,
        folder: str = "",
    ) -> None:
        """`open_transfer` opens a connection for a checkpoint (elastic.link.bulk); workers share one in `folder`."""
        self._channel = channel
        self._page = page
        open_transfer = open_transfer or _no_transfers
        self._answers: queue.SimpleQueue[CheckpointOffer | Download | ElasticError] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._unsent: deque[Message] = deque()
        self._unsent_lock = threading.Lock()
        self._lost = threading.Event()
        self._end_lock = threading.Lock()
        self._over = False
        self._complaint = ""
        self._heard = threading.Event()
        self._uploader = Uploader(self.tell, open_transfer, self._lost.is_set, self._complain)
        self._downloader = Downloader(open_transfer, folder, self._lost)
        self._reported_s = 0.0
        self._last: Message | None = None
        self._first = True
        self._previous_step_s = 0.0
        self.total_steps: int | None = None
        """The number of steps of the whole training, if the script has told it; used by `bft status` only."""
        self.plan: Mapping[str, int] | None = None
        self.saved_plan: Mapping[str, int] | None = None
        """The settings by which `elastic.batches` cuts the data, here and in the run that saved the checkpoint."""
        self.run_id, self.restarts = os.environ.get("BFT_TRAINER", ""), 0
        """The trainer that began this run, and how often the run has resumed from a checkpoint since."""
        self.generation = ""
        """The number of the worker's group, if the back-end counts groups; told with the first step."""
        self.pause_requested = threading.Event()
        self.step_barrier = StepBarrier()
        self.on_abort: Callable[[], None] = lambda: None
        self.on_message: dict[str, Callable[[Message], None]] = {}
        """Other listeners to the driver, by `op`; called by the side thread, so they return at once."""
        self.costs: dict[str, float] = {}
        """The seconds that each part of this worker's start took (`load_s`, ...), sent with its first step."""
        self.on_end: list[Callable[[int], None]] = []
        """Functions to call with the script's exit code when it has ended, before its end is reported."""

    def about(self) -> Message:
        """Return what is saved with each checkpoint about this worker's training."""
        return {"plan": self.plan, "run_id": self.run_id, "restarts": self.restarts}

    def goes_on(self, about: Message) -> None:
        """Take what was saved with the checkpoint that this worker resumes from; an older bftd saved less."""
        self.saved_plan = about.get("plan")
        self.run_id, self.restarts = about.get("run_id", self.run_id), about.get("restarts", 0) + 1

    @classmethod
    def connect(cls, environ: Mapping[str, str], page: mmap.mmap | None) -> DriverLink:
        """Connect to the driver named in `environ`, in a few tries, and start the side thread.

        Raises OSError, KeyError, and WireError if the other end does not know the trainer's secret.
        """
        lease_id, incarnation = environ["BFT_LEASE"], int(environ.get("BFT_INCARNATION", "0"))
        about: Message = {
            "role": "worker",
            "lease": lease_id,
            "incarnation": incarnation,
            "host": f"{lease_id}.{incarnation}",  # until 1.1: a driver of 0.1 that outlives an upgrade knows no other
            "local_rank": int(environ["BFT_LOCAL_RANK"]),
            "pid": os.getpid(),
        }
        secret = environ["BFT_SECRET"]
        channel = _connected(environ["BFT_DRIVER"], secret, about)
        address = channel.address  # a name would be looked up for every checkpoint, even while Slurm takes the node

        def open_transfer(what: Message) -> BlockingChannel:
            return BlockingChannel.connect(address, secret, {**about, "role": "state", **what})

        session = cls(channel, page, open_transfer, environ.get("TMPDIR", ""))
        session.generation = environ.get("BFT_GENERATION", "")
        threading.Thread(target=session._serve, name="bft-commands", daemon=True).start()
        return session

    @property
    def attached(self) -> bool:
        """Whether this worker has a driver; a worker that has lost its driver ends."""
        return self._channel is not None

    # -- the main thread ---

    def step(
        self, step: int, samples: int, rank: int, size: int, loss: float | None, steps_lost: int = 0, nodes: int = 0
    ) -> None:
        """Note that `step` ended; report it to the driver if it is a group's first, else once a second from rank 0.

        `nodes` is the number of nodes that the `size` workers are on, 0 if unknown.
        """
        now = time.time()
        if self._page is not None:
            _PAGE.pack_into(self._page, 0, step, now)
        first, self._first = self._first, False
        previous_s, self._previous_step_s = self._previous_step_s, now
        if self._channel is None:
            progress_pipe.step(step, samples, rank)
            return
        newest = self._uploader.newest
        message: Message = {
            "op": "step",
            "first": first,
            "step": int(step),
            "samples": int(samples),
            "saved_step": newest.step if newest else 0,
            "saved_samples": newest.samples if newest else 0,
            "rank": rank,
            "size": size,
            "nodes": nodes,
            "loss": None if loss is None else float(loss),
            "steps_lost": steps_lost,
            "at_s": now,
        }
        if self.total_steps is not None:
            message["total_steps"] = self.total_steps
        if first:
            self._downloader.forget()
            told = {"previous_s": previous_s, "costs": dict(self.costs), "generation": self.generation}
            message |= {name: value for name, value in told.items() if value}
        self._last = message
        passed_s = time.monotonic()  # a wall clock that is set back would delay the reports
        if first or (rank == 0 and passed_s - self._reported_s >= REPORT_S):
            self._reported_s = passed_s
            self._send_progress(message)

    def set_total(self, steps: object) -> None:
        """Note how many steps the whole training has; a value that is no number of steps means unknown."""
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            total = int(steps)  # type: ignore[call-overload]
            self.total_steps = total if 0 < total <= STEPS_MOST else None

    def ended(self, code: int) -> int:
        """Note that the script has ended with `code`; returns the worker's exit code.

        From now on losing the link does not end the process. A failure after the link was lost counts as the link's.
        """
        for hook in self.on_end:
            hook(code)
        if code == 0:
            with self._end_lock:
                self._over = True
        self._deliver(code)
        if code == 0:
            self.farewell()
        elif code == EXIT_LINK_LOST:
            self.failed(f"sys.exit({code})")  # the script's own choice: without a report it would look like a lost link
        with self._end_lock:
            self._over = True
            return EXIT_LINK_LOST if code and self._lost.is_set() else code

    def _deliver(self, code: int) -> None:
        """Upload the last checkpoint if that is under way, as the end of this process would cut the thread short.

        If the script ended well, also upload one that nobody has asked for yet: it is the one to keep.
        """
        last = self._last
        final = code == 0 and not self._uploader.arrived and (last is None or last["rank"] == 0)
        if final or self._uploader.under_way:
            self.upload()

    def farewell(self) -> None:
        """Report the last step of a script that ended well: once training is complete it counts, saved or not."""
        last = self._last
        if last is not None and last["rank"] == 0:
            self._send({**last, "first": False, "final": True})

    def failed(self, text: str) -> bool:
        """Report the end of the script's error, wait, and return whether it was heard: its end comes only then."""
        if self._channel is None:
            return False
        end = text.encode(errors="replace")[-ERROR_BYTES:].decode(errors="ignore")
        whole = end if len(end) == len(text) else end[end.find("\n") + 1 :]
        self._send({"op": "error", "text": whole})
        return self._heard.wait(FAREWELL_S) and not self._lost.is_set()

    def regrouped(self) -> None:
        """Note that the world changed: the next step is the first one of the new group."""
        self._first = True

    def commit(self, pending: PendingCheckpoint) -> None:
        """Make `pending` the checkpoint that the driver gets when it asks; the previous one is released."""
        self._uploader.commit(pending)

    def upload(self) -> None:
        """Upload the last checkpoint; returns when the driver has it, cannot keep it, or is gone."""
        if self._channel is not None:
            self._uploader.upload()

    def upload_soon(self) -> None:
        """Upload the last checkpoint in the background, rarely enough to use only a small share of a core."""
        if self._channel is not None:
            self._uploader.upload_soon()

    def rest(self) -> None:
        """Upload what was just saved at a step boundary, report the pause, and wait for the end from the driver."""
        last = self._last
        if last is not None and last["rank"] == 0:  # else the steps since the last report would count as stall
            self._send({**last, "first": False})
        self.upload()
        self._send({"op": "paused"})
        while True:
            time.sleep(3600)

    def tell(self, message: Message) -> bool:
        """Send a message to the driver; returns False outside bftd or if the link is gone."""
        return self._send(message)

    def download_checkpoint(self) -> Download:
        """Return the checkpoint that the trainer resumes from; it has neither file nor versions if there is none yet.

        Raises LinkLostError, and CheckpointError if there is a checkpoint that cannot be read: neither counts as a
        first start.
        """
        if self._channel is None:
            return Download()
        download = self._downloader.download(self._offered)
        if download.file is not None:
            self.costs["load_bytes"] = float(os.fstat(download.file.fileno()).st_size)
        return download

    def _offered(self) -> CheckpointOffer | Download | ElasticError:
        return self._answers.get() if self._send({"op": "fetch"}) else LinkLostError(_LOST)

    # -- the side thread ---

    def _serve(self) -> None:
        """Obey the driver for as long as the link holds, then end this process."""
        try:
            self._commands()
        except Exception as error:  # any error: a worker without this thread would look frozen
            _print(f"the connection to the trainer's driver failed: {error!r}")
        self._lost.set()
        self._uploader.stop()
        self._heard.set()  # no driver is left to acknowledge the script's error: do not wait for that
        self._answers.put(LinkLostError(_LOST))
        time.sleep(LINK_LOST_S)
        with self._end_lock:
            if not self._over:
                _print(_LOST)
                _exit(EXIT_LINK_LOST)

    def _commands(self) -> None:
        channel = self._channel
        assert channel is not None
        while (message := channel.receive()) is not None:
            op = message["op"]
            if op == "ping":
                self._send({"op": "pong"})
            elif op == "ship":
                (self._uploader.upload_soon if message.get("soon") else self._uploader.ask)()
            elif op in QUESTIONS:
                if answer := self.step_barrier.answer(message):
                    self._send(answer)
            elif op == "unsaved":
                self._uploader.refused()
            elif op == "pause":
                self.pause_requested.set()
            elif op == "abort":
                self.on_abort()
            elif op == "heard":
                self._heard.set()
            elif op == "fetched":
                self._answers.put(answer_of(message))
            elif op in self.on_message:
                self.on_message[op](message)

    def _send_progress(self, message: Message) -> None:
        """Queue a progress message and send it; if another thread is sending, leave it to that one and do not wait."""
        with self._unsent_lock:
            if self._unsent and not (message["first"] or self._unsent[-1]["first"]):
                self._unsent.pop()  # only the newer of two waiting messages matters
            self._unsent.append(message)
        self._send_unsent()

    def _send(self, message: Message) -> bool:
        """Send a message; returns False outside bftd or if the link is gone."""
        with self._sending:
            self._put_unsent()
            sent = self._put(message)
        self._send_unsent()
        return sent

    def _send_unsent(self) -> None:
        # Checked again after each release: by then the queue holds what was left to the sending thread.
        while self._unsent and self._sending.acquire(blocking=False):
            try:
                self._put_unsent()
            finally:
                self._sending.release()

    def _put_unsent(self) -> None:
        while self._unsent:
            with self._unsent_lock:
                message = self._unsent.popleft() if self._unsent else None
            if message is not None:
                self._put(message)

    def _put(self, message: Message) -> bool:
        if self._channel is None or self._lost.is_set():
            return False
        try:
            self._channel.send(message)
        except OSError:
            self._lost.set()
            self._channel.hang_up()  # the side thread, which waits in a read, then ends this process
            return False
        return True

    def _complain(self, text: str) -> None:
        """Print the text, unless it was the last one printed."""
        if text != self._complaint:
            self._complaint = text
            _print(text)


def _connected(address: str, secret: str, about: Message) -> BlockingChannel:
    for pause_s in _PAUSES_S:
        try:
            return BlockingChannel.connect(address, secret, about)
        except OSError:
            time.sleep(pause_s)
    return BlockingChannel.connect(address, secret, about)


def _no_transfers(_: Message) -> BlockingChannel:
    raise ConnectionRefusedError("no driver takes or has a checkpoint")


def _print(text: str) -> None:
    """Write a line to the trainer's log: the agent reads it, whether or not this link still works."""
    with contextlib.suppress(OSError):
        os.write(2, f"bft: {text}\n".encode(errors="backslashreplace"))


_exit = os._exit
_current = DriverLink()
_parents: DriverLink | None = None


def current() -> DriverLink:
    """Return this process's session; outside bftd its calls do nothing."""
    return _current


def install(session: DriverLink) -> None:
    """Make `session` this process's (called once, by the worker's bootstrap)."""
    global _current
    _current = session


def _leave_to_parent() -> None:
    """Use a new session in a fork of a worker: two processes on one sealed link would end it, and so the worker."""
    global _current, _parents
    # Keep the parent's session: its thread, absent in this process, holds the lock of a read, and the end of the
    # session would wait for that.
    _parents, _current = _current, DriverLink()


os.register_at_fork(after_in_child=_leave_to_parent)
