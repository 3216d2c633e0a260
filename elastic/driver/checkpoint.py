"""The trainer's saved state on disk: what it resumes with after it lost every node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

from elastic.errors import WireError
from elastic.link.peer import Peer
from elastic.link.wire import CHUNK_BYTES, Payload


def private_folder(folder: Path) -> None:
    """Make a trainer's folder, for its user alone: the state in it is a whole model."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)  # it may be there already


class CheckpointStore:
    """Keeps the state of the highest step; a half-received or older one never replaces it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "state.pt"
        self._lock = asyncio.Lock()
        self._uploads = 0
        self.step = -1
        self.samples = 0
        private_folder(folder)
        for leftover in folder.glob("state.upload-*"):
            leftover.unlink()
        with contextlib.suppress(OSError, ValueError, KeyError):
            meta = json.loads((folder / "state.json").read_text())
            if self._path.exists():
                self.step, self.samples = int(meta["step"]), int(meta["samples"])

    async def receive(self, reader: Payload, size_bytes: int, step: int, samples: int) -> bool:
        """Reads `size_bytes` from `reader`; returns whether they are the state now. Raises WireError when cut short."""
        self._uploads += 1
        upload = self._folder / f"state.upload-{self._uploads}"
        try:
            await self._read_into(upload, reader, size_bytes)
            return await self._adopt(upload, step, samples)
        finally:
            upload.unlink(missing_ok=True)

    async def _read_into(self, upload: Path, reader: Payload, size_bytes: int) -> None:
        left = size_bytes
        with upload.open("wb") as file:
            while left:
                chunk = await reader.read(min(left, CHUNK_BYTES))
                if not chunk:
                    raise WireError("a worker went away in the middle of a checkpoint")
                # A model of gigabytes must not stop the driver's loop, which answers give-backs.
                await asyncio.to_thread(file.write, chunk)
                left -= len(chunk)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())

    async def _adopt(self, upload: Path, step: int, samples: int) -> bool:
        async with self._lock:
            if step < self.step:
                return False
            meta = self._folder / "state.json.new"
            meta.write_text(json.dumps({"step": step, "samples": samples}))
            os.replace(upload, self._path)
            os.replace(meta, self._folder / "state.json")
            self.step, self.samples = step, samples
            return True

    async def send(self, peer: Peer) -> None:
        """Sends the state to a worker, or that there is none yet."""
        if self.step < 0:
            peer.send({"op": "fetched", "none": True})
            return
        # Opened before the first await: a newer state may be put in its place meanwhile.
        with self._path.open("rb") as file:
            await peer.send_file({"op": "fetched"}, file, os.fstat(file.fileno()).st_size)

    def remove(self) -> None:
        """Forgets the state: the trainer has ended well."""
        for name in ("state.pt", "state.json"):
            (self._folder / name).unlink(missing_ok=True)
