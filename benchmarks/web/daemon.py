"""A daemon with a web page, on a machine that is not there: the real API, core, ledger and listener, without Slurm.

    python -m benchmarks.web.daemon FOLDER --nodes N --trainers N [--hours H] [--private]

It prints a line with the port of [web] listen once it serves that and FOLDER/socket, and ends on SIGTERM. A snapshot a
second goes straight to the core: most nodes run regular jobs, some are down or planned, the rest is lent to trainers
of several users. The ledger has a record of the last hours, with a gap in which no daemon ran.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import signal
import socket
import sys
from pathlib import Path

from bftd.config.keys import (
    ApiConfig,
    Config,
    DecideConfig,
    LedgerConfig,
    LimitsConfig,
    SlurmConfig,
    WebConfig,
)
from bftd.core.model.domain import PoolNode, PoolView
from bftd.core.model.events import Event, Heard, PoolObserved, Registered, Reported
from bftd.core.sampling import AWAY, IDLE, LEASED, PLANNED, REGULAR
from bftd.daemon.process import SWITCH_S
from bftd.http import api
from bftd.ledger.file import Ledger
from bftd.ledger.history import table
from bftd.ledger.history.table import PoolRecord, TrainerIdentity, TrainerRecord
from bftd.protocol.lease import Phase
from bftd.protocol.registration import Registration
from bftd.protocol.reports import LeaseReport, ProgressReport
from bftd.protocol.sizes import Sizes
from bftd.service.gc_schedule import Garbage, only_when_called
from bftd.service.service import Service

POLL_S = 1.0
TOKEN = "a-token-of-the-benchmark-0123456789"
USERS = ("ann", "bob", "carla", "dmitri", "eve", "farid", "grace", "hiro")
# The last one shows whether a page takes what a user has named for what it is.
NAMES = ("resnet50", "gpt2-small", "unet-climate", "bert-large", "vit-b16", "deepcam", "cosmoflow", '<i>"x"&</i>')
_MINUTE_S = 60


class Site:
    """A machine of `nodes` with `trainers`, and its daemon."""

    def __init__(self, folder: Path, nodes: int, trainers: int, port: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        token = folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.config = Config(
            slurm=SlurmConfig(submit_rate_per_min=10**6),
            decide=DecideConfig(pj_max=10**4),
            limits=LimitsConfig(trainers_per_user=0),
            api=ApiConfig(str(folder / "socket")),
            ledger=LedgerConfig(str(folder / "ledger")),
            web=WebConfig(f"127.0.0.1:{port}", str(token)),
        )
        self._kinds = _kinds(nodes)
        sizes = _sizes(sum(kind == LEASED for kind in self._kinds.values()), trainers)
        self._trainers = {f"{4000 + at}": size for at, size in enumerate(sizes)}
        self._version = 1
        self.service = Service(self.config, Ledger(folder / "ledger"), lambda job_ids: None)
        self.service.private = False
        self._steps = 0

    def remember(self, hours: float) -> None:
        """Write a past of so many hours into the ledger."""
        now_s = int(self.service.now()) // _MINUTE_S * _MINUTE_S - _MINUTE_S  # the next record comes at once
        records = list(_past(now_s, hours, self._kinds, self._trainers))
        named = [TrainerIdentity(id_, _name(id_), _user(id_), _curve(size)) for id_, size in self._trainers.items()]
        self.service.ledger.write(lambda db: table.add(db, records, named))

    def begin(self) -> None:
        """Have all trainers register and work."""
        now_s = self.service.now()
        self.service.apply(
            *(
                Registered(
                    now_s,
                    Registration(id_, _name(id_), "torchrun", Sizes(max(1, size), max(1, size)), _user(id_), "elastic"),
                )
                for id_, size in self._trainers.items()
            )
        )
        self.tick()
        for phase in ("placed", "working"):
            self._report(phase)
        self.tick()

    def tick(self) -> None:
        """One snapshot, and what every driver says."""
        now_s, state = self.service.now(), self.service.state
        self._steps += 1
        on = {lease.node: lease.job_id for lease in state.leases.values() if lease.job_id}
        nodes = {name: _node(name, kind, on.get(name)) for name, kind in self._kinds.items()}
        view = PoolView(self._version, now_s, None, nodes, {job_id: node for node, job_id in on.items()})
        told: list[Event] = [Heard(now_s, id_) for id_ in self._trainers]
        if self._steps % 15 == 1:
            told += [
                Reported(now_s, id_, (_progress(now_s, size, self._steps),)) for id_, size in self._trainers.items()
            ]
        self.service.apply(*told, PoolObserved(now_s, view))

    def _report(self, phase: Phase) -> None:
        now_s = self.service.now()
        told: dict[str, list[LeaseReport]] = {}
        for number, lease in enumerate(self.service.state.leases.values()):
            told.setdefault(lease.trainer, []).append(LeaseReport(now_s, lease.id, phase, str(10**6 + number)))
        self.service.apply(*(Reported(now_s, id_, tuple(reports)) for id_, reports in told.items()))


def _kinds(nodes: int) -> dict[str, str]:
    """What each node is; spread over the machine as jobs are."""
    draw = random.Random(11)
    names = [f"n{at:04d}" for at in range(1, nodes + 1)]
    order = list(names)
    draw.shuffle(order)
    away, planned, idle = max(1, nodes // 40), max(1, nodes // 30), max(1, nodes // 100)
    leased = max(2, nodes * 15 // 100)
    kinds = [AWAY] * away + [PLANNED] * planned + [IDLE] * idle + [LEASED] * leased
    chosen = dict(zip(order, kinds + [REGULAR] * max(0, nodes - len(kinds)), strict=False))
    return {name: chosen[name] for name in names}


def _sizes(nodes: int, trainers: int) -> list[int]:
    """Nodes by trainer, fewer and fewer; the last ones wait."""
    weights = [1 / (at + 1.5) for at in range(trainers)]
    return [int(nodes * weight / sum(weights)) for weight in weights]


def _node(name: str, kind: str, pilot: str | None) -> PoolNode:
    if pilot is not None:
        return PoolNode(name, "ALLOCATED", True, "runs a pilot", pilot=pilot)
    if kind == REGULAR:
        return PoolNode(name, "ALLOCATED", False, "runs a job")
    if kind == PLANNED:
        return PoolNode(name, "IDLE+PLANNED", False, "is planned for job 48213 in 240 s", 240.0, True)
    if kind == AWAY:
        return PoolNode(name, "DOWN", False, "is down")
    return PoolNode(name, "IDLE", True, "is idle")


def _progress(now_s: float, size: int, steps: int) -> ProgressReport:
    rate = _rate(size)
    return ProgressReport(now_s, steps * 10, steps * rate, rate if size else 0.0, size, size, 0.5, 0, 15.0)


def _rate(size: int) -> float:
    return float(130.0 * size**0.92)


def _curve(size: int) -> dict[str, object]:
    most = 3 * size + 4
    return {"low": 1, "high": most, "only": None, "weight": 1.0, "curve": [[n, _rate(n)] for n in range(most + 1)]}


def _name(id_: str) -> str:
    at = int(id_) - 4000
    return NAMES[at % len(NAMES)] + (f"-{at // len(NAMES)}" if at >= len(NAMES) else "")


def _user(id_: str) -> str:
    return USERS[int(id_) % len(USERS)]


def _past(now_s: int, hours: float, kinds: dict[str, str], trainers: dict[str, int]) -> list[PoolRecord]:
    """A record a minute, and one of ten minutes where only those are kept."""
    draw = random.Random(7)
    total, away = len(kinds), sum(kind == AWAY for kind in kinds.values())
    weights = {id_: size + 0.5 for id_, size in trainers.items()}
    phases = {id_: 6 * draw.random() for id_ in trainers}
    made, at_s = [], now_s - int(hours * 3600)
    while at_s < now_s:
        span_s = _MINUTE_S if at_s >= now_s - 86_400 + 1200 else 600
        at_s += span_s
        x = (now_s - at_s) / 86_400
        if 0.42 < x < 0.45:
            continue  # nobody was there to look
        free = max(2.0, total * (0.19 + 0.07 * math.sin(9 * x) + 0.05 * math.sin(31 * x + 1)))
        planned, idle = round(free * 0.2), round(free * (0.03 + 0.06 * draw.random()))
        leased = max(0, round(free) - planned - idle)
        wants = {id_: weight * (1.1 + math.sin(5 * x + phases[id_])) for id_, weight in weights.items()}
        sizes = {id_: int(leased * want / sum(wants.values())) for id_, want in wants.items()}
        leased = sum(sizes.values())
        nodes = {
            REGULAR: total - away - planned - idle - leased,
            PLANNED: planned,
            LEASED: leased,
            IDLE: idle,
            AWAY: away,
        }
        points = tuple(
            TrainerRecord(id_, size, size, _rate(size), 0, 0.0, _rate(size) * span_s, 1.0)
            for id_, size in sizes.items()
        )
        made.append(
            PoolRecord(
                at_s,
                span_s,
                nodes,
                float(span_s * (leased + idle)),
                float(span_s * leased),
                0.94 * span_s * leased,
                points,
            )
        )
    return made


async def serve(site: Site) -> None:
    """Serve until SIGTERM."""
    loop, stop, garbage = asyncio.get_running_loop(), asyncio.Event(), Garbage()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    runner = await api.listen(site.service, site.config.api)
    print(json.dumps({"port": int(site.config.web.listen.rpartition(":")[2]), "token": TOKEN}), flush=True)
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), POLL_S)
        except asyncio.TimeoutError:
            site.tick()
            garbage.collect()
    site.service.stop()
    await runner.cleanup()
    site.service.ledger.close()


def free_port() -> int:
    """A port of localhost that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--trainers", type=int, default=100)
    parser.add_argument("--hours", type=float, default=26.0)
    parser.add_argument("--private", action="store_true")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)
    only_when_called()
    site = Site(options.folder, options.nodes, options.trainers, free_port())
    site.remember(options.hours)
    site.service.stop()
    site.service.ledger.close()
    site = Site(options.folder, options.nodes, options.trainers, free_port())  # it goes on from that past
    site.service.private = options.private
    site.begin()
    asyncio.run(serve(site))


if __name__ == "__main__":
    main()
