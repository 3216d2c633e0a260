"""What `milp` imports: its modules form no circle, and only the listed ones may know time, files and processes."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Modules that may import what makes an answer depend on more than the question.
IMPURE = {
    "milp.solving": {"time"},
    "milp.solvers.programs.process": {
        "atexit",
        "ctypes",
        "os",
        "pathlib",
        "selectors",
        "signal",
        "subprocess",
        "sys",
        "threading",
    },
    "milp.solvers.programs.child": {"os", "signal", "sys"},
}
WATCHED = {
    "asyncio",
    "datetime",
    "io",
    "logging",
    "multiprocessing",
    "random",
    "secrets",
    "shutil",
    "socket",
    "tempfile",
    *(name for names in IMPURE.values() for name in names),
}


def modules() -> dict[str, ast.Module]:
    """Every module of the package by its name."""
    found = {}
    for path in sorted((ROOT / "milp").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


MODULES = modules()


def imported(name: str) -> set[str]:
    """What a module imports, anywhere in it: a module of ours by its full name, of others all of the name."""
    found = set()
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if each in MODULES else str(node.module) for each in inner}
    return found


def with_packages(names: set[str]) -> set[str]:
    """The modules of ours among them, and the packages that Python runs before those."""
    ours = {name for name in names if name in MODULES}
    return ours | {name[:place] for name in ours for place, char in enumerate(name) if char == "."}


def test_no_module_needs_another_to_come_first() -> None:
    """Without circles, that through a package's own `__init__` included, any module can be the first to be imported."""
    order = TopologicalSorter({name: with_packages(imported(name)) - {name, "milp"} for name in MODULES})
    assert set(order.static_order()) == set(MODULES)  # it raises where there is a circle
    assert not any("milp" in imported(name) for name in MODULES)


def test_the_package_imports_nothing_else_of_this_project() -> None:
    for name in MODULES:
        outside = {each.split(".")[0] for each in imported(name)} & {"bftd", "elastic", "slurm_plugin", "benchmarks"}
        assert outside == set(), name


def test_clock_files_processes_and_chance_are_in_the_listed_modules_alone() -> None:
    found = {name: {each.split(".")[0] for each in imported(name)} & WATCHED for name in MODULES}
    assert {name: impure for name, impure in found.items() if impure} == IMPURE


def test_nothing_is_read_or_written_by_name() -> None:
    for name, tree in MODULES.items():
        calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "id")}
        assert not calls & {"open", "print", "input"}, name
