"""A worker that NCCL does not let go of after an abort ends by itself: it is started again, and the others go on.

Shutting gloo's sockets has Horovod's own thread leave its loop and call ncclCommAbort for each communicator, which
ends the kernels that wait for the dead peer. That is no way out of ncclCommInitRank, which that thread itself is in
then, nor where the device or its driver hangs. Nothing but the end of the process helps there.
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
from elastic.errors import EXIT_LINK_LOST
from elastic.timing import ABORTED_S

_HOROVOD = str(Path(horovod.__file__).parent)


def end_if_stuck(sockets: SocketWatch, last_words: Callable[[], None]) -> None:
    """To be called after an abort, in a thread of its own: ends this process when its collective does not fail.

    A script that computes or reads has not heard of the abort yet, and one that has begins anew by itself.
    """
    openings = sockets.openings
    time.sleep(ABORTED_S)
    if sockets.openings != openings or not _waits(threading.main_thread()):
        return
    os.write(2, f"bft: NCCL did not let go within {ABORTED_S:g} s of an abort; this worker is started again\n".encode())
    words = threading.Thread(target=last_words, daemon=True)
    words.start()
    words.join(ABORTED_S)
    # Neither Python's end nor the library's: both would wait for the device.
    os._exit(EXIT_LINK_LOST)


def _waits(thread: threading.Thread) -> bool:
    """Whether a thread is in a call of Horovod's library."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename.startswith(_HOROVOD)
