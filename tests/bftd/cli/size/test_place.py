"""`bft size place` and `bft size inventory` as a user meets them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bftd.cli import common
from sizing.inventory.gpus import GIB
from slurm_plugin.errors import SnapshotError
from slurm_plugin.read.types import Node, Partition
from tests.bftd.builders import node
from tests.support.messages import fragment, pattern, says, wording
from tests.support.terminal import Ended, Run, Terminal

pytestmark = pytest.mark.slow

INVENTORY: dict[str, Any] = {
    "partitions": [
        {
            "partition": "gpu",
            "groups": [
                {
                    "nodes": "n[1-2]",
                    "gpu_type": "t4",
                    "gpus": 4,
                    "cpus": 32,
                    "memory_bytes": 256 * GIB,
                    "idle": {"n1": 4, "n2": 2},
                }
            ],
        }
    ]
}
PLAN = {"partition": "gpu", "gpu_type": "t4", "gpus": 4, "nodes": 1, "dp": 4, "tp": 1, "high_bytes": 10 * GIB}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `bft size` beside the two files."""
    (tmp_path / "bftd.toml").write_text("")
    monkeypatch.setenv("BFTD_CONFIG", str(tmp_path / "bftd.toml"))
    monkeypatch.chdir(tmp_path)

    def call(*words: str, plans: Any = None, there: Any = INVENTORY) -> Ended:
        text = plans if isinstance(plans, str) else json.dumps({"plans": plans})
        (tmp_path / "plans.json").write_text(text)
        (tmp_path / "inventory.json").write_text(there if isinstance(there, str) else json.dumps(there))
        return Terminal(monkeypatch, capsys, "size")(*words, stdin=text.encode())

    return call


class Slurm:
    """Two nodes with a T4 each, one in use; one with a GPU that nobody knows; and bftd's own partitions."""

    def nodes_with_gpus_used(self) -> dict[str, Node]:
        nodes = [
            node("n1", gpus={"t4": 1}, cpus=8, features=("rack1",)),
            node("n2", "MIXED", gpus={"t4": 1}, gpus_used={"t4": 1}, cpus=8),
            node("n3", gpus={"turbo": 1}),
        ]
        return {item.name: item for item in nodes}

    def partitions(self) -> dict[str, Partition]:
        names = ("gpu", "elastic", "bft-driver")
        return {name: Partition(name, ("n1", "n2", "n3"), "UP", None) for name in names}


class Silent:
    """A Slurm that does not answer."""

    def nodes_with_gpus_used(self) -> dict[str, Node]:
        raise SnapshotError("scontrol failed: is slurmctld up?")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "slurm_client", lambda settings: Slurm())


TOO_FEW_NOW = wording("sizing.place.too_few_now", gpus=8, there=8, where="t4 in gpu", idle=6, groups="")


def test_the_plan_that_can_be_placed_and_why_better_ones_cannot(run: Run) -> None:
    better = {**PLAN, "gpus": 8, "dp": 8, "nodes": 2}
    code, out, err = run("place", "plans.json", "inventory.json", plans=[better, PLAN])
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "PLAN  ASKS FOR                GOES TO",
        f"   1  8 x 10.0 GiB t4 in gpu  nowhere: {TOO_FEW_NOW}",
        "   2  4 x 10.0 GiB t4 in gpu  n1 (4) of gpu, t4",
    ]
    code, out, _ = run("place", "plans.json", "inventory.json", "--json", plans=[better, PLAN])
    assert code == 0
    assert json.loads(out) == {
        "format": 1,
        "placed": {"plan": 2, "partition": "gpu", "gpu_type": "t4", "gres_type": "", "nodes": {"n1": 4}},
        "passed_over": [
            {
                "plan": 1,
                "why": wording("sizing.place.too_few_now", gpus=8, there=8, where="t4", idle="in gpu 6", groups=""),
                "lacking": 2,
            }
        ],
    }


def test_plans_come_on_standard_input_too_and_the_cluster_may_be_thought_empty(run: Run) -> None:
    better = {**PLAN, "gpus": 8, "dp": 8, "nodes": 2}
    code, out, _ = run("place", "-", "inventory.json", "--empty", plans=[better])
    assert code == 0
    assert out.splitlines()[1].endswith("n[1-2] (4 each) of gpu, t4")


