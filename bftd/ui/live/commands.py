"""Requests of the keys to the daemon: each function waits for the answer and returns it in words.

They raise BftError and are called in separate threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from bftd.base.errors import ApiError
from bftd.client import Client, Trainer
from bftd.ui.live import panels


def choices(chosen: Trainer | None) -> dict[str, Mapping[str, str]]:
    """Return what may be paused while this trainer is under the cursor: label -> arguments of the client."""
    found: dict[str, Mapping[str, str]] = {"everything": {}}
    if chosen is not None and chosen.user:
        found[f"the trainers of user {chosen.user}"] = {"user": chosen.user}
    if chosen is not None and chosen.account:
        found[f"the trainers of account {chosen.account}"] = {"account": chosen.account}
    return found


def pause(client: Client, arguments: Mapping[str, Any]) -> str:
    """Pause as chosen in a PauseDialog."""
    return f"paused: {'; '.join(item.text for item in client.pause(**arguments))}"


def resume(client: Client) -> str:
    """Lift the pause of everything."""
    return "lent again" + "".join(f"; still in force: {item.text}" for item in client.resume())


def tune(client: Client, changed: Mapping[str, Any]) -> str:
    """Change settings as chosen in a TuneDialog."""
    now = client.tune(**changed)
    return "tuned: " + ", ".join(f"{name} = {now.get(name)}" for name in changed)


def node(client: Client, name: str) -> Text:
    """Return why a node is or is not lent, and the decisions about it."""
    try:
        explanation = client.explain_node(name)
    except ApiError as error:  # an older daemon knows only the node's status
        known = next((each for each in client.nodes() if each.name == name), None)
        return Text(str(error)) if known is None else panels.node(known)
    shown = Text(f"{name} is harvested no longer") if explanation.node is None else panels.node(explanation.node)
    if explanation.leases:
        shown.append("\n\nwho had it").append("".join(map(panels.lease, explanation.leases)))
    return shown.append("\n\n").append_text(panels.decisions_text(explanation.decisions))
