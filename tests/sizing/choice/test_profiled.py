"""From a profile on this CPU to the row of a choice: the commands one after another, on a centre of CPUs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.programs import run_bft

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CONFIG = ("--config", "gpt:h=64,l=2,a=2,s=32,V=128,precision=fp32", "--global-batch", "8")
CENTRE = {
    "types": {"cpu": {"memory_bytes": 8 * 10**9, "flops": {"fp32": 1e11}, "memory_bytes_s": 1e10, "link_bytes_s": 1e9}},
    "partitions": [
        {
            "partition": "node",
            "groups": [
                {"nodes": "n1", "gpu_type": "cpu", "gpus": 2, "cpus": 4, "memory_bytes": 16 * 10**9, "gres_type": ""}
            ],
        }
    ],
}


def bft(folder: Path, *words: str) -> str:
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config")}
    ended = run_bft("size", *words, env={**os.environ, **own}, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_profile_on_this_device_is_what_the_choice_and_the_fit_tell(tmp_path: Path) -> None:
    (tmp_path / "centre.json").write_text(json.dumps(CENTRE))
    here = ("--partitions", "centre.json", "--no-start", "--json")
    before = json.loads(bft(tmp_path, "choose", *CONFIG, *here, "--steps", "100"))
    assert {run["step"]["origin"] for run in before["cells"]} == {"assumed"}
    profile = ("--gpus", "1", "--device", "cpu", "--rounds", "3", "--python", sys.executable, "--json")
    (made,) = json.loads(bft(tmp_path, "profile", *CONFIG, *profile))["profiles"]
    after = json.loads(bft(tmp_path, "choose", *CONFIG, *here, "--steps", "100"))
    steps = {(run["gpus"], run["stages"]): run["step"] for run in after["cells"]}
    measured_s = made["compute_s"]["value"] + made["update_s"]["value"]
    assert steps[1, 1]["origin"] == "measured"
    assert steps[1, 1]["value"] == pytest.approx(measured_s)
    assert steps[2, 1]["origin"] == "assumed"
    plans = json.loads(bft(tmp_path, "fit", *CONFIG, *here))["plans"]
    found = {plan["gpus"]: (plan["step_origin"], plan["step_s"]) for plan in plans}
    assert found[1] == ("measured", pytest.approx(measured_s))
    assert found[2][0] == "assumed"
