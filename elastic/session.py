"""A worker's link to its driver: progress out; ship, pause and abort in.

A side thread reads the commands. It runs while the main thread waits in a collective (the GIL is free there), so the
last saved state of a hung worker can still be fetched. States travel beside this link (elastic.shipping and, the other
way, elastic.fetching), so nothing here ever waits for one.

A worker that has lost its link ends: what it saved would not be kept, and nobody could stop it. It is started again.
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

from elastic.errors import EXIT_LINK_LOST, ElasticError, LinkLostError
from elastic.fetching import Fetched, Fetcher, answer_of
from elastic.link.channel import BlockingChannel
from elastic.link.fence import ASKED, Fence
from elastic.link.wire import Message
from elastic.profiled import teller
from elastic.sharing import Offer
from elastic.shipping import Saved, Shipper
from elastic.timing import FAREWELL_S, LINK_LOST_S, REPORT_S

__all__ = ["Fetched", "Saved", "Session", "current", "install", "new_page", "read_page"]

STEPS_MOST = 10**15
"""No training has so many: what is above is a number that stands for no end, as sys.maxsize is."""

ERROR_BYTES = 2048
"""What the driver is told of a script's error: the end, where it says what went wrong."""

_PAGE = struct.Struct("=qd")
"""The last step and when it ended, in memory that the parent reads after a SIGKILL."""

_PAUSES_S = (0.1, 0.4, 1.0)
"""Between two tries to connect: a driver may be short of files, or taken for a moment by strangers."""

_LOST = "the connection to the trainer's driver is gone; this worker ends and is started again"


def new_page() -> mmap.mmap:
    """Memory for a worker's last step, to be made before the fork."""
    page = mmap.mmap(-1, _PAGE.size)
    _PAGE.pack_into(page, 0, -1, 0.0)
    return page


def read_page(page: mmap.mmap) -> tuple[int, float]:
    """The last step that a worker wrote (-1: none) and its time in unix seconds."""
    step, at_s = _PAGE.unpack_from(page, 0)
    return int(step), float(at_s)


