"""Sharded checkpoints: saved by some workers while they train on, loaded by others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages import says

sys.path.insert(0, str(Path(__file__).parent))
from ranks import Trainer

pytestmark = [pytest.mark.torch]


def train_and_save(rank: int, size: int, folder: Path) -> tuple[list[float], int]:
    from models import Sharded

    import elastic

    training = Sharded()
    losses = []
    for step in range(6):
        losses += training.train(step, 1)
        elastic.step(samples=8)
        if step == 2:
            elastic.save({**training.state(), "step": step + 1, "odd": (1, {"of": None}), 5: [2.5, "text"]})
    return losses, size


def load_and_train(rank: int, size: int, folder: Path) -> tuple[list[float], dict[Any, Any]]:
    from models import Sharded

    import elastic
    from elastic.script import api

    training = Sharded()
    state = elastic.load(into=training.state())
    assert state is not None
    training.take(state)
    assert (api._progress.step, api._progress.samples) == (3, 3 * 8 * 2)
    return training.train(state["step"], 3), {key: state[key] for key in ("step", "odd", 5)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, list[float]]:
    trainer = Trainer(tmp_path_factory.mktemp("sharded"))
    [(losses, _), _] = trainer.run(train_and_save, 2, environ={"BFT_STATE_BY_PATH": ""})
    return trainer, losses


@pytest.mark.parametrize("size", [3, 4, 1])
def test_a_checkpoint_that_two_workers_saved_while_they_trained_on_goes_on_alike_on_any_number(
    saved: tuple[Trainer, list[float]], size: int
) -> None:
    trainer, losses = saved
    results = trainer.run(load_and_train, size)
    for found, rest in results:
        assert found == pytest.approx(losses[3:], rel=1e-7, abs=1e-7)
        assert rest == {"step": 3, "odd": (1, {"of": None}), 5: [2.5, "text"]}


class Held:
    """An object of the script's that has the model's tensors."""

    def __init__(self, tensors: Any) -> None:
        self.tensors = tensors


def save_in_an_object(rank: int, size: int, folder: Path) -> str:
    from models import Sharded

    import elastic
    from elastic.base.errors import CheckpointError

    elastic.step(samples=8)
    try:
        elastic.save({"held": Held(Sharded().model.state_dict())})
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("distributed", ["1", ""])
def test_regression_of_shards_within_an_object_those_of_rank_0_were_kept_for_the_whole(
    tmp_path: Path, distributed: str
) -> None:
    trainer = Trainer(tmp_path)
    whys = trainer.run(save_in_an_object, 2, environ={"BFT_STATE_BY_PATH": distributed})
    told = [message["text"] for message in trainer.said if message["op"] == "unwritten"]
    assert says(told[0] if distributed else whys[0], "elastic.errors.shard_in_object")
    assert "shards" not in trainer.ops()
