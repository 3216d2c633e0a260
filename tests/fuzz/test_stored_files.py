"""What the ledger and checkpoints keep on disks, torn, cut and overwritten: it is read, or refused by its error."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bftd.base.errors import BftError
from bftd.http.handlers.query import MOST_FINISHED
from bftd.ledger import pool_trace, queries, schema, usage
from bftd.ledger.file import _DAMAGE, Ledger
from bftd.ledger.history.query import HistoryRequest
from bftd.ledger.history.query import read as read_history
from bftd.ledger.reader import LedgerReader
from elastic.base.errors import ElasticError
from elastic.node.shared_memory import RECORD
from elastic.store import catalogue, files, manifest, shards, writer_lock
from elastic.store.catalogue import Name
from elastic.store.manifest import CheckpointVersion
from elastic.store.store import CheckpointStore
from elastic.store.versions import CheckpointVersions
from tests.elastic.store.distributed import name_of, told, write
from tests.fuzz.mutations import ODD_VALUES, contents, documents, few, refused

pytestmark = pytest.mark.slow

ASSETS = Path(__file__).parents[1] / "bftd/ledger/assets"
NOW_S = 1.8e9


@contextmanager
def a_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def ledger_of(number: int, upgraded: bool = False) -> bytes:
    """The file of a ledger with something in every table, as that version of it was written, or brought up to date."""
    with a_folder() as folder:
        with contextlib.closing(sqlite3.connect(folder / "ledger")) as db:
            db.executescript((ASSETS / f"ledger-{number}.sql").read_text())
        if upgraded:
            Ledger(folder / "ledger").close()
        return (folder / "ledger").read_bytes()


LEDGERS = [*(ledger_of(number) for number in range(1, schema.VERSION)), ledger_of(schema.VERSION - 1, upgraded=True)]
TABLES = ("meta", "trainers", "leases", "events")


def is_ledger(path: Path) -> None:
    """A daemon begins with it and all questions are answered, or both say why not."""
    with refused(BftError):
        ledger = Ledger(path)
        try:
            with refused(BftError):
                state = ledger.load(NOW_S)
                for ask in (
                    lambda: ledger.kept("history"),
                    lambda: ledger.tuned(),
                    lambda: ledger.give_backs_s(),
                    lambda: ledger.decisions(None, 50),
                    lambda: ledger.events(0, 100),
                    lambda: ledger.maintain(NOW_S),
                    lambda: ledger.save(state, state, []),
                ):
                    with refused(BftError):
                        ask()
                is_answered(path, state)
        finally:
            ledger.close()


def is_answered(path: Path, state: Any) -> None:
    """A question may fail on a damaged event: the API answers it with a line, and the log says why."""
    reader = LedgerReader(path)
    for ask in (
        lambda: reader.events_json(0, 100),
        lambda: reader.events(0, 100),
        lambda: reader.decisions("1", 50),
        lambda: reader.owner("1"),
        lambda: reader.before(1.7e9),
        lambda: reader.newest("progress", 0.0),
        lambda: reader.samples_at("1", NOW_S),
        lambda: queries.leases_on(reader, "n1", 20),
        lambda: queries.last_words(reader, ["1", "2"]),
        lambda: queries.registered(reader, ["1", "2"]),
        lambda: queries.finished(reader, {}, MOST_FINISHED, lambda user: True),
        lambda: read_history(reader, HistoryRequest(0.0, NOW_S, NOW_S, None, True, lambda user: True)),
        lambda: pool_trace.read(reader, state, 0.0, NOW_S),
        lambda: usage.read(path, usage.UsageRequest(0.0, NOW_S, ("user", "account"), None)),
    ):
        with refused(BftError, *_DAMAGE):
            ask()


@few(4)
@given(contents(LEDGERS, 1))
@example(LEDGERS[-1][:100])
@example(LEDGERS[-1][:4096])
@example(b"SQLite format 3\0")
def test_a_ledger_whose_bytes_were_damaged_is_read_or_refused(raw: bytes) -> None:
    with a_folder() as folder:
        (folder / "ledger").write_bytes(raw)
        is_ledger(folder / "ledger")


@pytest.mark.parametrize("raw", LEDGERS)
def test_the_samples_are_read_and_all_questions_answered(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr("tests.fuzz.test_stored_files.refused", lambda *_: contextlib.nullcontext())
    with a_folder() as folder:
        (folder / "ledger").write_bytes(raw)
        is_ledger(folder / "ledger")


@few(4)
@given(st.data())
def test_a_ledger_with_words_of_another_program_in_it_is_read_or_refused(data: st.DataObject) -> None:
    with a_folder() as folder:
        path = folder / "ledger"
        path.write_bytes(data.draw(st.sampled_from(LEDGERS)))
        with contextlib.closing(sqlite3.connect(path)) as db:
            for _ in range(data.draw(st.integers(1, 3))):
                table = data.draw(st.sampled_from(TABLES))
                rows = db.execute(f"SELECT * FROM {table}").fetchall()
                names = [column[1] for column in db.execute(f"PRAGMA table_info({table})")]
                row, at = data.draw(st.sampled_from(rows)), data.draw(st.integers(0, len(names) - 1))
                old = row[at]
                odd = st.sampled_from([None, "", b"\xff", 1e308, -1, 2**62, "\udcff".encode(errors="surrogatepass")])
                new: Any = data.draw(odd)
                if isinstance(old, str) and old[:1] in ("{", "["):
                    new = data.draw(documents([json.loads(old)]) | ODD_VALUES.map(json.dumps) | odd)
                with contextlib.suppress(sqlite3.Error, UnicodeError):
                    db.execute(f"UPDATE {table} SET {names[at]} = ? WHERE {names[0]} = ?", (new, row[0]))
            db.commit()
        is_ledger(path)


# -- checkpoints ---


VERSION = CheckpointVersion.from_json(
    {
        **{"name": name_of(5), "home": "shards", "step": 5, "samples": 50, "size": 1, "aside": ""},
        "files": told("/a", 5, 0, 1)["files"],
    }
)


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's checkpoints: one of a whole state, one of a distributed one."""
    root = tmp_path_factory.mktemp("states")
    for name in ("7@hpc", "8@hpc"):
        CheckpointStore(root / name).close()
    (root / "7@hpc" / "state-5-50-4").write_bytes(b"data")
    message = told(root / "8@hpc" / "shards", 5, 0, 1)
    write(message)
    folder = os.open(root / "8@hpc", os.O_RDONLY)
    try:
        manifest.write(folder, VERSION)
        files.write(folder, shards.NOTE, json.dumps({"path": "/lustre/bft-8@hpc-0123abcd"}).encode())
        manifest.write(folder, VERSION)
    finally:
        os.close(folder)
    return root


