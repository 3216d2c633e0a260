"""`bft solve` as a user meets it: the answer, and for every mistake one line and the right exit code."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import milp
from bftd.cli.whatif import solve
from milp.solver import Feature, Solver
from milp.solvers import registry
from slurm_plugin.nodeset import expand
from tests.support.messages import excerpt, pattern, says, wording
from tests.support.terminal import Ended, Run, Terminal
from tests.support.waiting import STILL_S

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "problem.json"
PROBLEM: dict[str, Any] = {
    "nodes": ["n0", "n1", "n2", "n3", "n7"],
    "t_fwd_s": 100,
    "trainers": [
        {
            "name": "a",
            "nodes_min": 1,
            "nodes_max": 5,
            "up_cost_s": 10,
            "down_cost_s": 5,
            "curve": {"nodes": [0, 5], "objective": [0, 5]},
            "current": ["n0", "n7"],
        }
    ],
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `bft solve` on a problem given as text or data."""

    def call(problem: Any, *words: str, stdin: bool = False) -> Ended:
        text = problem if isinstance(problem, (str, bytes)) else json.dumps(problem)
        raw = text.encode() if isinstance(text, str) else text
        path = tmp_path / "problem.json"
        path.write_bytes(raw)
        ended = Terminal(monkeypatch, capsys, "solve")("-" if stdin else str(path), *words, stdin=raw)
        return ended._replace(err=ended.err.replace(f"{tmp_path}/", ""))

    return call


def changed(**changes: Any) -> dict[str, Any]:
    """The problem with other fields of its trainer."""
    data = deepcopy(PROBLEM)
    data["trainers"][0].update(changes)
    return data


def test_the_answer_is_one_line_on_the_whole_and_one_a_trainer(run: Run) -> None:
    code, out, err = run(PROBLEM)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    # 5 nodes for 100 s, less a stall of 10 s at the rate of 2 nodes
    assert lines[0].startswith(
        "optimal: " + wording("cli.solve.result", objective=480, bound=480, gap=0) + "; solver exact, "
    )
    assert lines[0].endswith(" ms")
    assert lines[1:] == [
        "",
        "TRAINER  NODES   ON        WHY",
        "a        2 -> 5  n[0-3,7]  "
        + wording("milp.reasons.grows", held=2, count="5 nodes: ")
        + wording("milp.reasons.gains", gain=300, horizon="over the next 100 s", count=20),
    ]


def test_a_trainer_that_keeps_its_count_shows_it_once_and_one_without_nodes_a_dash(run: Run) -> None:
    rows = run(changed(nodes_max=2))[1].splitlines()
    assert rows[3].split()[:3] == ["a", "2", "n[0,7]"]
    rows = run(changed(nodes_min=6, nodes_max=6))[1].splitlines()
    assert rows[3].split()[:5] == ["a", "2", "->", "0", "-"]


