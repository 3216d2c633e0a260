"""Distributed checkpoints of states that all workers have alike: who writes what, what is read, what is refused."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages import says, wording
from tests.support.waiting import STILL_S

sys.path.insert(0, str(Path(__file__).parent))
from ranks import Trainer

pytestmark = [pytest.mark.torch]


def state_of(seed: int, width: int = 11) -> dict[str, Any]:
    """The state of a model and its optimizer after a step; the same on every worker."""
    import torch
    from models import network

    model = network(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    model(torch.randn(4, 7, generator=generator)).square().mean().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seed": seed}


def fresh_state(width: int = 11) -> dict[str, Any]:
    import torch
    from models import network

    model = network(width)
    return {"model": model.state_dict(), "optimizer": torch.optim.AdamW(model.parameters()).state_dict(), "seed": -1}


def equal(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return type(one) is type(other) and one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def save(rank: int, size: int, folder: Path, *seeds: int) -> None:
    import elastic

    for seed in seeds:
        elastic.step(samples=1)
        elastic.save(state_of(seed))
        if seed != seeds[-1]:
            wait_for_writer()


def tied(seed: int) -> dict[str, Any]:
    state = state_of(seed)
    state["model"]["again"] = next(iter(state["model"].values()))
    return state


def save_checkpoint(rank: int, size: int, folder: Path) -> None:
    """As a framework: rank 0 writes what is large, and every rank its own."""
    import torch

    import elastic
    from elastic.integrations.checkpoint import Keeper

    elastic.step(samples=1)
    with Keeper().saving(1, False, done=1) as place:
        if rank == 0:
            torch.save(tied(5), place / "model.pt")
        (place / f"rng.{rank}").write_text(str(rank))


def load_checkpoint(rank: int, size: int, folder: Path) -> tuple[set[str], bool, list[str]]:
    import torch

    import elastic
    from elastic.integrations.checkpoint import Keeper

    saved = elastic.load()
    assert saved is not None
    keeper = Keeper()
    place = keeper.open(saved)
    files = sorted(f"{path.name}: {path.read_text()}" for path in place.glob("rng.*"))
    same = equal(torch.load(place / "model.pt"), tied(5))
    keeper.close(place)
    assert not place.exists()
    return set(saved["held"]), same, files


def wait_for_writer() -> None:
    from elastic.checkpoint.distributed import saving

    saving.drain()


def load_whole(rank: int, size: int, folder: Path) -> tuple[bool, int]:
    import elastic

    state = elastic.load()
    return equal(state, state_of(state["seed"])), state["seed"]


def load_into(rank: int, size: int, folder: Path, width: int = 11) -> tuple[bool, int]:
    import elastic

    into = fresh_state(width)
    before = {name: tensor.data_ptr() for name, tensor in into["model"].items()}
    state = elastic.load(into=into)
    in_place = all(state["model"][name].data_ptr() == pointer for name, pointer in before.items())
    return in_place and equal(state, state_of(state["seed"])), state["seed"]


def odd_state(begun: bool) -> dict[str, Any]:
    """A compiled model of bf16 weights, tied ones and a sparse embedding, and a tensor that is expanded."""
    import torch

    torch.manual_seed(7)
    model = torch.nn.ModuleDict({"rows": torch.nn.Embedding(9, 4, sparse=True), "low": torch.nn.Linear(4, 4)})
    model["low"].to(torch.bfloat16)
    model["tied"] = torch.nn.Linear(4, 9, bias=False)
    model["tied"].weight = model["rows"].weight
    compiled = torch.compile(model, backend="eager")
    moments = torch.optim.SparseAdam([model["rows"].weight])
    if begun:
        model["rows"](torch.tensor([1, 5])).sum().backward()
        moments.step()
    fill = 3.0 if begun else 0.0
    more = {"mask": torch.full((3, 1), fill).expand(3, 5), "sparse": (torch.eye(3) * fill).to_sparse()}
    with torch.no_grad():
        model["low"].weight.fill_(fill)
    return {"model": compiled.state_dict(), "moments": moments.state_dict(), **more}


def save_odd(rank: int, size: int, folder: Path) -> None:
    import elastic

    elastic.step(samples=1)
    elastic.save(odd_state(begun=True))
    wait_for_writer()


def load_odd(rank: int, size: int, folder: Path) -> bool:
    import torch

    import elastic

    state, saved = elastic.load(into=odd_state(begun=False)), odd_state(begun=True)
    sparse = torch.equal(state.pop("sparse").to_dense(), saved.pop("sparse").to_dense())
    assert "_orig_mod.low.weight" in state["model"], "it is of a compiled module"
    return sparse and equal(state, saved)


def test_a_compiled_model_of_half_precision_with_tied_and_sparse_parts_is_loaded_in_place(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(save_odd, 2)
    assert trainer.run(load_odd, 3) == [True] * 3


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = Trainer(tmp_path_factory.mktemp("four"))
    trainer.run(save, 4, 1)
    return trainer


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_checkpoint_that_four_workers_saved_is_loaded_to_the_bit_by_any_number_in_place(
    four: Trainer, size: int
) -> None:
    assert four.run(load_into, size) == [(True, 1)] * size


def test_without_a_template_a_checkpoint_comes_whole(four: Trainer) -> None:
    assert four.run(load_whole, 2) == [(True, 1)] * 2


def test_each_worker_writes_its_share_and_tells_every_file_with_size_and_digest(four: Trainer) -> None:
    import xxhash

    [version] = four.versions()
    folder = Path(version["path"])
    assert sorted(name for name, _, _ in version["files"]) == sorted(os.listdir(folder))
    for name, size_bytes, digest in version["files"]:
        content = (folder / name).read_bytes()
        assert (len(content), xxhash.xxh3_128_hexdigest(content)) == (size_bytes, digest)
    assert folder.stat().st_mode & 0o777 == 0o700
    shares = [size_bytes for name, size_bytes, _ in version["files"] if name != ".metadata"]
    assert max(shares) < 0.6 * sum(shares), "one of four workers wrote nearly all of it"


def two_versions(folder: Path) -> Trainer:
    trainer = Trainer(folder)
    trainer.run(save, 2, 1, 2)
    assert [each["step"] for each in trainer.versions()] == [2, 1]
    return trainer


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return two_versions(tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("damage", ["missing", "altered", "cut", "metadata"])
def test_a_shard_that_is_not_as_it_was_written_is_told_and_the_version_before_is_taken(
    two: Trainer, tmp_path: Path, damage: str
) -> None:
    import shutil

    trainer = Trainer(tmp_path)
    versions = json.loads(json.dumps(two.versions()))
    for each in versions:
        shutil.copytree(each["path"], trainer.path / each["name"])
        each["path"] = str(trainer.path / each["name"])
    name = ".metadata" if damage == "metadata" else "__1_0.distcp"
    victim = Path(versions[0]["path"]) / name
    content = victim.read_bytes()
    if damage == "altered":
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "cut":
        victim.write_bytes(content[:-1])
    else:
        victim.unlink()
    assert trainer.run(load_into, 2, versions=versions) == [(True, 1)] * 2
    [told] = [message for message in trainer.said if message["op"] == "corrupt"]
    assert told["name"] == versions[0]["name"]
    assert name in told["text"]
    lines = [line for line in trainer.output.splitlines() if line.startswith("bft:")]
    assert len(lines) == 1
    assert says(lines[0], "elastic.loading.going_on_from_before")


def load_and_refuse(rank: int, size: int, folder: Path, width: int) -> tuple[str, bool]:
    import elastic
    from elastic.base.errors import CheckpointError

    into = fresh_state(width)
    try:
        elastic.load(into=into)
    except CheckpointError as error:
        return str(error), equal(into, fresh_state(width))
    return "", False


def test_a_checkpoint_of_another_model_is_refused_in_one_line_and_nothing_is_read(four: Trainer) -> None:
    for why, untouched in four.run(load_and_refuse, 2, 12):
        assert untouched
        assert "\n" not in why
        assert (
            "another model: model.0.bias was 11 and is 12; model.0.weight was 11x7 and is 12x7; "
            "model.2.weight was 5x11 and is 5x12; nothing was read"
        ) in why


def test_a_checkpoint_with_no_readable_version_is_an_error_and_no_first_start(two: Trainer) -> None:
    versions = [{**each, "files": [["gone", 1, "00"]]} for each in two.versions()]
    for why, untouched in two.run(load_and_refuse, 2, 11, versions=versions):
        assert untouched
        assert "cannot be read" in why
    assert two.ops().count("corrupt") == 2


def test_a_node_that_does_not_see_the_path_says_so_and_condemns_no_checkpoint(two: Trainer, tmp_path: Path) -> None:
    versions = [{**each, "path": str(tmp_path / "away" / each["name"])} for each in two.versions()]
    for why, _ in two.run(load_and_refuse, 2, 11, versions=versions):
        assert "No such file" in why
    assert "corrupt" not in two.ops()


def load_over_a_bad_line(rank: int, size: int, folder: Path) -> str:
    import errno

    from torch.distributed.checkpoint import FileSystemReader

    import elastic
    from elastic.base.errors import CheckpointError

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if rank == 1:
        FileSystemReader.read_metadata = fail  # type: ignore[method-assign, assignment]
    try:
        elastic.load(into=fresh_state())
    except CheckpointError as error:
        return str(error)
    return ""


def test_regression_a_file_server_that_failed_for_a_moment_had_a_whole_checkpoint_set_aside(two: Trainer) -> None:
    whys = two.run(load_over_a_bad_line, 2)
    assert all("Input/output error; it is kept" in why for why in whys)
    assert "corrupt" not in two.ops()


def save_within(rank: int, size: int, folder: Path, limited: int) -> str:
    """Saves twice; one rank's files may not grow the first time."""
    import elastic

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    elastic.step(samples=1)
    if rank == limited:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    elastic.save(state_of(1, 500))
    wait_for_writer()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    elastic.step(samples=1)
    elastic.save(state_of(2))
    return "trained on"


