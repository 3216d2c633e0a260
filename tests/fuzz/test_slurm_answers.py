"""Answers of Slurm's commands with faults in them: they are read or refused, and no other error comes out.

The samples are what real releases printed (tests/slurm_plugin/assets), or rows of accounting as sacct prints them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from slurm_plugin.clients import finished, pyslurm_backend
from slurm_plugin.clients.client import CommandResult
from slurm_plugin.errors import SlurmError, SnapshotError
from slurm_plugin.nodeset import expand
from slurm_plugin.pilots import preemptible, start_estimate
from slurm_plugin.pilots.pending_reasons import came_s, is_news, lacks_plan, plan_window_s, standing
from slurm_plugin.read import dates, parse, request, scheduler, scontrol_requests, sdiag
from slurm_plugin.read.scheduler import settings, with_load
from slurm_plugin.read.settings import number, options, parse_config
from slurm_plugin.read.types import NO_SCHEDULER, Job, Node
from tests.fuzz.mutations import WORDS, documents, refused, texts

ASSETS = Path(__file__).parents[1] / "slurm_plugin" / "assets"
SITES = ASSETS.parent / "site" / "assets"
SEPARATOR = "\x1f5e9a17"


def recorded(pattern: str, folder: Path = ASSETS) -> list[str]:
    found = [path.read_text() for path in sorted(folder.glob(pattern))]
    assert found
    return found


NODES = recorded("*/nodes*.txt")
JOBS = [*recorded("*/jobs*.txt"), *recorded("*/queue*.txt"), *recorded("*/requests.txt")]
WISHES = recorded("*/wishes.txt")
PARTITIONS = recorded("*/partitions.txt")
CONFIGS = recorded("*/*/config.txt", SITES)
SDIAG = recorded("*/sdiag.txt")
NODE_SETS = ["n1", "n[1-4]", "n[1-4,7,09-12]x[0-3],m3", "r[1-2]n[01-16]", "(null)", "", "n[1-9/2]"]


def is_sound(job: Job) -> None:
    """Whatever was read of a job can be counted with, as the daemon and every driver do."""
    now_s = 1795345670.0
    standing(job.reason)
    lacks_plan(job, now_s, 20.0)
    plan_window_s(job, now_s)
    is_news(job, now_s, now_s - 1.0, {})
    for value in (job.submit_s, job.start_s, job.time_limit_s, came_s(job, now_s)):
        assert value is None or 0.0 <= value < 1e15
    for count in (job.node_count, job.priority, job.request.cpus, job.request.cpus_per_node):
        assert abs(count) < 2**63
    assert 0 <= job.request.memory_bytes < 2**80
    json.dumps([job.id, job.name, job.nodes])


def is_node(node: Node) -> None:
    for count in (node.cpus, node.weight, node.cpus_used, *node.gpus.values(), *node.gpus_used.values()):
        assert 0 <= count < 2**63
    assert 0 <= node.memory_bytes < 2**83
    assert 0 <= node.memory_used_bytes < 2**83


@given(texts(JOBS))
def test_a_queue_with_faults_is_read_or_refused(text: str) -> None:
    with refused(SnapshotError):
        for job in parse.jobs(text, SEPARATOR):
            is_sound(job)


@given(texts(NODES))
def test_nodes_with_faults_are_read_or_refused(text: str) -> None:
    with refused(SnapshotError):
        for node in parse.nodes(text).values():
            is_node(node)
    with refused(SnapshotError):
        parse.node_addresses(text)


@given(texts([*PARTITIONS, *recorded("*/reservations*.txt")]))
def test_partitions_and_reservations_with_faults_are_read_or_refused(text: str) -> None:
    with refused(SnapshotError):
        parse.reservations(text)
    with refused(SnapshotError):
        parse.partitions(text)
    with refused(SnapshotError):
        shown = parse.partition_options(text)
        with refused(SlurmError):
            preemptible.objection({"PreemptType": preemptible.BY_TIER}, shown, list(shown)[:1])


@given(texts(WISHES))
def test_wishes_with_faults_are_read_or_refused(text: str) -> None:
    with refused(SnapshotError):
        for wish in scontrol_requests.read(text, SEPARATOR).values():
            assert wish.least_s is None or 0.0 < wish.least_s < 1e15
            assert 0.0 <= wish.memory_bytes < 1e40


@given(texts(CONFIGS), texts(SDIAG))
def test_settings_and_loads_with_faults_are_read_or_refused(text: str, load: str) -> None:
    config: dict[str, str] = {}
    with refused(SnapshotError):
        config = parse_config(text)
    with refused():
        known = settings(config, NO_SCHEDULER)
        assert with_load(known, config, sdiag.parse(load), (1e9, 1e9 + 1)).interval_s > 0.0


@given(st.sampled_from(CONFIGS), st.sampled_from(WORDS), st.sampled_from(["SLURM_VERSION", "SchedulerParameters"]))
def test_any_word_may_stand_for_a_release_or_the_schedulers_options(text: str, word: str, key: str) -> None:
    with refused():
        config = parse_config(text) | {key: word}
        scheduler.settings(config)
        scheduler.settings(config | {"SchedulerParameters": f"bf_interval={word},bf_window={word},bf_max_time={word}"})
        options(word)
        number(word)


@given(st.sampled_from(WORDS) | texts(NODE_SETS, 2) | st.text("n[]0123456789-,/@*!&^x", max_size=24))
@example("n1,@all")
@example("n*")
@example(",".join(f"n{name}[1-999999]" for name in range(40)))
@example("n[0-9]" * 1)
@example("n" + "[0-9]" * 12)
@example(",".join("n" + f"[{one}-9]" * 5 for one in range(8)))
def test_a_node_set_with_faults_is_read_or_refused_and_nobody_is_asked(text: str) -> None:
    with refused(SlurmError):
        assert len(expand(text)) <= 1_000_000


@given(st.sampled_from(WORDS) | texts(["2026-11-28 09:15:00", "2026-11-28T09:15", "2026-11-28"], 2))
def test_a_date_with_faults_is_read_or_refused(text: str) -> None:
    with refused(ValueError):
        low, high = dates.local(text)
        assert low <= high


@given(
    texts(["\x1f".join(["a100&ib", "(null)", "n[1-2]", "0", "NO", "12", "4", "1.50G", "gres:gpu:a100:2"]), "\x1f" * 8])
)
def test_a_request_with_faults_is_read_or_unknown(text: str) -> None:
    with refused():
        assert 0 <= request.read(text).memory_bytes < 2**80


ROWS = "\n".join(
    [
        "42|42|home|COMPLETED|1000|4600|n[1-2]||cpu=16,gres/gpu:a100=4,mem=64G|cpu=16,gres/gpu:a100=4,mem=64G||",
        "42.batch|42.batch|home|COMPLETED|1000|4600|n1|1||cpu=16|1073741824|cpu=00:10:00,mem=1G,gres/gpumem=12G",
        "42.0|42.0|home|COMPLETED|2026-11-28T09:00:00|2026-11-28T10:00:00|n[1-2]|2||cpu=16|3.5G|mem=7G",
        "",
    ]
)


class Answering:
    """A Slurm whose commands say this."""

    def __init__(self, out: str, code: int = 0, err: str = "") -> None:
        self.answer = CommandResult(code, out, err)

    def run(self, *_: str, **__: object) -> CommandResult:
        return self.answer


@given(texts([ROWS]))
def test_what_accounting_says_with_faults_is_learnt_from_or_refused(text: str) -> None:
    with refused(SlurmError):
        found = finished.finished(Answering(text), "42")  # type: ignore[arg-type]
        assert found.host_bytes is None or 0 < found.host_bytes < 2**80


@given(
    texts(
        [
            "sbatch: Job 7 to start at 2026-11-28T09:00:00 using 4 processors on nodes n[1-2] in partition batch\n",
            "allocation failure: Requested node configuration is not available\n",
        ]
    ),
    st.sampled_from([0, 1]),
)
def test_slurms_estimate_of_a_start_with_faults_is_a_time_or_none(text: str, code: int) -> None:
    with refused(SlurmError):
        said = start_estimate.asked(Answering("", code, text), [])  # type: ignore[arg-type]
        assert said.start_s is None or said.start_s > 0.0


NODE = {
    **{"name": "n1", "state": "IDLE", "gres": {"gpu:a100": 4}, "partitions": ["elastic"], "features": ["ib"]},
    **{"cpus": 4, "memory_mb": 1000, "reason": "", "weight": 1, "cpus_used": 0, "memory_used_mb": 0, "gres_used": {}},
}
JOB = {
    **{"id": "7", "user": "ann", "partition": "batch", "state": "PENDING", "name": "a", "nodes": "", "comment": ""},
    **{"sched_nodes": "n[1-2]", "start_s": 1e9, "submit_s": 1e9, "time_limit_min": 60, "reason": "Priority"},
    **{"node_count": 2, "dependency": "", "priority": 5, "reservation": "", "account": ""},
    "request": {
        **{"features": "", "required": "n1", "excluded": "", "contiguous": False, "least_min": 5, "sharing": "NO"},
        **{"cpus": 2, "cpus_per_node": 1, "memory_mb": 10, "memory_per_cpu": False, "gres": "", "switches": 0},
    },
}
RESERVED = {"name": "r", "nodes": "n1", "start_s": 1.0, "end_s": 2.0, "flags": ["MAINT"]}
PYSLURM: list[Any] = [
    {"nodes": [NODE, NODE | {"name": "n2"}], "jobs": [JOB], "reservations": [RESERVED]},
    {"error": "x"},
]


class Child:
    """A process of pyslurm that answers with this."""

    def __init__(self, said: str) -> None:
        self._said = said

    def ask(self, request: str, limit_s: float) -> bytes:
        return self._said.encode(errors="surrogatepass")

    def kill(self) -> None:
        """There is none."""


@given(documents(PYSLURM))
def test_what_pyslurm_says_with_faults_is_read_or_refused(text: str) -> None:
    client = pyslurm_backend.PyslurmClient()
    client._child = Child(text)  # type: ignore[assignment]
    client._slow.turn = lambda *_: pyslurm_backend.RESERVATIONS  # type: ignore[method-assign]
    with refused(SnapshotError):
        shown = client.snapshot()
        for job in shown.jobs:
            is_sound(job)
        for node in shown.nodes.values():
            is_node(node)
