"""Words that were given up for others: product code, messages and pages use them for nothing but old names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("bftd", "elastic", "milp", "sizing", "slurm_plugin")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "mkdocs.yml", "docs", "tests/messages")
SUFFIXES = {".py", ".c", ".h", ".lua", ".md", ".yml", ".toml", ".json"}

# Each word in all its forms, with what is written instead.
GIVEN_UP: Mapping[str, str] = {
    "room": "an earmark is nodes kept for a job; elsewhere: free space, memory, a quota, what fits",
    "doubt": "a job is backed off; a change is suspect, data are unclear",
    "patience": "a user backoff",
    "lapse": "a job flaps",
    "in vain": "wasted, for nothing",
    "saved state": "a checkpoint",
    "bypath": "a distributed checkpoint",
}

# Old names that users see and that stay understood until 1.1, where they stand.
OLD_NAMES: Mapping[str, tuple[str, ...]] = {
    "CHANGELOG.md": (
        "rooms",
        "room_usage",
        "in_vain",
        "rooms_wary",
        "room",
        "in_room",
        "room_over",
        "doubted",
        "bftd_room",
        "bftd_rooms_in_vain",
        "make_room",
    ),
    "bftd/base/old_names.py": ("rooms", "room_usage", "rooms_wary", "in_vain", "room", "room_over", "make_room"),
    "bftd/base/folding.py": ("rooms",),
    "bftd/ledger/file.py": ("room_usage",),
    "bftd/service/metrics/counters.py": ("room_start_duration_seconds",),
    "bftd/service/metrics/gauges.py": (
        "rooms",
        "rooms_wary",
        "rooms_made",
        "rooms_started",
        "rooms_in_vain",
        "room_node_seconds",
        "room_vain_node_seconds",
    ),
    "docs/howto/history.md": ("room", "room_over", "doubted"),
    "docs/howto/notify.md": ("rooms",),
    "docs/reference/configuration.md": ("make_room",),
    "docs/reference/json.md": ("rooms", "room_usage", "rooms_wary", "in_vain", "room", "in_room"),
    "docs/reference/monitoring.md": (
        "bftd_rooms",
        "bftd_rooms_wary",
        "bftd_rooms_made_total",
        "bftd_rooms_started_total",
        "bftd_rooms_in_vain_total",
        "bftd_room_node_seconds_total",
        "bftd_room_vain_node_seconds_total",
        "bftd_room_start_duration_seconds",
    ),
    "elastic/backends/horovod/script.py": ("_saved_state",),  # Horovod's own
    "elastic/checkpoint/distributed/tree.py": ("elastic.bypath.tree",),
    "sizing/step_time/checking.py": ("in_room",),
}


def _files() -> Iterator[Path]:
    for name in (*CODE, *PAGES):
        path = ROOT / name
        yield from sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES) if path.is_dir() else (path,)


def _words(text: str) -> str:
    """The words of a line in small letters, those within a name apart: MakeRoom and make_room are "make room"."""
    return " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)).lower()


def _uses(word: str, text: str) -> bool:
    return re.search(rf"\b{word}(?:s|y|ed|ing|ful)?\b", _words(text)) is not None


def _without_old_names(path: str, line: str) -> str:
    for name in OLD_NAMES.get(path, ()):
        line = re.sub(rf"\b{name}\b", "", line)
    return line


@pytest.mark.parametrize("word", GIVEN_UP)
def test_a_word_that_was_given_up_is_used_for_old_names_alone(word: str) -> None:
    found = []
    for path in _files():
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if _uses(word, _without_old_names(name, line)):
                found.append(f"{name}:{number}: {line.strip()}")
    assert not found, f"say instead: {GIVEN_UP[word]}\n" + "\n".join(found)


@pytest.mark.parametrize("path", OLD_NAMES)
def test_an_old_name_that_is_gone_is_no_exception_any_more(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert [name for name in OLD_NAMES[path] if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("text", ["making Room", "BftdRoomsInVain", "bftd_rooms_total", "no_room", "ROOM"])
def test_a_word_is_found_within_a_name(text: str) -> None:
    assert _uses("room", text)
    assert not _uses("room", "mushroom bedrooms")
