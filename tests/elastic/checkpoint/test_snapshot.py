"""One copy in memory of a state: what it holds, when it is made, whose memory it takes and how it is written."""

from __future__ import annotations

import copy
import io
import json
import mmap
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.messages import pattern

torch: Any = pytest.importorskip("torch")
numpy: Any = pytest.importorskip("numpy")

from elastic.base.errors import CheckpointError  # noqa: E402
from elastic.checkpoint import buffers, snapshot  # noqa: E402
from elastic.checkpoint.buffers import BUFFERS, Buffer, BufferPool  # noqa: E402
from elastic.checkpoint.snapshot import StateCopy  # noqa: E402

pytestmark = pytest.mark.torch


class Wire(io.RawIOBase):
    """Takes bytes as a connection does: one after the other, none again."""

    def __init__(self) -> None:
        self.taken = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.taken += data
        return len(data)


def taken(state: Any, pool: BufferPool) -> StateCopy:
    one = StateCopy(state, pool)
    one.copy()
    return one


def written(one: StateCopy) -> Any:
    wire = Wire()
    one.write(wire)  # type: ignore[arg-type]
    return torch.load(io.BytesIO(wire.taken), weights_only=False)


# -- what it holds ---


class Tagged(torch.Tensor):  # type: ignore[misc]
    """A tensor of a script's own class."""


BASES = {
    "float": lambda: torch.arange(24.0),
    "half": lambda: torch.arange(24, dtype=torch.bfloat16),
    "whole": lambda: torch.arange(24),
    "complex": lambda: torch.arange(24.0).to(torch.complex64),
    "none": lambda: torch.empty(0),
}
VIEWS = {
    "all": lambda tensor: tensor,
    "some": lambda tensor: tensor[2:7],
    "strided": lambda tensor: tensor[::3],
    "turned": lambda tensor: tensor.reshape(2, -1).t(),
    "one": lambda tensor: tensor[:1].reshape(()),
    "parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "sparse": lambda tensor: torch.atleast_1d(tensor).to_sparse(),
}
OTHERS = {
    "array": lambda: numpy.arange(3),
    "large array": lambda: numpy.arange(5000.0),
    "array by columns": lambda: numpy.asfortranarray(numpy.arange(10_000.0).reshape(100, 100)),
    "array's view": lambda: numpy.arange(20_000)[::2],
    "objects": lambda: numpy.array([{"a": 1}, None], dtype=object),
}