def test_a_full_disk_costs_a_save_and_not_the_training(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    assert trainer.run(save_within, 3, 1) == ["trained on"] * 3
    told = [message for message in trainer.said if message["op"] == "unwritten"]
    assert {message["text"].split(": ", 1)[1] for message in told} == {"rank 1: File too large"}
    [kept] = os.listdir(trainer.path)
    assert [kept] == [each["name"] for each in trainer.versions()]
    assert kept.startswith("step-000000000002-")


def save_on_a_full_disk(rank: int, size: int, folder: Path) -> None:
    import torch

    import elastic

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    elastic.step(samples=1)
    elastic.save({"one": torch.zeros(200_000)})


def test_regression_a_disk_that_filled_up_within_a_tensor_was_told_as_an_unexpected_position(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(save_on_a_full_disk, 1)
    [told] = [message["text"] for message in trainer.said if message["op"] == "unwritten"]
    assert told.endswith(": File too large")


def save_and_die(rank: int, size: int, folder: Path) -> None:
    import elastic
    from elastic.checkpoint.distributed import saving

    if rank == 1:
        saving.Save._written = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    elastic.step(samples=1)
    elastic.save(state_of(1))
    wait_for_writer()


def test_a_worker_that_is_killed_in_the_middle_leaves_no_version_and_nobody_waiting(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(save_and_die, 3, fails=True)
    assert trainer.versions() == []
    assert "shards" not in trainer.ops()


def save_often(rank: int, size: int, folder: Path) -> list[float]:
    """Saves at each step, faster than it is written: every write takes a while, and longer on one rank."""
    import elastic
    from elastic.checkpoint.distributed import saving

    written = saving.Save._written

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.1 + 0.2 * (rank == 1))
        return written(*arguments)

    saving.Save._written = slowly  # type: ignore[method-assign]
    took = []
    for seed in range(12):
        elastic.step(samples=1)
        began_s = time.monotonic()
        elastic.save(state_of(seed))
        took.append(time.monotonic() - began_s)
    return took


def test_of_checkpoints_that_come_faster_than_they_are_written_all_workers_write_the_same_and_the_last_one(
    tmp_path: Path,
) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(save_often, 3)
    steps = [each["step"] for each in trainer.versions()]
    assert steps[0] == 12
    assert len(steps) < 12
    assert len(os.listdir(trainer.path)) == len(steps), "a version was begun that not all have written"
    assert trainer.run(load_into, 2) == [(True, 11)] * 2


def pause(rank: int, size: int, folder: Path) -> None:
    import threading

    import elastic
    from elastic.checkpoint.distributed import saving
    from elastic.worker import driver_link as sessions

    saving._rest = lambda: None  # type: ignore[assignment, return-value]
    elastic.step(samples=1)
    if rank == 1:  # the news of a pause may be late on some
        sessions.current().pause_requested.set()
    elastic.save(state_of(1))
    assert threading.current_thread() is threading.main_thread()


def test_in_a_pause_every_worker_rests_once_all_of_it_is_written(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(pause, 3)
    assert [op for op in trainer.ops() if op != "step"] == ["shards", "paused"] * 3


def test_what_is_staged_ends_at_its_place_and_leaves_nothing_on_the_node(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "trainer")
    trainer.folder.mkdir()
    stage = tmp_path / "stage"
    stage.mkdir()
    trainer.run(save, 2, 1, 2, environ={"BFT_STATE_STAGE": str(stage)})
    assert trainer.run(load_into, 3) == [(True, 2)] * 3
    assert not [path for path in stage.rglob("*") if path.is_file()]
    assert len(list(stage.iterdir())) == 2, "nothing was staged"


def test_regression_a_stage_with_the_users_name_in_it_was_left_out_until_somebody_had_made_it(tmp_path: Path) -> None:
    import pwd

    trainer = Trainer(tmp_path / "trainer")
    trainer.folder.mkdir()
    stage = tmp_path / pwd.getpwuid(os.getuid()).pw_name
    trainer.run(save, 1, 1, environ={"BFT_STATE_STAGE": str(stage)})
    assert "not staged" not in trainer.output
    assert len(list(stage.iterdir())) == 1
    assert stage.stat().st_mode & 0o777 == 0o700


def test_a_stage_that_cannot_be_used_is_told_once_and_left_out(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(save, 2, 1, 2, environ={"BFT_STATE_STAGE": "/nowhere"})
    assert trainer.run(load_into, 1) == [(True, 2)]
    trainer.run(save, 1, 1, 2, environ={"BFT_STATE_STAGE": "/nowhere"})
    told = wording("elastic.stage.not_staged", root="/nowhere", strerror="No such file or directory")
    assert trainer.output.count(told) == 1


def save_and_flush_slowly(rank: int, size: int, folder: Path) -> None:
    import elastic
    from elastic.checkpoint.distributed import files, saving

    fsync, tell, told = os.fsync, saving._tell_growth, threading.Semaphore(0)

    def slowly(descriptor: int) -> None:
        if any(thread.name == "bft-flush" for thread in threading.enumerate()):  # a file's, not its folder's
            for _ in range(4):
                assert told.acquire(timeout=STILL_S)
        fsync(descriptor)

    def counted(size_bytes: int, flushing: bool) -> None:
        tell(size_bytes, flushing)
        if flushing:
            told.release()

    files.SAVING_S = 0.05
    os.fsync, saving._tell_growth = slowly, counted
    elastic.step(samples=1)
    elastic.save(state_of(1))


def test_regression_a_save_gave_no_sign_of_life_while_all_of_it_waited_for_the_disk(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(save_and_flush_slowly, 1)
    told = [message for message in trainer.said if message["op"] == "saving" and message["flushing"]]
    assert len(told) >= 4
    assert "shards" in trainer.ops()


def save_and_destroy_by_an_early_name(rank: int, size: int, folder: Path) -> None:
    """As a script does, under a node process that has done what it does before any script."""
    import torch.distributed as dist

    from elastic.backends.torchrun.node import preload

    preload()
    from torch.distributed import destroy_process_group

    import elastic
    from elastic.checkpoint.distributed import saving

    written = saving.Save._written
    saving.Save._written = lambda *arguments: (time.sleep(0.3), written(*arguments))[1]  # type: ignore[method-assign]
    elastic.step(samples=1)
    elastic.save(state_of(1))
    destroy_process_group()
    dist.destroy_process_group = lambda: None  # this test's own


def test_regression_the_last_checkpoint_was_lost_where_a_script_had_imported_destroy_process_group_by_name(
    tmp_path: Path,
) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(save_and_destroy_by_an_early_name, 2)
    assert trainer.ops().count("shards") == 2, trainer.output
    assert trainer.run(load_into, 1) == [(True, 1)]


def save_and_load_elsewhere(rank: int, size: int, folder: Path, loads: bool) -> bool:
    import torch

    import elastic

    state = state_of(1)
    torch.set_default_device("meta")  # stands for a GPU, to which gloo's tensors must not go either
    if loads:
        return equal(elastic.load(), state)
    elastic.step(samples=1)
    elastic.save(state)
    return True


def test_regression_a_default_device_of_the_scripts_broke_saves_and_loads(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    assert trainer.run(save_and_load_elsewhere, 2, False) == [True] * 2
    assert trainer.run(save_and_load_elsewhere, 2, True) == [True] * 2


def save_or_load_with_batches(rank: int, size: int, folder: Path, loads: bool) -> str:
    import elastic

    if loads:
        elastic.load()
        try:
            next(elastic.batches(40, global_batch=8, seed=2).steps())
        except elastic.base.errors.UsageError as error:
            return str(error)
        return ""
    for step in elastic.batches(40, global_batch=8, seed=1).steps():
        list(step)
        elastic.step(global_samples=8)
        break
    elastic.save(state_of(1))
    return ""


def test_regression_a_distributed_checkpoint_was_gone_on_from_with_other_batches_than_it_was_saved_with(
    tmp_path: Path,
) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(save_or_load_with_batches, 2, False)
    for said in trainer.run(save_or_load_with_batches, 2, True):
        assert says(said, "elastic.sampling.other_saved", differs="seed 1, here 2")


def draw_and_save(rank: int, size: int, folder: Path) -> tuple[float, float, float]:
    import random

    import numpy
    import torch

    import elastic

    state = state_of(1)  # which seeds torch's
    torch.manual_seed(rank)
    random.seed(rank + 200)
    numpy.random.seed(rank + 100)
    elastic.step(samples=1)
    elastic.save(state)
    return torch.rand(1).item(), random.random(), float(numpy.random.rand())


def load_and_draw(rank: int, size: int, folder: Path) -> tuple[float, float, float]:
    import random

    import numpy
    import torch

    import elastic

    elastic.load(into=fresh_state())
    return torch.rand(1).item(), random.random(), float(numpy.random.rand())


def test_random_numbers_go_on_on_their_rank_and_new_ranks_have_others_that_are_the_same_each_time(
    tmp_path: Path,
) -> None:
    trainer = Trainer(tmp_path)
    drawn = trainer.run(draw_and_save, 2)
    again = trainer.run(load_and_draw, 4)
    assert again[:2] == drawn
    assert len({draw for draws in again for draw in draws}) == 12
    assert trainer.run(load_and_draw, 3) == again[:3]


def save_with(rank: int, size: int, folder: Path) -> None:
    import torch

    import elastic

    elastic.step(samples=1)
    elastic.save({"mine": {f"stage{rank}": torch.full((3,), float(rank))}, "all": torch.arange(5)})


def load_pipeline(rank: int, size: int, folder: Path) -> list[float]:
    import torch

    import elastic

    state = elastic.load(into={"mine": {f"stage{index}": torch.zeros(3) for index in range(3)}, "all": torch.zeros(5)})
    return [state["mine"][f"stage{index}"][0].item() for index in range(3)]


def load_own(rank: int, size: int, folder: Path) -> list[str]:
    import torch

    import elastic

    state = elastic.load(into={"mine": {f"stage{rank}": torch.zeros(3)}, "all": torch.zeros(5)})
    assert state["mine"][f"stage{rank}"].tolist() == [float(rank)] * 3
    return list(state["mine"])


def test_workers_with_tensors_of_their_own_all_have_them_saved(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(save_with, 3)
    assert trainer.run(load_pipeline, 1) == [[0.0, 1.0, 2.0]]
    assert trainer.run(load_own, 3) == [["stage0"], ["stage1"], ["stage2"]]


def save_once_rank_0_complains(rank: int, size: int, folder: Path) -> bool:
    import elastic
    from elastic.checkpoint.distributed import groups

    groups.HINT_S = 0.2
    while rank == 1 and not says((folder / "log.0").read_text(), "elastic.groups.waits_for_others"):
        time.sleep(0.05)
    elastic.save(state_of(1))
    return True


def test_a_script_that_saves_on_rank_0_alone_is_told_so_while_it_waits(tmp_path: Path) -> None:
    assert Trainer(tmp_path).run(save_once_rank_0_complains, 2) == [True, True]


def test_a_frameworks_checkpoint_that_was_copied_in_memory_comes_back_as_its_files(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.run(save_checkpoint, 2)
    expected = ({"model.pt"}, True, ["rng.0: 0", "rng.1: 1"])
    assert trainer.run(load_checkpoint, 3) == [expected] * 3
