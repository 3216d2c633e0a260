"""The client of bftd for notebooks and scripts: `from bftd.client import Client`.

>>> Client().trainers()            # a table, in a terminal with rich and in a notebook
>>> Client().wait("4711", until=8, timeout_s=600)
"""

from bftd.client.daemon import Client
from bftd.client.display import Rows
from bftd.client.history import History, HistoryPoint, TrainerPoint, Usage, UsageRow
from bftd.client.models import (
    Alarm,
    Curve,
    CurvePoints,
    Decision,
    Event,
    Explanation,
    GiveBack,
    Node,
    NodeExplanation,
    NodeGroup,
    Notice,
    OrphanJob,
    PastLease,
    Pause,
    ResizeCosts,
    Status,
    Stray,
    Trainer,
    Window,
)

__all__ = [
    "Alarm",
    "Client",
    "Curve",
    "CurvePoints",
    "Decision",
    "Event",
    "Explanation",
    "GiveBack",
    "History",
    "HistoryPoint",
    "Node",
    "NodeExplanation",
    "NodeGroup",
    "Notice",
    "OrphanJob",
    "PastLease",
    "Pause",
    "ResizeCosts",
    "Rows",
    "Status",
    "Stray",
    "Trainer",
    "TrainerPoint",
    "Usage",
    "UsageRow",
    "Window",
]
