"""Starting bftd's own modules inside a user's image: what must exist inside, and what must not come from the host.

The host provides one file only, made anew in a folder that is bound: bftd's Python modules that run beside the script,
as an archive that Python itself can run. It holds no other package, so that it hides none of the image's.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftd.protocol import container as templates
from elastic.base.errors import ElasticError

ARCHIVE = ".bft.pyz"

_START = """\
import os, sys

if sys.version_info < (3, 10):
    told = (sys.executable, sys.version_info[0], sys.version_info[1])
    sys.stderr.write("bft: %s is Python %d.%d; bftd needs Python 3.10 or newer in the image\\n" % told)
    sys.exit(1)
archive = os.path.dirname(os.path.abspath(__file__))
if sys.path[:1] != [archive]:
    sys.path.insert(0, archive)
# What the script starts may import elastic too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [archive, os.environ.get("PYTHONPATH")]))
sys.argv = sys.argv[1:]
import runpy

runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The usual program folders, for images that do not set PATH."""

_HOSTS = re.compile(
    # The host's paths of programs, libraries and Python modules: inside they differ or do not exist.
    r"PATH|TMPDIR|LD_.*|PYTHON(HOME|PATH|STARTUP|USERBASE|EXECUTABLE|PLATLIBDIR)|VIRTUAL_ENV.*|CONDA.*|_CONDA.*|PYENV.*"
    r"|MANPATH|MODULE.*|LOADEDMODULES|_LMFILES_|LMOD.*|__LMOD.*|_ModuleTable.*|BASH_ENV|ENV|BASH_FUNC_.*"
    # Hidden from the runtime.
    r"|BFT_SECRET"
)
_OURS = ("BFT_SECRET", "TMPDIR")
"""Variables among these that an agent sets itself, and passes to the process inside."""

_SHARED: Mapping[str, tuple[str, ...]] = {"ch-run": ("/tmp", "/dev", "/proc", "/sys")}
"""Folders that a runtime shares by itself, in which it cannot make mount points."""


class ContainerError(ElasticError):
    """Nothing can be started in the image here; the text says what to do."""


@dataclass(frozen=True)
class Container:
    """A user's image and how the site starts a command in it; `binds` are host folders that must exist inside."""

    template: str
    image: str
    cwd: str
    binds: tuple[str, ...]

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Container:
        """Build it from the driver's message."""
        return cls(
            str(message["template"]), str(message["image"]), str(message["cwd"]), tuple(map(str, message["binds"]))
        )

    @property
    def is_step(self) -> bool:
        """Whether Slurm makes the container, for a job step of its own (Pyxis)."""
        return templates.is_step(self.template)

    def command(self, folder: str, interpreter: str, module: str, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs a module of ours inside, from an archive in `folder`; raises ContainerError."""
        inside = [interpreter, "-u", f"{folder}/{ARCHIVE}", module, *arguments]
        try:
            shared = _SHARED.get(templates.words(self.template)[0].rpartition("/")[2], ())
            there = [path for path in map(_there, (*self.binds, self.cwd, folder)) if path != "/"]
            words = templates.command(self.template, self.image, self.cwd, templates.outermost(there, shared), inside)
        except ValueError as error:
            raise ContainerError(str(error)) from None
        found = shutil.which(words[0])
        if found is None and not self.is_step:
            raise ContainerError(
                f"container={self.image}: {words[0]} is not installed on every node; "
                "submit without container=, or ask the site's administrator about [elastic] container"
            )
        return [found or words[0], *words[1:]]


def pack(folder: str) -> None:
    """Write the archive of bftd's modules that run inside to a folder."""
    protocol = Path(templates.__file__).parent
    elastic = Path(__file__).parents[1]
    with zipfile.ZipFile(f"{folder}/{ARCHIVE}", "w") as archive:
        archive.writestr("__main__.py", _START)
        for package, root in ((elastic, elastic.parent), (protocol, protocol.parents[1])):
            for path in sorted(package.rglob("*.py")):
                archive.write(path, path.relative_to(root))
        for name in ("__init__.py", "own_packages.py"):
            archive.write(protocol.parent / name, f"bftd/{name}")


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment to start a runtime with: the user's, without variables of the host alone."""
    kept = {name: value for name, value in environ.items() if not _HOSTS.fullmatch(name)}
    # Packages below the home folder are for the host's Python, and some runtimes show that folder inside.
    return {"USER": _user(), **kept, "PATH": _PATH, "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1"}


def inside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the process inside gets by message, whatever its runtime passes on."""
    return {name: value for name, value in environ.items() if name in _OURS or not _HOSTS.fullmatch(name)}


def _there(path: str) -> str:
    """Return a folder of this host, or its nearest existing parent: made later, it must not be in the image alone."""
    while path != "/" and not os.path.isdir(path):
        path = os.path.dirname(path.rstrip("/")) or "/"
    return path


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
