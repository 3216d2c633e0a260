"""The table of the copy of Slurm's planner: sums of recordings, what is held out, and what is beyond its bound."""

from __future__ import annotations

from benchmarks.backfill.replay import Counts, table


def test_recordings_are_summed_up_by_recipe_and_release_and_cycles_a_second_apart_stay_out_of_all() -> None:
    good = Counts(starts=10, predicted=10, ahead=9, earmarks=4, useful=4, node_s=10.0, plans=2, same=1)
    poor = Counts(starts=10, predicted=7, ahead=5, earmarks=4, useful=2, node_s=10.0, wasted_node_s=5.0)
    lines = table({"bf30-22.05.8-1": good, "bf30-22.05.8-2": poor, "tuned-22.05.8-1": poor}).splitlines()[2:]
    bf30, tuned, every = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert bf30[1:5] == ["2 (1)", "17 of 20, 85.0 %, missed", "7 of 10, 70.0 %, missed", "14 of 20, 70.0 %"]
    assert bf30[5:] == ["6 of 8, 75.0 %", "2 of 4, 50.0 %, missed", "25 %", "1 of 2, 50.0 %"]
    assert tuned[1:4] == ["1 (0)", "7 of 10, 70.0 %", "-"]
    assert every[1:] == bf30[1:]
