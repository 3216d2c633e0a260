"""The measurement of TUNE on matrices that are made up, in small."""

from __future__ import annotations

import json
import random
import sys

import pytest

from benchmarks.synergy import generated_packing as generated
from studies.synergy.packing.parse_servers import papers

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", generated.FAMILIES)
def test_priced_reaches_95_percent_of_opt_with_one_gpu_jobs_of_every_family(family: str) -> None:
    case = generated.measure(family, "1 GPU", 4, draws=3, seed=1)
    assert case.priced_share >= 0.95
    assert case.priced_least_share <= case.priced_share <= 1 + 1e-6
    assert case.priced_least_job >= 1 - 1e-6
    assert case.priced <= case.opt + 1e-6


def test_jobs_have_matrices_of_their_own_and_ask_for_every_gpu() -> None:
    jobs = generated.draw("concave", random.Random(3), papers(4).count * 8, generated.SIZES["1, 2, 4 GPUs"])
    assert sum(job.gpus for job in jobs) == 32
    assert {job.gpus for job in jobs} == {1, 2, 4}
    assert len({job.matrix for job in jobs}) == len(jobs)
    assert all(job.matrix.rates[-1][-1] == 0 for job in jobs if job.gpus > 1)


def test_few_jobs_move_where_places_are_kept() -> None:
    seen = generated.moves("limits", "1 GPU", 4, seed=1)
    assert seen.moved_kept < 0.3 < 0.7 < seen.moved_anew
    assert seen.throughput_kept_over_anew > 0.97


def test_it_prints_what_was_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--json", "--servers", "2", "--draws", "1", "--only", "limits"]
    monkeypatch.setattr(sys, "argv", ["synergy_pack_generated", *asked])
    generated.main()
    seen = json.loads(capsys.readouterr().out)
    assert [(case["family"], case["sizes"], case["servers"]) for case in seen["cases"]] == [
        ("limits", sizes, 2) for sizes in generated.SIZES
    ]
    assert len(seen["moves"]) == 2


@pytest.mark.parametrize("asked", [["--servers", "0"], ["--only", "convex"], ["--draws", "0"]])
def test_a_wrong_option_is_one_line(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["synergy_pack_generated", *asked])
    with pytest.raises(SystemExit):
        generated.main()
    assert asked[0] in capsys.readouterr().err.splitlines()[-1]
