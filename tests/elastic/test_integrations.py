"""The callbacks with the real libraries: saved on two ranks and resumed on one, the same samples in the same steps."""

from __future__ import annotations

import importlib
import io
import json
import multiprocessing
import os
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.base.errors import UsageError
from elastic.integrations import checkpoint
from elastic.script import api
from elastic.worker import driver_link
from elastic.worker.driver_link import Download, DriverLink
from slurm_plugin.sandbox.ports import reserved_ports
from tests.elastic.script.test_api import FakeChannel
from tests.support.messages import fragment, pattern
from tests.support.waiting import STILL_S

torch = pytest.importorskip("torch")
from elastic.checkpoint.snapshot import StateCopy, write  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.frameworks]

LENGTH, GLOBAL_BATCH, SAVED_AT, STEPS = 48, 8, 5, 9
save_every: int | None = None
"""What the callbacks are given, in the forks of a test that sets it."""

Train = Callable[[Path, int, bool], None]
Rows = dict[int, list[int]]


class Link(DriverLink):
    """A driver that asks for one save, at the end of step SAVED_AT, and keeps it in a file."""

    def __init__(self, file: Path) -> None:
        super().__init__(FakeChannel())  # type: ignore[arg-type]
        self._file = file
        request = {"step": SAVED_AT, "number": 1, "pause": False}
        self.step_barrier.answer({"op": "request_save", **request})
        self.step_barrier.answer({"op": "confirm_save", **request})

    def download_checkpoint(self) -> Download:
        return Download(self._file.open("rb") if self._file.exists() else None)

    def commit(self, saved: Any) -> None:
        self._saved = saved
        with self._file.with_name("saves").open("a") as file:
            file.write(f"{saved.step}\n")
        assert not checkpoints(self._file.parent), "training has waited for files"

    def upload_soon(self) -> None:
        self._saved.first()
        with self._file.open("wb") as file:
            self._saved.write(file)
        self._saved.kept()


def checkpoints(folder: Path) -> list[str]:
    """What lies in the folders of a shared file system where callbacks have bftd's checkpoints, whole or not."""
    return sorted(path.name for parent in ("kept", "out/_elastic") for path in (folder / parent).glob("*"))


