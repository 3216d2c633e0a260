"""The helper process beside the driver: what it cannot be started for is told in one sentence."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic.backends import helper_process as companions
from elastic.backends.helper_process import Companion
from elastic.backends.torchrun import driver as torchruns
from elastic.base.errors import ElasticError
from elastic.link.wire import Message
from tests.elastic.backends.stage import FakeCompanion, FakeServices
from tests.elastic.fakes import settings_for, until
from tests.support.messages import fragment, pattern, says
from tests.support.programs import shell_script

pytestmark = pytest.mark.slow


def nothing(_: Any) -> None:
    """Takes what a companion says."""


def test_regression_an_interpreter_missing_where_the_driver_runs_was_a_fault_of_the_driver(tmp_path: Path) -> None:
    missing = pattern(
        "elastic.companion.cannot_run", interpreter=fragment("/bin/python"), strerror=os.strerror(errno.ENOENT)
    )
    with pytest.raises(ElasticError, match=missing):
        asyncio.run(Companion(nothing, nothing).start(str(tmp_path / "bin" / "python"), "this"))


async def test_what_there_is_not_enough_of_for_a_moment_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = asyncio.create_subprocess_exec, [errno.EAGAIN, errno.EMFILE]

    async def short(*argv: Any, **options: Any) -> asyncio.subprocess.Process:
        if refused:
            raise OSError(refused.pop(), "not now")
        return await start(*argv, **options)

    monkeypatch.setattr(companions.asyncio, "create_subprocess_exec", short)
    monkeypatch.setattr(companions, "_PAUSES_S", (0.0, 0.0))
    ends: list[int] = []
    companion = Companion(nothing, ends.append)
    await companion.start(sys.executable, "no_module_of_that_name")
    await until("ended", lambda: ends)
    refused.extend([errno.EAGAIN] * 3)
    with pytest.raises(ElasticError, match="not now"):
        await Companion(nothing, nothing).start(sys.executable, "this")
    assert ends == [1]


def test_what_it_says_on_standard_error_is_taken_however_much_it_is(tmp_path: Path) -> None:
    program = "import sys\nsys.stderr.write('x' * (3 << 20) + '\\n')\nprint('last words', file=sys.stderr)\n"
    (tmp_path / "talker.py").write_text(program)
    lines: list[str] = []
    ends: list[int] = []
    messages: list[Message] = []

    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        companion = Companion(messages.append, ends.append, lines.append)
        await companion.start(sys.executable, "talker")
        await until("said", lambda: lines[-1:] == ["last words"])
        await until("ended", lambda: ends)
        await companion.stop()

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(run(monkeypatch))
    assert ends == [0]


@pytest.mark.parametrize("words", ["no message", '{"op":"opened"}', '{"op":"opened","port":"x"}'])
def test_regression_a_companion_that_was_not_understood_was_waited_for_for_ever(tmp_path: Path, words: str) -> None:
    (tmp_path / "odd.py").write_text(f"import time\nprint({words!r}, flush=True)\ntime.sleep(600)\n")
    ends: list[int] = []

    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        companion = Companion(lambda message: nothing(int(message["port"])), ends.append)
        await companion.start(sys.executable, "odd")
        await until("ended", lambda: ends)

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(run(monkeypatch))
    assert ends == [-9]


def test_regression_a_store_that_took_too_long_was_a_fault_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(FakeCompanion):
        def send(self, message: Message) -> None:
            """Never answers."""

    monkeypatch.setattr(torchruns, "Companion", Silent)
    monkeypatch.setattr(torchruns, "_STORE_S", 0.01)

    async def run() -> FakeServices:
        services = FakeServices(settings_for(tmp_path))
        assert await torchruns.TorchrunBackend(services)._port() is None
        return services

    [(code, reason)] = asyncio.run(run()).ends
    assert code == 1
    assert says(reason, "elastic.driver.store_late", limit_s=0.01)


def test_regression_a_driver_s_host_that_fetched_the_image_longer_than_torch_takes_to_import_ended_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(FakeCompanion):
        def send(self, message: Message) -> None:
            """Never answers."""

    monkeypatch.setattr(torchruns, "Companion", Silent)
    monkeypatch.setattr(torchruns, "_STORE_S", 0.01)
    monkeypatch.setattr(torchruns, "PULL_S", 0.03)

    async def run() -> FakeServices:
        services = FakeServices(settings_for(tmp_path, "1-8,container=/i"))
        assert await torchruns.TorchrunBackend(services)._port() is None
        return services

    [(code, reason)] = asyncio.run(run()).ends
    assert (code, "within 0.04 s" in reason) == (1, True)


IMAGE = {"template": "env X={image} B={binds} {command}", "image": "/i", "cwd": "/", "binds": ["/usr"]}


def test_a_helper_of_a_trainer_in_an_image_runs_inside_and_its_folder_goes_with_it() -> None:
    """By a Python that has nothing of bftd's: what it needs is brought along."""
    python = str(Path(sys.base_prefix, "bin", "python3"))
    said: list[str] = []
    ends: list[int] = []

    async def run() -> str:
        companion = Companion(nothing, ends.append, said.append)
        await companion.start(python, "elastic.backends.torchrun.tunnel", image=IMAGE)
        assert companion._folder is not None
        assert companion._process is not None
        assert companion._process.stdin is not None
        companion._process.stdin.close()
        await until("ended", lambda: ends)
        await companion.stop()
        return companion._folder.name

    folder = asyncio.run(run())
    assert (ends, said) == ([0], [])
    assert not Path(folder).exists()


