"""Constraints beyond the paper's: caps for users and accounts, and nodes that are used together or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from milp import fields
from milp.errors import ProblemError


@dataclass(frozen=True)
class Cap:
    """All trainers of one user, or of one account, together get at most `nodes_max` nodes."""

    nodes_max: int
    user: str = ""
    account: str = ""

    def __post_init__(self) -> None:
        fields.text("cap: user", self.user, empty=True)
        fields.text("cap: account", self.account, empty=True)
        if bool(self.user) == bool(self.account):
            raise ProblemError("cap: give either a user or an account")
        fields.whole(f"{self}: nodes_max", self.nodes_max, at_least=0)

    def __str__(self) -> str:
        return f"cap of user {self.user}" if self.user else f"cap of account {self.account}"

    def covers(self, user: str, account: str) -> bool:
        """Whether a trainer of this user and account counts towards the cap."""
        return self.user == user if self.user else self.account == account

    @classmethod
    def from_json(cls, data: object) -> Cap:
        """Read `{"user": "alice", "nodes_max": 16}` or the same with `account`."""
        got = fields.mapping("cap", data, ("user", "account", "nodes_max"), ("nodes_max",))
        return cls(got["nodes_max"], got.get("user", ""), got.get("account", ""))

    def to_json(self) -> dict[str, Any]:
        """The shape that `from_json` reads."""
        whose = {"user": self.user} if self.user else {"account": self.account}
        return {**whose, "nodes_max": self.nodes_max}


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that one trainer gets all together or nobody gets, such as those of a leaf switch."""

    name: str
    nodes: tuple[str, ...]

    def __post_init__(self) -> None:
        fields.text("group: name", self.name)
        for node in self.nodes:
            fields.text(f"group {self.name}: nodes", node)
        if not self.nodes:
            raise ProblemError(f"group {self.name}: nodes must name at least one node")
        if (repeated := fields.first_repeated(self.nodes)) is not None:
            raise ProblemError(f"group {self.name}: nodes lists node {repeated} twice")

    @classmethod
    def from_json(cls, data: object) -> NodeGroup:
        """Read `{"name": "leaf3", "nodes": ["n0", "n1"]}`."""
        keys = ("name", "nodes")
        got = fields.mapping("group", data, keys, keys)
        return cls(got["name"], fields.array("group: nodes", got["nodes"]))

    def to_json(self) -> dict[str, Any]:
        """The shape that `from_json` reads."""
        return {"name": self.name, "nodes": list(self.nodes)}
