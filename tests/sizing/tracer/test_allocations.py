"""The peak out of which storages lived when, against a count moment by moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sizing.tracer.allocations import ACTIVATIONS, GRADIENTS, NAMES, PARAMETERS, TEMPORARY, Allocation, AllocationLog


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans(), st.integers(0, 4), st.integers(0, 9)), max_size=40))
def test_the_peak_is_the_highest_moment_and_its_kinds_add_up_to_it(
    births: list[tuple[int, bool, int, int]],
) -> None:
    ledger, alive, most, most_gpu = AllocationLog(512), [], 0, 0
    for size, on_gpu, kind, ends in births:
        record = ledger.open(size, on_gpu)
        ledger.label(record, kind)
        alive.append(record)
        most = max(most, sum(each.bytes for each in alive))
        most_gpu = max(most_gpu, sum(each.bytes for each in alive if each.on_gpu))
        if ends < len(alive):
            ledger.close(alive.pop(ends))
    for gpu_only, wanted in ((False, most), (True, most_gpu)):
        peak, kinds = ledger.peak(gpu_only)
        assert peak == wanted == sum(kinds.values())
        assert list(kinds) == list(NAMES)
        assert not peak % 512


def test_a_storage_keeps_the_strongest_name_it_ever_had() -> None:
    ledger = AllocationLog()
    record = ledger.open(7, True)
    for kind in (ACTIVATIONS, GRADIENTS, TEMPORARY):
        ledger.label(record, kind)
    assert ledger.peak(True)[1]["gradients"] == 7
    ledger.label(record, PARAMETERS)
    assert ledger.peak(True)[1]["parameters"] == 7


def test_what_a_kernel_takes_for_itself_counts_while_it_runs() -> None:
    ledger = AllocationLog()
    kept: Allocation = ledger.open(10, True)
    ledger.scratch(100, True)
    ledger.close(kept)
    ledger.open(60, True)
    assert ledger.peak(True) == (110, {**dict.fromkeys(NAMES, 0), "temporary": 110})
