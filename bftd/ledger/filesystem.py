"""The ledger's host: the type of its file system, which no other host may serve, its errors, and the host's start.

With SQLite's write-ahead log all processes share memory through a file beside the ledger, which works on one host only
(https://sqlite.org/wal.html), and a file server that hangs would hold up the loop that serves give-backs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

# Names as the kernel writes them in mountinfo; of FUSE file systems, those served by another host.
_SHARED_DISKS = ("gfs2", "ocfs2")
_SERVED = ("afs", "cifs", "coda", "ncp", "ncpfs", "nfs", "nfs4", "smb2", "smb3", "smbfs", "sshfs")
_PARALLEL = ("beegfs", "ceph", "cvfs", "glusterfs", "gpfs", "lustre", "orangefs", "panfs", "pvfs2", "wekafs")
NETWORK = frozenset((*_SHARED_DISKS, *_SERVED, *_PARALLEL))

# A blank in a folder's name, and other characters that would end a field.
_ESCAPED = re.compile(r"\\([0-7]{3})")


def boot_id() -> str:
    """Return the id of this start of the host, "" if the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def network_type(path: Path, mounts: str | None = None) -> str | None:
    """Return the type of the file system of `path` if other hosts serve it, None if it is local.

    `mounts` is the text of /proc/self/mountinfo. If that cannot be read, the file system counts as local; SQLite then
    finds out whether shared memory works there.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    kind = _type_of(os.path.realpath(path), mounts)
    return kind if kind.removeprefix("fuse.") in NETWORK else None


def _type_of(path: str, mounts: str) -> str:
    """Return the type of the mount nearest above an absolute path; of several mounts on one folder the last counts."""
    nearest, kind = "", ""
    for line in mounts.splitlines():
        # 36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        folder = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4])
        within = folder == "/" or path == folder or path.startswith(folder + "/")
        if within and len(folder) >= len(nearest):
            nearest, kind = folder, after.split(" ")[0]
    return kind


def advice(error: Exception) -> str:
    """Return advice on a file error, by its text: sqlite3 errors have no number before Python 3.11."""
    text = str(error).lower()
    if "full" in text or "no space" in text or "disk i/o" in text or "quota" in text:
        return "free space on its disk, or see that the disk is sound"
    if "locked" in text:
        return "end the other program that writes to it"
    if "readonly" in text or "read-only" in text or "permission" in text or "unable to open" in text:
        return "let the daemon's user write to it and its folder"
    return "move it away to begin a new one"
