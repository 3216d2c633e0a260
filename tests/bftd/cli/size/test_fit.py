"""`bft size fit` as a user meets it."""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from pathlib import Path

import pytest

from bftd.base.errors import UsageError as BftUsageError
from bftd.cli.size import fit
from bftd.cli.size.shared import script as size_script
from sizing.base.errors import UsageError
from sizing.child import tracing
from tests.bftd.cli.profiled import profiled
from tests.bftd.cli.sizing_commands import GPT, SizeTerminal
from tests.sizing.plans_of import Step
from tests.support.messages import excerpt, fragment, pattern, wording
from tests.support.messages import says as says_message
from tests.support.programs import shell_script

pytestmark = pytest.mark.slow

STEP = ("train.py:make_step", "--global-batch", "64")


@pytest.fixture
def bft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SizeTerminal:
    terminal = SizeTerminal(tmp_path, monkeypatch, capsys)
    terminal.traces(Step(10, 0.5))
    return terminal


def slurm(folder: Path, answer: str, code: int = 0) -> Path:
    """A stand-in for sbatch; gives the file into which it writes what it was given."""
    commands, said = folder / "commands", folder / "said"
    commands.mkdir()
    shell_script(
        commands / "sbatch", f'#!/bin/sh\necho "$@" >> {said}\n/bin/cat >> {said}\necho "{answer}" >&2\nexit {code}\n'
    )
    return said


def test_a_table_shows_plans_with_the_origin_of_each_number(bft: SizeTerminal) -> None:
    ended = bft.fit(*STEP)
    assert ended.code == 0
    head, *rows = ended.out.splitlines()
    assert "STEP (assumed)" in head
    table = [row for row in rows if re.match(r" *\d+  (new|old) ", row)]
    assert table
    assert all(re.search(r"[\d.]+ (traced|interpolated) ", row) for row in table)
    assert "note: " in ended.out


