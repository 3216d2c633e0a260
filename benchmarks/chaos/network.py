"""A network and a host name of its own for each compute node, all on one bridge: a node can be cut off from everybody.

The benchmark itself, the controller, the service node and the drivers are in a private network at the bridge; mounts
are private too. Nothing of it outlives the benchmark's last process. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bftd.base.errors import BftError

HERE = "10.77.0.254"
"""The address of the controller and of the drivers, for nodes."""

_INSIDE = "BFT_CHAOS_INSIDE"
_UP_S = 10.0


def enter() -> None:
    """Run this program again in a network and with mounts of its own, unless it does already; raises BftError."""
    if os.environ.get(_INSIDE):
        _ip("link", "set", "lo", "up")
        return
    namespaces = ["unshare", "--net", "--mount"]
    if subprocess.run([*namespaces, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        raise BftError(
            "only root may give each node a network of its own, which is how nodes are cut off: run it as root"
        )
    program = [sys.executable, *sys.orig_argv[1:]]
    os.execvpe(namespaces[0], [*namespaces, "--", *program], {**os.environ, _INSIDE: "1"})


class Network:
    """The bridge with a link to each node; `environ` marks the processes that keep the nodes' networks there.

    A node's name leads to its address, by the file `hosts`: Horovod asks for it, whatever interface it is told.
    """

    def __init__(self, nodes: Sequence[str], environ: Mapping[str, str], hosts: Path) -> None:
        lines = [f"{address_of(node)} {node}\n" for node in nodes]
        hosts.write_text(f"{Path('/etc/hosts').read_text()}\n{''.join(lines)}")
        _run(["mount", "--bind", str(hosts), "/etc/hosts"])
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        _ip("link", "add", "nodes", "type", "bridge")
        _ip("address", "add", f"{HERE}/24", "dev", "nodes")
        _ip("link", "set", "nodes", "up")
        own = os.readlink("/proc/self/ns/net")
        for node in nodes:
            holder = subprocess.Popen(["unshare", "--net", "--uts", "sleep", "infinity"], env=dict(environ))
            self._holders[node] = holder
            until_s = time.monotonic() + _UP_S
            while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
                if time.monotonic() > until_s:
                    raise BftError(f"{node} got no network of its own: unshare does not start")
                time.sleep(0.01)
            _ip("link", "add", f"to-{node}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
            inside = self.within(node)
            for words in (
                f"ip address add {address_of(node)}/24 dev eth0",
                "ip link set lo up",
                "ip link set eth0 up",
                f"hostname {node}",
            ):
                _run([*inside, *words.split()])
            _ip("link", "set", f"to-{node}", "master", "nodes", "up")

    def within(self, node: str) -> list[str]:
        """Return the words before a command that runs it on a node."""
        return ["nsenter", "--net", "--uts", "--target", str(self._holders[node].pid)]

    def cut(self, node: str) -> None:
        """Have nothing pass to or from a node, without a word to either side."""
        _ip("link", "set", f"to-{node}", "nomaster")

    def mend(self, node: str) -> None:
        """Undo that."""
        _ip("link", "set", f"to-{node}", "master", "nodes")


def address_of(node: str) -> str:
    """Return the address of the compute node n1, n2, ..."""
    return f"10.77.0.{int(node.removeprefix('n'))}"


class Disk:
    """A file system of its own in the memory of this machine, that can be filled up."""

    def __init__(self, folder: Path, size_mib: int) -> None:
        folder.mkdir()
        self._folder = folder
        _run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=755", "tmpfs", str(folder)])

    def fill(self) -> None:
        """Leave no space in it; what is freed later is free."""
        for size in (1 << 20, 1 << 12):
            with (self._folder / ".filled").open("ab", buffering=0) as file:
                try:
                    while file.write(b"\0" * size) == size:
                        pass
                except OSError:
                    continue

    def empty(self) -> None:
        """Give the space back."""
        (self._folder / ".filled").unlink(missing_ok=True)

    def unmount(self) -> None:
        """Leave an empty folder behind, whoever still has a file open there."""
        subprocess.run(["umount", "--lazy", str(self._folder)], stderr=subprocess.DEVNULL, check=False)


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BftError(f"{' '.join(argv)} failed: {done.stderr.strip()}")