def test_a_placement_other_than_the_plans_lines_ask_for_is_told(run: Run) -> None:
    code, out, _ = run("place", "plans.json", "inventory.json", plans=[{**PLAN, "gpus": 6, "dp": 6, "nodes": 2}])
    assert code == 0
    assert "n1 (4 each), n2 (2 each) of gpu" in out
    assert says(out, "cli.size_place.own_lines_fail", per_node=3, gpus=fragment("6"))


def test_where_no_plan_can_be_placed_one_line_says_what_is_missing_and_whether_waiting_helps(run: Run) -> None:
    wants = {**PLAN, "gpus": 8, "dp": 8, "nodes": 2}
    code, out, err = run("place", "plans.json", "inventory.json", "--json", plans=[wants])
    assert code == 1
    assert json.loads(out)["placed"] is None
    assert err == (
        "bft: "
        + wording(
            "cli.size_place.possible_later",
            line=wording(
                "cli.size_place.plan_lacks",
                index=1,
                lacks=TOO_FEW_NOW + wording("cli.size_place.lacks", lacking=2),
            ),
            index=1,
        )
        + "\n"
    )
    code, _, err = run("place", "plans.json", "inventory.json", plans=[{**PLAN, "high_bytes": 2**40}])
    assert code == 1
    assert "plan 1 needs 1024.0 GiB a GPU: " in err
    assert says(err, "cli.size_place.never_possible")


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        (
            [],
            wording("sizing.fields.wrong", where="plans.json", key="plans", shown="[]", wanted="")
            + wording("sizing.plan_file.plan_wanted"),
        ),
        (
            "{",
            wording(
                "cli.solve.not_json",
                where="plans.json",
                lineno=1,
                colno=2,
                msg="Expecting property name enclosed in double quotes",
            ),
        ),
        (
            [{**PLAN, "gpus": -4}],
            wording("sizing.fields.wrong", where="plans.json, plans, 1", key="gpus", shown=-4, wanted="")
            + wording("sizing.fields.whole_wanted", least=1),
        ),
        (
            [{**PLAN, "tp": 3}],
            wording("sizing.fields.wrong", where="plans.json, plans, 1", key="gpus", shown=4, wanted="")
            + wording("sizing.plan_file.multiple_wanted", tp=3),
        ),
        (
            [{**PLAN, "dp": 3}],
            wording("sizing.fields.wrong", where="plans.json, plans, 1", key="gpus", shown=4, wanted="")
            + wording("sizing.plan_file.product_wanted"),
        ),
        (
            [{"gpus": 1}],
            wording("protocol.fields.missing", where="plans.json, plans, 1", name="peak_bytes")
            + ": give "
            + wording("sizing.fields.whole_wanted", least=1),
        ),
        (
            [{**PLAN, "gpu_type": "h100"}],
            wording("sizing.place.unknown", index=1, what="GPU", name="type h100", hint="there are t4"),
        ),
        (
            [{**PLAN, "partition": "gpus"}],
            wording(
                "sizing.place.unknown",
                index=1,
                what="partition",
                name="gpus",
                hint=wording("sizing.fields.hint", near="gpu"),
            ),
        ),
    ],
)
def test_what_is_wrong_in_a_file_of_plans_is_one_line(run: Run, plans: Any, message: str) -> None:
    code, out, err = run("place", "plans.json", "inventory.json", plans=plans)
    assert (code, out, err) == (2, "", f"bft: {message}\n")


def test_a_file_that_cannot_be_read_is_one_line(run: Run, tmp_path: Path) -> None:
    assert run("place", "none.json", "inventory.json")[::2] == (
        2,
        "bft: cannot read none.json: No such file or directory\n",
    )
    (tmp_path / "latin.json").write_bytes(b'{"\xe9": 1}')
    assert re.match(
        "bft: " + pattern("cli.size_inventory.not_utf8", where="latin.json", start=2),
        run("inventory", "--inventory", "latin.json")[2],
    )
    code, _, err = run("inventory", "--inventory", "inventory.json", there='{"partitons": []}')
    assert (code, err) == (
        2,
        "bft: "
        + wording("sizing.fields.unknown_field", where="inventory.json", key="partitons", hint="")
        + wording("sizing.fields.hint", near="partitions")
        + "\n",
    )


