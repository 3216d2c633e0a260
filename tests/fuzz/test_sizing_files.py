"""Files and answers that sizing, the what-if commands and the studies read, with faults in them.

Files of GPUs, plans, models, matrices, tables, logs and results; answers of the processes that run a user's script; and
what their caches keep.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bftd.base.errors import UsageError as BftUsageError
from bftd.simulation.drivers import trainers
from bftd.simulation.report import stored
from milp import problem_from_json
from milp.errors import MilpError
from sizing.base.errors import SizingError, UsageError
from sizing.base.parallel import Parallel
from sizing.cells.comm import nccl, table
from sizing.cells.comm.protocol import Link
from sizing.child import graphing
from sizing.child.stepping import gpu_step
from sizing.choice import place
from sizing.choice.ran import reported
from sizing.cpu import matrices_file, patterns
from sizing.cpu import store as cpu_store
from sizing.files import past_runs
from sizing.inventory import file as inventory_file
from sizing.model import config, huggingface, reply, wide_resnet
from sizing.profiles import comm_tables, store
from studies.crius import search_log
from studies.simulation import workload
from tests.bftd.simulation.report import making
from tests.fuzz.mutations import contents, documents, refused, texts
from tests.milp.test_mutated_files import SEVERAL_CLASSES
from tests.sizing.cells.nccl_logs import NAMED, OLD, UNNAMED
from tests.sizing.cpu.test_matrices_file import OURS, PUBLIC
from tests.sizing.cpu.test_point_store import POINT
from tests.sizing.inventory.test_file import file_of
from tests.sizing.model.test_huggingface import LLAMA
from tests.sizing.model.test_trace_reply import GOOD
from tests.sizing.plans_of import RAN
from tests.sizing.profiles.test_store import PROFILE
from tests.studies.crius.test_command import TRACE

pytestmark = pytest.mark.slow

FIT = {
    "plans": [
        {"gpus": 8, "tp": 2, "dp": 4, "fsdp": 1, "nodes": 2, "high_bytes": 2**34, "partition": "gpu", "gpu_type": "t4"},
        {"gpus": 1, "peak_bytes": 2**33, "origin": "formula"},
    ]
}
TABLES = table.to_json(
    [
        table.table(
            "all_gather", Link("a100-sxm-80gb", 8, 2), {1024: [1e-5, 1.1e-5], 4096: [2e-5]}, "a log", "2026-01-01"
        )
    ]
)
REPORT = {"job": "42", "global_batch": 64, "tp": 1, "fsdp": 1, "steps": 100, "step_s": 0.5, "peak_bytes": 2**30}
GRAPH = {"operators": [["a", "m", 1, 2, 3], ["b", "m", 1, 2, 3]], "model": "m", "origin": "export", "note": ""}
STEP = {
    **{"batch": 8, "step_s": [0.5, 0.4, 0.6], "allocated_bytes": 1, "reserved_bytes": 2, "in_use_bytes": 3},
    **{"memory_bytes": 2**34, "within_guard": True, "device": "A100", "torch": "2.13"},
}
LOG = "first_layer,last_layer,dp,tp,forced,cost_s,fits\n0,1,1,2,b,1.5,1\n0,1,2,1,b,1.25,1\n0,1,4,1,b,,0\n"
TRAINERS = [trainer.to_json() for trainer in making.trainers()]
NOT_AN_ANSWER = (ValueError, TypeError, KeyError, AttributeError, OverflowError)

Read = Callable[[Any], object]
JSON_FILES: dict[str, tuple[list[Any], Callable[[str], object], tuple[type[Exception], ...]]] = {
    "inventory": ([json.loads(file_of())], inventory_file.parse, (UsageError,)),
    "plans": ([FIT], place.parse, (UsageError,)),
    "matrices": ([OURS, PUBLIC], matrices_file.parse, (UsageError,)),
    "tables": ([TABLES], lambda text: table.parse(text, "comm.json"), (UsageError,)),
    "report": ([REPORT], lambda text: reported(text, "report.json"), (UsageError,)),
    "trace": ([GOOD], lambda text: reply.read(text.encode(), 8, Parallel(dp=2), "cuda", 1.5), (SizingError,)),
    "graph": ([GRAPH], lambda text: graphing.read(text.encode(), 8), (SizingError,)),
}
DECODED: dict[str, tuple[list[Any], Read, tuple[type[Exception], ...]]] = {
    "model": ([LLAMA], lambda data: huggingface.read(data, name="config.json"), (UsageError,)),
    "step": ([STEP], gpu_step, NOT_AN_ANSWER),
    "point": ([asdict(POINT)], cpu_store.read, NOT_AN_ANSWER),
    "profile": ([asdict(PROFILE)], store.read, NOT_AN_ANSWER),
    "problem": ([SEVERAL_CLASSES], problem_from_json, (MilpError,)),
}


@pytest.mark.parametrize("kind", JSON_FILES)
@given(data=st.data())
def test_a_json_file_with_faults_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    samples, read, errors = JSON_FILES[kind]
    text = data.draw(documents(samples))
    with refused(*errors):
        read(text)


@pytest.mark.parametrize("kind", DECODED)
@given(data=st.data())
def test_an_object_with_faults_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    samples, read, errors = DECODED[kind]
    with suppress(ValueError, RecursionError):  # as decoded by those who read it
        value = json.loads(data.draw(documents(samples)))
        if isinstance(value, dict):
            with refused(*errors):
                read(value)


@given(contents([f"{past_runs.line_of(RAN)}\n".encode() * 3]) | documents([asdict(RAN)]).map(str.encode))
def test_runs_with_faults_are_read_or_passed_over(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, refused():
        (Path(folder) / "ran.jsonl").write_bytes(raw)
        past_runs.read(Path(folder) / "ran.jsonl")


@given(contents([json.dumps(TABLES).encode()]))
def test_tables_with_faults_are_read_or_refused(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, refused(UsageError):
        (Path(folder) / "comm.json").write_bytes(raw)
        comm_tables.read(Path(folder) / "comm.json")


@given(texts([NAMED, OLD, UNNAMED]))
def test_a_log_of_nccl_with_faults_is_read_or_refused(text: str) -> None:
    with refused(UsageError):
        for run in nccl.parse(text, "all_reduce.txt"):
            assert all(nbytes > 0 for nbytes in run.samples)


@given(texts(["gpt:h=64,l=2,a=4,s=16,V=100,precision=bf16", "moe:h=64,l=2,a=4,s=16,V=100,E=4", "wresnet:w=2,n=4"], 4))
def test_sizes_of_a_model_with_faults_are_read_or_refused(text: str) -> None:
    with refused(UsageError):
        config.parse(text)
    with refused(UsageError):
        wide_resnet.parse(text)


@given(texts([TRACE, LOG]))
@example("submission_time,duration,num_gpu\n" + '"' + "a" * 200_000)
@example("submission_time,duration,num_gpu\n1,2,1\n" + "\0,,\n")
def test_a_csv_file_with_faults_is_read_or_refused(text: str) -> None:
    with refused(UsageError):
        workload.parse(text, "jobs.csv")
    with refused(UsageError):
        search_log.replay(search_log.parse(text, "log.csv"))


@given(documents([TRAINERS]), st.sampled_from(["t.json", "t.json.gz"]), st.booleans())
def test_a_list_of_trainers_with_faults_is_read_or_refused(text: str, name: str, packed: bool) -> None:
    raw = text.encode(errors="surrogatepass")
    with tempfile.TemporaryDirectory() as folder, refused(BftUsageError):
        (Path(folder) / name).write_bytes(gzip.compress(raw) if packed else raw)
        trainers.digest(trainers.read(Path(folder) / name))


@given(documents([making.result(), making.advice()]))
def test_a_result_of_a_replay_with_faults_is_read_or_refused(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder, refused(BftUsageError):
        (Path(folder) / "r.json").write_text(text, errors="surrogatepass")
        stored.read(Path(folder) / "r.json")


@given(st.lists(texts(["step 7/100 loss 0.5 12.5 samples/s\n", "\x1b[1m10%|# | 5/50 [00:01<00:09, 4.9it/s]\r"])))
def test_whatever_is_printed_a_rate_is_a_number(lines: list[str]) -> None:
    with refused():
        for line in lines:
            found = patterns.number(line)
            assert found is None or 0 <= found < float("inf")
        patterns.suggested(lines)
        output = patterns.OutputLines()
        output.feed("".join(lines).encode(errors="surrogatepass"))
        output.end()


def test_the_samples_themselves_are_read() -> None:
    for samples, read, _ in JSON_FILES.values():
        for sample in samples:
            assert read(json.dumps(sample))
    for samples, read, _ in DECODED.values():
        for sample in samples:
            assert read(json.loads(json.dumps(sample)))
    assert nccl.parse(NAMED, "x")
    assert search_log.parse(LOG, "x")
    assert workload.parse(TRACE, "x")
