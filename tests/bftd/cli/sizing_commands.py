"""Running `bft size` in this process, with a step whose traces are made up, and a centre in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sizing.base.errors import Untraceable
from sizing.base.parallel import Parallel, RankBatch
from sizing.child import tracing
from sizing.model.trace import StepTrace
from tests.sizing.plans_of import Step
from tests.support.terminal import Ended, Terminal

GPT = "gpt:h=1024,l=24,a=16,s=1024,V=50257,precision=bf16"


class SizeTerminal(Terminal):
    """Works in `folder`, where there is no Slurm."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(monkeypatch, capsys)
        self.folder = folder
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PATH", str(folder / "commands"))
        centre = {
            "types": {"a100": {"like": "a100-sxm-80gb"}, "v100": {"like": "v100-sxm2-32gb"}},
            "partitions": [_partition("new", "a100", 4), _partition("old", "v100", 2)],
        }
        (folder / "centre.json").write_text(json.dumps(centre))
        (folder / "train.py").write_text("def make_step(batch_size): ...\n")

    def fit(self, *words: str) -> Ended:
        return self("size", "fit", "--partitions", "centre.json", *words)

    def traces(self, step: Step, takes: frozenset[str] = frozenset()) -> None:
        """Let every step be this one."""

        def trace(name: str, batch: int, parallel: Parallel, **_: object) -> StepTrace:
            result = step.measure([RankBatch(parallel, batch)])[0]
            if isinstance(result, Untraceable):
                raise result
            return result

        self._monkeypatch.setattr(tracing, "trace", trace)
        self._monkeypatch.setattr(tracing, "takes", lambda name, python="": takes)


def _partition(name: str, kind: str, gpus: int) -> dict[str, Any]:
    group = {"nodes": f"{name}[1-4]", "gpu_type": kind, "gpus": gpus, "cpus": 64, "memory_bytes": 512 * 2**30}
    return {"partition": name, "groups": [{**group, "gres_type": kind}]}