def test_regression_a_file_without_an_end_was_read_into_all_memory(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no space
    for words in (("place", "large.json", "inventory.json"), ("inventory", "--inventory", "large.json")):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert err == "bft: " + wording("cli.size_inventory.too_large", where="large.json", MOST_BYTES=16) + "\n"


def test_a_peak_without_its_guard_band_gets_one(run: Run) -> None:
    plan = {"gpus": 1, "peak_bytes": 10 * GIB}
    assert "1 x 11.5 GiB" in run("place", "plans.json", "inventory.json", plans=[plan])[1]


def test_regression_a_peak_by_formula_got_the_guard_band_of_a_trace(run: Run) -> None:
    plan = {"gpus": 1, "peak_bytes": 9 * GIB, "origin": "formula"}
    assert "1 x 12.0 GiB" in run("place", "plans.json", "inventory.json", plans=[plan])[1]


@pytest.mark.usefixtures("slurm")
def test_the_inventory_of_live_slurm_is_shown_with_where_its_memory_comes_from(run: Run) -> None:
    code, out, err = run("inventory")
    assert (code, err) == (0, "")
    header, row, note = out.splitlines()
    assert header.split() == ["PARTITION", "NODES", "GPUS", "TYPE", "MEMORY", "ORIGIN", "IDLE", "CPUS", "RAM"]
    assert row.split()[:11] == ["gpu", "n[1-2]", "2", "x", "1", "t4", "14.3", "GiB", "assumed", "1", "of"]
    assert says(note, "sizing.inventory.unknown_type", name="turbo", nodes="n3")


@pytest.mark.usefixtures("slurm")
def test_what_the_inventory_prints_as_json_is_read_again(run: Run) -> None:
    _, text, _ = run("inventory", "--json")
    assert json.loads(text)["unknown"] == ["turbo"]
    assert run("inventory", "--inventory", "inventory.json", "--json", there=text) == (0, text, "")


@pytest.mark.usefixtures("slurm")
def test_a_file_of_corrections_beside_the_configuration_is_heeded(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(
        '{"types": {"turbo": {"like": "h200-sxm-141gb"}, "t4": {"memory_bytes": 15e9}}}'
    )
    wanted = wording("sizing.fields.whole_wanted", least=1)
    told = pattern("sizing.fields.wrong", key="memory_bytes", shown=15e9, wanted=wanted)
    assert re.search(rf"{told}\n\Z", run("inventory")[2])
    (tmp_path / "gpus.json").write_text(
        '{"types": {"turbo": {"like": "h200-sxm-141gb"}, "t4": {"memory_bytes": 15000000000}}}'
    )
    t4, turbo = run("inventory")[1].splitlines()[1:]
    assert ("measured" in t4, "n3" in turbo) == (True, True)


@pytest.mark.usefixtures("slurm")
def test_a_file_of_partitions_says_what_there_is_and_slurm_what_is_idle(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(json.dumps(INVENTORY))
    (group,) = json.loads(run("inventory", "--json")[1])["partitions"][0]["groups"]
    assert (group["gpus"], group["idle"]) == (4, {"n1": 1, "n2": 0})


def test_without_slurm_the_file_counts_and_without_both_one_line_says_what_to_do(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "slurm_client", lambda settings: Silent())
    code, _, err = run("inventory")
    assert (code, err) == (
        1,
        "bft: "
        + wording(
            "cli.size_inventory.without_slurm",
            error=wording("slurm_plugin.preemption.scontrol_failed", complaint="is slurmctld up?"),
            option="--inventory",
        )
        + "\n",
    )
    (tmp_path / "gpus.json").write_text(json.dumps(INVENTORY))
    assert json.loads(run("inventory", "--json")[1])["partitions"][0]["groups"][0]["idle"] == {"n1": 4, "n2": 2}
