"""Templates of container runtimes: what a site may write, and the exact words that are made of it."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd import config_file
from bftd.base.errors import ConfigError
from bftd.protocol.container import PRESETS, check, command, failed, is_step, outermost, words
from tests.support.messages import excerpt, pattern, says, wording

INSIDE = ["python3", "-u", "/tmp/x/.bft.pyz", "elastic.node", "torchrun", "/tmp/x/.bft-node", "/s/train.py", "--lr=1"]
BINDS = ["/lustre/me", "/tmp/x"]


def made(template: str, image: str = "/images/torch.sif") -> list[str]:
    return command(template, image, "/lustre/me/run", BINDS, INSIDE)


def test_apptainer_is_called_by_its_documented_options() -> None:
    """apptainer exec [exec options...] <container> <command>; --bind takes a list behind commas."""
    assert made("apptainer") == [
        *["apptainer", "exec", "--nv", "--pwd", "/lustre/me/run"],
        *["--bind", "/lustre/me:/lustre/me,/tmp/x:/tmp/x", "/images/torch.sif", *INSIDE],
    ]


def test_pyxis_is_called_by_its_documented_options_of_srun() -> None:
    assert made("pyxis", "nvcr.io#nvidia/pytorch:24.05-py3") == [
        "srun",
        "--container-image=nvcr.io#nvidia/pytorch:24.05-py3",
        "--container-mounts=/lustre/me:/lustre/me,/tmp/x:/tmp/x",
        "--container-workdir=/lustre/me/run",
        "--no-container-mount-home",
        "--no-container-remap-root",
        "--no-container-entrypoint",
        *INSIDE,
    ]
    assert is_step("pyxis")
    assert is_step("/opt/slurm/bin/srun --container-image={image} --container-mounts={binds} {command}")


def test_charliecloud_is_called_by_its_documented_options() -> None:
    """ch-run [OPTION...] IMAGE -- CMD [ARG...]; --bind is repeated."""
    assert made("charliecloud", "/images/torch") == [
        *["ch-run", "--write-fake", "--set-env", "--bind=/lustre/me:/lustre/me", "--bind=/tmp/x:/tmp/x"],
        *["--cd=/lustre/me/run", "/images/torch", "--", *INSIDE],
    ]
    assert not is_step("charliecloud")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_template_that_a_site_may_write_itself(preset: str) -> None:
    check(preset)
    assert made(preset) == made(PRESETS[preset])


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            "singularity",
            excerpt("protocol.container.not_a_command", template="singularity", near="apptainer, charliecloud, pyxis"),
        ),
        (
            "run {image} {bind} {cmd}",
            wording(
                "protocol.container.unknown_placeholder",
                unknown="cmd",
                known="{image}, {cwd}, {binds}, {bind}, {command}",
            ),
        ),
        (
            "run {image} {bind} {command.real}",
            excerpt("protocol.container.unknown_placeholder", unknown="command.real"),
        ),
        ("run {image} {bind}", wording("protocol.container.command_once")),
        ("run {image} {bind} sh -c '{command} x'", wording("protocol.container.command_once")),
        ("run {bind} {command}", wording("protocol.container.image_once")),
        ("run {image} {image} {bind} {command}", wording("protocol.container.image_once")),
        ("run {image} {command}", excerpt("protocol.container.bind_once")),
        ("run {image} {bind} {binds} {command}", excerpt("protocol.container.bind_once")),
        ("run {image {bind} {command}", excerpt("protocol.container.stray_brace")),
        ("{image} {bind} {command}", wording("protocol.container.runtime_first")),
        ("run '{image} {bind} {command}", "close every quote"),
        ("run --bind {bind} {image} {command}", excerpt("protocol.container.bind_in_one_word")),
        ("x" * 2001, "longer than 2000 letters"),
    ],
)
def test_a_wrong_template_is_one_line_when_the_configuration_is_read(template: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        check(template)
    assert "\n" not in str(caught.value)
    quoted = template.replace("'", "\\u0027")
    with pytest.raises(ConfigError, match=r"\[elastic\] container"):
        config_file.parse(f'[elastic]\ncontainer = "{quoted}"\n')


def test_no_shell_ever_reads_a_template_an_image_or_a_script_s_words() -> None:
    evil = "$(touch${IFS}/tmp/x);`id`&&{command}"
    made = command("run --image={image} {binds} {command}", evil, "/", ["/a"], ["python3", "a b; rm -rf /"])
    assert made == ["run", f"--image={evil}", "/a:/a", "python3", "a b; rm -rf /"]


def test_an_image_cannot_be_an_option_and_a_folder_cannot_be_two() -> None:
    with pytest.raises(ValueError, match=pattern("protocol.container.hyphen")):
        made("apptainer", "--writable")
    for folder in ("/a,/etc", "/a:/etc", "/a b"):
        with pytest.raises(ValueError, match="cannot be named"):
            command("apptainer", "/i", "/", [folder], INSIDE)


@given(image=st.from_regex(r"[^-,\s][^,\s]*", fullmatch=True), inside=st.lists(st.text(), min_size=1))
def test_whatever_an_image_and_a_command_are_called_each_stays_where_it_belongs(image: str, inside: list[str]) -> None:
    made = command("run -i {image} {binds} -- {command}", image, "/w", ["/a"], inside)
    assert made == ["run", "-i", image, "/a:/a", "--", *inside]


def test_a_folder_within_another_one_or_within_what_a_runtime_shares_is_not_bound_again() -> None:
    found = outermost(["/a/b", "/a", "/ab", "/a/", "/tmp/x", "/c/d"], ["/tmp"])
    assert found == ["/a", "/ab", "/c/d"]
    assert outermost(["/", "/a"]) == ["/"]


def test_what_a_runtime_said_last_is_told_without_what_differs_from_node_to_node() -> None:
    said = ["ch-run[4711]: error: can't stat: /i: No such file", ""]
    assert says(
        failed("/i", said),
        "protocol.container.not_started",
        image="/i",
        why="ch-run: error: can't stat: /i: No such file",
    )
    pyxis = ["slurmstepd: error: pyxis: no such image", "srun: error: n1: task 0: Exited with exit code 1"]
    assert "pyxis: no such image" in failed("i", pyxis)
    assert "said nothing" in failed("i", [])


def test_regression_an_option_that_a_runtime_does_not_know_was_told_as_a_hint_at_its_help() -> None:
    said = [
        "ch-run: unrecognized option '--write-fake'",
        "Try `ch-run --help' or `ch-run --usage' for more information.",
    ]
    assert "start: ch-run: unrecognized option '--write-fake'; " in failed("/i", said)
    pyxis = ["srun: unrecognized option '--container-image=x'", 'Try "srun --help" for more information']
    assert "start: srun: unrecognized option" in failed("x", pyxis)


def test_words_split_as_a_shell_would() -> None:
    template = "run --opt 'a b' {image} {binds} {command}"
    assert words(template) == tuple(shlex.split(template))
