"""Frozen dataclasses to JSON."""

from __future__ import annotations

import dataclasses

from bftd.core.model.domain import PoolView, State
from bftd.ledger import codec
from bftd.protocol.registration import Registration
from bftd.protocol.requirements import Requirements
from tests.bftd.builders import leased, state_of, trainer


def test_what_is_encoded_is_what_a_plain_copy_of_all_fields_is() -> None:
    full: State = state_of([trainer("1"), trainer("2", sizes=(2, 4))], [leased("n1", "1", job_id="7")], pool=PoolView())
    for item in (full, full.trainers["1"], full.trainers["2"], full.leases["n1.1"], full.usage, full.settings):
        assert codec.encode(item) == dataclasses.asdict(item)


def test_a_ledger_of_0_1_has_a_trainers_requirements_under_their_name_of_then() -> None:
    request = dataclasses.replace(trainer("1").request, requirements=Requirements(gpu="a100", features=("ib",)))
    written = codec.encode(request)
    old = {"wish" if name == "requirements" else name: value for name, value in written.items()}
    assert codec.decode(Registration, old) == codec.decode(Registration, written) == request
