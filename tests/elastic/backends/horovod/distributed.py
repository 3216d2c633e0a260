"""A Horovod script alone with itself whose driver is this script: what comes of its distributed checkpoints is printed.

Arguments: the folder of its checkpoint versions. Prints a JSON object a part, with its name.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

home = Path(sys.argv[1])
os.environ.update(BFT_STATE_PATH=str(home), BFT_STATE_BY_PATH="1")

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402

import elastic  # noqa: E402
import elastic.horovod  # noqa: E402
from elastic.base.errors import CheckpointError  # noqa: E402
from elastic.checkpoint import distributed  # noqa: E402
from elastic.worker import driver_link as sessions  # noqa: E402
from elastic.worker.driver_link import Download, DriverLink  # noqa: E402

LIMIT_S = 120.0


class Driver:
    """Hears the worker, and answers what it tells of its shards with `verdict`, "" for not at all."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.verdict = "published"
        self.published: list[dict[str, Any]] = []
        self.session = DriverLink(self)  # type: ignore[arg-type]  (a channel is what has `send`)

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)
        if message["op"] == "shards" and self.verdict:
            self.says(self.verdict, message)

    def says(self, op: str, shards: dict[str, Any]) -> None:
        if op == "published":
            self.published.append(
                {key: shards[key] for key in ("name", "path", "step", "samples", "size", "files")},
            )
        self.session.on_message[op]({"op": op, "name": shards["name"]})

    def offers(self, *versions: dict[str, Any]) -> None:
        self.session.download_checkpoint = lambda: Download(versions=versions)  # type: ignore[method-assign]

    def ops(self, since: int = 0) -> list[str]:
        return [message["op"] for message in self.told[since:] if message["op"] != "saving"]

    def shards(self) -> list[dict[str, Any]]:
        return [message for message in self.told if message["op"] == "shards"]

    def asks(self, until: Callable[[int], object]) -> list[str]:
        """Asks for the checkpoint and waits until what was told since then suffices; returns the ops of that."""
        since = len(self.told)
        self.session._uploader.ask()
        wait(lambda: until(since))
        return self.ops(since)

    def answered(self, since: int) -> object:
        return {"shipped", "nothing_saved"} & set(self.ops(since))


class Script:
    """A model with an optimizer that has a state, and attributes that change in place."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.state = hvd.elastic.TorchState(self.model, self.optimizer, seen=[0], energy=torch.zeros(2))

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        self.state.seen.append(len(self.state.seen))
        self.state.energy += 1.5

    def values(self) -> list[Any]:
        found = [self.model.state_dict(), self.optimizer.state_dict(), self.state.seen, self.state.energy]
        return flat([*found, self.state.bft_step, self.state.bft_samples])


def flat(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [each for key in state for each in (key, *flat(state[key]))]
    if isinstance(state, (list, tuple)):
        return [each for value in state for each in flat(value)]
    return [state.tolist() if torch.is_tensor(state) else state]


def wait(condition: Callable[[], object]) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.002)


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except CheckpointError as error:
        return str(error)
    return ""


def show(part: str, **found: Any) -> None:
    print(json.dumps({"part": part, **found}), flush=True)


driver = Driver()
sessions.install(driver.session)
driver.offers()
hvd.init()
script = Script()
script.train()
script.state.save()
driver.session.upload()
first = script.values()

script.train()
script.state.save()
second = script.values()
script.train()  # what is written is the commit
since = len(driver.told)
answers = driver.asks(driver.answered)
saving = [message["bytes"] for message in driver.told[since:] if message["op"] == "saving"]
show("asked", ops=answers, shards=driver.shards(), saving=saving)

driver.verdict = ""
script.state.save()
early = driver.asks(lambda _: len(driver.shards()) == 3)
other = {**driver.shards()[-1], "name": "step-000000000003-0123456789abcdef"}
driver.session.on_message["published"](other)
time.sleep(0.05)
before = driver.ops()[-1]
driver.says("published", driver.shards()[-1])
wait(lambda: driver.ops()[-1] == "shipped")
driver.verdict = "unpublished"
script.state.save()
show("waited", early=early, before=before, unpublished=driver.asks(driver.answered))
driver.verdict = "published"

(home.parent / "file").touch()
os.environ["BFT_STATE_PATH"] = str(home.parent / "file" / "shards")
script.state.save()
unwritten = driver.asks(driver.answered)
os.environ["BFT_STATE_PATH"] = str(home)
lines = [message["text"] for message in driver.told if message["op"] == "unwritten"]
show("unwritten", ops=unwritten, lines=lines, again=driver.asks(driver.answered))

script.state.save()
since = len(driver.told)
threading.Thread(target=driver.session.rest, daemon=True).start()  # which never returns
wait(lambda: "paused" in driver.ops(since))
show("paused", ops=driver.ops(since))

older, newer = driver.published[:2]
driver.offers(newer, older)
generator = torch.get_rng_state()
torch.nn.Linear(2, 1)
drawn = torch.get_rng_state()
torch.set_rng_state(generator)
again = Script()
show("resumed", same=again.values() == second, generators_kept=torch.equal(drawn, torch.get_rng_state()))
data = next(Path(newer["path"]).glob("*.distcp"))
content = bytearray(data.read_bytes())
content[len(content) // 2] ^= 1
data.write_bytes(content)
since = len(driver.told)
again = Script()
show("altered", same=again.values() == first, told=driver.told[since:], name=newer["name"])
driver.offers(newer)
show("lost", error=error_of(Script))

driver.offers(older)
ours = error_of(elastic.load)
distributed.save({"weight": torch.ones(2)}, 7, 7, pause=False)
wait(lambda: driver.published[-1]["step"] == 7)
driver.offers(driver.published[-1])
show("kinds", ours=ours, theirs=error_of(Script))

driver.offers(older)
script = Script()
script.state.step_done(5)
script.state.save()
driver.session.ended(0)
show("ended", shards=driver.shards()[-1], state=script.state.bft_step)