def worker(folder: Path, rank: int, size: int, port: int, train: Train, steps: int, shared: bool) -> None:
    """One rank, in a fork: the libraries are imported already, as in a worker of bftd's."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="x", GROUP_RANK="0")
    os.chdir(folder)
    code = 1
    try:
        torch.set_num_threads(1)
        torch.manual_seed(3)
        driver_link.install(Link(folder / "state"))
        api._progress.step = api._progress.samples = 0
        train(folder, steps, shared)
        (folder / f"total.{rank}").write_text(str(driver_link.current().total_steps))
        code = 0
    except BaseException:
        (folder / f"error.{rank}").write_text(traceback.format_exc())
    os._exit(code)


def run(folder: Path, size: int, train: Train, steps: int, shared: bool = False) -> None:
    """Trains up to `steps` with so many ranks."""
    forks = multiprocessing.get_context("fork")
    with reserved_ports(1) as [port]:
        ranks = [
            forks.Process(target=worker, args=(folder, rank, size, port, train, steps, shared)) for rank in range(size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(2 * STILL_S)
    said = [file.read_text() for file in sorted(folder.glob("error.*"))]
    assert [process.exitcode for process in ranks] == [0] * size, "\n".join(said)


def note(folder: Path, step: int, samples: list[int]) -> None:
    with (folder / f"seen.{os.environ['WORLD_SIZE']}.{os.environ['RANK']}").open("a") as file:
        file.write(json.dumps([step, samples]) + "\n")


def seen(folder: Path) -> Rows:
    rows: Rows = defaultdict(list)
    for file in folder.glob("seen.*"):
        for line in file.read_text().splitlines():
            step, samples = json.loads(line)
            rows[step] = sorted(rows[step] + samples)
    return dict(rows)


def weights(folder: Path) -> list[float]:
    return json.loads((folder / "weights").read_text())  # type: ignore[no-any-return]


def keep_weights(folder: Path, model: Any) -> None:
    if os.environ["RANK"] == "0":
        values = [float(value) for parameter in model.parameters() for value in parameter.detach().double().flatten()]
        (folder / "weights").write_text(json.dumps(values))


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "x": torch.tensor([index / LENGTH, 1.0]), "labels": torch.tensor([index % 5 / 5.0])}


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: Any, labels: Any = None, index: Any = None) -> Any:
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


def hugging_face(folder: Path, steps: int, shared: bool) -> None:
    """The script asks for a checkpoint of its own at the step at which bftd does."""
    hugging_face_saving("steps", folder, steps, shared)
    assert (folder / "out" / f"checkpoint-{SAVED_AT}" / "optimizer.pt").exists(), "the script's own checkpoint"


def hugging_face_alone(folder: Path, steps: int, shared: bool) -> None:
    """The script asks for none."""
    hugging_face_saving("no", folder, steps, shared)


def hugging_face_saving(strategy: str, folder: Path, steps: int, shared: bool) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from elastic.integrations.hugging_face import ElasticCallback

    samples: list[int] = []

    class Seeing(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **fields: Any) -> Any:
            samples.extend(inputs["index"].tolist())
            return super().compute_loss(model, inputs, *args, **fields)

    class Log(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            note(folder, state.global_step, samples)
            samples.clear()

    callback = ElasticCallback(global_batch=GLOBAL_BATCH, shared=shared, save_every=save_every)
    arguments = TrainingArguments(
        str(folder / "out"),
        per_device_train_batch_size=2,
        max_steps=steps,
        lr_scheduler_type="constant",
        learning_rate=0.1,
        save_strategy=strategy,
        save_steps=SAVED_AT,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=True,
        ddp_backend="gloo",
    )
    model = Model()
    trainer = Seeing(model, arguments, train_dataset=Numbers(), callbacks=[Log(), callback])
    trainer.train(resume_from_checkpoint=callback.checkpoint())
    assert trainer.args.output_dir == str(folder / "out")
    keep_weights(folder, model)


def lightning(folder: Path, steps: int, shared: bool, a_step: int = 1, **options: Any) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from elastic.integrations.lightning import EachStep, ElasticCallback

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            note(folder, self.trainer.global_step + 1, batch["index"].tolist())
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.1)

    batches = elastic.batches(LENGTH, global_batch=GLOBAL_BATCH // a_step, seed=1)
    loader = EachStep(torch.utils.data.DataLoader(Numbers(), batch_sampler=batches))
    callback = ElasticCallback(folder=str(folder / "kept") if shared else None, save_every=save_every)
    size = int(os.environ["WORLD_SIZE"])
    module = Module()
    trainer = Trainer(
        callbacks=[callback],
        max_steps=steps,
        accelerator="cpu",
        devices=size,
        strategy="ddp" if size > 1 else "auto",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=a_step,
        **options,
    )
    trainer.fit(module, loader, ckpt_path=callback.checkpoint())
    keep_weights(folder, module)


def lightning_accumulating(folder: Path, steps: int, shared: bool) -> None:
    lightning(folder, steps, shared, a_step=2)


def lightning_cut_short(folder: Path, steps: int, shared: bool) -> None:
    """Lightning steps at the end of each of its epochs, of however many batches."""
    with pytest.raises(UsageError, match=pattern("elastic.lightning.other_batches", batches=1, each=2)):
        lightning(folder, steps, shared, a_step=2, limit_train_batches=3)


def accelerate(folder: Path, steps: int, shared: bool) -> None:
    from accelerate import Accelerator

    from elastic.integrations.accelerate import Elastic

    accelerator = Accelerator(cpu=True)
    model = Model()
    prepared, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
    run = Elastic(accelerator, folder=str(folder / "kept") if shared else None, save_every=save_every)
    batches = elastic.batches(LENGTH, global_batch=GLOBAL_BATCH, seed=1)
    for step in batches.steps(torch.utils.data.DataLoader(Numbers(), batch_sampler=batches)):
        if run.done == steps:
            break
        optimizer.zero_grad()
        for part in step:
            note(folder, step.number + 1, part.data["index"].tolist())
            with part.sync(prepared):
                accelerator.backward(prepared(**part.data)["loss"] * part.weight)
        optimizer.step()
        run.step(global_samples=step.global_samples, total_steps=steps)
    keep_weights(folder, model)


def imported(train: Train) -> None:
    """Imports what the forks need once, and not again in every one."""
    name = train.__name__.removesuffix("_alone").removesuffix("_epochs").removesuffix("_accumulating")
    importlib.import_module(f"elastic.integrations.{name}")
    importlib.import_module({"hugging_face": "transformers.trainer"}.get(name, name))


HELD = {
    hugging_face_alone: {"model.safetensors", "optimizer.pt"},
    lightning: {"lightning.ckpt"},
    accelerate: {"model.safetensors", "optimizer.bin"},
}
"""What of a checkpoint grows with the model."""


@pytest.mark.parametrize("train", HELD)
def test_regression_a_save_by_a_callback_waited_until_the_framework_had_written_its_files(
    train: Train, tmp_path: Path
) -> None:
    imported(train)
    run(tmp_path, 1, train, SAVED_AT)
    with (tmp_path / "state").open("rb") as file:
        state = torch.load(file, weights_only=False)["state"]
    assert HELD[train] <= set(state["held"])
    assert not HELD[train] & set(state["files"])


@pytest.mark.parametrize("train", HELD)
def test_a_callback_with_an_interval_of_the_scripts_own_saves_by_that(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(train)
    monkeypatch.setattr(f"{__name__}.save_every", 2)
    run(tmp_path, 1, train, 4)
    assert (tmp_path / "saves").read_text().split() == ["2", "4"]


def test_what_is_held_back_is_written_as_it_was_also_where_tensors_share_their_memory(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    there.mkdir()
    elsewhere.mkdir()
    weight = torch.arange(6.0).reshape(2, 3)
    tied = {"one": weight, "two": weight, "turned": weight.T}
    with checkpoint.held_back(there) as held:
        torch.save({"lr": 0.1, "moments": weight}, there / "optimizer.pt")
        torch.save({"lr": 0.1}, elsewhere / "own.pt")
        torch.save(weight, io.BytesIO())
        safetensors.save_file(tied, str(there / "sub" / "model.safetensors"), {"format": "pt"})
    assert set(held) == {"optimizer.pt", "sub/model.safetensors"}
    assert not list(there.iterdir())
    assert (elsewhere / "own.pt").exists()
    torch.save(0, there / "later.pt")
    assert (there / "later.pt").exists(), "it is torch's own again"
    kept = io.BytesIO()
    write({"files": {}, "held": held}, kept)
    kept.seek(0)
    folder = checkpoint.unpack(torch.load(kept), tmp_path / "unpacked")
    assert torch.load(folder / "optimizer.pt")["moments"].equal(weight)
    found = safetensors.load_file(folder / "sub" / "model.safetensors")
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in tied.items()
    }


@pytest.mark.parametrize("shared", [False, True], ids=["uploaded", "shared"])
@pytest.mark.parametrize("train", [hugging_face, hugging_face_alone, lightning, lightning_accumulating, accelerate])
def test_what_two_ranks_saved_one_goes_on_from_as_if_nothing_had_happened(
    train: Train, shared: bool, tmp_path: Path
) -> None:
    imported(train)
    moved, still = tmp_path / "moved", tmp_path / "still"
    moved.mkdir()
    still.mkdir()
    run(moved, 2, train, SAVED_AT, shared)
    assert (moved / "state").exists()
    assert checkpoints(moved) == ([f"step-{SAVED_AT}"] if shared else [])
    assert set(seen(moved)) == set(range(1, SAVED_AT + 1))
    run(moved, 1, train, STEPS, shared)
    run(still, 1, train, STEPS)
    rows = seen(moved)
    assert set(rows) == set(range(1, STEPS + 1))
    assert all(len(samples) == GLOBAL_BATCH for samples in rows.values())
    assert rows == seen(still)
    assert weights(moved) == pytest.approx(weights(still), rel=1e-4)
    assert {file.read_text() for file in still.glob("total.*")} == {str(STEPS)}, "bft tells when it ends"


def test_regression_steps_of_other_numbers_of_batches_were_gone_on_from_at_other_samples(tmp_path: Path) -> None:
    importlib.import_module("elastic.integrations.lightning")
    run(tmp_path, 1, lightning_cut_short, STEPS)


def hugging_face_epochs(folder: Path, steps: int, shared: bool) -> None:
    from transformers import Trainer, TrainingArguments

    from elastic.integrations.hugging_face import ElasticCallback

    arguments = TrainingArguments(
        str(folder / "out"),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=True,
    )
    callback = ElasticCallback(global_batch=GLOBAL_BATCH)
    trainer = Trainer(Model(), arguments, train_dataset=Numbers(), callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.checkpoint())


def lightning_epochs(folder: Path, steps: int, shared: bool) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from elastic.integrations.lightning import EachStep, ElasticCallback

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = elastic.batches(LENGTH, global_batch=GLOBAL_BATCH, seed=1, epochs=2)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    callback = ElasticCallback()
    trainer = Trainer(callbacks=[callback], max_epochs=1, accelerator="cpu", use_distributed_sampler=False, **quiet)
    loader = EachStep(torch.utils.data.DataLoader(Numbers(), batch_sampler=batches))
    trainer.fit(Module(), loader, ckpt_path=callback.checkpoint())


@pytest.mark.parametrize("train", [hugging_face_epochs, lightning_epochs])
def test_a_training_that_is_counted_in_epochs_tells_of_its_steps(train: Train, tmp_path: Path) -> None:
    imported(train)
    run(tmp_path, 1, train, 0)
    assert (tmp_path / "total.0").read_text() == str(2 * LENGTH // GLOBAL_BATCH)


def best_of(folder: Path, steps: int, strategy: str) -> None:
    from transformers import Trainer, TrainingArguments

    from elastic.integrations.hugging_face import ElasticCallback

    callback = ElasticCallback()
    arguments = TrainingArguments(
        str(folder / "out"),
        per_device_train_batch_size=8,
        max_steps=steps,
        eval_strategy="steps",
        save_strategy=strategy,
        eval_steps=SAVED_AT,
        save_steps=SAVED_AT,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(Model(), arguments, train_dataset=Numbers(), eval_dataset=Numbers(), callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.checkpoint())
    best = folder / "out" / f"checkpoint-{SAVED_AT}"
    assert trainer.state.best_model_checkpoint == str(best)
    assert json.loads((best / "trainer_state.json").read_text())["best_model_checkpoint"] == str(best)
    assert (best / "model.safetensors").exists()
    assert trainer.args.output_dir == str(folder / "out")


def best_of_strategy(folder: Path, steps: int, shared: bool) -> None:
    best_of(folder, steps, "best")


def best_of_steps(folder: Path, steps: int, shared: bool) -> None:
    best_of(folder, steps, "steps")


@pytest.mark.parametrize("train", [best_of_steps, best_of_strategy])
def test_regression_the_best_model_was_taken_for_the_copy_that_bftd_had_removed(train: Train, tmp_path: Path) -> None:
    importlib.import_module("elastic.integrations.hugging_face")
    importlib.import_module("transformers.trainer")
    run(tmp_path, 1, train, SAVED_AT)


def test_regression_a_checkpoint_was_copied_through_pickle_several_times(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    contents = {"model": os.urandom(1 << 20), "empty": b"", "sub/rng": b"x" * 100}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    files = checkpoint.gathered(tmp_path)
    assert len(StateCopy({"files": files})._pickle) < 10_000
    kept = io.BytesIO()
    write({"files": files}, kept)
    kept.seek(0)
    folder = checkpoint.unpack(torch.load(kept), tmp_path / "unpacked")
    assert {name: (folder / name).read_bytes() for name in contents} == contents


def test_regression_an_empty_file_of_a_checkpoint_went_to_a_default_device_of_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    torch.set_default_device("meta")  # stands for a GPU
    try:
        files = checkpoint.gathered(tmp_path)
    finally:
        torch.set_default_device(None)
    assert (checkpoint.unpack({"files": files}, tmp_path / "unpacked") / "empty").read_bytes() == b""


def test_a_global_batch_that_the_workers_cannot_make_up_is_one_line_that_says_what_to_do() -> None:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from elastic.integrations.hugging_face import ElasticCallback

    arguments = TrainingArguments("x", per_device_train_batch_size=8, report_to=[], use_cpu=True)
    with pytest.raises(
        UsageError,
        match=pattern("elastic.hugging_face.batch_not_made_up", world_size=fragment("1"), train_batch_size=8) + "$",
    ):
        ElasticCallback(global_batch=12).on_init_end(arguments, TrainerState(), TrainerControl())