@st.composite
def states(draw: st.DrawFn) -> Any:
    """Nested containers of tensors, some of which share their memory, arrays and plain values."""
    bases = {name: make() for name, make in BASES.items()}
    tensors = st.tuples(st.sampled_from(sorted(BASES)), st.sampled_from(sorted(VIEWS))).map(
        lambda names: bases[names[0]] if names[0] == "none" else VIEWS[names[1]](bases[names[0]])
    )
    others = st.sampled_from(sorted(OTHERS)).map(lambda name: OTHERS[name]())
    leaves = tensors | others | st.none() | st.integers() | st.text(max_size=5)
    return draw(
        st.recursive(
            leaves,
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.lists(inner, max_size=4).map(tuple)
                | st.dictionaries(st.text(max_size=3), inner, max_size=4)
                | st.dictionaries(st.integers(), inner, max_size=4).map(OrderedDict)
            ),
            max_leaves=12,
        )
    )


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.layout) == (other.dtype, other.shape, other.layout)
        if one.layout is torch.strided:
            assert (one.stride(), one.storage_offset()) == (other.stride(), other.storage_offset())
            assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes()
        assert torch.equal(one.to_dense(), other.to_dense()) if one.is_sparse else torch.equal(one, other)
    elif isinstance(one, numpy.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert (one == other).all()
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other


def leaves(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [leaf for value in state.values() for leaf in leaves(value)]
    if isinstance(state, (list, tuple)):
        return [leaf for value in state for leaf in leaves(value)]
    return [state]


def sharing(state: Any) -> list[int]:
    """For each tensor the first one whose memory it shares."""
    places = [
        leaf.untyped_storage().data_ptr()
        for leaf in leaves(state)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel()
    ]
    return [places.index(place) for place in places]


def change(state: Any) -> None:
    for leaf in leaves(state):
        if isinstance(leaf, torch.Tensor):
            (leaf.coalesce().values() if leaf.is_sparse else leaf).detach().zero_()
        elif isinstance(leaf, numpy.ndarray):
            leaf[...] = 0
    if isinstance(state, dict):
        state.clear()


@settings(max_examples=60, deadline=None)
@given(states())
def test_a_snapshot_is_what_a_deep_copy_would_be_whatever_the_script_changes_afterwards(state: Any) -> None:
    pool = BufferPool()
    for _ in range(2):  # the second time into memory that was used before
        wanted, shared = copy.deepcopy(state), sharing(state)
        one = taken(state, pool)
        found = written(one)
        one.release()
        assert_same(found, wanted)
        assert sharing(found) == shared
    one = taken(state, pool)
    change(state)
    assert_same(written(one), wanted)


def test_quantized_and_random_and_whole_modules_are_kept_too() -> None:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    state = {
        "module": module,
        "own": torch.arange(3.0).as_subclass(Tagged),
        "random": torch.get_rng_state(),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8),
        "meta": torch.ones(2, device="meta"),
        "rows": torch.eye(3).to_sparse_csr(),
        "negative": torch._neg_view(torch.ones(2)),
        "conjugate": torch.tensor([1j]).conj(),
        "of a step": (torch.ones(1, requires_grad=True) * 2),
    }
    found = written(taken(state, BufferPool()))
    assert_same(list(found["module"].state_dict().values()), list(module.state_dict().values()))
    assert (type(found["own"]), found["own"].tolist()) == (Tagged, [0, 1, 2])
    assert torch.equal(found["random"], state["random"])
    assert found["quantized"].int_repr().tolist() == [2, 2, 2]
    assert (found["meta"].device.type, found["rows"].to_dense().sum()) == ("meta", 3)
    assert (found["negative"].tolist(), found["conjugate"].tolist()) == ([-1, -1], [-1j])
    assert found["of a step"].item() == 2


@pytest.mark.parametrize("dtype", ["uint16", "uint64", "float8_e4m3fn", "float8_e5m2"])
def test_regression_a_state_with_a_tensor_of_torchs_newer_types_could_never_be_written(dtype: str) -> None:
    whole = torch.arange(12).to(getattr(torch, dtype))
    kept = written(taken({"whole": whole, "part": whole[3:], "raw": torch.arange(3.0).untyped_storage()}, BufferPool()))
    assert kept["whole"].dtype == whole.dtype
    assert kept["whole"].view(torch.uint8).tolist() == whole.view(torch.uint8).tolist()
    assert kept["part"].untyped_storage().data_ptr() == kept["whole"].untyped_storage().data_ptr()
    assert kept["raw"].nbytes() == 12


def test_regression_under_a_default_device_of_the_scripts_every_save_raised() -> None:
    state = {
        "model": torch.randn(10, 10),
        "step": torch.tensor(3.0),
        "odd": torch.ones(3).byte(),
        "none": torch.ones(0),
    }
    torch.set_default_device("meta")  # stands for a GPU
    try:
        kept = written(taken(state, BufferPool()))
    finally:
        torch.set_default_device(None)
    assert_same(kept, state)
    assert kept["none"].device.type == "cpu"


def test_a_tensor_seen_as_two_types_is_refused_at_the_save_and_not_behind_its_back() -> None:
    tensor = torch.ones(4)
    with pytest.raises(RuntimeError, match=pattern("elastic.snapshot.same_memory")):
        StateCopy([tensor, tensor.view(torch.int32)], BufferPool())


def test_what_cannot_be_pickled_is_refused_at_the_save() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        StateCopy({"weights": torch.ones(2), "rule": lambda: 1}, BufferPool())


# -- whose memory it takes ---


def place(one: StateCopy) -> int:
    return int(one.rebuilt().untyped_storage().data_ptr())


def test_memory_that_was_given_back_is_the_next_copys() -> None:
    pool, tensor = BufferPool(), torch.ones(1000)
    first = taken(tensor, pool)
    before = place(first)
    first.release()
    second = taken(tensor, pool)
    assert place(second) == before
    third = taken(tensor, pool)
    assert place(third) != before


def test_a_third_save_takes_the_memory_of_what_waits_and_never_that_of_the_one_being_written() -> None:
    pool, tensor = BufferPool(), torch.zeros(1000)
    being_written = taken(tensor, pool)
    tensor += 1
    waiting = taken(tensor, pool)
    theirs = place(waiting)
    tensor += 1
    newest = StateCopy(tensor, pool)
    waiting.release()  # by the commit of the newest
    newest.copy()
    assert place(newest) == theirs
    assert [written(one)[0].item() for one in (being_written, newest)] == [0.0, 2.0]


def test_no_more_copies_are_kept_than_can_be_needed_nor_any_that_do_not_fit() -> None:
    pool = BufferPool()
    several = [taken(torch.ones(1000), pool) for _ in range(BUFFERS + 1)]
    for one in several:
        one.release()
    assert len(pool._idle) == BUFFERS
    taken(torch.ones(3 << 20), pool)
    assert not pool._idle
    taken(torch.ones(1000), pool)


def test_a_copy_that_is_released_while_it_is_written_is_given_back_only_then() -> None:
    pool = BufferPool()
    one = taken(torch.ones(1000), pool)

    class Slow(Wire):
        def write(self, data: Any) -> int:
            one.release()
            assert not pool._idle
            return super().write(data)

    wire = Slow()
    one.write(wire)  # type: ignore[arg-type]
    assert torch.load(io.BytesIO(wire.taken)).sum() == 1000
    assert len(pool._idle) == 1
    with pytest.raises(CheckpointError, match="released"):
        one.write(wire)  # type: ignore[arg-type]


def saves_twice(pool: BufferPool, apart_s: float, write_s: float, size_bytes: int = 3 << 20) -> Buffer:
    """Copies twice, so long after one another; the first copy was written so long, the second has this memory."""
    buffer = pool.take(size_bytes)
    pool.copied(size_bytes, now_s=100.0)
    pool.wrote(write_s)
    pool.give_back(buffer)
    buffer = pool.take(size_bytes)
    pool.copied(size_bytes, now_s=100.0 + apart_s)
    return buffer


def test_where_saves_come_often_memory_for_one_beside_another_that_is_uploaded_is_touched_beforehand() -> None:
    pool = BufferPool()
    first = saves_twice(pool, apart_s=30.0, write_s=10.0)
    assert pool.preparing is not None
    pool.preparing.join(20)
    second = pool.take(3 << 20)
    assert second is not first
    with open("/proc/self/smaps") as file:
        ours = file.read().split(f"{torch.frombuffer(second, dtype=torch.uint8).data_ptr():x}-", 1)[1]
    assert int(ours.split("Rss:", 1)[1].split()[0]) * 1024 >= len(second)
    preparing = pool.preparing
    pool.copied(3 << 20, now_s=140.0)
    assert pool.preparing is preparing  # there are no more copies than can be needed


@pytest.mark.parametrize("why", ["saves are rare", "none was written", "there is little memory"])
def test_no_memory_is_touched_beforehand_where(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "there is little memory":
        monkeypatch.setattr(buffers, "free_bytes", lambda: 4 << 20)
    pool = BufferPool()
    apart_s, write_s = 600.0 if why == "saves are rare" else 30.0, 0.0 if why == "none was written" else 10.0
    saves_twice(pool, apart_s, write_s)
    assert pool.preparing is None


def test_a_copy_into_memory_that_is_being_touched_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, touched = BufferPool(), threading.Event()
    touch = Buffer.touch

    def observed(buffer: Buffer, offset: int) -> None:
        touch(buffer, offset)
        touched.set()

    monkeypatch.setattr(Buffer, "touch", observed)
    first = saves_twice(pool, 30.0, 10.0, size_bytes=64 << 20)
    assert pool.preparing is not None
    assert touched.wait(20)
    second = pool.take(64 << 20)
    assert second is not first
    whole = torch.frombuffer(second, dtype=torch.uint8)
    whole.fill_(7)
    pool.preparing.join(20)
    assert bool((whole == 7).all())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 70), st.integers(0, 9))
