"""A worker's first requests: it asks its driver on its link, and downloads the checkpoint beside it, once a node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from elastic.base.errors import CheckpointError, ElasticError, WireError
from elastic.link.bulk import DOWNLOAD, AlteredError, receive_file
from elastic.link.channel import BlockingChannel
from elastic.link.wire import Message
from elastic.worker.node_cache import CheckpointOffer, forget, shared

_ALTERED_TRIES = 3
"""A checkpoint may arrive altered this many times; after that, something on the way must be changing it."""

_AGAIN_S = 0.5


@dataclass(frozen=True)
class Download:
    """The checkpoint to resume from: a whole one in a `file` of this node, or `versions` on a shared file system.

    `versions`, newest first, are as elastic.checkpoint.distributed writes and reads them. Without either, this is
    the first start.
    """

    file: BinaryIO | None = None
    versions: tuple[Message, ...] = ()


class Downloader:
    """One worker's downloads of the checkpoint; `download` blocks only the thread that calls it."""

    def __init__(self, connect: Callable[[Message], BlockingChannel], folder: str, lost: threading.Event) -> None:
        """`connect` opens a connection to download by, or raises OSError or WireError; `lost`: the link is gone.

        `folder` is the node's folder for this trainer, "" if there is none.
        """
        self._connect = connect
        self._folder = folder
        self._lost = lost
        self._has_shared = False

    def forget(self) -> None:
        """Remove the file that the node's workers share, in the background: training has begun, so all have it."""
        if self._has_shared:
            self._has_shared = False
            threading.Thread(target=forget, args=(self._folder,), name="bft-forget", daemon=True).start()

    def download(self, ask: Callable[[], CheckpointOffer | Download | ElasticError]) -> Download:
        """Return the driver's answer, which `ask` gets, with the checkpoint if there is one; raises an error in it.

        A broken connection is made anew as long as the link holds. Raises CheckpointError if the checkpoint arrives
        altered again and again.
        """
        altered = 0
        while True:
            answer = ask()
            if isinstance(answer, ElasticError):
                raise answer
            if isinstance(answer, Download):
                return answer
            try:
                file = shared(self._folder, answer, self._copy_of(answer))
                self._has_shared = bool(self._folder)
                return Download(file)
            except WireError as error:
                altered += isinstance(error, AlteredError)
                if altered >= _ALTERED_TRIES:
                    raise CheckpointError(
                        f"the checkpoint cannot be had: {error}, {altered} times; it is kept"
                    ) from None
                self._lost.wait(_AGAIN_S)

    def _copy_of(self, offer: CheckpointOffer) -> Callable[[BinaryIO], None]:
        """Return a function that writes the offer's content to a file; it raises WireError, or OSError of the file."""

        def copy(file: BinaryIO) -> None:
            try:
                channel = self._connect({"what": DOWNLOAD})
            except OSError as error:
                raise WireError(f"the driver could not be reached for the checkpoint: {error}") from None
            try:
                about = _announced(channel)
                if CheckpointOffer.parse({**about, "size": about.get("bytes")}) != offer:
                    raise WireError("the driver has another checkpoint by now")
                receive_file(channel, about, file)
            finally:
                channel.hang_up()
                channel.close()

        return copy


def _announced(channel: BlockingChannel) -> Message:
    """Receive the driver's announcement of a checkpoint; raises WireError."""
    about = channel.receive()
    if about is None or about["op"] != "sending":
        raise WireError("the driver hung up instead of sending the checkpoint")
    return about


def answer_of(message: Message) -> CheckpointOffer | Download | ElasticError:
    """Parse the driver's answer to a request for the checkpoint."""
    if message.get("none") is True:
        return Download()
    if (offer := CheckpointOffer.parse(message)) is not None:
        return offer
    if isinstance(versions := message.get("generations"), list):
        return Download(versions=tuple(versions))
    why = message.get("error", "the driver's answer cannot be understood")
    return CheckpointError(f"the checkpoint cannot be read: {why}; it is kept, and the job can be submitted again")
