"""What a driver of the first protocol sends is understood: it runs on while its daemon is upgraded.

`assets/driver-protocol-1.jsonl` is what such a driver sent, in order: a torchrun trainer on two nodes, one worker of
which was killed, whose daemon lost its ledger, and that was suspended twice, the second time for a regular job. Of the
progress reports every fourth is kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bftd.core.model.domain import Trainer
from tests.bftd.http.test_api import driver_job, serving

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent / "assets" / "driver-protocol-1.jsonl"
# What it reads in an answer, and of what type.
WELCOME = {"epoch": int, "version": int, "leases": list, "note": str}
LEASE = {"id": str, "node": str, "state": str, "vacate": bool, "limit_s": float, "gres": str, "reason": str}


def reads(answer: dict[str, Any], wanted: dict[str, type]) -> bool:
    """Whether an answer has the fields that the driver reads."""
    return {name: type(answer.get(name)) for name in wanted} == wanted


async def test_a_driver_of_the_first_protocol_is_served_from_its_registration_to_its_end(tmp_path: Path) -> None:
    requests = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert not any("protocol" in request["body"] for request in requests)
    async with serving(tmp_path) as served:

        def trainer() -> Trainer:
            return served.service.state.trainers["1"]

        def phases() -> dict[str, str]:
            return {lease.id: lease.phase for lease in served.service.state.leases.values() if lease.live}

        async def send() -> Any:
            request = requests.pop(0)
            code, answer = await served.ask("POST", request["path"], request["body"])
            assert code == 200, answer
            return answer

        job = driver_job("1", "ann")
        served.see(jobs=(job,))
        welcome = await send()
        assert reads(welcome, WELCOME)
        served.see("n1", "n2", jobs=(job,))
        path = f"/v1/trainers/1/leases?epoch=1&version={welcome['version']}&wait_s=20"
        listed = (await served.ask("GET", path))[1]["leases"]
        assert [lease["id"] for lease in listed] == ["n1.1", "n2.2"]
        assert all(reads(lease, LEASE) for lease in listed)

        await send()
        assert phases() == {"n1.1": "working", "n2.2": "working"}
        assert trainer().steps_lost == 4
        welcome = await send()
        assert reads(welcome, WELCOME)
        assert {lease["id"] for lease in welcome["leases"]} == {"n1.1", "n2.2"}
        await send()
        assert (phases(), trainer().suspends) == ({}, 2)
        await send()
        assert (trainer().state, trainer().exit_code) == ("finished", 0)
        assert (trainer().step, trainer().samples) == (90, 110.0), "as it was reported last"
    assert requests == []
