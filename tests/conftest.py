"""Skips what this machine cannot run, with the reason; where everything is required, a gap is a failure instead."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import inspect
import os
import re
import shutil
import signal
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import program

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.support.clusters import Clusters

_NEEDS = {
    "cluster": (lambda: shutil.which("slurmctld", path=_PATH) is not None, "slurmctld is not installed"),
    "accounting": (
        lambda: all(shutil.which(name, path=_PATH) for name in ("slurmdbd", "mariadbd", "mariadb-install-db")),
        "slurmdbd or mariadbd is not installed",
    ),
    "torch": (lambda: importlib.util.find_spec("torch") is not None, "torch is not installed"),
    "container": (lambda: shutil.which("ch-run") is not None, "Charliecloud is not installed"),
    "frameworks": (
        lambda: all(map(importlib.util.find_spec, ("transformers", "accelerate", "lightning"))),
        "transformers, accelerate or lightning is not installed",
    ),
    "plot": (lambda: importlib.util.find_spec("matplotlib") is not None, "matplotlib is not installed"),
    "browser": (lambda: shutil.which("chromium") is not None, "chromium is not installed"),
    "prometheus": (
        lambda: all(map(shutil.which, ("prometheus", "promtool"))),
        "prometheus or promtool is not installed",
    ),
    "gurobi": (lambda: importlib.util.find_spec("gurobipy") is not None, "gurobipy is not installed"),
    "horovod": (lambda: importlib.util.find_spec("horovod") is not None, "horovod is not installed"),
}
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"

CLUSTER = "cluster or accounting or browser"
"""The tests that `make test` runs after all others; their files name the marker."""


_LONG = (
    "tests/e2e/test_own_settings.py",
    "tests/elastic/test_same_training_on_a_cluster.py",
    "tests/bftd/test_earmarks_cluster.py",
    "tests/docs/test_other_commands_cluster.py",
    "tests/e2e/test_accounting.py",
    "tests/elastic/test_integrations_on_a_cluster.py",
    "tests/benchmarks/rivals/",
    "tests/docs/test_sessions_cluster.py",
    "tests/e2e/test_restarts.py",
    "tests/packaging/test_deb.py",
    "tests/bftd/simulation/replay/test_summit.py",
    "tests/benchmarks/gpu/test_training.py",
    "tests/bftd/pool/backfill/",
    "tests/e2e/test_study.py",
    "tests/bftd/test_classes_cluster.py",
    "tests/e2e/test_main_job.py",
    "tests/bftd/test_orphan_jobs_cluster.py",
    "tests/benchmarks/impact/test_run.py",
    "tests/elastic/test_sharded_on_a_cluster.py",
    "tests/bftd/doctor/",
    "tests/e2e/",
    "tests/benchmarks/scale/",
    "tests/elastic/test_containers_on_a_cluster.py",
    "tests/elastic/test_silent_nodes_on_a_cluster.py",
    "tests/elastic/backends/",
    "tests/bftd/cli/admin/test_sandbox_site.py",
    "tests/sizing/test_traced_against_real.py",
    "tests/elastic/driver/",
    "tests/elastic/",
    "tests/sizing/",
)
"""Files that take longest come first, those that work between those that wait: a long one at the end runs alone. Files
whose clusters are of one shape stand together, so that a process has the cluster of the one for the next."""

_ONE_BY_ONE = re.compile(
    r"tests/elastic/.*_on_a_cluster\.py|tests/elastic/backends/.*/test_defects\.py|tests/benchmarks/rivals/"
)
"""Files whose tests may run in different processes: each begins with a cluster that has nothing on it."""

# The time of an example says how busy the machine is. The same ones come each time: a red run is its commit's.
settings.register_profile("bftd", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("fresh", settings.get_profile("bftd"), derandomize=False)
settings.register_profile("night", settings.get_profile("fresh"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "bftd"))
pytest_plugins = ["tests.support.torch_forks"]

_HANGS_S = 2400
"""Tests with a cluster fail when nothing moves any more: this is for what a test does not wait for by itself."""

# Tests run side by side: threads of OpenMP that wait for each other spin on the CPUs of other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what it puts into the background with SIGINT ignored, and so would be every program under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not even import files that are left out: that is seconds on each core."""
    if config.option.markexpr.startswith("not (") and "slow" in config.option.markexpr:
        return True if collection_path.name.startswith("test_") and _marks_slow(collection_path) else None
    if config.option.markexpr == CLUSTER and collection_path.name.startswith("test_"):
        marks = rf"\bmark\.(?:{CLUSTER.replace(' or ', '|')})\b"
        return None if re.search(marks, collection_path.read_text(encoding="utf-8")) else True
    return None


def _marks_slow(path: Path) -> bool:
    """Whether all tests of a file run processes, wait in real time or draw many examples."""
    text = path.read_text(encoding="utf-8")
    return re.search(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow", text, re.MULTILINE) is not None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Does not search what is imported for garbage: a quarter of what collecting takes each process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in CLUSTER.split(" or ")):
            item.add_marker(pytest.mark.timeout(_HANGS_S))
    # by number of tests, as the plug-in for many processes orders them otherwise, the longest would be among the last
    items.sort(key=lambda item: next((at for at, name in enumerate(_LONG) if item.nodeid.startswith(name)), len(_LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of `--dist loadfile`, except that tests of some files go one by one to whichever process is free."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if _ONE_BY_ONE.match(nodeid) else super()._split_scope(nodeid)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in a loop of its own, and enters its fixtures that are asynchronous contexts."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run() -> None:
        async with AsyncExitStack() as stack:
            values = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
            for name, value in values.items():
                if isinstance(value, AbstractAsyncContextManager):
                    values[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**values)

    asyncio.run(run())
    return True


def pytest_configure(config: pytest.Config) -> None:
    if folder := program.begin():
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, (there, reason) in _NEEDS.items():
        if item.get_closest_marker(marker) is None or there():
            continue
        if os.environ.get("BFTD_REQUIRE_ALL") or os.environ.get("CI"):
            pytest.fail(f"{reason}; `make test` installs it", pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """Private clusters for modules that leave them as they were; who changes a cluster makes one of its own."""
    from tests.support.clusters import Clusters  # not for tests that need none

    lent = Clusters()
    try:
        yield lent
    finally:
        lent.end()
