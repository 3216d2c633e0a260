"""Which options of sbatch's an elastic job cannot have."""

from __future__ import annotations

import pytest

from bftd.base.errors import UsageError
from bftd.cli.jobs import sbatch_options


@pytest.mark.parametrize(
    "words", [["--gpus=1"], ["-G1"], ["--gpus-per-task=1"], ["--tres-per-task=gres/gpu:4"], ["--tres-p", "cpu=2"]]
)
def test_an_elastic_job_names_its_gpus_by_no_option_of_sbatchs(words: list[str]) -> None:
    line = sbatch_options.parse([*words, "train.py"])
    assert line.script == "train.py"
    with pytest.raises(UsageError):
        sbatch_options.refuse_decided(line.options, "bft sbatch")
