"""Starting bftd's own modules inside a user's image: what has to be there inside, and what must not come with it.

Of the host nothing is needed but one file, made anew in a folder that is bound: bftd's Python modules that run beside
the script, as an archive that Python itself can run. It holds no other package, so that it hides none of the image's.
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
from elastic.errors import ElasticError

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
"""Where images that do not say otherwise have their programs."""

_HOSTS = re.compile(
    # how the host finds programs, libraries and Python modules: inside they are others, or not there
    r"PATH|TMPDIR|LD_.*|PYTHON(HOME|PATH|STARTUP|USERBASE|EXECUTABLE|PLATLIBDIR)|VIRTUAL_ENV.*|CONDA.*|_CONDA.*|PYENV.*"
    r"|MANPATH|MODULE.*|LOADEDMODULES|_LMFILES_|LMOD.*|__LMOD.*|_ModuleTable.*|BASH_ENV|ENV|BASH_FUNC_.*"
    # not for a runtime's eyes
    r"|BFT_SECRET"
)
_OURS = ("BFT_SECRET", "TMPDIR")
"""Of these names, what an agent sets itself: the process inside is told them."""

_SHARED: Mapping[str, tuple[str, ...]] = {"ch-run": ("/tmp", "/dev", "/proc", "/sys")}
"""Folders that a runtime shares by itself, and in which it can make no mount point."""


class ContainerError(ElasticError):
    """Nothing can be started in the image here; the text says what to do."""


@dataclass(frozen=True)
class Container:
    """A user's image and how the site starts a command in it; `binds` are folders of the host that are to be inside."""

    template: str
    image: str
    cwd: str
    binds: tuple[str, ...]

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Container:
        """As the driver tells it."""
        return cls(
            str(message["template"]), str(message["image"]), str(message["cwd"]), tuple(map(str, message["binds"]))
        )

    @property
    def is_step(self) -> bool:
        """Whether Slurm makes the container, for a job step of its own (Pyxis)."""
        return templates.is_step(self.template)

    def command(self, folder: str, interpreter: str, module: str, arguments: Sequence[str]) -> list[str]:
        """The words that run one of bftd's modules inside, from an archive in `folder`; raises ContainerError."""
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
    """Writes into a folder what runs inside of bftd."""
    protocol = Path(templates.__file__).parent
    elastic = Path(__file__).parents[1]
    with zipfile.ZipFile(f"{folder}/{ARCHIVE}", "w") as archive:
        archive.writestr("__main__.py", _START)
        for package, root in ((elastic, elastic.parent), (protocol, protocol.parents[1])):
            for path in sorted(package.rglob("*.py")):
                archive.write(path, path.relative_to(root))
        archive.write(protocol.parent / "__init__.py", "bftd/__init__.py")


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that a runtime is started with: the user's, without what is the host's alone."""
    kept = {name: value for name, value in environ.items() if not _HOSTS.fullmatch(name)}
    # Packages below the home folder are of the host's Python, and some runtimes show that folder inside.
    return {"USER": _user(), **kept, "PATH": _PATH, "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1"}


def inside(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment is told to the process inside itself, whatever its runtime lets through."""
    return {name: value for name, value in environ.items() if name in _OURS or not _HOSTS.fullmatch(name)}


def _there(path: str) -> str:
    """A folder of this host, or the nearest one above it that is here: it is made by and by, and must not be inside."""
    while path != "/" and not os.path.isdir(path):
        path = os.path.dirname(path.rstrip("/")) or "/"
    return path


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