def test_every_byte_is_copied_however_many_there_are_and_wherever_they_lie(count: int, start: int) -> None:
    numbers = torch.randint(0, 256, (count + start + 1,), dtype=torch.uint8).numpy()
    state = torch.frombuffer(numbers.data, dtype=torch.uint8, offset=start)
    wanted = state.clone()
    one = taken(state, BufferPool())
    state.zero_()
    assert torch.equal(written(one), wanted)


# -- torch's own checksums ---


def test_torchs_checksums_are_left_out_of_what_has_a_digest_and_of_nothing_else() -> None:
    option = torch.serialization.get_crc32_options
    seen: list[bool] = []

    class Looking(Wire):
        def write(self, data: Any) -> int:
            seen.append(option())
            return super().write(data)

    wire, plain = Looking(), io.BytesIO()
    state = {"weights": torch.rand(100)}
    snapshot.write(state, wire)  # type: ignore[arg-type]
    torch.save(state, plain)
    assert torch.equal(torch.load(io.BytesIO(wire.taken))["weights"], state["weights"])
    assert all(seen)  # from the first byte on it is as it was
    with zipfile.ZipFile(plain) as archive:
        assert archive.testzip() is None
    with zipfile.ZipFile(io.BytesIO(wire.taken)) as archive:
        assert archive.testzip() is not None


