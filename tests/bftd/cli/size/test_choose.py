"""`bft size choose` as a user meets it, on a centre in a file and with a stand-in for Slurm."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from sizing.cells.shards import StageShard
from sizing.child import graphing
from sizing.model.config import parse
from sizing.profiles.profile import Setting
from sizing.profiles.store import Store
from tests.bftd.cli.profiled import GRAPH, KIND, profiled
from tests.bftd.cli.sizing_commands import GPT, SizeTerminal
from tests.sizing.cells.made import profile_of
from tests.sizing.plans_of import Step
from tests.support.messages import fragment, pattern, says, wording
from tests.support.programs import shell_script
from tests.support.terminal import Ended

pytestmark = pytest.mark.slow

JOB = ("--config", f"{GPT},recompute=full", "--global-batch", "64", "--steps", "1000")
TRACED = ("train.py:make_model", "--global-batch", "64", "--steps", "1000")


@pytest.fixture
def bft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SizeTerminal:
    terminal = SizeTerminal(tmp_path, monkeypatch, capsys)
    terminal.traces(Step(10, 0.5))
    monkeypatch.setattr(graphing, "graph", lambda step, batch, **_: GRAPH)
    return terminal


def choose(bft: SizeTerminal, *words: str) -> Ended:
    return bft("size", "choose", "--partitions", "centre.json", *words)


def slurm(folder: Path, body: str) -> Path:
    """A stand-in for sbatch, a shell script that finds what it was given in $said; gives the file of all requests."""
    commands, said = folder / "commands", folder / "said"
    commands.mkdir()
    text = f'#!/bin/sh\nsaid="$* $(/bin/cat)"\necho "$said" >> {said}\n{body}\n'
    shell_script(commands / "sbatch", text)
    return said


def starting(at_s: float) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))
    return f'echo "sbatch: Job 7 to start at {moment} using 4 processors on nodes new1 in partition new" >&2'


def test_a_table_shows_when_each_run_ends_why_the_winner_wins_and_its_lines(bft: SizeTerminal) -> None:
    ended = choose(bft, *JOB, "--no-start", "--by", "end")
    assert (ended.code, ended.err) == (0, "")
    head, *rows = ended.out.splitlines()
    assert re.search("STEP +ORIGIN +RUN +STARTS +ENDS +AT WORST +GPU-HOURS", head)
    table = [row for row in rows if re.match(r" *\d+  (new|old) ", row)]
    assert table
    assert all(" assumed " in row and "not asked" in row for row in table)
    merit = " ends (first|as soon as any): it " + pattern("sizing.ranking.starts_now") + " and runs "
    assert re.search(merit, ended.out)
    assert says(ended.out, "cli.size_choose_timers.assumed_times", profiling="new --precision bf16")
    assert re.search(
        "^" + pattern("sizing.runs.expected", words=fragment("#SBATCH --time="), origin="assumed") + "$",
        ended.out,
        re.MULTILINE,
    )
    assert re.search(r"^export BFT_DP=\d+ BFT_TP=\d+ BFT_STAGES=\d+ BFT_MICRO_BATCHES=\d+$", ended.out, re.MULTILINE)
    assert re.search(r"^srun torchrun ", ended.out, re.MULTILINE)


def test_json_has_the_runs_by_their_end_and_the_cells_that_are_no_choice(bft: SizeTerminal) -> None:
    said = choose(bft, *JOB, "--no-start", "--max-stages", "4", "--by", "end", "--json").json
    ends = [run["ends"]["value"] for run in said["runs"]]
    assert ends == sorted(ends)
    assert said["winner"] == said["runs"][0]
    assert {run["step"]["origin"] for run in said["cells"]} == {"assumed"}
    assert all(run["gpus"] & (run["gpus"] - 1) == 0 for run in said["cells"])
    assert {run["stages"] for run in said["cells"]} >= {1, 2, 4}
    assert all(each["why"] for each in said["out"])
    assert said["environment"]["BFT_STAGES"] == str(said["winner"]["stages"])


def test_a_make_model_is_traced(bft: SizeTerminal) -> None:
    said = choose(bft, *TRACED, "--no-start", "--max-stages", "4", "--json").json
    assert {run["peak_origin"] for run in said["cells"] if run["stages"] == 1} == {"traced", "interpolated"}
    assert {run["peak_origin"] for run in said["cells"] if run["stages"] > 1} == {"assumed"}
    assert any("traces of train.py:make_model" in note for note in said["notes"])


def test_the_earliest_end_by_slurms_word_wins_over_the_fastest_run(bft: SizeTerminal) -> None:
    now_s = time.time()
    body = f'case "$said" in *partition=new*) {starting(now_s + 400000)};; *) {starting(now_s + 60)};; esac'
    slurm(bft.folder, body)
    said = choose(bft, *JOB, "--json").json
    assert said["winner"]["partition"] == "old"
    assert said["winner"]["start_s"] == pytest.approx(now_s + 60, abs=1)
    assert said["winner"]["slurm"].startswith("to start at 20")
    assert re.search(
        pattern("sizing.ranking.faster_but_later", fastest="in new", fastest2="4 d 15 h later"), said["why"]
    )


def test_slurm_is_asked_with_the_time_limit_of_the_run(bft: SizeTerminal) -> None:
    said = slurm(bft.folder, starting(time.time()))
    winner = choose(bft, *JOB, "--json").json["winner"]
    asked = said.read_text()
    assert "--test-only" in asked
    assert all(line in asked for line in winner["sbatch"])


def test_a_partition_that_slurm_refuses_is_told_in_its_words_and_others_win(bft: SizeTerminal) -> None:
    body = (
        'case "$said" in *partition=new*) echo "allocation failure: Invalid account or account/partition combination '
        f'specified" >&2; exit 1;; *) {starting(time.time())};; esac'
    )
    slurm(bft.folder, body)
    ended = choose(bft, *JOB)
    assert ended.code == 0
    assert "in new: refused: allocation failure: Invalid account or account/partition combination" in ended.out
    assert re.search(r"^\d+ x v100-\S+ in old ends first|^\d+ x v100 in old ends first", ended.out, re.MULTILINE)
    (bft.folder / "commands" / "sbatch").write_text("#!/bin/sh\necho 'allocation failure: closed' >&2\nexit 1\n")
    alone = choose(bft, *JOB, "--partition", "new")
    assert alone.code == 1
    assert (
        alone.err
        == "bft: " + wording("cli.size_choose.slurm_refuses_all", said="refused: allocation failure: closed") + "\n"
    )


def test_without_slurm_all_are_taken_to_start_now_and_that_is_said(bft: SizeTerminal) -> None:
    ended = choose(bft, *JOB)
    assert ended.code == 0
    assert "note: " + wording("cli.size_choose.slurm_not_asked", error="sbatch not found") in ended.out


def test_a_deadline_that_nothing_holds_says_by_how_much(bft: SizeTerminal) -> None:
    ended = choose(bft, *JOB, "--no-start", "--deadline", "+1minute")
    assert ended.code == 1
    misses = pattern("sizing.ranking.nearest_late", name="NAME", origin="assumed", expected="WHEN")
    misses = misses.replace("NAME", r"\d+ x \S+ in \w+").replace("WHEN", ".* (after|before) it")
    told = pattern("cli.size_choose.nothing_ends", moment="MOMENT", misses="MISSES").replace("MOMENT", r"\S+")
    assert re.fullmatch(f"bft: {told.replace('MISSES', misses)}\n", ended.err)
    assert "AT WORST" in ended.out
    assert "#SBATCH" not in ended.out


def test_a_deadline_leaves_what_surely_ends_before_it(bft: SizeTerminal) -> None:
    every = choose(bft, *JOB, "--no-start", "--json").json["runs"]
    hold = choose(bft, *JOB, "--no-start", "--deadline", "+3hours", "--json").json
    assert 0 < len(hold["runs"]) < len(every)
    assert all(run["ends"]["high"] <= hold["deadline_s"] for run in hold["runs"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--deadline", "2020-01-01"),
            wording("cli.size_choose.deadline_past", text="2020-01-01", at_s="2020-01-01T00:00"),
        ),
        (("--deadline", "soon"), wording("cli.size_choose.deadline_malformed", text="soon")),
        (("--steps", "0"), wording("cli.size_choose.steps_out_of_range", steps=0, MOST_STEPS=1000000000000)),
        (("--start-up", "ever"), wording("cli.size_choose.start_up_malformed", text="ever")),
        (("--gpu", "a10"), "no GPU type a10: " + wording("sizing.fields.hint", near="a100")),
        (
            ("--partition", "news"),
            "no " + wording("cli.size_fit.partition_with_gpus") + " news: " + wording("sizing.fields.hint", near="new"),
        ),
        (("--max-gpus", "0"), wording("sizing.candidates.too_few_gpus", max_gpus=0)),
        (
            ("--submit", "none.sh"),
            wording("cli.size_script.unreadable", path="none.sh", strerror="No such file or directory"),
        ),
    ],
)
def test_bad_input_is_one_line(bft: SizeTerminal, words: tuple[str, ...], told: str) -> None:
    ended = choose(bft, *JOB, *words)
    assert (ended.code, ended.out, ended.err) == (2, "", f"bft: {told}\n")


def test_a_run_that_no_partition_allows_is_told(bft: SizeTerminal) -> None:
    centre = json.loads((bft.folder / "centre.json").read_text())
    for partition in centre["partitions"]:
        partition["max_time_s"] = 3600
    (bft.folder / "centre.json").write_text(json.dumps(centre))
    ended = choose(bft, *JOB, "--no-start", "--steps", "1000000")
    assert ended.code == 1
    why = pattern("sizing.limits.over_max_time", origin="assumed", max_time_s="1 h")
    told = pattern("cli.size_choose.cannot_run", nearest="NEAREST").replace("NEAREST", f".*: {why}")
    assert re.fullmatch(f"bft: {told}; .*\n", ended.err)
    assert says(ended.err, "cli.size_choose_timers.undeclared", ways=fragment("--max-stages N"))


def test_a_profile_of_the_type_comes_before_the_rule_and_each_row_says_which_it_is(
    bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled(bft.folder, monkeypatch, {64: 0.4, 32: 0.2, 16: 0.1})
    said = choose(bft, *TRACED, "--no-start", "--json").json
    origins = {(run["gpu_type"], run["gpus"], run["stages"]): run["step"]["origin"] for run in said["cells"]}
    assert origins["a100", 1, 1] == "measured"
    assert origins["a100", 2, 1] == origins["a100", 4, 1] == "interpolated"
    assert {origin for (kind, _, _), origin in origins.items() if kind == "v100"} == {"assumed"}
    alone = next(run for run in said["cells"] if (run["gpu_type"], run["gpus"]) == ("a100", 1))
    assert alone["step"]["value"] == pytest.approx(0.4)
    assert any(says(note, "cli.size_choose_timers.assumed_times") for note in said["notes"])
    shown = choose(bft, *TRACED, "--no-start", "--max-gpus", "2")
    assert re.search(r"new +1 x a100 .* measured ", shown.out)
    assert re.search(r"old +2 x v100 .* assumed ", shown.out)


def test_a_profile_of_another_type_is_not_taken_for_it(bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled(bft.folder, monkeypatch, {64: 0.4}, kind="h100-sxm")
    said = choose(bft, *TRACED, "--no-start", "--json").json
    assert {run["step"]["origin"] for run in said["cells"]} == {"assumed"}
    assert any(
        re.match("1 x a100: " + pattern("sizing.cells_sources.missing", elsewhere=fragment("a100")), note)
        for note in said["notes"]
    )


def test_without_a_communication_table_several_gpus_are_assumed_and_that_is_said(
    bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled(bft.folder, monkeypatch, {64: 0.4, 32: 0.2, 16: 0.1}, links=False)
    said = choose(bft, *TRACED, "--no-start", "--json").json
    origins = {run["gpus"]: run["step"]["origin"] for run in said["cells"] if run["gpu_type"] == "a100"}
    assert (origins[1], origins[2]) == ("measured", "assumed")
    assert any("bft size comm" in note for note in said["notes"])


def test_a_profile_of_the_model_before_it_was_changed_does_not_count(
    bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled(bft.folder, monkeypatch, {64: 0.4})
    (bft.folder / "train.py").write_text("def make_model(batch_size): return None\n")
    said = choose(bft, *TRACED, "--no-start", "--json").json
    assert {run["step"]["origin"] for run in said["cells"]} == {"assumed"}


def test_regression_a_run_beyond_all_calendars_ended_in_a_traceback(bft: SizeTerminal) -> None:
    far = ("--config", f"{GPT},recompute=full,b=1", "--global-batch", "1000000000", "--steps", "1000000000000")
    ended = choose(bft, *far, "--no-start")
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r" in over [\d,]{9,} years  +in over [\d,]{9,} years ", ended.out)


def test_regression_json_said_nothing_of_the_cells_where_none_can_run_it(bft: SizeTerminal) -> None:
    huge = ("--config", "gpt:h=16384,l=96,a=128,s=2048,V=50257,b=1", "--global-batch", "64", "--steps", "9")
    ended = choose(bft, *huge, "--no-start", "--json")
    assert ended.code == 1
    assert (ended.json["winner"], ended.json["runs"]) == (None, [])
    assert ended.json["out"]


def test_regression_of_a_model_that_fits_nowhere_the_farthest_cell_was_called_the_nearest(bft: SizeTerminal) -> None:
    huge = ("--config", "gpt:h=16384,l=96,a=128,s=2048,V=50257,b=1", "--global-batch", "64", "--steps", "9")
    huge += ("--max-stages", "64", "--tensor")
    ended = choose(bft, *huge, "--no-start", "--json")
    needs = [re.search(r"need ([\d.]+) GiB .* has ([\d.]+)", each["why"]) for each in ended.json["out"]]
    least = min(float(found[1]) / float(found[2]) for found in needs if found)
    told = re.fullmatch(
        r"bft: no GPUs can run it: \d+ x \S+ in \d+ stages in \w+: a GPU would need ([\d.]+) GiB with the guard band "
        r"\(assumed\) and has ([\d.]+)\n",
        ended.err,
    )
    assert told
    assert float(told[1]) / float(told[2]) == least


def test_regression_without_slurm_an_option_was_named_that_the_command_does_not_have(bft: SizeTerminal) -> None:
    ended = bft("size", "choose", *JOB)
    assert ended.code == 1
    assert ended.err.endswith(wording("cli.size_inventory.without_slurm", error="", option="--partitions") + "\n")


def test_regression_a_deadline_saw_only_the_run_of_each_shape_that_is_expected_to_be_shortest(
    bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = (*TRACED, "--no-start", "--start-up", "0", "--partition", "new", "--max-gpus", "2", "--json")
    two += ("--max-stages", "2")
    steps = {(run["gpus"], run["stages"]): run["step"] for run in choose(bft, *two).json["cells"]}
    took_s = 1.3 * steps[2, 2]["value"]  # slower than a pipeline is expected to be, and quicker than it may be
    assert took_s < 0.7 * steps[2, 2]["high"]
    profiled(bft.folder, monkeypatch, {64: 2 * took_s, 32: took_s})
    assert choose(bft, *two).json["winner"]["stages"] == 2
    winner = choose(bft, *two, "--deadline", f"+{int(1000 * 0.8 * steps[2, 2]['high'])}seconds").json["winner"]
    assert (winner["stages"], winner["step"]["origin"]) == (1, "interpolated")


def test_regression_of_a_configurations_profiles_those_in_its_own_precision_came_last(
    bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(bft.folder / "cache"))
    fp32, tf32 = (GPT.replace("bf16", precision) for precision in ("fp32", "tf32"))
    sizes = parse(fp32)
    last = sizes.layers + 1  # behind the embedding and the layers, the head
    store = Store()
    for precision, took_s in (("bf16", 0.1), ("fp32", 0.4)):
        one = profile_of(StageShard(0, last, 64, 1), took_s, device=KIND, peak_bytes=2**30)
        store.put(store.model(sizes), Setting("adam", precision), [one])
    words = ("--global-batch", "64", "--steps", "1000", "--no-start", "--max-gpus", "1", "--gpu", "a100")
    own = choose(bft, "--config", fp32, *words, "--json").json
    assert own["winner"]["step"]["value"] == pytest.approx(0.4)
    assert own["winner"]["step"]["origin"] == "measured"
    other = choose(bft, "--config", tf32, *words, "--json").json
    assert not any(run["step"]["origin"] == "measured" for run in other["cells"])
    (told,) = (note for note in other["notes"] if says(note, "cli.size_profiles.other_precision"))
    assert says(
        told, "cli.size_profiles.other_precision", ways="fp32 with adam, bf16 with adam", precision=fragment("tf32")
    )
    assert says(told, "cli.size_profiles.make_some", alike="tf32")


def test_regression_a_profile_in_another_precision_counted_as_measured(
    bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled(bft.folder, monkeypatch, {64: 0.4, 32: 0.2}, precision="bf16")
    few = (*TRACED, "--no-start", "--max-gpus", "2", "--json")
    said = choose(bft, *few).json
    assert {run["step"]["origin"] for run in said["cells"]} == {"assumed"}
    told = "not in fp32, so profiles do not count: bft size profile --precision fp32 makes some that do"
    assert any(f"{told}, --precision bf16 here takes these" in note for note in said["notes"])
    same = choose(bft, *few, "--precision", "bf16").json
    assert {run["step"]["origin"] for run in same["cells"] if run["gpu_type"] == "a100"} >= {"measured", "interpolated"}
    plans = bft.fit(*TRACED[:3], "--no-start", "--json").json["plans"]
    assert {plan["step_origin"] for plan in plans} == {"assumed"}


def test_regression_of_two_types_that_slurm_does_not_tell_apart_the_faster_was_timed(bft: SizeTerminal) -> None:
    centre = json.loads((bft.folder / "centre.json").read_text())
    groups = [{**partition["groups"][0], "gres_type": ""} for partition in centre["partitions"]]
    both = {**centre, "partitions": [{"partition": "any", "groups": groups}]}
    model = ("train.py:make_model", "--global-batch", "8", "--no-start", "--max-gpus", "1", "--json")
    words = (*model, "--steps", "1000")

    def steps() -> dict[str, float]:
        return {run["gpu_type"]: run["step"]["value"] for run in choose(bft, *words).json["cells"]}

    alone = steps()
    assert alone["a100"] < 0.5 * alone["v100"]
    (bft.folder / "centre.json").write_text(json.dumps(both))
    said = choose(bft, *words).json
    assert [run["step"]["value"] for run in said["cells"]] == [alone["v100"]] * 2
    assert any(
        says(note, "cli.size_choose_timers.mixed_kinds", partition="any", kinds="a100 or v100")
        for note in said["notes"]
    )
    plans = bft.fit(*model).json["plans"]
    assert len({plan["step_s"] for plan in plans}) == 1


@pytest.mark.parametrize(
    ("takes", "words", "stages", "left_out"),
    [
        ((), (), {1}, ["--max-stages N", "a keyword tp"]),
        (("stages",), (), {1, 2, 4}, ["a keyword tp"]),
        ((), ("--max-stages", "2"), {1, 2}, ["a keyword tp"]),
        (("tp",), (), {1}, ["--max-stages N"]),
        (("tp", "stages"), (), {1, 2, 4}, []),
    ],
)
def test_regression_splits_were_offered_that_the_script_does_not_have(
    bft: SizeTerminal, takes: tuple[str, ...], words: tuple[str, ...], stages: set[int], left_out: list[str]
) -> None:
    bft.traces(Step(10, 0.5), frozenset(takes))
    said = choose(bft, *TRACED, "--no-start", "--max-gpus", "4", *words, "--json").json
    assert {run["stages"] for run in said["cells"]} == stages
    told = [note for note in said["notes"] if says(note, "cli.size_choose_timers.undeclared")]
    assert len(told) == bool(left_out)
    assert all(way in note for note in told for way in left_out)


def test_a_model_by_its_sizes_is_only_replicated_unless_more_is_declared(bft: SizeTerminal) -> None:
    few = (*JOB, "--no-start", "--max-gpus", "4", "--json")
    plain, cut = choose(bft, *few).json, choose(bft, *few, "--tensor", "--max-stages", "4").json
    assert {(run["stages"], *run["tp"]) for run in plain["cells"]} == {(1, 1)}
    assert {run["stages"] for run in cut["cells"]} == {1, 2, 4}
    assert not any(says(note, "cli.size_choose_timers.undeclared") for note in cut["notes"])
    refused = choose(bft, *TRACED, "--no-start", "--tensor")
    assert (refused.code, refused.err) == (
        2,
        "bft: " + wording("cli.size_choose_timers.tensor_by_keyword", step="train.py:make_model") + "\n",
    )


def test_regression_a_start_a_thousand_years_ahead_was_a_date(bft: SizeTerminal) -> None:
    """Slurm's word where a job without a time limit has the nodes."""
    slurm(bft.folder, starting(time.time() + 1021 * 365.25 * 86400))
    ended = choose(bft, *JOB)
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"  in over 1,02\d years  +in over 1,02\d years  +in over 1,02\d years ", ended.out)
    assert re.search("it starts in over 1,02. years and runs ", ended.out)
    assert not re.search(r"\b30[45]\d-", ended.out.replace("to start at", ""))
