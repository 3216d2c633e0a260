"""Frozen dataclasses to JSON."""

from __future__ import annotations

import dataclasses

from bftd.core.model.domain import PoolView, State
from bftd.ledger import codec
from tests.bftd.core.planning.test_victims import lease, state, trainer


def test_what_is_encoded_is_what_a_plain_copy_of_all_fields_is() -> None:
    full: State = state([trainer("1"), trainer("2", sizes=(2, 4))], [lease("n1", "1", job_id="7")], pool=PoolView())
    for item in (full, full.trainers["1"], full.trainers["2"], full.leases["n1.1"], full.usage, full.settings):
        assert codec.encode(item) == dataclasses.asdict(item)
