"""The table of docs/architecture.md: who may import whom, and which packages touch nothing outside themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("milp", "bftd", "slurm_plugin", "elastic", "sizing", "studies")
# What a pure package may import from elsewhere: modules that only compute, and the libraries of solvers and node sets.
INSIDE = frozenset(
    [
        "__future__",
        "abc",
        "bisect",
        "collections",
        "csv",
        "dataclasses",
        "datetime",
        "difflib",
        "enum",
        "fnmatch",
        "functools",
        "hashlib",
        "heapq",
        "importlib",
        "ipaddress",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "shlex",
        "statistics",
        "typing",
    ]
) | frozenset(["ClusterShell", "gurobipy", "highspy", "numpy"])
# What it must not call: functions, and the clocks of datetime.
OPENING = frozenset({"open", "print", "input", "exec", "eval", "__import__"})
CLOCKS = frozenset({"now", "today", "utcnow"})


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imported(module: str) -> Iterator[tuple[str, int]]:
    """Every module that one names in an import, wherever it stands, with the line."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} imports by dots"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in MODULES else str(node.module)), node.lineno


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of the page."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell: str) -> list[str]:
    """The names in a cell, as written between backquotes."""
    return re.findall(r"`([\w.]+)`", cell)


ROWS = {names(row[0])[0]: names(row[2]) for row in rows("Who imports whom")}
PURE = [name for row in rows("What touches nothing") for name in names(row[1])]


def package_of(module: str) -> str:
    """The package of a module: the longest name of the table that it begins with."""
    fits = [package for package in ROWS if module == package or module.startswith(f"{package}.")]
    assert fits, f"{module} has no row in docs/architecture.md"
    return max(fits, key=len)


def foreign(module: str) -> Iterator[tuple[str, str, int]]:
    """The imports of a module that lead to another package of ours: the package, the module and the line."""
    mine = package_of(module)
    for name, line in imported(module):
        if name.split(".")[0] in PACKAGES and package_of(name) != mine:
            yield package_of(name), name, line


def test_every_package_of_the_table_is_there_and_no_folder_lies_outside_it() -> None:
    for package in ROWS:
        assert package in MODULES or package == "bftd", f"{package} is in the table and not in the tree"
    assert {package_of(module) for module in MODULES} == ROWS.keys()
    # a file at the top of the daemon's package needs a row of its own
    assert [module for module in MODULES if package_of(module) == "bftd"] == ["bftd"]


@pytest.mark.parametrize("package", ROWS)
def test_a_package_imports_only_what_its_row_allows(package: str) -> None:
    allowed = ROWS[package]
    wrong = [
        f"{module}:{line} imports {name}"
        for module in MODULES
        if package_of(module) == package
        for other, name, line in foreign(module)
        if other not in allowed and name not in allowed
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ROWS)
def test_a_row_allows_nothing_that_nobody_uses(package: str) -> None:
    used = {
        name for module in MODULES if package_of(module) == package for pair in foreign(module) for name in pair[:2]
    }
    assert not [name for name in ROWS[package] if name not in used]


def test_no_two_modules_import_each_other_however_far_round() -> None:
    edges = {}
    for module in MODULES:
        named = {name for name, _ in imported(module) if name in MODULES}
        # Python runs a package before what is in it; the packages at the top are only what others import
        packages = {name.rpartition(".")[0] for name in named if name.count(".") > 1}
        edges[module] = (named | packages) - {module, module.rpartition(".")[0]}
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> None:
        assert module not in way, " -> ".join([*way[way.index(module) :], module])
        if module not in done:
            for other in sorted(edges[module]):
                walk(other, [*way, module])
            done.add(module)

    for module in MODULES:
        walk(module, [])


@pytest.mark.parametrize("pure", PURE)
def test_a_pure_package_touches_no_clock_file_socket_randomness_or_log(pure: str) -> None:
    assert pure in ROWS, f"{pure} is no package of the table"
    wrong = []
    for module in (name for name in MODULES if package_of(name) == pure):
        known = INSIDE | set(PACKAGES)
        for_types = {
            inner.lineno
            for node in tree_of(module).body
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for inner in node.body
        }
        wrong += [
            f"{module}:{line} imports {name}"
            for name, line in imported(module)
            if name.split(".")[0] not in known and line not in for_types
        ]
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Call):
                called = node.func
                if (isinstance(called, ast.Name) and called.id in OPENING) or (
                    isinstance(called, ast.Attribute) and called.attr in CLOCKS
                ):
                    wrong.append(f"{module}:{node.lineno} calls {ast.unparse(called)}")
    assert not wrong, "\n".join(wrong)


def test_who_starts_without_the_heavy_ones() -> None:
    """torch, horovod, gurobipy and pyslurm are a site's: nothing of the daemon or of `bft` imports them at its top."""
    heavy = {"torch", "horovod", "gurobipy", "pyslurm", "matplotlib", "psutil"}
    for module in MODULES:
        if module.split(".")[0] == "elastic" or module.startswith("sizing.tracer"):
            continue
        for node in tree_of(module).body:
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not heavy & {name.split(".")[0] for name in found}, f"{module}:{node.lineno}"


def test_private_parts_of_torch_are_used_in_two_modules_alone() -> None:
    """Each of torch's releases may change them; those two modules name what each is for."""
    inside = {"sizing.tracer.torch_internals", "sizing.tracer.autograd_internals"}
    users = {module for module in MODULES for node in ast.walk(tree_of(module)) if _is_private_to_torch(node)}
    assert users == inside


def _is_private_to_torch(node: ast.AST) -> bool:
    paths: list[str] = []
    if isinstance(node, ast.Import):
        paths = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        paths = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Attribute):
        paths = [ast.unparse(node)]
    # the names of operators are those that PyTorch's own documents use
    own = [path.split(".") for path in paths if path.startswith("torch.") and not path.startswith("torch.ops.")]
    return any(part.startswith("_") and not part.endswith("__") for parts in own for part in parts)


def test_a_docstring_begins_with_its_subject_or_verb_and_with_no_question_word() -> None:
    asking = re.compile(r"(What|Which|Who|Whom|Whose|How|When|Where)\b")
    found = [
        f"{module}:{line.lineno}"
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(body := getattr(node, "body", None), list)
        for line in body
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
        if isinstance(line.value.value, str) and asking.match(line.value.value.strip())
    ]
    assert not found


def test_a_constant_has_one_place() -> None:
    """A second one lower down would be the one that counts, and the words above the first would lie."""
    twice = []
    for module in MODULES:
        names = [
            target.id
            for node in tree_of(module).body
            for target in (node.targets if isinstance(node, ast.Assign) else ())
            if isinstance(target, ast.Name) and target.id.isupper()
        ]
        twice += [f"{module}.{name}" for name in set(names) if names.count(name) > 1]
    assert twice == []


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    long = {module: length for module, path in MODULES.items() if (length := len(path.read_text().splitlines())) > 430}
    assert not long