def test_with_json_the_answer_is_the_plan(run: Run) -> None:
    code, out, _ = run(PROBLEM, "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["assignment"] == {"a": ["n0", "n7", "n1", "n2", "n3"]}
    assert answer["counts"] == {"a": 5}
    assert (answer["status"], answer["solver"], answer["objective"]) == ("optimal", "exact", 480)


def test_a_problem_comes_on_standard_input_too(run: Run) -> None:
    assert run(PROBLEM, "--json", stdin=True)[0] == 0
    code, _, err = run("{", stdin=True)
    assert code == 2
    assert re.match("bft: " + pattern("cli.solve.not_json", where="standard input", lineno=1, colno=2), err)


def test_a_byte_order_mark_is_not_in_the_way(run: Run) -> None:
    assert run(b"\xef\xbb\xbf" + json.dumps(PROBLEM).encode())[0] == 0


def test_a_problem_without_trainers_has_an_answer(run: Run) -> None:
    code, out, _ = run({**PROBLEM, "trainers": []})
    assert code == 0
    assert out.startswith("optimal: objective 0,")
    assert len(out.splitlines()) == 1


def test_options_reach_the_solver(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def spy(problem: milp.Problem, solver: str, **options: Any) -> milp.Plan:
        asked.append((solver, options))
        return real(problem)

    real = milp.solve
    monkeypatch.setattr(milp, "solve", spy)
    run(PROBLEM)
    run(PROBLEM, "--solver", "equal-share", "--time-limit", "2.5", "--gap", "0")
    assert asked == [
        ("auto", {"time_limit_s": None, "gap": 1e-4}),
        ("equal-share", {"time_limit_s": 2.5, "gap": 0.0}),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", wording("cli.solve.not_json", where="problem.json", lineno=1, colno=1, msg="Expecting value")),
        (
            '{"nodes": [],\n "t_fwd_s": 1,\n}',
            wording("cli.solve.not_json", where="problem.json", lineno=3, colno=1, msg=""),
        ),
        ('{"nodes": []} x', wording("cli.solve.not_json", where="problem.json", lineno=1, colno=15, msg="Extra data")),
        (b'{"nodes": ["\xff"]}', wording("cli.size_inventory.not_utf8", where="problem.json", start=12)),
        ("[" * 100_000, wording("cli.solve.too_deep", where="problem.json")),
        ('{"nodes": [], "nodes": []}', wording("cli.solve.field_twice", where="the problem", repeated="nodes")),
        (
            '{"trainers": [{"name": "a", "up_cost_s": 1, "up_cost_s": 2}]}',
            excerpt("cli.solve.field_twice", where="trainer a", repeated="up_cost_s"),
        ),
        (
            '{"trainers": [{"curve": {"nodes": [], "nodes": []}, "name": "a"}]}',
            excerpt("cli.solve.field_twice", where="trainer a: curve", repeated="nodes"),
        ),
        (
            '{"groups": [{"name": "g", "nodes": [], "nodes": []}]}',
            excerpt("cli.solve.field_twice", where="group g", repeated="nodes"),
        ),
        ('{"caps": [{"user": "u", "user": "v"}]}', excerpt("cli.solve.field_twice", where="caps", repeated="user")),
    ],
)
def test_a_file_that_is_no_proper_json_is_refused_in_one_line(run: Run, text: str | bytes, line: str) -> None:
    code, out, err = run(text)
    assert (code, out) == (2, "")
    assert err.startswith(f"bft: {line}")
    assert err.count("\n") == 1


def text_with(field: str, value: str) -> str:
    """The problem with one field of its trainer as literal text, which may be no proper JSON."""
    return json.dumps(changed(**{field: "HERE"})).replace('"HERE"', value)


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (text_with("up_cost_s", "NaN"), wording("milp.fields.not_finite", where="trainer a: up_cost_s", value="nan")),
        (
            text_with("down_cost_s", "Infinity"),
            wording("milp.fields.not_finite", where="trainer a: down_cost_s", value="inf"),
        ),
        (text_with("weight", "-Infinity"), wording("milp.fields.not_finite", where="trainer a: weight", value="-inf")),
        (text_with("weight", "1e999"), wording("milp.fields.not_finite", where="trainer a: weight", value="inf")),
        (
            text_with("weight", "1" + "0" * 400),
            wording("milp.fields.not_finite", where="trainer a: weight", value="inf"),
        ),
        (
            text_with("nodes_max", "1" + "0" * 5000),
            wording("milp.fields.not_whole", where="trainer a: nodes_max", shown="inf"),
        ),
        (
            text_with("nodes_max", "10000000000000000000"),
            wording("milp.fields.not_whole", where="trainer a: nodes_max", shown="1e+19"),
        ),
        (
            text_with("curve", '{"nodes": [0, 1], "objective": [0, NaN]}'),
            wording("milp.fields.not_finite", where="trainer a: curve.objective", value="nan"),
        ),
        (
            changed(curve={"nodes": [1, 2], "objective": [1, 2]}),
            "trainer a: " + wording("milp.curves.start"),
        ),
        (
            changed(curve={"nodes": [0, 2, 1], "objective": [0, 1, 2]}),
            wording("milp.fields.not_increasing", where="trainer a: curve.nodes", after=1, before=2),
        ),
        (changed(up_cost_s=-1), wording("milp.fields.negative", where="trainer a: up_cost_s", shown=-1)),
        (
            changed(nodes_min=6),
            wording("simulated.trainers.min_above_max", where="trainer a", nodes_min=6, nodes_max=5),
        ),
        (changed(current=["n9"]), wording("milp.problem.current_unknown", name="a", node="n9")),
        (
            changed(node_min=1),
            wording(
                "milp.fields.unknown_field",
                where="trainer a",
                key="node_min",
                hint=wording("sizing.fields.hint", near="'nodes_min'"),
            ),
        ),
        ({**PROBLEM, "trainers": PROBLEM["trainers"] * 2}, wording("milp.problem.trainer_twice", names="a")),
        (
            {**PROBLEM, "t_fwd": 1},
            wording(
                "milp.fields.unknown_field",
                where="the problem",
                key="t_fwd",
                hint=wording("sizing.fields.hint", near="'t_fwd_s'"),
            ),
        ),
    ],
)
def test_bad_input_is_refused_in_one_line_that_names_the_trainer_and_the_field(
    run: Run, problem: Any, line: str
) -> None:
    assert run(problem) == (2, "", f"bft: {line}\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--time-limit", "0"], excerpt("cli.trace.not_above_zero", value=0)),
        (["--time-limit", "-1"], "'--time-limit': -1 is not"),
        (["--time-limit", "nan"], "'--time-limit': nan is not"),
        (["--time-limit", "inf"], "'--time-limit': inf is not"),
        (["--time-limit", "soon"], "'--time-limit'"),
        (["--gap", "-0.1"], excerpt("cli.solve.negative", value=-0.1)),
        (["--gap", "nan"], "'--gap': nan is not"),
        (
            ["--solver", "exakt"],
            wording("milp.registry.unknown", name="exakt", hint=wording("sizing.fields.hint", near="'exact'")),
        ),
        (["--paper-big-m"], "--paper-big-m"),
        (["--verbose"], "--verbose"),
        (["another.json"], "another.json"),
    ],
)
def test_wrong_usage_is_refused_in_one_line(run: Run, words: list[str], hint: str) -> None:
    code, out, err = run(PROBLEM, *words)
    assert (code, out) == (2, "")
    assert hint in err
    assert err.count("\n") == 1


