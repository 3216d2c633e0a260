"""The benchmark of Slurm's forms of answers reads each of them on a small cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scale import reads
from benchmarks.scale.cluster import SMALLEST
from slurm_plugin.sandbox.cluster import release_of

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def test_each_form_is_read_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    reads.main([f"--nodes={SMALLEST}", "--jobs=8", "--repeats=2", "--json"])
    found = json.loads(capsys.readouterr().out)
    forms = {"nodes, text", "jobs, text", "jobs, JSON"}
    since = {
        "nodes, JSON": (23, 2),
        "nodes, metrics": (25, 11),
        "jobs, metrics": (25, 11),
        "scheduler, metrics": (25, 11),
    }
    forms |= {form for form, first in since.items() if release_of(Path("slurmctld")) >= first}
    assert found["reads"].keys() == forms
    for one in found["reads"].values():
        assert one["bytes"] > 100
        assert (len(one["answer_s"]), len(one["parse_s"])) == (2, 2)
    assert found["reads"]["jobs, JSON"]["bytes"] > found["reads"]["jobs, text"]["bytes"]
    assert len(reads.table(found).splitlines()) == 2 + len(found["reads"])
