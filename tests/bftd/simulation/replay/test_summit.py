"""The paper's week on Summit: the figure that its authors printed, and what else is asked on the week's first day."""

from __future__ import annotations

import pytest

from bftd.simulation import trace as traces
from bftd.simulation.drivers import trainers
from bftd.simulation.replay import Options, run
from tests.bftd.simulation.trace.making import SUMMIT, needs_summit

pytestmark = pytest.mark.slow

HPO = SUMMIT.with_name("trainers-hpo-shufflenet-1000.json.gz")
CASES = {
    # What the paper printed, within what its unknown choice of nodes moves.
    "reference": (Options(accounting="reference"), 14_296, 0.828, 0.838),
    "equal share": (Options(accounting="reference", policy="equal-share", hours=24), 835, 0.761, 0.771),
    "exact": (Options(hours=24), 835, 0.891, 0.911),
    "measured": (Options(rescale_model="measured", hours=24), 835, 0.924, 0.944),
}


@needs_summit
@pytest.mark.parametrize("case", CASES)
def test_efficiency_on_1024_nodes_of_the_week(case: str) -> None:
    options, node_hours, low, high = CASES[case]
    result = run(traces.read(SUMMIT).select("0-1023"), trainers.read(HPO), options)
    assert low <= result.efficiency <= high
    assert result.node_hours == pytest.approx(node_hours, abs=1)