def test_a_solver_that_cannot_carry_the_problem_says_so(run: Run) -> None:
    classes = {**PROBLEM, "nodes": [*PROBLEM["nodes"], {"name": "fat", "class": "h100"}]}
    code, _, err = run(classes, "--solver", "exact")
    assert code == 2
    assert says(err, "milp.registry.cannot_carry", name="exact", features="several node classes")


def test_a_file_that_cannot_be_read_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for missing, why in ((tmp_path / "absent.json", "No such file"), (tmp_path, "Is a directory")):
        monkeypatch.setattr(solve, "Path", lambda _, missing=missing: missing)
        code, _, err = run(PROBLEM)
        assert code == 2
        assert err.startswith("bft: cannot read ")
        assert why in err


def test_an_interrupt_ends_quietly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> milp.Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr(milp, "solve", interrupted)
    code, out, err = run(PROBLEM)
    assert (code, out, err.strip()) == (130, "", "")


def test_the_help_names_every_solver_with_what_it_carries_and_whether_it_is_ready(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    carries = frozenset({Feature.CAPS, Feature.GROUPS})
    absent = Solver("magic", "by magic", carries, True, lambda *_: pytest.fail("ran"), lambda: "buy a wand")
    monkeypatch.setattr(registry, "every", lambda: (absent,))
    told = " ".join(run(PROBLEM, "--help")[1].split())
    assert "auto" in told
    carried = wording("milp.solver.caps") + ", " + wording("milp.solver.groups")
    assert f"by magic; also carries {carried}; not ready: buy a wand" in told


def test_the_help_knows_all_solvers(run: Run) -> None:
    told = run(PROBLEM, "--help")[1]
    for name in milp.solver_names():
        assert f"\n  {name} " in told


def test_the_list_of_commands_imports_no_solver() -> None:
    probe = (
        "import sys\nfrom bftd.cli import main\n"
        "try: main.bft.main(['--help'], 'bft')\n"
        "except SystemExit: pass\n"
        "print(sorted({'milp', 'numpy', 'highspy', 'gurobipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=STILL_S)
    assert "  solve " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["*", "@all", "n&1", "n[0-3]", "a,b", "n 1", "n\n1", "\x1b[31m", "\ud800"])
def test_odd_names_are_shown_as_text_on_one_line(run: Run, name: str) -> None:
    trainer = {**PROBLEM["trainers"][0], "name": name, "current": []}
    code, out, _ = run({**PROBLEM, "nodes": [name], "trainers": [trainer]})
    assert code == 0
    assert len(out.splitlines()) == 4
    shown = name if name.isprintable() else ascii(name)[1:-1]
    assert out.splitlines()[3].startswith(f"{shown:7}  0 -> 1  {shown:2}  starts on 1 node")


@hypothesis_settings(deadline=None, max_examples=50)
@given(st.sets(st.from_regex(r"[a-z]{1,2}-?[0-9]{0,3}(\.[a-z])?", fullmatch=True), min_size=1, max_size=8))
def test_folded_names_unfold_to_the_same_nodes(names: set[str]) -> None:
    assert set(expand(solve._folded(sorted(names)))) == names


def test_the_example_of_the_documentation_shows_all_that_can_happen(run: Run) -> None:
    code, out, _ = run(EXAMPLE.read_text())
    assert code == 0
    for verb in ("shrinks from 6 to 4", "starts on 8", "gives up its 2", "waits"):
        assert verb in out


def documented() -> list[tuple[str, str, list[str]]]:
    """(command, its standard input, the lines of its printed output) of every `bft solve` in the documentation."""
    pages = [ROOT / "README.md", *(ROOT / "docs" / folder / "solvers.md" for folder in ("reference", "evidence"))]
    text = "".join(page.read_text() for page in pages)
    found: list[tuple[str, str, list[str]]] = []
    for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S):
        command, _, rest = block.partition("\n")
        if command.startswith("$ bft solve "):
            found.append((command.removeprefix("$ "), "", rest.splitlines()))
        elif here := re.fullmatch(r"(bft solve -) <<'END'\n(.*)END\n", block, re.S):
            found.append((here[1], here[2], []))
        else:
            found += [(line, "", []) for line in block.splitlines() if line.startswith("bft solve ")]
    return found + [(command, "", []) for command in re.findall(r"`(bft solve examples/[^`]+)`", text)]


@pytest.mark.parametrize(("command", "stdin", "printed"), documented())
def test_every_command_of_the_documentation_works_as_printed(
    command: str, stdin: str, printed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "highs" in command:
        pytest.importorskip("highspy")
    monkeypatch.chdir(ROOT)
    code, out, err = Terminal(monkeypatch, capsys)(*shlex.split(command)[1:], stdin=stdin.encode())
    assert (code, err) == (0, "")
    for line, expected in zip(out.splitlines(), printed, strict=False):
        if expected == "...":
            break
        took = r"[\d.]+ m?s$"
        assert re.sub(took, "", line) == re.sub(took, "", expected)


def test_the_documentation_knows_every_solver_and_every_field() -> None:
    text = (ROOT / "docs" / "reference" / "solvers.md").read_text()
    plan = milp.plan_to_json(milp.solve(milp.problem_from_json(PROBLEM)))
    fields = {field.name for kind in (milp.Problem, milp.TrainerSpec) for field in dataclasses.fields(kind)}
    assert {name for name in {*milp.solver_names(), *fields, *plan} if f"`{name}`" not in text} == set()
