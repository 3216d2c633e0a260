"""bftd's own top-level packages, found beside this one where a user's folder or file has the same name.

`elastic` and `milp` are likely names, and Python looks into the script's folder and $PYTHONPATH first.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NAMES = frozenset({"elastic", "milp", "sizing", "slurm_plugin", "studies"})
# Those that agents and workers import.
_ON_NODES = ("bftd", "elastic", "slurm_plugin")


class _Finder:
    """A finder for sys.meta_path."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Return where the package is; None for a name that is not ours."""
        return _spec(name) if name in _NAMES else None


def find_first() -> None:
    """Let the rest of this process find bftd's packages before anybody else's; for bftd's own programs."""
    sys.meta_path.insert(0, _Finder())


def package(name: str) -> ModuleType:
    """Import one of bftd's packages; raises ImportError if another module of its name is imported already."""
    module = sys.modules.get(name)
    if module is None:
        spec = _spec(name)
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    found = getattr(module, "__file__", None) or name
    if not _is_ours(found, name):
        raise ImportError(f"{found} hides bftd's package {name}: rename it")
    return module


def namesake(folders: Iterable[str]) -> str:
    """Return the path of a module in one of the folders with the name of a package that nodes import; "" for none."""
    for folder in folders:
        for name in _ON_NODES:
            for path in (os.path.join(folder, f"{name}.py"), os.path.join(folder, name, "__init__.py")):
                if os.path.exists(path) and not _is_ours(path, name):
                    return path
    return ""


def _spec(name: str) -> ModuleSpec:
    spec = PathFinder.find_spec(name, [_ROOT])  # in a container, the root is an archive
    if spec is None:
        raise ImportError(f"bftd's package {name} is not in {_ROOT}: install bftd again")
    return spec


def _is_ours(path: str, name: str) -> bool:
    own = os.path.join(_ROOT, name, "__init__.py")
    return path == own or (os.path.exists(path) and os.path.exists(own) and os.path.samefile(path, own))
