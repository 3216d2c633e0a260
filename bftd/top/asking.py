"""What keys have the daemon do: each function asks it, waits, and returns what came of it in words.

They raise BftError and are called in a thread of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from bftd.client import Client, Trainer
from bftd.errors import ApiError
from bftd.top import parts


def choices(chosen: Trainer | None) -> dict[str, Mapping[str, str]]:
    """What may be paused while this trainer is below the cursor: its words, and how the client takes it."""
    found: dict[str, Mapping[str, str]] = {"everything": {}}
    if chosen is not None and chosen.user:
        found[f"the trainers of user {chosen.user}"] = {"user": chosen.user}
    if chosen is not None and chosen.account:
        found[f"the trainers of account {chosen.account}"] = {"account": chosen.account}
    return found


def pause(client: Client, asked: Mapping[str, Any]) -> str:
    """Pause what a PauseDialog gave."""
    return f"paused: {'; '.join(item.text for item in client.pause(**asked))}"


def resume(client: Client) -> str:
    """Lift the pause of everything."""
    return "lent again" + "".join(f"; still in force: {item.text}" for item in client.resume())


def tune(client: Client, changed: Mapping[str, Any]) -> str:
    """Change what a TuneDialog gave."""
    now = client.tune(**changed)
    return "tuned: " + ", ".join(f"{name} = {now.get(name)}" for name in changed)


def node(client: Client, name: str) -> Text:
    """Why a node is or is not lent, and what was decided about it."""
    try:
        told = client.explain_node(name)
    except ApiError as error:  # a daemon of before tells no more of a node than its status
        known = next((each for each in client.nodes() if each.name == name), None)
        return Text(str(error)) if known is None else parts.node(known)
    shown = Text(f"{name} is harvested no longer") if told.node is None else parts.node(told.node)
    if told.leases:
        shown.append("\n\nwho had it").append("".join(map(parts.lease, told.leases)))
    return shown.append("\n\n").append_text(parts.told(told.decisions))