NOTES = [shards.NOTE, writer_lock.NOTE, VERSION.kept.name, f"set-aside-{VERSION.kept.name}", RECORD]
SAMPLES = [
    VERSION.to_json(),
    {"path": "/lustre/bft-8@hpc-0123abcd"},
    {"host": "a", "pid": 7, "title": "x", "ended": True},
]


@few(4)
@given(st.sampled_from(NOTES), documents(SAMPLES) | contents([json.dumps(VERSION.to_json()).encode()]))
@example(VERSION.kept.name, "[" * 100_000)
def test_notes_of_checkpoints_with_faults_are_read_or_refused(trainers: Path, name: str, note: str | bytes) -> None:
    with a_folder() as scratch:
        root = scratch / "states"
        shutil.copytree(trainers, root)
        raw = note if isinstance(note, bytes) else note.encode(errors="surrogatepass")
        (root / "8@hpc" / name).write_bytes(raw)
        with refused(ElasticError):
            for entry in catalogue.entries(root):
                str(entry.name)
                entry.state  # noqa: B018
        folder = os.open(root / "8@hpc", os.O_RDONLY)
        try:
            with refused(OSError, ValueError):
                manifest.read(folder, VERSION.kept)
            with refused(OSError):
                manifest.why_aside(folder, VERSION.kept)
            with refused(OSError, ValueError):
                writer_lock.read_owner(folder)
            with refused(OSError, ValueError):
                files.read_note(folder, name)
            with refused(OSError, ElasticError):
                shards.settled(folder, root / "8@hpc", None)
        finally:
            os.close(folder)
        with refused(ElasticError):
            store = CheckpointStore(root / "8@hpc")
            try:
                CheckpointVersions(store, root / "8@hpc", None, lambda line: None)
            finally:
                store.close()


@given(st.sampled_from(["state-5-50-4", VERSION.kept.name, str(Name("7", "hpc", "earlier", 1.7e9))]), st.data())
def test_any_names_in_a_folder_of_checkpoints_are_read_or_passed_over(name: str, data: st.DataObject) -> None:
    drawn = data.draw(contents([name.encode()]))
    with a_folder() as root, refused(ElasticError):
        (root / "7").mkdir(mode=0o700)
        with contextlib.suppress(OSError, ValueError):
            (root / "7" / os.fsdecode(drawn)).write_bytes(b"data")
            (root / os.fsdecode(drawn)).mkdir(mode=0o700)
        for entry in catalogue.entries(root):
            str(entry.name)
