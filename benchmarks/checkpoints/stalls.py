"""The stall of one process's training by a save: from the step that asks for it until `elastic.save` returns.

The process has a driver's end that takes nothing, so nothing is uploaded meanwhile; a distributed checkpoint is
written beside the training, and what stays in a shared folder is written between two saves, which is told apart
(`written_s`).
Beside each save stands one copy of the same tensors into memory that was used before. Processor time is that of the
training's thread, which torch's copies do not leave here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WAYS = {
    "elastic.save": "torch",
    "state=PATH": "xxhash",
    "Hugging Face": "transformers",
    "Lightning": "lightning",
    "Accelerate": "accelerate",
    "Hugging Face, shared=True": "transformers",
    "Lightning, folder=": "lightning",
    "Accelerate, folder=": "accelerate",
    "Hugging Face, state=PATH": "transformers",
}
"""Ways of saving that can be measured, and the library that each needs."""

_SAVES = 4
_EVERY = 2
_STEPS = _SAVES * _EVERY + 1
_BLOCK = 1 << 20


def measure(way: str, size_bytes: int) -> dict[str, Any] | None:
    """Seconds of the saves after the first, which finds its memory; None where the library is not installed."""
    if find_spec(WAYS[way]) is None:
        return None
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory(prefix="bft-saves-") as folder:
        environ = {**os.environ, "PYTHONPATH": str(root), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # of a group of one
        environ |= {
            "BFT_STATE_PATH": folder,
            "BFT_STATE_BY_PATH": "1" if way.endswith("state=PATH") else "",
            "TMPDIR": folder,
        }
        argv = [sys.executable, "-m", "benchmarks.checkpoints.stalls", way, str(size_bytes)]
        said = subprocess.run(argv, env=environ, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = json.loads(said.splitlines()[-1])
    middle: dict[str, Any] = {name: sorted(row[name] for row in rows[1:])[(len(rows) - 1) // 2] for name in rows[0]}
    samples = [{name: round(value, 4) for name, value in row.items()} for row in rows]
    return {"way": way, "mb": size_bytes // 1_000_000, **middle, "first_s": rows[0]["stall_s"], "samples": samples}


class _Measured:
    """Times each save, in the place of the calls that scripts and callbacks make."""

    def __init__(self, elastic: Any, api: Any, written: Callable[[], None]) -> None:
        """`written` has done what is written beside training."""
        self.rows: list[dict[str, float]] = []
        self.tensors: list[Any] = []
        self._copies: list[Any] = []
        self._written = written
        self._step, self._save, self._save_beside = elastic.step, elastic.save, api.save_beside
        elastic.step, elastic.save, api.save_beside = self.step, self.save, self.save_beside

    def step(self, *args: Any, **fields: Any) -> bool:
        """As elastic.step, by the benchmark's interval."""
        due: bool = self._step(*args, **{**fields, "save_every": _EVERY})
        self._began = time.monotonic(), time.thread_time()
        return due

    def save(self, state: Any) -> None:
        """As elastic.save."""
        self._save(state)
        self._saved()

    def save_beside(self, state: Any, beside: Any) -> None:
        """As elastic.script.api.save_beside."""
        self._save_beside(state, beside)
        self._saved()

    def _saved(self) -> None:
        row = self._since("stall")
        self._began = time.monotonic(), time.thread_time()
        self._written()
        row |= self._since("written")
        if not self._copies:
            self._copies = [tensor.clone() for tensor in self.tensors]
        self._began = time.monotonic(), time.thread_time()
        for copy, tensor in zip(self._copies, self.tensors, strict=True):
            copy.copy_(tensor)
        self.rows.append({**row, **self._since("copy")})

    def _since(self, name: str) -> dict[str, float]:
        began_s, cpu_s = self._began
        return {f"{name}_s": time.monotonic() - began_s, f"{name}_cpu_s": time.thread_time() - cpu_s}


