"""A made page: a status and a history of any number of nodes and trainers, in the shapes that the API answers."""

from __future__ import annotations

import math
import random
from typing import Any

from bftd.web.history import drawn
from bftd.web.page import STEPS, PageData
from tests.support.messages import wording

NOW_S = 497_222 * 3600.0
_NAMES = ("resnet50", "gpt2-small", "unet-climate", "bert-large", "vit-b16", "deepcam", "cosmoflow", "graphcast")
_USERS = ("ann", "bob", "carla", "dmitri", "eve", "farid", "grace", "hiro")


def shown(nodes: int = 500, trainers: int = 12, hours: int = 24, gap: bool = True, **changes: Any) -> PageData:
    """One page; keyword arguments change the status."""
    told = history(nodes, trainers, hours, gap)
    return PageData(
        "elastic",
        status(nodes, told) | changes,
        groups(nodes, told),
        drawn(told, hours),
        told["windows"],
        {"usage": [_usage(at, nodes) for at in range(min(trainers, len(_USERS)))]},
        True,
        hours,
    )


def history(nodes: int, trainers: int, hours: int, gap: bool = True) -> dict[str, Any]:
    """What `GET /v1/history` answers."""
    draw = random.Random(7)
    step_s = STEPS[hours]
    slots = round(hours * 3600 / step_s)
    weights = [1 / (at + 1) for at in range(trainers)]
    phases = [draw.random() * 6 for _ in range(trainers)]
    points = []
    for at in range(slots):
        x = at / slots
        if gap and 0.31 < x < 0.35:
            continue
        away = max(1, nodes // 40)
        free = nodes * (0.14 + 0.07 * math.sin(9 * x) + 0.05 * math.sin(31 * x + 1) + 0.02 * draw.random())
        planned, idle = round(free * 0.25), round(free * (0.05 + 0.1 * draw.random()))
        leased = max(0, round(free) - planned - idle)
        wants = [
            weight * (1 + 0.6 * math.sin(5 * x + phase)) * (x > 0.02 * place)
            for place, (weight, phase) in enumerate(zip(weights, phases, strict=True))
        ]
        sizes = [int(leased * want / (sum(wants) or 1)) for want in wants]
        told = {
            str(4000 + place): {
                "working": size,
                "leased": size,
                "samples_per_s": 130.0 * (place + 1) * size**0.9,
                "step": at * 100,
                "samples": at * 6400.0,
            }
            for place, size in enumerate(sizes)
        }
        states = {
            "regular": nodes - away - planned - idle - leased,
            "planned": planned,
            "leased": leased,
            "idle": idle,
            "away": away,
        }
        points.append(
            {
                "at_s": NOW_S - (slots - at) * step_s,
                "nodes": states,
                "mean_nodes": states,
                "trainers": told,
                "pool_node_seconds": (leased + idle) * step_s,
                "held_node_seconds": leased * step_s,
                "training_node_seconds": 0.93 * leased * step_s,
            }
        )
    pool_s = sum(point["pool_node_seconds"] for point in points)
    held_s = sum(point["held_node_seconds"] for point in points)
    windows = [
        {
            "window_s": window_s,
            "u": u,
            "training_share": 0.93 * held_s / pool_s if pool_s else None,
            "held_share": held_s / pool_s if pool_s else None,
            "pool_node_seconds": pool_s * window_s / 86400,
            "held_node_seconds": held_s * window_s / 86400,
            "training_node_seconds": 0.93 * held_s * window_s / 86400,
        }
        for window_s, u in ((3600, 0.874), (86400, 0.831), (604800, None))
    ]
    return {
        "format": 1,
        "since_s": NOW_S - hours * 3600,
        "until_s": NOW_S,
        "step_s": step_s,
        "points": points,
        "trainers": {
            str(4000 + place): {"name": _name(place), "user": _USERS[place % len(_USERS)]} for place in range(trainers)
        },
        "windows": windows,
    }


def _name(place: int) -> str:
    return _NAMES[place % len(_NAMES)] + (f"-{place // len(_NAMES)}" if place >= len(_NAMES) else "")


def _usage(at: int, nodes: int) -> dict[str, Any]:
    held_s = nodes * 6000.0 / (at + 1)
    return {"user": _USERS[at], "held_node_seconds": held_s, "training_node_seconds": 0.92 * held_s}


def groups(nodes: int, told: dict[str, Any]) -> list[dict[str, Any]]:
    """All nodes by state and reason, as the last point has them."""
    last = told["points"][-1]
    names = [f"n{at:04d}" for at in range(1, nodes + 1)]
    random.Random(3).shuffle(names)
    made = []

    def take(state: str, why: str, count: int) -> None:
        own = sorted(names.pop() for _ in range(min(count, len(names))))
        if own:
            made.append({"state": state, "why": why, "nodes": _folded(own), "count": len(own)})

    take("away", "is down", last["nodes"]["away"])
    take("planned", "is planned for job 48213 in 240 s", last["nodes"]["planned"] // 2)
    take(
        "planned", "is left to job 48220, which waits for it", last["nodes"]["planned"] - last["nodes"]["planned"] // 2
    )
    take("idle", "is idle", last["nodes"]["idle"])
    for trainer in last["trainers"].values():
        take("leased", "runs a pilot", trainer["leased"])
    take("regular", "runs a job", len(names))
    return made


def _folded(names: list[str]) -> str:
    from slurm_plugin.nodeset import fold

    return fold(names)


def status(nodes: int, told: dict[str, Any]) -> dict[str, Any]:
    """What `GET /v1/status?nodes=folded` answers, as far as the page shows it."""
    last = told["points"][-1]["trainers"]
    return {
        "time_s": NOW_S,
        "version": "1.0.0",
        "mode": "live",
        "snapshot_age_s": 0.8,
        "hold": None,
        "trainers": [_trainer(id_, told, last[id_], nodes) for id_ in last],
        "orphan_jobs": [],
        "caps": [],
        "pauses": [
            {
                "kind": "node",
                "names": ["n0007"],
                "by": "root",
                "since_s": NOW_S - 5400,
                "why": "new cable",
                "release": False,
                "text": wording("core.sentences.paused", what="node n0007", by="root", why="new cable"),
            }
        ],
        "hours": None,
        "bound": None,
        "alarms": [
            {"kind": "overdue", "node": "n0042", "text": wording("service.steered.overdue", node="n0042", since_s=9)}
        ],
        "silent": [],
        "tuned": {},
        "ledger": {"full": False, "failure": None, "oldest_event_s": NOW_S},
        "decisions": [
            {
                "at_s": NOW_S - 40 * at,
                "trainer": "4000",
                "text": f"resnet50 grows from {at + 3} to {at + 5} nodes: 2 nodes are free for 340 s, which pays for a "
                "resize of 4.1 s",
            }
            for at in range(12, 0, -1)
        ],
        "give_back_s": {"p50": 0.12, "p99": 0.4, "max": 0.71, "count": 412},
    }


def _trainer(id_: str, told: dict[str, Any], point: dict[str, Any], nodes: int) -> dict[str, Any]:
    known = told["trainers"][id_]
    names = [f"n{at:04d}" for at in random.Random(id_).sample(range(1, nodes + 1), min(nodes, point["working"]))]
    return known | {
        "id": id_,
        "account": "",
        "state": "running" if point["working"] else "waiting",
        "working": point["working"],
        "requested": point["leased"] + (1 if id_.endswith("3") else 0),
        "nodes_min": 1,
        "nodes_max": max(4, nodes // 8),
        "samples_per_s": point["samples_per_s"],
        "step": point["step"],
        "exit_code": None,
        "on": _folded(sorted(names)) if names else "",
    }