@pytest.mark.parametrize("on", [True, False])
def test_torchs_option_is_as_the_script_has_set_it_also_after_a_checkpoint_that_cannot_be_pickled(on: bool) -> None:
    torch.serialization.set_crc32_options(on)
    try:
        for _ in range(2):
            with pytest.raises((AttributeError, pickle.PicklingError)):
                snapshot.write({"rule": lambda: 1}, Wire())  # type: ignore[arg-type]
            assert torch.serialization.get_crc32_options() is on
        snapshot.write({"weights": torch.ones(2)}, Wire())  # type: ignore[arg-type]
        assert torch.serialization.get_crc32_options() is on
    finally:
        torch.serialization.set_crc32_options(True)


def test_who_writes_a_state_that_was_committed_but_not_yet_copied_waits_for_it() -> None:
    one = StateCopy({"weights": torch.ones(3)}, BufferPool())
    found: list[Any] = []
    writer = threading.Thread(target=lambda: found.append(written(one)))
    writer.start()
    writer.join(0.05)
    assert writer.is_alive()
    one.copy()
    writer.join(20)
    assert found[0]["weights"].tolist() == [1, 1, 1]


def test_without_memory_for_a_copy_the_save_says_so_in_a_line_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(cls: type, size_bytes: int) -> Any:
        raise CheckpointError("no memory for a copy of the state (4.0 GB): ask Slurm for more with --mem")

    monkeypatch.setattr(Buffer, "new", classmethod(refuse))
    one = StateCopy(torch.ones(3), BufferPool())
    for attempt in (one.copy, lambda: one.write(Wire())):  # type: ignore[arg-type]
        with pytest.raises(CheckpointError, match="--mem"):
            attempt()


def test_more_memory_than_there_is_is_a_line() -> None:
    with pytest.raises(CheckpointError, match=pattern("elastic.buffers.no_memory", size="100000000.0 GB")):
        Buffer.new(10**17)


def test_a_fork_does_not_make_the_next_copy_go_to_fresh_pages() -> None:
    buffer = Buffer.new(1)
    buffer[:3] = b"abc"
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        os.write(theirs, buffer[:3])
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 3) == b"\0\0\0"
    assert buffer[:3] == b"abc"
    os.close(ours)
    os.close(theirs)


# -- how it is written and read ---

PEAK = """
import json
import torch
from elastic.checkpoint import snapshot

class Sink:
    def write(self, data): return len(data)
    def flush(self): pass

def peak_bytes():  # ru_maxrss begins with that of the process that this one came from
    return 1024 * int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))

state = {"a": torch.ones(32 << 20), "b": [torch.ones(32 << 20)]}
small = snapshot.StateCopy([torch.ones(3)])
small.copy()
small.write(Sink())
small.release()
before = peak_bytes()
for _ in range(3):
    one = snapshot.StateCopy(state)
    one.copy()
    one.write(Sink())
    one.release()
print(json.dumps([before, peak_bytes(), one.size_bytes]))
"""


def test_regression_memory_touched_as_the_interpreter_ended_aborted_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Buffer.new(1)
    monkeypatch.setattr(torch, "frombuffer", None)  # no thread in the background is to be in torch
    buffer.touch(0)
    assert buffer[:3] == bytes(3)


def test_saving_again_and_again_takes_the_memory_of_one_copy() -> None:
    said = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=False, timeout=120)
    assert said.returncode == 0, said.stderr
    before, after, size_bytes = json.loads(said.stdout)
    assert size_bytes == 256 << 20
    assert after - before < 1.15 * size_bytes


def test_a_file_is_mapped_so_that_workers_of_a_node_share_it_and_changes_are_their_own() -> None:
    tensor = torch.arange(1 << 20)
    with tempfile.NamedTemporaryFile() as file:
        taken({"weights": tensor, "views": [tensor[3:5]]}, BufferPool()).write(file)  # type: ignore[arg-type]
        file.flush()
        with open(file.name, "rb") as opened:
            inode = os.fstat(opened.fileno()).st_ino
            found = snapshot.read(opened)
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    mapped = [line for line in lines if line[4] == str(inode)]
    assert mapped, "the state was read into memory"
    assert {line[1] for line in mapped} <= {"rw-p", "r--p"}
    found["weights"] += 1
    assert found["views"][0].tolist() == [4, 5]


def test_a_checkpoint_that_was_saved_before_there_were_snapshots_is_read() -> None:
    file = io.BytesIO()
    torch.save({"step": 3, "samples": 12, "size": 2, "state": {"weights": torch.ones(2)}}, file)
    file.seek(0)
    assert snapshot.read(file)["state"]["weights"].tolist() == [1, 1]


def test_memory_is_of_huge_pages_where_there_are_any() -> None:
    buffer = Buffer.new(1)
    assert len(buffer) % (2 << 20) == 0
    assert isinstance(buffer, mmap.mmap)
