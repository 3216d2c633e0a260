"""`bft size choose --submit`: a user's script on the winner's GPUs, and what of the script stands in the way."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest

from tests.bftd.cli.sizing_commands import GPT, SizeTerminal
from tests.support.messages import pattern, says, wording
from tests.support.programs import shell_script
from tests.support.terminal import Ended

pytestmark = pytest.mark.slow

JOB = ("--config", f"{GPT},recompute=full", "--global-batch", "64", "--steps", "1000", "--max-gpus", "4")


@pytest.fixture
def submitted(bft: SizeTerminal) -> Path:
    """What sbatch was called with when it was to submit; every request would start at once."""
    said, commands = bft.folder / "submitted", bft.folder / "commands"
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time()))
    commands.mkdir()
    shell_script(
        commands / "sbatch",
        "#!/bin/sh\n"
        f'case "$*" in *--test-only*) /bin/cat >> {bft.folder}/asked; echo "sbatch: Job 7 to start at {moment} using 4 '
        'processors on nodes n1 in partition new" >&2;; '
        f'*) echo "$*" >> {said}; echo "$BFT_DP $BFT_TP $BFT_STAGES $BFT_MICRO_BATCHES" >> {said}; echo 4711;; esac\n',
    )
    return said


def submit(bft: SizeTerminal, text: str, *words: str) -> Ended:
    (bft.folder / "job.sh").write_text(text)
    ended = bft("size", "choose", "--partitions", "centre.json", *JOB, "--by", "end", "--submit", "job.sh", *words)
    assert (bft.folder / "job.sh").read_text() == text
    return ended


def test_a_script_is_submitted_with_options_beside_it_and_told_how_the_model_lies(
    bft: SizeTerminal, submitted: Path
) -> None:
    ended = submit(bft, "#!/bin/bash\nsrun torchrun --nproc-per-node=gpu train.py\n", "--yes", "--partition", "new")
    assert (ended.code, ended.err) == (0, "")
    argv, environment = submitted.read_text().splitlines()
    assert argv.startswith("--parsable --partition=new --nodes=1 --ntasks-per-node=1 --gres=gpu:a100:")
    assert re.search(r" --time=\S+ job\.sh$", argv)
    assert re.fullmatch(r"\d+ \d+ \d+ \d+", environment)
    assert ended.out.splitlines()[-1] == "Submitted batch job 4711"
    assert re.search(r"^BFT_DP=\d+ .* sbatch --partition=new .* job\.sh$", ended.out, re.MULTILINE)


def test_without_an_answer_nothing_is_submitted(
    bft: SizeTerminal, submitted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert submit(bft, "#!/bin/bash\ntrue\n").err == "bft: nothing submitted\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    ended = submit(bft, "#!/bin/bash\ntrue\n")
    assert ended.code == 2
    assert ended.err.endswith("bft: " + wording("cli.size_submit.nobody_answered") + "\n")
    assert not submitted.exists()


def test_what_the_script_says_stays_and_its_partition_restricts_the_choice(bft: SizeTerminal, submitted: Path) -> None:
    script = (
        "#!/bin/bash\n#SBATCH -p old --account=me\n#SBATCH --ntasks-per-node=1 --mem=10G\n#SBATCH -t 1-0\n"
        "srun torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=gpu train.py\n"
    )
    ended = submit(bft, script, "--yes")
    assert ended.code == 0, ended.err
    argv = submitted.read_text().splitlines()[0]
    assert argv.startswith("--parsable --nodes=")
    assert not re.search("--(partition|mem|time|ntasks-per-node)=", argv)
    assert says(ended.out, "sizing.script.script_stays", mine="--mem=10G", whose="plan", option="mem")
    asked = (bft.folder / "asked").read_text()
    assert "#SBATCH --account=me" in asked
    assert "--partition=new" not in asked
    assert asked.count("#SBATCH --time=") == 0


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "#SBATCH --gres=gpu:v100:9",
            wording(
                "cli.size_submit.script_differs",
                path="job.sh",
                option="gres",
                value="gpu:v100:9",
                option2="gres",
                value2="gpu:",
            ),
        ),
        (
            "#SBATCH --nodes=3",
            wording(
                "cli.size_submit.script_differs", path="job.sh", option="nodes", value=3, option2="nodes", value2=1
            ),
        ),
        (
            "#SBATCH -t 1",
            wording(
                "cli.size_submit.script_differs", path="job.sh", option="time", value=1, option2="time", value2="00:"
            ),
        ),
        ("#PBS -l nodes=1", wording("cli.size_submit.other_lines", name="job.sh", others="#PBS")),
    ],
)
def test_a_script_that_wants_other_gpus_is_refused_and_nothing_is_submitted(
    bft: SizeTerminal, submitted: Path, line: str, told: str
) -> None:
    ended = submit(bft, f"#!/bin/bash\n{line}\nsrun true\n", "--yes")
    assert ended.code == 2
    assert ended.err.startswith(f"bft: {told}")
    assert ended.err.count("\n") == 1
    assert not submitted.exists()


def test_the_users_account_by_environment_goes_with_the_job(
    bft: SizeTerminal, submitted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    assert submit(bft, "#!/bin/bash\ntrue\n", "--yes").code == 0
    assert " --account=mine " in submitted.read_text()
    assert "#SBATCH --account=mine" in (bft.folder / "asked").read_text()
    assert submit(bft, "#!/bin/bash\n#SBATCH -A other\ntrue\n", "--yes").code == 0
    assert "mine" not in submitted.read_text().splitlines()[2]


def test_json_has_the_jobs_id(bft: SizeTerminal, submitted: Path) -> None:
    ended = submit(bft, "#!/bin/bash\ntrue\n", "--yes", "--json")
    assert ended.json["job_id"] == "4711"
    assert "sbatch --partition=" in ended.err


@pytest.mark.parametrize(
    ("command", "tasks"),
    [
        ("srun torchrun --nproc-per-node=gpu train.py", 1),
        ("accelerate launch train.py", 1),
        ("srun python train.py", 4),
    ],
)
def test_a_script_that_starts_its_processes_itself_gets_one_task_a_node(
    bft: SizeTerminal, submitted: Path, command: str, tasks: int
) -> None:
    assert submit(bft, f"#!/bin/bash\n{command}\n", "--yes").code == 0
    assert f" --ntasks-per-node={tasks} --gres=gpu:a100:4 " in submitted.read_text()


def test_a_deadline_that_is_missed_submits_nothing(bft: SizeTerminal, submitted: Path) -> None:
    ended = submit(bft, "#!/bin/bash\ntrue\n", "--yes", "--deadline", "+1minute")
    assert ended.code == 1
    assert not submitted.exists()


@pytest.mark.parametrize(
    ("export", "given"),
    [("NONE", "--export="), ("HOME,A=b", "--export=HOME,A=b,"), ("ALL,A=b", ""), ("all", "")],
)
def test_regression_a_script_that_leaves_the_environment_behind_was_not_told_how_the_model_lies(
    bft: SizeTerminal, submitted: Path, export: str, given: str
) -> None:
    assert submit(bft, f"#!/bin/bash\n#SBATCH --export={export}\ntrue\n", "--yes").code == 0
    names = "BFT_DP,BFT_TP,BFT_STAGES,BFT_MICRO_BATCHES"
    argv = submitted.read_text().splitlines()[0]
    assert f" {given}{names} job.sh" in argv if given else "--export" not in argv
    refused = submit(bft, "#!/bin/bash\n#SBATCH --export=NIL\ntrue\n", "--yes")
    assert refused.code == 2
    assert "write --export=NONE" in refused.err


def test_regression_a_script_with_several_partitions_was_never_submitted(bft: SizeTerminal, submitted: Path) -> None:
    ended = submit(bft, "#!/bin/bash\n#SBATCH -p old,new\nsrun python train.py\n", "--yes")
    assert (ended.code, ended.err) == (0, "")
    assert " --partition=new --nodes=1 " in submitted.read_text()
    asked = (bft.folder / "asked").read_text()
    assert "old,new" not in asked, "Slurm would say when it starts in either"
    assert {"--partition=old", "--partition=new"} <= set(re.findall(r"--partition=\w+", asked))


def test_regression_a_second_word_on_gpus_beside_the_winners_went_through(bft: SizeTerminal, submitted: Path) -> None:
    ended = submit(bft, "#!/bin/bash\n#SBATCH --gres=gpu:a100:4 --gpus=16\ntrue\n", "--yes")
    assert ended.code == 2
    assert re.match(
        "bft: "
        + pattern("cli.size_submit.script_has_gpus", path="job.sh", told="--gpus=16 and --gres=gpu:a100:4", gpus=4),
        ended.err,
    )
    assert not submitted.exists()


def test_regression_a_script_whose_name_begins_with_a_dash_was_an_option_of_sbatch(
    bft: SizeTerminal, submitted: Path
) -> None:
    (bft.folder / "-x job.sh").write_text("#!/bin/bash\ntrue\n")
    words = ("--partitions", "centre.json", *JOB, "--submit", "./-x job.sh", "--yes")
    assert bft("size", "choose", *words).code == 0
    assert submitted.read_text().splitlines()[0].endswith(" ./-x job.sh")


def test_regression_with_a_deadline_a_limit_of_the_scripts_own_that_may_cut_the_run_off_was_kept_silently(
    bft: SizeTerminal, submitted: Path
) -> None:
    words = ("--partition", "new", "--yes")
    winner = bft("size", "choose", "--partitions", "centre.json", *JOB, "--by", "end", *words[:2], "--json").json[
        "winner"
    ]
    between = int((winner["run"]["value"] + winner["run"]["high"]) / 120)
    script = f"#!/bin/bash\n#SBATCH --time={between}\nsrun torchrun --nproc-per-node=gpu train.py\n"
    cut = wording("cli.size_submit.time_cuts_off", value=between, high="")
    ended = submit(bft, script, *words, "--deadline", "+3days")
    assert ended.code == 2
    told = pattern("cli.size_submit.deadline_not_sure", path="job.sh", cut="CUT")
    told = told.replace("CUT", pattern("cli.size_submit.time_cuts_off", value=between))
    assert re.fullmatch(f"bft: {told}\n", ended.err)
    assert not submitted.exists()
    ended = submit(bft, script, *words)
    assert ended.code == 0
    assert cut in ended.out, "without a deadline it is kept, and said"
    long = script.replace(str(between), str(int(winner["run"]["high"] / 60) + 1))
    ended = submit(bft, long, *words, "--deadline", "+3days")
    assert ended.code == 0
    assert not says(ended.out, "cli.size_submit.time_cuts_off")


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("python train.py", {1}),
        ("torchrun train.py", {1}),
        ("torchrun --standalone --nproc-per-node=2 train.py", {2}),
        ("torchrun --nproc_per_node=gpu train.py", {1, 2, 4}),
        ("srun torchrun --nproc-per-node $SLURM_GPUS_ON_NODE train.py", {1, 2, 4}),
        ("srun torchrun --nnodes=2 \\\n  --nproc-per-node=4 train.py", {8}),
        ("srun torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=gpu train.py", {1, 2, 4, 8}),
        ("srun python train.py", {1, 2, 4, 8}),
        ("accelerate launch train.py", {1, 2, 4}),
        ("echo torchrun\nmpirun python train.py  # srun torchrun", {1, 2, 4, 8}),
        ("python train.py  # srun", {1}),
    ],
)
def test_regression_a_script_got_gpus_that_it_leaves_idle(
    bft: SizeTerminal, submitted: Path, command: str, gpus: set[int]
) -> None:
    (bft.folder / "job.sh").write_text(f"#!/bin/bash\n{command}\n")
    words = ("--partition", "new", "--no-start", "--submit", "job.sh", "--json")
    job = (*JOB[:-1], "8")
    ended = bft("size", "choose", "--partitions", "centre.json", *job, *words, "--yes")
    assert {run["gpus"] for run in ended.json["cells"]} == gpus
    idle = {each["gpus"] for each in ended.json["out"] if says(each["why"], "cli.size_submit.idle", path="job.sh")}
    assert idle == {1, 2, 4, 8} - gpus
    assert f"--gres=gpu:a100:{min(4, max(gpus))}" in submitted.read_text() or len(gpus) > 1


@pytest.mark.parametrize(("option", "gpus"), [("--ntasks-per-node=2", "2"), ("--ntasks=4", "4")])
def test_tasks_that_the_script_asks_for_are_the_gpus_that_it_uses(
    bft: SizeTerminal, submitted: Path, option: str, gpus: str
) -> None:
    script = f"#!/bin/bash\n#SBATCH {option}\nsrun python train.py\n"
    ended = submit(bft, script, "--yes", "--partition", "new")
    assert (ended.code, ended.err) == (0, "")
    assert f" --gres=gpu:a100:{gpus} " in submitted.read_text()
