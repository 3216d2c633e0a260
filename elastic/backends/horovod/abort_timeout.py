"""The end of a worker that stays in NCCL after an abort: it ends by itself, to be started again, and the others go on.

When gloo's sockets are shut, Horovod's own thread leaves its loop and calls ncclCommAbort for each communicator, which
ends the kernels that wait for the dead peer. That does not help if that thread itself is in ncclCommInitRank, nor if
the device or its driver hangs. Only the end of the process helps there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import horovod

from elastic.backends.horovod.sockets import SocketWatch
from elastic.base.errors import EXIT_LINK_LOST
from elastic.base.timing import ABORTED_S

_HOROVOD = str(Path(horovod.__file__).parent)


def end_if_stuck(sockets: SocketWatch, last_words: Callable[[], None]) -> None:
    """End this process if its collective does not fail; to be called after an abort, in a thread of its own.

    A script that computes or reads has not noticed the abort yet, and one that has noticed it starts over by itself.
    """
    openings = sockets.openings
    time.sleep(ABORTED_S)
    if sockets.openings != openings or not _waits(threading.main_thread()):
        return
    os.write(2, f"bft: NCCL did not let go within {ABORTED_S:g} s of an abort; this worker is started again\n".encode())
    words = threading.Thread(target=last_words, daemon=True)
    words.start()
    words.join(ABORTED_S)
    # Skip the end of Python and of the library: both would wait for the device.
    os._exit(EXIT_LINK_LOST)


def _waits(thread: threading.Thread) -> bool:
    """Whether a thread is in a call of Horovod's library."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename.startswith(_HOROVOD)
