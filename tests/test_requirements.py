"""The lock against setup.cfg and what is installed; each release that setup.cfg leaves out against its fault."""

from __future__ import annotations

import configparser
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
LOCKS = ("tools/requirements.lock", "tools/package/release.lock")
NOT_LOCKED = {"models", "pyslurm", "release"}
"""Extras that set-up does not install: pyslurm must be of the site's Slurm release, models are for a benchmark, release
has a lock of its own."""


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def lines(text: str) -> Iterator[Requirement]:
    """The requirements of a text with one a line."""
    return (Requirement(line) for line in text.splitlines() if line and not line.startswith("#"))


def required(lock: str = LOCKS[0]) -> list[Requirement]:
    """All that a lock is to have, as it is written by hand."""
    parser = setup_cfg()
    if lock != LOCKS[0]:
        return list(lines(parser["options.extras_require"]["release"]))
    texts = [text for name, text in parser["options.extras_require"].items() if name not in NOT_LOCKED]
    texts += [parser["options"]["install_requires"], (ROOT / "tools" / "requirements.in").read_text()]
    return [requirement for text in texts for requirement in lines(text)]


def entries(lock: str = LOCKS[0]) -> list[str]:
    """The entries of a lock, each with its hashes."""
    return re.findall(r"(?m)^[^\s#].*\n(?:[ ]+--hash.*\n)*", (ROOT / lock).read_text())


def environment(python: str | None = None) -> dict[str, str]:
    """What markers are judged by: this Python's, or another release's."""
    made = {name: str(value) for name, value in default_environment().items()}
    return made if python is None else made | {"python_version": python, "python_full_version": f"{python}.1"}


def locked(python: str | None = None, lock: str = LOCKS[0]) -> dict[str, Version]:
    """The packages that a lock has for a Python, by canonical name."""
    found: dict[str, Version] = {}
    for entry in entries(lock):
        requirement = Requirement(entry.split("\\\n")[0])
        if requirement.marker is None or requirement.marker.evaluate(environment(python)):
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            assert found.setdefault(canonicalize_name(requirement.name), Version(pin.version)) == Version(pin.version)
    return found


def needs(requirements: list[Requirement], python: str | None = None, extra: str = "") -> list[Requirement]:
    """Those whose markers hold."""
    where = environment(python) | {"extra": extra}
    return [item for item in requirements if item.marker is None or item.marker.evaluate(where)]


def static() -> dict[str, list[Requirement]]:
    """What pyproject.toml tells the lock's tool of packages that it cannot read."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["dependency-metadata"]
    return {item["name"]: [Requirement(text) for text in item["requires-dist"]] for item in told}


def installed() -> dict[str, metadata.Distribution]:
    """The distributions of this environment, by canonical name."""
    return {canonicalize_name(item.metadata["Name"]): item for item in metadata.distributions(path=[_site()])}


def _site() -> str:
    return str(Path(str(importlib.util.find_spec("pytest").origin)).parents[1])  # type: ignore[union-attr]


@pytest.fixture
def made_by_the_lock() -> None:
    if not (Path(sys.prefix) / ".bftd-lock").exists():
        pytest.skip("this environment was not made by tools/setup.sh")


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_has_a_release_of_all_that_is_required_which_its_range_admits(python: str, lock: str) -> None:
    there = locked(python, lock)
    for requirement in needs(required(lock), python):
        version = there[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement


@pytest.mark.parametrize("lock", LOCKS)
def test_every_release_of_a_lock_has_its_hashes_and_no_place_to_come_from(lock: str) -> None:
    found = entries(lock)
    assert len(found) > 50
    for entry in found:
        head, *hashes = entry.replace("\\\n", "\n").split("\n")
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [^/@]+)?", head.strip()), head
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", text.strip()) for text in hashes if text.strip()), head


def test_what_the_lock_is_told_of_torch_and_horovod_is_what_they_say() -> None:
    there = installed()
    told = static()
    assert sorted(told) == ["horovod", "torch"]
    for name, requirements in told.items():
        if name not in there:
            continue
        said = needs([Requirement(text) for text in there[name].requires or ()])
        assert {str(item) for item in said if not _pinned(item)} == {str(item) for item in requirements}


def _pinned(requirement: Requirement) -> bool:
    """Whether only one release will do, as torch's builds with CUDA say of the packages that they come with."""
    return [item.operator for item in requirement.specifier] == ["=="]