async def test_regression_a_runtime_that_told_on_standard_output_what_it_fetches_ended_the_trainer() -> None:
    python = str(Path(sys.base_prefix, "bin", "python3"))
    talks = """sh -c 'echo fetching; shift 2; exec "$@"' run {image} {binds} {command}"""
    said: list[str] = []
    ends: list[int] = []
    companion = Companion(nothing, ends.append, said.append)
    await companion.start(python, "elastic.backends.torchrun.tunnel", image={**IMAGE, "template": talks})
    assert companion._process is not None
    assert companion._process.stdin is not None
    await until("it talks", lambda: said)
    companion._process.stdin.close()
    await until("ended", lambda: ends)
    await companion.stop()
    assert (ends, said) == ([0], ["fetching"])


async def test_regression_a_store_that_ended_was_told_of_before_its_last_words_were_heard() -> None:
    """So the trainer ended with a guess at torch, where the runtime had said what it lacked."""
    dies = "sh -c 'exec >&-; (sleep 0.2; echo no such image >&2) & exit 64' {image} {binds} {command}"
    said: list[str] = []
    heard: list[tuple[int, str]] = []
    companion = Companion(nothing, lambda rc: heard.append((rc, companion.last_line)), said.append)
    await companion.start("python3", "a.module", image={**IMAGE, "template": dies})
    await until("ended", lambda: heard)
    await companion.stop()
    assert heard == [(64, "no such image")]


def test_a_helper_of_a_container_that_slurm_makes_is_a_step_of_the_drivers_own_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shell_script(tmp_path / "srun", f'echo "$@" > {tmp_path}/argv')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    image = {**IMAGE, "template": "pyxis"}
    ends: list[int] = []

    async def run() -> None:
        companion = Companion(nothing, ends.append)
        await companion.start("python3", "a.module", "4", image=image)
        await until("ended", lambda: ends)
        await companion.stop()

    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ElasticError, match=pattern("elastic.companion.container_by_slurm")):
        asyncio.run(run())
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    asyncio.run(run())
    words = (tmp_path / "argv").read_text().split()
    assert words[:2] == ["--jobid=77", "--nodes=1"]
    assert "--container-image=/i" in words
    assert words[-5:-3] == ["python3", "-u"]
    assert words[-2:] == ["a.module", "4"]
