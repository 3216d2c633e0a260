"""Where checkpoints may be: nobody but root and the user can put another folder, file or link in their place."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.base.errors import UsageError
from elastic.store.folder import Place, UnsafeFolderError
from tests import program
from tests.support.messages import excerpt, fragment, pattern, says

pytestmark = pytest.mark.slow

NOBODY, GAMES = 65534, 5
as_root = pytest.mark.skipif(os.getuid() != 0, reason="acting as two users needs root")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A sticky folder of root's in which every user may make his own, as a cluster's scratch is."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def opens(path: Path, uid: int | None = None) -> str:
    """What comes of opening a place, as another user if need be: "" or the error."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from elastic.store.folder import Place\n"
        "uid = int(sys.argv[2])\n"
        "os.setgroups([]) if os.getuid() == 0 else None\n"
        "os.setresuid(uid, uid, uid)\n"
        "try:\n"
        "    with Place(Path(sys.argv[1])).opened(make=True) as fd:\n"
        "        print(os.listdir(fd))\n"
        "except Exception as error:\n"
        "    sys.exit(f'{type(error).__name__}: {error}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(os.getuid() if uid is None else uid)],
        cwd="/",
        env={"PYTHONPATH": program.python_path(), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stderr.strip()


def test_a_place_is_made_for_its_user_alone_with_all_that_is_above_it(tmp_path: Path) -> None:
    with Place(tmp_path / "a" / "b" / "7").opened(make=True) as folder:
        assert os.listdir(folder) == []
    assert [oct((tmp_path / path).stat().st_mode & 0o777) for path in ("a", "a/b", "a/b/7")] == ["0o700"] * 3


def test_an_own_folder_that_others_could_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir(mode=0o755)
    with Place(tmp_path / "7").opened():
        assert (tmp_path / "7").stat().st_mode & 0o777 == 0o700


def test_a_home_that_is_a_link_is_followed_where_only_its_user_could_have_made_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to("../" + str((tmp_path / "real").relative_to(tmp_path.parent)))
    (tmp_path / "absolute").symlink_to(tmp_path / "home")
    with Place(tmp_path / "absolute" / "states" / "7").opened(make=True):
        assert (tmp_path / "real" / "states" / "7").is_dir()


def test_links_that_go_round_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"), Place(tmp_path / "a" / "7").opened():
        pass


def test_regression_a_trainers_folder_that_was_a_link_had_another_folder_closed_and_written(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o755)
    (tmp_path / "7").symlink_to("other")
    with (
        pytest.raises(UnsafeFolderError, match=pattern("elastic.folder.not_a_folder")),
        Place(tmp_path / "7").opened(make=True),
    ):
        pass
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_level_in_which_others_can_write_is_refused_with_what_to_do(shared: Path, mode: int) -> None:
    uid = NOBODY if os.getuid() == 0 else os.getuid()  # sticky is enough where the folder is root's
    (shared / "own" / "states").mkdir(parents=True)
    for path in (shared / "own", shared / "own" / "states"):
        os.chown(path, uid, -1)
    (shared / "own").chmod(mode)
    said = opens(shared / "own" / "states" / "7", uid)
    assert said.startswith("UnsafeFolderError")
    assert says(
        said,
        "elastic.folder.others_can_write",
        fd=f"{shared}/own",
        fd2=f"{shared}/own",
        advice=fragment(excerpt("elastic.folder.set_folder")),
    )


@pytest.mark.skipif(os.getuid() != 0, reason="root may list everything, and nobody else can make such a folder")
def test_a_parent_of_homes_that_can_be_passed_through_and_not_be_listed_is_no_hindrance(shared: Path) -> None:
    (shared / "home" / "own").mkdir(parents=True)
    os.chown(shared / "home" / "own", NOBODY, NOBODY)
    (shared / "home").chmod(0o711)
    assert opens(shared / "home" / "own" / "states" / "7", NOBODY) == ""


def test_a_folder_that_everybody_shares_is_no_place_for_checkpoints_itself(shared: Path) -> None:
    with (
        pytest.raises(UnsafeFolderError, match=pattern("elastic.folder.not_own")),
        Place(shared / "7").opened(make=True),
    ):
        pass


def test_a_relative_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="absolute path"), Place(Path("states") / "7").opened():
        pass


# -- two users ---


@as_root
def test_regression_in_a_sticky_folder_one_user_made_the_others_checkpoints_his_own(shared: Path) -> None:
    """He is first there, with whatever name the other one will ask for: a folder, or a link to one of the victim's."""
    (shared / "bft").mkdir()
    os.chown(shared / "bft", GAMES, GAMES)
    said = opens(shared / "bft" / "7", NOBODY)
    assert said.startswith("UnsafeFolderError")
    assert f"{shared / 'bft'} belongs to games" in said

    (shared / "victims").mkdir()
    os.chown(shared / "victims", NOBODY, NOBODY)
    (shared / "link").symlink_to("victims")
    os.chown(shared / "link", GAMES, GAMES, follow_symlinks=False)
    assert says(opens(shared / "link" / "7", NOBODY), "elastic.folder.foreign_link")
    assert list((shared / "victims").iterdir()) == []

    (shared / "victims" / "7").mkdir()
    os.chown(shared / "victims" / "7", GAMES, GAMES)
    assert "belongs to games" in opens(shared / "victims" / "7", NOBODY)


@as_root
def test_two_honest_users_share_a_sticky_folder_and_neither_is_in_the_others_way(shared: Path) -> None:
    for uid in (NOBODY, GAMES):
        own = shared / str(uid)
        assert opens(own / "bft" / "7", uid) == ""
        assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (uid, 0o700)
    assert f"{shared / str(GAMES)} belongs to games" in opens(shared / str(GAMES) / "bft" / "8", NOBODY)


@as_root
def test_a_path_through_another_users_folder_is_refused_though_he_lets_everybody_in(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "his").mkdir()
        (Path(folder) / "his" / "mine").mkdir()
        os.chown(Path(folder) / "his" / "mine", NOBODY, NOBODY)
        os.chown(Path(folder) / "his", GAMES, GAMES)
        assert f"{folder}/his belongs to games" in opens(Path(folder) / "his" / "mine" / "7", NOBODY)
