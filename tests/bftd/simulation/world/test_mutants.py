"""The tester's test: each of its faults is one of the present source, and a world finds it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tools import mutants
from tools.mutants import ROOT, Mutant, OutOfDateError

pytestmark = pytest.mark.slow


def test_each_mutant_changes_what_is_in_the_source_once() -> None:
    found = mutants.mutants()
    assert len(found) >= 30
    for mutant in found.values():
        for path, before, after in mutant.edits:
            assert (ROOT / path).read_text(encoding="utf-8").count(before) == 1, mutant.name
            assert before != after, mutant.name


def test_a_mutant_of_another_source_is_refused() -> None:
    mutant = Mutant("old", "a fault", "S1", (("bftd/core/step.py", "nobody has written this", ""),))
    with pytest.raises(OutOfDateError):
        mutant.apply(ROOT)


def test_the_tool_finds_a_fault_and_nothing_in_the_unchanged_source() -> None:
    shown = json.loads(CliRunner().invoke(mutants.main, ["--json", "usage-counted-twice"]).stdout)
    assert (shown["asked"], shown["found"]) == (1, 1)
    assert shown["mutants"][0]["rule"].startswith("S10")
    assert shown["mutants"][0]["seed"] == shown["control"]["worlds"]
    assert shown["control"]["violation"] == ""
