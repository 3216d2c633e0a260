"""The paper's week on Summit: the figures that its authors printed, within what their unknown choice of nodes moves."""

from __future__ import annotations

import pytest

from bftd.simulated import trainers
from bftd.whatif import trace as traces
from bftd.whatif.replay import Options, run
from tests.bftd.whatif.trace.making import SUMMIT, needs_summit

HPO = SUMMIT.with_name("trainers-hpo-shufflenet-1000.json.gz")
CASES = {
    "reference": (Options(accounting="reference"), 0.828, 0.838),
    "reference, equal share": (Options(accounting="reference", policy="equal-share"), 0.752, 0.762),
    # 0.924 is the bound without any cost.
    "exact": (Options(), 0.88, 0.924),
    "measured": (Options(rescale_model="measured"), 0.90, 0.924),
}


@needs_summit
@pytest.mark.parametrize("case", CASES)
def test_efficiency_on_the_week_of_1024_nodes(case: str) -> None:
    options, low, high = CASES[case]
    result = run(traces.read(SUMMIT).select("0-1023"), trainers.read(HPO), options)
    assert low <= result.efficiency <= high
    assert result.node_hours == pytest.approx(14_296, abs=1)