def test_the_best_three_have_lines_that_say_where_they_come_from(bft: SizeTerminal) -> None:
    shown = bft.fit(*STEP).out
    assert [line[:2] for line in shown.splitlines() if re.match(r"\d\. ", line)] == ["1.", "2.", "3."]
    lines = [line for line in shown.splitlines() if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+=\S+ +# .+", line) for line in lines)
    assert len([line for line in lines if "--gres=gpu:" in line]) == 3
    assert len(re.findall(r"^\d\. ", bft.fit(*STEP, "--top", "1").out, re.MULTILINE)) == 1


def test_json_has_all_plans_best_first(bft: SizeTerminal) -> None:
    plans = bft.fit(*STEP, "--json").json["plans"]
    for plan in plans:
        assert {
            "partition",
            "gpu_type",
            "gpus",
            "nodes",
            "dp",
            "tp",
            "peak_bytes",
            "gpu_bytes",
            "fits",
            "sbatch",
        } <= set(plan)
        assert plan["fits"] == (plan["high_bytes"] <= plan["gpu_bytes"])
    assert [plan["fits"] for plan in plans] == sorted((plan["fits"] for plan in plans), reverse=True)
    assert {plan["partition"] for plan in plans} == {"new", "old"}
    assert plans[0]["sbatch"][0] == f"#SBATCH --partition={plans[0]['partition']}"


def test_place_reads_what_fit_writes(bft: SizeTerminal) -> None:
    (bft.folder / "plans.json").write_text(bft.fit(*STEP, "--json").out)
    placed = bft("size", "place", "plans.json", "centre.json", "--json")
    assert placed.code == 0
    assert placed.json["placed"]


def test_slurms_own_words_say_when_the_best_could_start(bft: SizeTerminal) -> None:
    said = slurm(
        bft.folder, "sbatch: Job 7 to start at 2026-11-22T20:00:00 using 4 processors on nodes new1 in partition new"
    )
    plans = bft.fit(*STEP, "--json").json["plans"]
    words = "to start at 2026-11-22T20:00:00 using 4 processors on nodes new1 in partition new"
    assert [plan["start"] for plan in plans[:4]] == [words, words, words, None]
    asked = said.read_text()
    assert asked.count("--test-only\n") == 3
    assert all(line in asked for line in plans[2]["sbatch"])
    assert f": {words}" in bft.fit(*STEP).out


def test_what_slurm_refuses_is_shown_with_its_reason(bft: SizeTerminal) -> None:
    slurm(bft.folder, "allocation failure: Requested node configuration is not available", 1)
    shown = bft.fit(*STEP)
    assert shown.code == 0
    assert "refused: allocation failure: Requested node configuration is not available" in shown.out


@pytest.mark.parametrize("answer", [None, "sbatch: fatal: Could not establish a configuration source"])
def test_without_slurm_the_start_is_left_out_and_that_is_said(bft: SizeTerminal, answer: str | None) -> None:
    if answer is not None:
        slurm(bft.folder, answer, 1)
    ended = bft.fit(*STEP)
    assert ended.code == 0
    assert says_message(ended.out, "cli.size_fit.slurm_not_asked")
    assert "was not asked" not in bft.fit(*STEP, "--no-start").out


def test_a_configuration_is_sized_by_formula(bft: SizeTerminal) -> None:
    plans = bft.fit("--config", GPT, "--global-batch", "64", "--json").json["plans"]
    assert {plan["origin"] for plan in plans} == {"formula"}
    assert any(plan["tp"] > 1 for plan in plans)
    assert all(plan["dp"] * plan["batch"] == 64 for plan in plans)


def test_a_fixed_micro_batch_is_accumulated(bft: SizeTerminal) -> None:
    plans = bft.fit("--config", f"{GPT},b=4", "--global-batch", "64", "--json").json["plans"]
    assert {plan["micro_batch"] for plan in plans} == {4}
    assert {plan["batch"] for plan in plans} > {4, 64}


def test_a_step_that_cannot_be_traced_falls_back_to_the_formula(bft: SizeTerminal) -> None:
    bft.traces(Step(4, 1, refuses=lambda point: True))
    shown = bft.fit(*STEP, "--config", GPT)
    assert shown.code == 0
    assert "note: " + wording("cli.size_fit.by_formula", error="line 7: it looks at a loss") in shown.out
    alone = bft.fit(*STEP)
    assert (alone.code, alone.out) == (1, "")
    assert (
        alone.err == "bft: " + wording("cli.size_choose_timers.untraceable", error="line 7: it looks at a loss") + "\n"
    )


def test_what_fits_nowhere_says_by_how_much_and_what_would_help(bft: SizeTerminal) -> None:
    ended = bft.fit("--config", "gpt:h=4096,l=32,a=32,s=2048,V=50257,precision=bf16", "--global-batch", "64", "--json")
    assert ended.code == 1
    assert ended.json["plans"]
    assert not any(plan["fits"] for plan in ended.json["plans"])
    assert ended.err.count("\n") == 1
    assert re.search(pattern("sizing.advice.fits_nowhere") + "; ", ended.err)
    assert says_message(ended.err, "sizing.advice.would_fit")


def test_a_step_that_fits_nowhere_is_told_what_takes_the_memory(bft: SizeTerminal) -> None:
    bft.traces(Step(500, 0.1))
    told = pattern("sizing.advice.fits_nowhere") + "; .*" + pattern("sizing.advice.state_too_large")
    assert re.search(told, bft.fit(*STEP).err)


def test_a_partition_that_was_ruled_out_is_named_where_it_would_do(bft: SizeTerminal) -> None:
    words = ("--config", "gpt:h=1600,l=48,a=25,s=1024,V=50257,precision=bf16", "--global-batch", "8", "--max-gpus", "1")
    ended = bft.fit(*words, "-p", "old")
    assert ended.code == 1
    assert "of partition new" in ended.err.split("too little")[1]
    alone = bft.fit(*words, "-p", "old", "--gpu", "v100")
    assert alone.code == 1


def test_more_gpus_than_allowed_are_named_where_they_would_do(bft: SizeTerminal) -> None:
    words = ("--config", "gpt:h=4096,l=32,a=32,s=2048,V=50257,precision=bf16,recompute=full,zero=3,b=1")
    ended = bft.fit(*words, "--global-batch", "16", "--max-gpus", "1")
    assert ended.code == 1
    assert re.search(
        pattern("sizing.advice.some_would_fit", best=fragment("too little; 4 x a100 of partition new ")) + "$",
        ended.err.strip(),
    )


def test_partition_type_and_number_of_gpus_restrict_the_choice(bft: SizeTerminal) -> None:
    def of(*words: str) -> list[tuple[str, str, int]]:
        plans = bft.fit(*STEP, "--json", *words).json["plans"]
        return [(plan["partition"], plan["gpu_type"], plan["gpus"]) for plan in plans]

    assert {partition for partition, _, _ in of("-p", "old")} == {"old"}
    assert {kind for _, kind, _ in of("--gpu", "a100")} == {"a100"}
    assert {gpus for _, _, gpus in of("--max-gpus", "2")} == {1, 2}


def test_a_step_that_sums_no_gradients_is_told_that_replicas_would_be_strangers(bft: SizeTerminal) -> None:
    assert says_message(bft.fit(*STEP).out, "cli.size_trace.no_sum_of_gradients")
    assert "sums no gradients" not in bft.fit(*STEP, "--max-gpus", "1").out
    bft.traces(Step(10, 0.5, sums=True))
    assert "sums no gradients" not in bft.fit(*STEP).out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train.py:make_step"], "--global-batch"),
        (["--global-batch", "8"], excerpt("cli.size_model.step_missing")),
        (["train.py:make_step", "--global-batch", "0"], "--global-batch 0: at least 1"),
        (["train.py:make_step", "--global-batch", "-8"], "--global-batch -8: at least 1"),
        (["train.py:make_step", "--global-batch", "1" + 30 * "0"], "at most 1000000000"),
        (
            ["--config", f"{GPT},b=4", "--global-batch", "7"],
            excerpt(
                "cli.size_fit.batch_not_cut",
                global_batch=7,
                cut=fragment(wording("cli.size_fit.micro_batches", micro_batch=4)),
            ),
        ),
        ([*STEP, "--gpu", "a1000"], "no GPU type a1000: " + wording("sizing.fields.hint", near="a100")),
        ([*STEP, "--gpu", "A100"], "no GPU type A100: " + wording("sizing.fields.hint", near="a100")),
        ([*STEP, "--gpu", "zzz"], excerpt("cli.size_cells.unknown_gpu_type")),
        (
            [*STEP, "-p", "nw"],
            "no " + wording("cli.size_fit.partition_with_gpus") + " nw: " + wording("sizing.fields.hint", near="new"),
        ),
        (
            [*STEP, "-p", "old", "--gpu", "a100"],
            excerpt("cli.size_fit.no_such_gpus", gpu_type="a100", where=fragment("old")),
        ),
        ([*STEP, "--max-gpus", "0"], "at least 1"),
        ([*STEP, "--precision", "int8"], "--precision int8"),
        ([*STEP, "--timeout", "-1"], "--timeout -1"),
        ([*STEP, "--partitions", "none.json"], "none.json"),
        ([*STEP, "--top", "0"], "--top"),
        ([*STEP, "--into", "none.sh"], "No such file"),
        ([*STEP, "-o", "job.sh"], excerpt("cli.size_cpu.output_without_script")),
        ([*STEP, "--partitions", "a.json", "--inventory", "b.json"], excerpt("cli.size_fit.partitions_and_inventory")),
        ([*STEP, "--into", "train.py"], excerpt("cli.size_script.not_a_script")),
        (["--config", f"{GPT},heads=3", "--global-batch", "8"], "heads"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(bft: SizeTerminal, words: list[str], says: str) -> None:
    ended = bft.fit(*words)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert ended.err.count("\n") == 1


def test_an_error_in_a_thread_ends_the_command_with_its_line(
    bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trace(*_: object, **__: object) -> None:
        raise UsageError("no Python here has torch: name one by --python")

    monkeypatch.setattr(tracing, "trace", trace)
    ended = bft.fit(*STEP)
    assert (ended.code, ended.err) == (2, "bft: no Python here has torch: name one by --python\n")


SCRIPT = b"#!/bin/bash\r\n#SBATCH --job-name=\xe9t\xe9\r\n#SBATCH --ntasks-per-node=1\r\n\r\ntorchrun train.py\r\n"


def test_a_copy_of_the_script_gets_the_lines_and_keeps_all_else(bft: SizeTerminal) -> None:
    script = bft.folder / "job.sh"
    script.write_bytes(SCRIPT)
    script.chmod(0o750)
    ended = bft.fit(*STEP, "--into", "job.sh", "--yes", "--top", "1", "--gpu", "a100")
    assert ended.code == 0
    made = bft.folder / "job.gpus.sh"
    assert script.read_bytes() == SCRIPT
    assert stat.S_IMODE(made.stat().st_mode) == 0o750
    text = made.read_bytes()
    added = [line for line in text.split(b"\r\n") if line not in SCRIPT.split(b"\r\n")]
    assert b"\r\n".join(line for line in text.split(b"\r\n") if line not in added) == SCRIPT
    options = [line.split(b"=")[0] for line in added]
    assert options == [b"#SBATCH --" + name for name in (b"partition", b"nodes", b"gres", b"cpus-per-task", b"mem")]
    # the script's one task a node has all CPUs that go with the node's GPUs
    gpus = int(re.search(rb"gres=gpu:a100:(\d)", text)[1])  # type: ignore[index]
    assert f"--cpus-per-task={16 * gpus} ".encode() in text
    assert "+#SBATCH --partition=new" in ended.out
    assert "+++ job.gpus.sh" in ended.out
    assert "--ntasks-per-node=1" in ended.out
    assert "wrote job.gpus.sh" in ended.out


def test_without_an_answer_nothing_is_written(bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    (bft.folder / "job.sh").write_text("#!/bin/bash\nsrun a\n")
    for typed, code in (("", 2), ("n\n", 0)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert bft.fit(*STEP, "--into", "job.sh").code == code
        assert sorted(path.name for path in bft.folder.glob("*job*")) == ["job.sh"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert bft.fit(*STEP, "--into", "job.sh").code == 0
    assert (bft.folder / "job.gpus.sh").exists()


def test_a_file_that_is_there_is_only_replaced_when_told(bft: SizeTerminal) -> None:
    script, made = bft.folder / "job.sh", bft.folder / "job.gpus.sh"
    script.write_text("#!/bin/bash\nsrun a\n")
    made.write_text("mine")
    refused = bft.fit(*STEP, "--into", "job.sh", "--yes")
    assert (refused.code, refused.out, made.read_text()) == (2, "", "mine"), "told before anything is traced"
    assert "--overwrite" in refused.err
    own = bft.fit(*STEP, "--into", "job.sh", "--yes", "--overwrite", "-o", "job.sh")
    assert (own.code, script.read_text()) == (2, "#!/bin/bash\nsrun a\n")
    assert bft.fit(*STEP, "--into", "job.sh", "--yes", "--overwrite").code == 0
    assert "#SBATCH" in made.read_text()
    assert not list(bft.folder.glob(".job*")), "no scratch file stays"


def test_a_file_that_appears_meanwhile_is_not_replaced(bft: SizeTerminal) -> None:
    (bft.folder / "job.sh").write_text("#!/bin/bash\nsrun a\n")
    target = bft.folder / "job.gpus.sh"
    target.write_text("mine")
    with pytest.raises(BftUsageError, match="is there already"):
        size_script.write(size_script.read("job.sh"), "new", target, overwrite=False)
    assert target.read_text() == "mine"


def test_a_folder_that_is_not_there_is_one_line(bft: SizeTerminal) -> None:
    (bft.folder / "job.sh").write_text("#!/bin/bash\nsrun a\n")
    ended = bft.fit(*STEP, "--into", "job.sh", "--yes", "-o", "none/job.sh")
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_the_scripts_own_partition_restricts_the_choice(bft: SizeTerminal) -> None:
    (bft.folder / "job.sh").write_text("#!/bin/bash\n#SBATCH -p old\n#SBATCH --gpus=1\nsrun a\n")
    ended = bft.fit(*STEP, "--into", "job.sh", "--yes", "--json")
    assert {plan["partition"] for plan in ended.json["plans"]} == {"old"}
    assert says_message(
        ended.err, "sizing.script.script_stays", mine="--gpus=1", whose="plan", option="gres", value="gpu:v100:"
    )
    assert "gres" not in (bft.folder / "job.gpus.sh").read_text()


def test_regression_a_device_was_replaced_by_the_copy(bft: SizeTerminal) -> None:
    (bft.folder / "job.sh").write_text("#!/bin/bash\nsrun a\n")
    os.mkfifo(bft.folder / "pipe")
    (bft.folder / "dangling").symlink_to("nowhere/at/all")
    for name in ("pipe", "dangling", "."):
        ended = bft.fit(*STEP, "--into", "job.sh", "--yes", "--overwrite", "-o", name)
        assert (ended.code, ended.out) == (2, ""), "before anything is traced"
        assert says_message(ended.err, "cli.size_script.target_no_file")
    assert (bft.folder / "pipe").is_fifo()
    assert (bft.folder / "dangling").is_symlink()


def test_regression_whoever_named_the_script_itself_was_told_to_overwrite_it(bft: SizeTerminal) -> None:
    (bft.folder / "job.sh").write_text("#!/bin/bash\nsrun a\n")
    ended = bft.fit(*STEP, "--into", "job.sh", "--yes", "--overwrite", "-o", "job.sh")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "bft: " + wording("cli.size_script.target_is_script", target="job.sh") + "\n"


def test_regression_an_option_cut_short_in_the_script_was_overruled(bft: SizeTerminal) -> None:
    header = "#SBATCH --part old\n  # indented\n# form\x0cfeed\n#SBATCH -Hc3 --tasks-per-node=1\n"
    (bft.folder / "job.sh").write_text(f"#!/bin/bash\n{header}srun a\n")
    ended = bft.fit(*STEP, "--into", "job.sh", "--yes")
    made = (bft.folder / "job.gpus.sh").read_text()
    assert made.startswith(f"#!/bin/bash\n{header}#SBATCH --nodes="), "behind the last of his lines"
    assert not re.search("--(partition|ntasks-per-node|cpus-per-task)=", made)
    assert says_message(ended.out, "sizing.script.script_stays", mine="--cpus-per-task=3")


def test_regression_all_tasks_of_a_script_got_the_cpus_of_a_gpu_each(bft: SizeTerminal) -> None:
    (bft.folder / "job.sh").write_text("#!/bin/bash\n#SBATCH -n 8\nsrun a\n")
    ended = bft.fit(*STEP, "--into", "job.sh", "--yes", "--gpu", "a100", "--max-gpus", "1")
    assert says_message(
        ended.out, "sizing.script.script_stays", mine="--ntasks=8", whose="plan", option="ntasks-per-node", value=1
    )
    # 16 CPUs go with a GPU
    assert "#SBATCH --cpus-per-task=2 " in (bft.folder / "job.gpus.sh").read_text()


@pytest.mark.parametrize(
    ("command", "program", "gpus", "tasks"),
    [
        ("srun torchrun --nproc-per-node=2 train.py", "torchrun", 2, 1),
        ("srun torchrun --nproc-per-node=gpu train.py", "torchrun", 4, 1),
        ("accelerate launch --num_processes 1 train.py", "accelerate launch", 1, 1),
        ("srun -n 2 python train.py", "srun", 2, 2),
        ("srun python train.py", "srun", 4, 4),
    ],
)
def test_regression_a_script_of_torchrun_got_a_task_a_gpu_which_started_as_many_processes_each(
    bft: SizeTerminal, command: str, program: str, gpus: int, tasks: int
) -> None:
    (bft.folder / "job.sh").write_text(f"#!/bin/bash\n{command}\n")
    ended = bft.fit(*STEP, "--into", "job.sh", "--yes", "--gpu", "a100")
    made = (bft.folder / "job.gpus.sh").read_text()
    assert f"--gres=gpu:a100:{gpus} " in made
    assert f"--ntasks-per-node={tasks} " in made
    assert says_message(ended.out, "cli.size_script.starts", path="job.sh", program=program)


def test_a_launchers_number_that_no_plan_has_writes_nothing(bft: SizeTerminal) -> None:
    (bft.folder / "job.sh").write_text("#!/bin/bash\nsrun torchrun --nproc-per-node=3 train.py\n")
    ended = bft.fit(*STEP, "--into", "job.sh", "--yes")
    assert ended.code == 2
    assert says_message(ended.err, "cli.size_script.no_plan_to_fill", path="job.sh")
    assert not (bft.folder / "job.gpus.sh").exists()


def test_regression_a_precision_was_ignored_for_a_model_by_its_sizes(bft: SizeTerminal) -> None:
    sizes = GPT.removesuffix(",precision=bf16")
    words = ("--gpu", "a100", "--global-batch", "64")
    plain, told, own = (
        {plan["gpus"]: plan for plan in bft.fit("--config", *given, *words, "--json").json["plans"]}
        for given in ((sizes,), (sizes, "--precision", "bf16"), (GPT,))
    )
    assert told == own
    assert told[4]["step_s"] < plain[4]["step_s"] / 3
    both = bft.fit("--config", f"{sizes},precision=fp32", *words, "--precision", "bf16")
    assert both.code == 2
    assert says_message(both.err, "sizing.request.two_precisions", precision="bf16", own="fp32")


@pytest.mark.parametrize(
    "words",
    [("--python", "python3"), ("--timeout", "60"), ("--yes",), ("--overwrite",)],
)
def test_an_option_that_has_no_effect_is_refused(bft: SizeTerminal, words: tuple[str, ...]) -> None:
    ended = bft.fit("--config", GPT, "--global-batch", "64", *words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"bft: {words[0]} is for ")


def test_regression_plans_were_left_out_of_json_in_silence(bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--config", GPT, "--global-batch", "64")
    everything = bft.fit(*words, "--json").json
    assert not any("left out" in note for note in everything["notes"])
    monkeypatch.setattr(fit, "_PLANS_MOST", 3)
    some = bft.fit(*words, "--json").json
    assert some["plans"][:3] == everything["plans"][:3]
    left = len(everything["plans"]) - len(some["plans"])
    assert left > 0
    assert any(says_message(note, "cli.size_fit.plans_left_out", left=left) for note in some["notes"])
    assert "(--json has " + wording("cli.size_shown.best", in_json=len(some["plans"])) + ")" in bft.fit(*words).out


def test_regression_what_a_script_asks_for_in_another_systems_words_was_passed_over(bft: SizeTerminal) -> None:
    (bft.folder / "job.sh").write_text("#!/bin/bash\n#PBS -l nodes=2\nsrun a\n#BSUB -n 3\n")
    ended = bft.fit(*STEP, "--into", "job.sh", "--yes")
    assert says_message(ended.out, "cli.size_script.other_lines", others="#PBS")
    assert "#PBS and #BSUB" not in ended.out, "behind the first line of code it is none"


def test_a_profile_of_the_model_is_shown_in_place_of_the_rules_time(
    bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled(bft.folder, monkeypatch, {64: 0.4, 32: 0.2})
    model = ("train.py:make_model", "--global-batch", "64", "--no-start")
    plans = bft.fit(*model, "--json").json["plans"]
    found = {(plan["partition"], plan["gpus"]): (plan["step_s"], plan["step_origin"]) for plan in plans}
    assert found["new", 1] == (pytest.approx(0.4), "measured")
    assert found["new", 2][1] == "interpolated"
    assert found["new", 3 + 1][1] == found["old", 1][1] == "assumed"
    shown = bft.fit(*model)
    assert re.search(r" STEP +COST", shown.out)
    assert re.search(r"1 x a100 .* 0\.4 s \(0\.39-0\.41\) measured ", shown.out)
    costs = [plan["cost"] for plan in plans if plan["fits"]]
    assert costs == sorted(costs)


def test_a_step_is_timed_in_its_own_precision_unless_another_is_asked_for(bft: SizeTerminal) -> None:
    bft.traces(Step(4, 0.5))
    words = ("train.py:make_step", "--global-batch", "64", "--max-gpus", "1", "--no-start")
    own, other = bft.fit(*words, "--json"), bft.fit(*words, "--precision", "fp32", "--json")
    assert any(says_message(note, "cli.size_trace.own_precision", parts="bf16") for note in own.json["notes"])
    assert any(says_message(note, "cli.size_trace.one_precision", precision="fp32") for note in other.json["notes"])
    first, second = (
        next(plan["step_s"] for plan in ended.json["plans"] if plan["gpu_type"] == "a100") for ended in (own, other)
    )
    assert first < second
