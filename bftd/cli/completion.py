"""Shell completion of trainers, nodes, states and `--elastic`, at the cost of one short request to the daemon."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from bftd import api_client

Items = list[CompletionItem]

# Others choose the names of their trainers, and a shell takes what is completed as typed.
_PLAIN = re.compile(r"[A-Za-z0-9._+-]+")
# A shell waits for the answer.
_TIMEOUT_S = 1.0
# The letters that end a word for bash, in its default $COMP_WORDBREAKS.
_BREAKS = ("=", ":")


def trainers(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete the ids and names of the trainers that the daemon shows."""
    return _begun(incomplete, _known(ctx)[0])


def live_trainers(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete the ids and names of the trainers that have not ended."""
    return _begun(incomplete, _known(ctx, live=True)[0])


def trainers_and_nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete the ids and names of trainers, and harvested nodes."""
    return _begun(incomplete, chain(*_known(ctx)))


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete the last of some harvested nodes with commas between them."""
    return _last(incomplete, _known(ctx)[1])


def among(*names: str) -> Callable[[click.Context, click.Parameter, str], Items]:
    """Return the completion of the last of some of these names with commas between them."""
    return lambda ctx, param, incomplete: _last(incomplete, map(CompletionItem, names))


def elastic(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete a value of `--elastic`: 1 to all harvested nodes, then the names and known values of its options."""
    from elastic.options import elastic_option

    if "," not in incomplete:
        size = len(_known(ctx)[1])
        return _begun(incomplete, [CompletionItem(f"1-{size}")] if size else [])
    return _last(incomplete, map(CompletionItem, elastic_option.COMPLETED))


def script(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete a script by the files of the shell."""
    return [CompletionItem(incomplete, type="file")]


class _Bash(BashComplete):
    """Bash's completion with = and : within a word: bash passes its pieces, and replaces the last one."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *= ]] && compopt -o nospace"
    )

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._typed = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one to complete, and that, each put together again."""
        words = split_arg_string(os.environ["COMP_WORDS"])
        at = int(os.environ["COMP_CWORD"])
        if at >= len(words):
            words.append("")
        joined: list[str] = []
        for word in words[1 : at + 1]:
            if joined and (word in _BREAKS or joined[-1].endswith(_BREAKS)):
                joined[-1] += word
            else:
                joined.append(word)
        incomplete = joined.pop() if joined else ""
        value = incomplete.partition("=")[2] if incomplete.startswith("--") else incomplete
        self._typed = value[: 1 + max(map(value.rfind, _BREAKS))]
        return joined, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return a line for the shell without the pieces that bash keeps."""
        return f"{item.type},{str(item.value).removeprefix(self._typed)}"


def install() -> None:
    """Have click write and answer bash's completion with the = and : of values."""
    add_completion_class(_Bash)


def _known(ctx: click.Context, live: bool = False) -> tuple[Items, Items]:
    """Return the daemon's trainers, maybe only `live` ones, and nodes; a shell shows no error: then none."""
    from slurm_plugin.nodeset import expand

    try:
        daemon = api_client.find(ctx.params.get("config_path"))
        status = daemon.request("GET", "/v1/status?nodes=folded", timeout_s=_TIMEOUT_S)
        found = [trainer for trainer in status["trainers"] if not (live and trainer["state"] == "finished")]
        ids = [CompletionItem(str(trainer["id"]), help=trainer["name"]) for trainer in found]
        names = dict.fromkeys(str(trainer["name"]) for trainer in found)
        groups = status.get("node_groups", ())  # an older daemon sends the nodes themselves
        nodes = [name for group in groups for name in expand(group["nodes"])]
        nodes += [node["name"] for node in status.get("nodes", ())]
    except Exception:
        return [], []
    spoken = [CompletionItem(name) for name in names if _PLAIN.fullmatch(name)]
    return [*(item for item in ids if item.value), *spoken], list(map(CompletionItem, nodes))


def _begun(incomplete: str, found: Iterable[CompletionItem]) -> Items:
    return [item for item in found if str(item.value).startswith(incomplete)]


def _last(incomplete: str, found: Iterable[CompletionItem]) -> Items:
    """Complete what follows the last comma."""
    before = incomplete[: incomplete.rfind(",") + 1]
    return [CompletionItem(f"{before}{item.value}") for item in _begun(incomplete[len(before) :], found)]