class Session:
    """One worker's link; without a channel (a script run outside bftd) every call does nothing."""

    def __init__(
        self,
        channel: BlockingChannel | None = None,
        page: mmap.mmap | None = None,
        open_state: Callable[[Message], BlockingChannel] | None = None,
        folder: str = "",
    ) -> None:
        """`open_state` opens a connection for a state, as elastic.link.payload says; in `folder` workers share one."""
        self._channel = channel
        self._page = page
        open_state = open_state or _no_states
        self._answers: queue.SimpleQueue[Offer | Fetched | ElasticError] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._untold: deque[Message] = deque()
        self._untold_lock = threading.Lock()
        self._lost = threading.Event()
        self._end_lock = threading.Lock()
        self._over = False
        self._complaint = ""
        self._heard = threading.Event()
        self._shipper = Shipper(self.tell, open_state, self._lost.is_set, self._complain)
        self._fetcher = Fetcher(open_state, folder, self._lost)
        self._reported_s = 0.0
        self._last: Message | None = None
        self._first = True
        self._previous_step_s = 0.0
        self.total_steps: int | None = None
        """How many steps the whole training has, where the script has told; for `bft status` alone."""
        self.plan: Mapping[str, int] | None = None
        self.saved_plan: Mapping[str, int] | None = None
        """How `elastic.batches` cuts the data, by what it was given, here and where this worker's state was saved."""
        self.run_id, self.restarts = os.environ.get("BFT_TRAINER", ""), 0
        """The trainer that began this run, and how often the run has gone on from a saved state since."""
        self.pause_requested = threading.Event()
        self.fence = Fence()
        self.on_abort: Callable[[], None] = lambda: None
        self.on_message: dict[str, Callable[[Message], None]] = {}
        """What else listens to the driver, by `op`; called by the side thread, so it returns at once."""
        self.costs: dict[str, float] = {}
        """What this worker's start took, in seconds by part (`load_s`, ...): told with its first step."""
        self.on_end: list[Callable[[int], None]] = []
        """What is to be done when the script has ended with a code, before anything else is told of its end."""

    def about(self) -> Message:
        """What is kept with each state of how this worker's training goes."""
        return {"plan": self.plan, "run_id": self.run_id, "restarts": self.restarts}

    def goes_on(self, about: Message) -> None:
        """Takes what was kept with the state that this worker begins with; an older bftd kept less."""
        self.saved_plan = about.get("plan")
        self.run_id, self.restarts = about.get("run_id", self.run_id), about.get("restarts", 0) + 1

    @classmethod
    def connect(cls, environ: Mapping[str, str], page: mmap.mmap | None) -> Session:
        """Connects to the driver named in `environ`, in a few tries, and starts the side thread.

        Raises OSError, KeyError, and WireError when who listens there does not know the trainer's secret.
        """
        about: Message = {
            "role": "worker",
            "host": environ["BFT_HOST"],
            "local_rank": int(environ["BFT_LOCAL_RANK"]),
            "pid": os.getpid(),
        }
        secret = environ["BFT_SECRET"]
        channel = _connected(environ["BFT_DRIVER"], secret, about)
        address = channel.address  # a name would be looked up for every state, also when Slurm takes the node

        def open_state(what: Message) -> BlockingChannel:
            return BlockingChannel.connect(address, secret, {**about, "role": "state", **what})

        session = cls(channel, page, open_state, environ.get("TMPDIR", ""))
        threading.Thread(target=session._serve, name="bft-commands", daemon=True).start()
        return session

    @property
    def attached(self) -> bool:
        """Whether this worker is a driver's; one that has lost it ends."""
        return self._channel is not None

    # -- the main thread ---

    def step(
        self, step: int, samples: int, rank: int, size: int, loss: float | None, steps_lost: int = 0, nodes: int = 0
    ) -> None:
        """Notes that `step` ended; tells the driver at the first one of a group, then once a second from rank 0.

        `nodes` is how many nodes the `size` workers are on, 0 where that is not known.
        """
        now = time.time()
        if self._page is not None:
            _PAGE.pack_into(self._page, 0, step, now)
        first, self._first = self._first, False
        previous_s, self._previous_step_s = self._previous_step_s, now
        if self._channel is None:
            teller.step(step, samples, rank)
            return
        saved = self._shipper.newest
        message: Message = {
            "op": "step",
            "first": first,
            "step": int(step),
            "samples": int(samples),
            "saved_step": saved.step if saved else 0,
            "saved_samples": saved.samples if saved else 0,
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
            self._fetcher.forget()
        if first and previous_s:
            message["previous_s"] = previous_s
        if first and self.costs:
            message["costs"] = dict(self.costs)
        if first and (generation := os.environ.get("BFT_GENERATION")):
            message["generation"] = generation
        self._last = message
        passed_s = time.monotonic()  # a wall clock that is set back would keep the reports back
        if first or (rank == 0 and passed_s - self._reported_s >= REPORT_S):
            self._reported_s = passed_s
            self._tell(message)

    def told_total(self, steps: object) -> None:
        """Notes how many steps the whole training has; what is no number of steps is not known."""
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            total = int(steps)  # type: ignore[call-overload]
            self.total_steps = total if 0 < total <= STEPS_MOST else None

    def ended(self, code: int) -> int:
        """Notes that the script has ended, with `code`; returns what the worker is to exit with.

        From now on a link that goes ends nothing. A failure after it went is the link's, not the script's.
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
            self.failed(f"sys.exit({code})")  # the script's own choice: without a word it would be taken for the link's
        with self._end_lock:
            self._over = True
            return EXIT_LINK_LOST if code and self._lost.is_set() else code

    def _deliver(self, code: int) -> None:
        """Sends what was saved last: the end of this process would cut short what the shipping thread has begun.

        Of a script that ended well also what nobody has asked for yet, as the state that is kept.
        """
        last = self._last
        final = code == 0 and not self._shipper.arrived and (last is None or last["rank"] == 0)
        if final or self._shipper.under_way:
            self.ship()

    def farewell(self) -> None:
        """Tells the last step of a script that ended well: what it did counts though it saved no more."""
        last = self._last
        if last is not None and last["rank"] == 0:
            self._send({**last, "first": False, "saved_step": last["step"], "saved_samples": last["samples"]})

    def failed(self, text: str) -> None:
        """Tells the error that ends the script, its last ERROR_BYTES; the news of the end would overtake it else."""
        if self._channel is None:
            return
        told = text.encode(errors="replace")[-ERROR_BYTES:].decode(errors="ignore")
        whole = told if len(told) == len(text) else told[told.find("\n") + 1 :]
        self._send({"op": "error", "text": whole})
        self._heard.wait(FAREWELL_S)

    def regrouped(self) -> None:
        """Notes that the world changed: the next step is the first one of the new group."""
        self._first = True

    def commit(self, saved: Saved) -> None:
        """Makes `saved` the state that the driver gets when it asks; the one before it is released."""
        self._shipper.commit(saved)

    def ship(self) -> None:
        """Sends the last saved state; returns when the driver has it, or cannot keep it, or is gone."""
        if self._channel is not None:
            self._shipper.ship()

    def ship_soon(self) -> None:
        """Sends the last saved state in the background, so often that it stays a small share of a core's time."""
        if self._channel is not None:
            self._shipper.ship_soon()

    def rest(self) -> None:
        """Ships the state just saved at a step boundary, says so, and waits for the end that the driver will send."""
        last = self._last
        if last is not None and last["rank"] == 0:  # else what was done since the last report would count as stall
            self._send({**last, "first": False})
        self.ship()
        self._send({"op": "paused"})
        while True:
            time.sleep(3600)

    def tell(self, message: Message) -> bool:
        """Sends a message to the driver; False outside bftd, and when the link is gone."""
        return self._send(message)

    def fetch_state(self) -> Fetched:
        """The state that the trainer goes on from; neither file nor generations when there is none yet.

        Raises LinkLostError, and StateError when there is one that cannot be had: neither is a first start.
        """
        if self._channel is None:
            return Fetched()
        fetched = self._fetcher.fetch(self._asked_for_state)
        if fetched.file is not None:
            self.costs["load_bytes"] = float(os.fstat(fetched.file.fileno()).st_size)
        return fetched

    def _asked_for_state(self) -> Offer | Fetched | ElasticError:
        return self._answers.get() if self._send({"op": "fetch"}) else LinkLostError(_LOST)

    # -- the side thread ---

    def _serve(self) -> None:
        """Obeys the driver for as long as the link holds, and ends this process after that."""
        try:
            self._commands()
        except Exception as error:  # whatever it is: a worker without this thread would look frozen
            _say(f"the connection to the trainer's driver failed: {error!r}")
        self._lost.set()
        self._shipper.stop()
        self._heard.set()  # nobody is left to hear a script's last word: its own end is not to wait for that
        self._answers.put(LinkLostError(_LOST))
        time.sleep(LINK_LOST_S)
        with self._end_lock:
            if not self._over:
                _say(_LOST)
                _exit(EXIT_LINK_LOST)

    def _commands(self) -> None:
        channel = self._channel
        assert channel is not None
        while (message := channel.receive()) is not None:
            op = message["op"]
            if op == "ping":
                self._send({"op": "pong"})
            elif op == "ship":
                (self._shipper.ship_soon if message.get("soon") else self._shipper.ask)()
            elif op in ASKED:
                if answer := self.fence.answer(message):
                    self._send(answer)
            elif op == "unsaved":
                self._shipper.refused()
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

    def _tell(self, message: Message) -> None:
        """Sends a progress message; while others send it is left to them, and never waited for."""
        with self._untold_lock:
            if self._untold and not (message["first"] or self._untold[-1]["first"]):
                self._untold.pop()  # of two that wait, the newer one says it all
            self._untold.append(message)
        self._send_untold()

    def _send(self, message: Message) -> bool:
        """Whether the message was sent; False outside bftd, and when the link is gone."""
        with self._sending:
            self._put_untold()
            sent = self._put(message)
        self._send_untold()
        return sent

    def _send_untold(self) -> None:
        # Looked at again after each release: what was left to the one who sent is in the queue by then.
        while self._untold and self._sending.acquire(blocking=False):
            try:
                self._put_untold()
            finally:
                self._sending.release()

    def _put_untold(self) -> None:
        while self._untold:
            with self._untold_lock:
                message = self._untold.popleft() if self._untold else None
            if message is not None:
                self._put(message)

    def _put(self, message: Message) -> bool:
        if self._channel is None or self._lost.is_set():
            return False
        try:
            self._channel.send(message)
        except OSError:
            self._lost.set()
            self._channel.hang_up()  # the side thread waits in a read, and ends this process
            return False
        return True

    def _complain(self, text: str) -> None:
        """Says it, unless it was the last thing said."""
        if text != self._complaint:
            self._complaint = text
            _say(text)


def _connected(address: str, secret: str, about: Message) -> BlockingChannel:
    for pause_s in _PAUSES_S:
        try:
            return BlockingChannel.connect(address, secret, about)
        except OSError:
            time.sleep(pause_s)
    return BlockingChannel.connect(address, secret, about)


def _no_states(_: Message) -> BlockingChannel:
    raise ConnectionRefusedError("no driver takes or has a state")


def _say(text: str) -> None:
    """One line to the trainer's log: the agent reads it, whatever has become of this link."""
    with contextlib.suppress(OSError):
        os.write(2, f"bft: {text}\n".encode(errors="backslashreplace"))


_exit = os._exit
_current = Session()
_parents: Session | None = None


def current() -> Session:
    """This process's session; one that does nothing outside bftd."""
    return _current


def install(session: Session) -> None:
    """Makes `session` this process's (called once, by the worker's bootstrap)."""
    global _current
    _current = session


def _leave_to_parent() -> None:
    """In a fork of a worker's: two processes that spoke on one sealed link would end it, and with it the worker."""
    global _current, _parents
    # Kept, because its thread's read, which is not in this process, holds a lock that its end would wait for.
    _parents, _current = _current, Session()


os.register_at_fork(after_in_child=_leave_to_parent)