def _main(way: str, size_bytes: int) -> None:
    import torch

    import elastic
    from elastic.script import api
    from elastic.worker import driver_link

    class Link(driver_link.DriverLink):
        """A driver's end to which a state has come as soon as it is saved."""

        saved: driver_link.PendingCheckpoint | None = None

        def download_checkpoint(self) -> driver_link.Download:
            return driver_link.Download()

        def commit(self, saved: driver_link.PendingCheckpoint) -> None:
            if self.saved is not None:
                self.saved.release()
            self.saved = saved

        def upload_soon(self) -> None:
            pass

        def written(self) -> None:
            """Does the first and the last step of the uploading thread."""
            if self.saved is not None:
                self.saved.first()
                self.saved.kept()

    class Model(torch.nn.Module):
        """With Adam's two moments, so many bytes."""

        def __init__(self) -> None:
            super().__init__()
            blocks = max(1, size_bytes // 12 // _BLOCK)
            self.blocks = torch.nn.ParameterList([torch.zeros(size_bytes // 12 // blocks) for _ in range(blocks)])

        def forward(self, x: Any, **_: Any) -> Any:
            return {"loss": sum(((block[:2] - x.mean()) ** 2).sum() for block in self.blocks)}

    torch.set_num_threads(1)
    link = Link(SimpleNamespace(send=lambda message: None))  # type: ignore[arg-type]
    driver_link.install(link)
    measured, model = _Measured(elastic, api, link.written), Model()

    def trained(optimizer: Any) -> None:
        """Notes the tensors that are saved, once Adam has its moments."""
        moments = [value for state in optimizer.state.values() for value in state.values() if value.numel() > 1]
        measured.tensors = [parameter.detach() for parameter in model.parameters()] + moments

    data = [{"x": torch.ones(1)} for _ in range(_STEPS)]
    name, _, option = way.partition(", ")
    _TRAIN.get(name, _plain)(model, data, trained, option.endswith(("shared=True", "folder=")))
    print(json.dumps(measured.rows), flush=True)
    os._exit(0)  # what is being written is of no use to anybody


def _plain(model: Any, data: Any, trained: Any, shared: bool) -> None:
    import torch

    import elastic

    optimizer = torch.optim.Adam(model.parameters())
    for row in data:
        optimizer.zero_grad()
        model(**row)["loss"].backward()
        optimizer.step()
        trained(optimizer)
        if elastic.step(samples=1):
            elastic.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def _hugging_face(model: Any, data: Any, trained: Any, shared: bool) -> None:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from elastic.integrations.hugging_face import ElasticCallback

    optimizer = torch.optim.Adam(model.parameters())

    class Note(TrainerCallback):
        """Comes before bftd's."""

        def on_step_end(self, *args: Any, **fields: Any) -> None:
            trained(optimizer)

    arguments = TrainingArguments(
        "out", per_device_train_batch_size=1, max_steps=_STEPS, save_strategy="no", report_to=[], disable_tqdm=True,
        remove_unused_columns=False, use_cpu=True,
    )  # fmt: skip
    callback = ElasticCallback(shared=shared)
    Trainer(model, arguments, train_dataset=data, callbacks=[Note(), callback], optimizers=(optimizer, None)).train(
        resume_from_checkpoint=callback.checkpoint()
    )


def _lightning(model: Any, data: Any, trained: Any, shared: bool) -> None:
    import torch
    from lightning.pytorch import LightningModule, Trainer

    from elastic.integrations.lightning import ElasticCallback

    class Module(LightningModule):
        """The same model."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    class Callback(ElasticCallback):
        """Notes the tensors first."""

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
            trained(trainer.optimizers[0])
            super().on_train_batch_end(trainer, pl_module, *rest)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    callback = Callback(folder="kept" if shared else None)
    trainer = Trainer(callbacks=[callback], max_steps=_STEPS, accelerator="cpu", **quiet)  # type: ignore[arg-type]
    trainer.fit(Module(), torch.utils.data.DataLoader(data), ckpt_path=callback.checkpoint())


def _accelerate(model: Any, data: Any, trained: Any, shared: bool) -> None:
    import torch
    from accelerate import Accelerator

    from elastic.integrations.accelerate import Elastic

    accelerator = Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    run = Elastic(accelerator, folder="kept" if shared else None)
    for row in data:
        optimizer.zero_grad()
        accelerator.backward(prepared(**row)["loss"])
        optimizer.step()
        trained(optimizer.optimizer)
        run.step(samples=1)


_TRAIN = {"Hugging Face": _hugging_face, "Lightning": _lightning, "Accelerate": _accelerate}


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