@pytest.mark.usefixtures("made_by_the_lock")
def test_what_is_installed_is_what_the_lock_has_and_the_project() -> None:
    there = installed()
    versions = {name: Version(item.version.split("+")[0]) for name, item in there.items()}
    # `make venv` has no horovod; pip is Python's own.
    wanted = {name: version for name, version in locked().items() if name in versions or name != "horovod"}
    torchs = {
        canonicalize_name(item.name) for text in there["torch"].requires or () if _pinned(item := Requirement(text))
    }
    assert {name: version for name, version in versions.items() if name not in torchs | {"pip", "bftd"}} == wanted


@pytest.mark.usefixtures("made_by_the_lock")
def test_all_that_is_installed_is_needed_by_something() -> None:
    there, told = installed(), static()
    reached: set[tuple[str, str]] = set()
    left = [(item, extra) for item in needs(required()) for extra in ("", *item.extras)]
    while left:
        requirement, extra = left.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in reached:
            continue
        reached.add((name, extra))
        if name in told:
            further = told[name]
        else:
            further = needs([Requirement(text) for text in there[name].requires or ()], extra=extra)
        left += [(item, extra) for item in further for extra in ("", *item.extras)]
    assert {name for name, _ in reached} == set(locked())


def test_set_up_installs_nothing_that_is_not_locked() -> None:
    script = (ROOT / "tools" / "setup.sh").read_text()
    for words in re.findall(r'(?m)^ *(?:pip_install|"\$VENV/bin/pip" wheel) (.*)', script.split("make_latest")[0]):
        assert "--no-deps" in words or 'torch==$(locked_version torch)"' in words, words


def highspy_gives_the_start_for_the_optimum() -> bool:
    import highspy

    engine: Any = highspy.Highs()
    engine.silent()
    a, b, c, d, e = (engine.addIntegral(0, up, cost) for up, cost in ((1, -6), (2, -3), (1, -17), (4, 0), (2, 0)))
    for row in (b <= 2 * a, a + c <= 1, d + e - 2 * a - b - 2 * c == 0, d <= 4 * a, e <= 2 * c):
        engine.addConstr(row)
    start = highspy.HighsSolution()
    start.col_value = [0.0] * 5
    engine.setSolution(start)
    engine.run()
    assert engine.getInfo().objective_function_value == pytest.approx(-17.0)
    return bool(engine.getSolution().col_value[2] < 0.5)


LEFT_OUT: Mapping[str, tuple[str, Callable[[], bool]]] = {
    "highspy": ("!=1.16.0", highspy_gives_the_start_for_the_optimum),
}
"""By package: what its range leaves out, and whether the release that is installed has the fault."""


def test_a_range_leaves_out_only_what_is_known_to_be_wrong() -> None:
    found = {
        (requirement.name, str(item))
        for requirement in required()
        for item in requirement.specifier
        # two that others are compiled against or with, and the release that a back-end is written for
        if item.operator != ">=" and requirement.name not in {"torch", "cmake", "horovod"}
    }
    assert found == {(name, part) for name, (part, _) in LEFT_OUT.items()}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_the_release_that_is_installed_has_not_the_fault_of_the_one_that_is_left_out(name: str) -> None:
    part, has_fault = LEFT_OUT[name]
    assert not has_fault(), f"{name} {metadata.version(name)} is wrong too: leave it out of setup.cfg beside {part}"


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_range_leaves_out_goes_when_its_lower_bound_has_passed_it(name: str) -> None:
    part, _ = LEFT_OUT[name]
    lowest = [
        Version(item.version)
        for requirement in required()
        if requirement.name == name
        for item in requirement.specifier
        if item.operator == ">="
    ]
    assert lowest < [Version(part.removeprefix("!="))], f"take {part} of {name} out of setup.cfg"
