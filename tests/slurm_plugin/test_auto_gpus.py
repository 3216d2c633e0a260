"""--auto-gpus in slurmctld: what bftd.lua makes of a job and of the plans that came with it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.slurm_plugin.lua_state import Lua
from tests.slurm_plugin.test_bftd_lua import LUA, SLURM
from tests.support.messages import excerpt, fragment, wording

PLAN = "partition=a100 nodes=2 tasks=4 gres=gpu:a100:4 cpus=8 mem=64000 why=61.0 of 80.0 GiB a GPU, traced"
SMALL = "partition=v100 nodes=1 tasks=2 gres=gpu:v100:2 cpus=4 mem=32000 why=20.0 of 32.0 GiB a GPU, formula"


PARTS = 'gpu_parts = { a100 = { max_time = 600 }, v100 = {}, batch = {}, elastic = {}, ["bft-driver"] = {} }\n'

# A batch job with --auto-gpus, and what became of it in the order of a command line.
AUTO = """
function auto(answer, changes)
  local made = job({ script = "#!/bin/sh\\n", environment = {}, spank_job_env = {
    [0] = "_SLURM_SPANK_OPTION_bftd_auto_gpus=step.py:make,global-batch=8", [1] = "BFTD_AUTO_GPUS=" .. answer } })
  for key, value in pairs(changes) do made[key] = value end
  return made
end
function shown(job)
  local words = {}
  for _, key in ipairs({ "partition", "features", "min_nodes", "max_nodes", "num_tasks", "ntasks_per_node",
                         "tres_per_node", "cpus_per_task", "min_mem_per_node" }) do
    local value = job[key]
    if value ~= nil and value ~= slurm.NO_VAL and value ~= slurm.NO_VAL16 then
      words[#words + 1] = key .. "=" .. tostring(value)
    end
  end
  return table.concat(words, " ")
end
function submit(answer, changes)
  local made = auto(answer, changes)
  local code = bftd.job_submit(made, gpu_parts, 1000)
  return code .. "|" .. shown(made) .. "|" .. (told[#told] or "") .. "|" .. tostring(made.comment) .. "|"
    .. tostring(made.admin_comment)
end
"""


@pytest.fixture(scope="module")
def lua() -> Iterator[Lua]:
    state = Lua()
    state.run(SLURM + PARTS + f'bftd = dofile("{LUA}/bftd.lua")' + AUTO)
    yield state
    state.close()


def submitted(lua: Lua, changes: str = "", answer: str = f"{PLAN};{SMALL}") -> list[str]:
    """Code, the job's fields, the last line that the user got, comment and admin comment."""
    lua.set("answer", answer.encode())
    return lua.run(f"told = {{}} return submit(answer, {{ {changes} }})").decode().split("|")


FULL = (
    "partition=a100 min_nodes=2 max_nodes=2 num_tasks=8 ntasks_per_node=4 tres_per_node=gres:gpu:a100:4 "
    "cpus_per_task=8 min_mem_per_node=64000"
)
TOLD = (
    "--auto-gpus chose --partition=a100 --nodes=2 --ntasks-per-node=4 --gres=gpu:a100:4 --cpus-per-task=8 "
    "--mem=64000M (61.0 of 80.0 GiB a GPU, traced)"
)


def test_a_job_that_leaves_all_out_gets_the_best_plan_and_it_is_told_everywhere(lua: Lua) -> None:
    assert submitted(lua) == ["0", FULL, TOLD, f"bft: {TOLD}", "nil"]


@pytest.mark.parametrize(
    "line",
    [
        "srun torchrun --nproc-per-node=4 train.py",
        "torchrun --nnodes=2 \\\\\\n  --nproc_per_node 4 train.py",
        "python3 -m torch.distributed.run train.py",
        "accelerate  launch train.py",
        "exec /opt/bin/deepspeed train.py # on all",
    ],
)
def test_a_launcher_in_the_script_gets_one_task_a_node_with_all_of_its_cpus(lua: Lua, line: str) -> None:
    code, made, told, *_ = submitted(lua, f"script = '#!/bin/sh\\n{line}\\n'")
    assert code == "0"
    assert "num_tasks=2 ntasks_per_node=1" in made
    assert "cpus_per_task=32" in made
    assert excerpt("slurm_plugin.bftd_gpus.starts_processes") in told


@pytest.mark.parametrize(
    "line", ["pip install deepspeed", "# torchrun train.py", "cat torchrun.log", "srun python my-torchrun.py"]
)
def test_a_launchers_name_elsewhere_is_no_launcher(lua: Lua, line: str) -> None:
    assert submitted(lua, f"script = '#!/bin/sh\\n{line}\\n'")[1] == FULL


def test_a_launchers_number_of_processes_chooses_among_the_plans(lua: Lua) -> None:
    _, made, *_ = submitted(lua, "script = '#!/bin/sh\\nsrun torchrun --nproc-per-node=2 train.py\\n'")
    assert made.startswith("partition=v100 min_nodes=1")
    code, *_ = submitted(lua, "script = '#!/bin/sh\\nsrun torchrun --nproc-per-node=3 train.py\\n'")
    assert code == "2002"


def test_what_srun_in_the_script_goes_by_is_in_the_jobs_environment(lua: Lua) -> None:
    lua.set("answer", PLAN.encode())
    chunk = """
      local made = auto(answer, {})
      bftd.job_submit(made, gpu_parts, 1000)
      local env = made.environment
      return env.SLURM_NTASKS .. env.SLURM_NTASKS_PER_NODE .. env.SLURM_CPUS_PER_TASK .. " " .. env.BFT_AUTO_GPUS"""
    assert lua.run(chunk).decode() == f"848 {TOLD}"


def test_a_release_that_puts_its_own_prefix_before_gres_gets_them_without(lua: Lua) -> None:
    lua.set("answer", PLAN.encode())
    chunk = """
      local made, gres = auto(answer, {}), "gres/disk:9"
      setmetatable(made, { __index = function(_, key) return key == "tres_per_node" and gres or nil end,
        __newindex = function(job, key, value)
          assert(key ~= "tres_per_node")
          if key == "gres" then gres = "gres/" .. value:gsub(",", ",gres/") else rawset(job, key, value) end
        end })
      return bftd.job_submit(made, gpu_parts, 1000) .. gres"""
    assert lua.run(chunk) == b"0gres/disk:9,gres/gpu:a100:4"


def test_a_comment_of_the_users_stays_and_the_line_goes_beside_it(lua: Lua) -> None:
    *_, comment, admin = submitted(lua, "comment = 'mine', admin_comment = 'site'")
    assert (comment, admin) == ("mine", f"site; bft: {TOLD}")


@pytest.mark.parametrize(
    ("written", "fields", "options"),
    [
        ("partition = 'v100'", "partition=v100 min_nodes=1 max_nodes=1", "--nodes=1"),
        ("partition = 'batch,v100'", "partition=batch,v100 min_nodes=1", "--nodes=1"),
        ("min_nodes = 1, max_nodes = 1", "partition=v100 min_nodes=1", "--partition=v100 --ntasks-per-node=2"),
        ("cpus_per_task = 3", "cpus_per_task=3 min_mem_per_node=64000", "--gres=gpu:a100:4 --mem=64000M ("),
        ("cpus_per_tres = 'gres:gpu:2'", "tres_per_node=gres:gpu:a100:4 min_mem", "--gres=gpu:a100:4 --mem=64000M ("),
        ("min_mem_per_cpu = 5", "cpus_per_task=8", "--cpus-per-task=8 ("),
        ("mem_per_tres = 'gres:gpu:5'", "cpus_per_task=8", "--cpus-per-task=8 ("),
        (
            "ntasks_per_node = 1",
            "tres_per_node=gres:gpu:a100:4 cpus_per_task=32",
            "--nodes=2 --gres=",
        ),
        ("ntasks_per_tres = 1", "max_nodes=2 tres_per_node=gres:gpu:a100:4 min_mem", "--gres=gpu:a100:4 --mem="),
        ("num_tasks = 4", "num_tasks=4 tres_per_node=gres:gpu:a100:4 cpus_per_task=16", "--nodes=2 --gres="),
        ("num_tasks = 3", "num_tasks=3 tres_per_node=gres:gpu:a100:4 min_mem", "--gres=gpu:a100:4 --mem="),
        ("time_limit = 601", "partition=v100", "--partition=v100"),
        ("time_limit = 600", "partition=a100", "--partition=a100"),
        ("tres_per_node = 'gres:gpu:a100:4'", "tres_per_node=gres:gpu:a100:4 ", "--ntasks-per-node=4 --cpus"),
        ("tres_per_node = 'gres:gpu:2'", "partition=v100", "--ntasks-per-node=2 --cpus"),
        ("tres_per_node = 'gres/gpu:v100:2'", "partition=v100", "--ntasks-per-node=2 --cpus"),
        ("tres_per_job = 'gres:gpu:8'", "partition=a100", "--ntasks-per-node=4 --cpus"),
        ("tres_per_task = 'gres:gpu:v100:1'", "partition=v100", "--ntasks-per-node=2 --cpus"),
        ("tres_per_node = 'gres:disk:9'", "tres_per_node=gres:disk:9,gres:gpu:a100:4", "--gres=gpu:a100:4"),
        ("exc_nodes = 'n1', array_inx = '1-3'", "partition=a100", "--partition=a100"),
    ],
)
def test_what_the_user_wrote_is_kept_and_chooses_among_the_plans(
    lua: Lua, written: str, fields: str, options: str
) -> None:
    code, made, told, *_ = submitted(lua, written)
    assert code == "0", told
    assert fields in made
    assert options in told
    for name, value in (pair.split(" = ") for pair in written.split(", ")):
        if f"{name}=" in made:
            assert f"{name}={value.strip(chr(39))}" in made


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("partition = 'batch'", excerpt("slurm_plugin.bftd_gpus.plans_for", value=fragment("a100, v100"))),
        ("min_nodes = 3, max_nodes = 3", "no plan agrees"),
        ("min_nodes = 1, max_nodes = 2", "no plan agrees"),  # on one node it would have too few GPUs
        ("tres_per_node = 'gres:gpu:h100:2'", wording("slurm_plugin.bftd_gpus.no_plan_has", by="--gres")),
        ("tres_per_job = 'gres:gpu:3'", wording("slurm_plugin.bftd_gpus.no_plan_has", by="--gpus")),
        ("script = false", "batch jobs only"),
        ("het_job_offset = 0", "heterogeneous"),
    ],
)
def test_a_job_that_no_plan_agrees_with_is_refused_in_one_line(lua: Lua, written: str, hint: str) -> None:
    changes = written.replace("script = false", "no_script = true")
    chunk = "told = {} local made = auto(answer, { %s }) if made.no_script then made.script = nil end "
    lua.set("answer", f"{PLAN};{SMALL}".encode())
    said = lua.run(chunk % changes + "return bftd.job_submit(made, gpu_parts, 1000) .. ' ' .. told[1]").decode()
    assert said.startswith("2002 --auto-gpus")
    assert hint in said
    assert said.isprintable()


@pytest.mark.parametrize("partition", ["elastic", "a100,elastic", "bft-driver", "a100,bft-driver"])
def test_the_option_opens_no_way_into_bftds_own_partitions(lua: Lua, partition: str) -> None:
    code, made, told, *_ = submitted(lua, f"partition = '{partition}'")
    assert (code, made) == ("2002", f"partition={partition}")
    assert "is for " in told


def test_elastic_jobs_have_no_gpus_of_their_own_to_choose(lua: Lua) -> None:
    extra = "[2] = '_SLURM_SPANK_OPTION_bftd_elastic=1-4'"
    chunk = f"""
      told = {{}}
      local made = auto("", {{ spank_job_env = {{ [0] = "_SLURM_SPANK_OPTION_bftd_auto_gpus=x", {extra} }} }})
      return bftd.job_submit(made, gpu_parts, 1000) .. told[1]"""
    assert lua.run(chunk).startswith(b"2002--auto-gpus: an elastic job has no GPUs of its own to choose")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "nonsense",
        PLAN.replace("nodes=2", "nodes=2.5"),
        PLAN.replace("nodes=2", "nodes=0"),
        PLAN.replace("nodes=2", "nodes=99999999"),
        PLAN.replace("gres=gpu:a100:4", "gres=gpu:a100:4,disk:9"),
        PLAN.replace("gres=gpu:a100:4", "gres=license:4"),
        PLAN.replace("gres=gpu:a100:4", "gres=gpu:a100"),
        PLAN.replace("partition=a100", "partition=a100,elastic"),
        PLAN.replace("partition=a100", "partition=elastic"),
        PLAN.replace("partition=a100", "partition=bft-driver"),
        PLAN.replace("partition=a100", "partition=closed"),
        PLAN.replace("cpus=8", "priority=9"),
        PLAN.replace("cpus=8", "qos=high"),
        PLAN.replace("traced", "traced\x1b[2J"),
        PLAN + "x" * 300,
        f"{PLAN};" * 200,
    ],
)
def test_a_forged_answer_gets_nothing_that_is_no_plan(lua: Lua, answer: str) -> None:
    code, made, told, *_ = submitted(lua, answer=answer)
    assert (code, made) == ("2002", "")
    assert told.startswith("--auto-gpus: no plan")


@settings(deadline=None, max_examples=200)
@given(st.text(st.sampled_from(PLAN + ";%\\'\"\n\t,|é"), max_size=300) | st.binary(max_size=60).map(str))
def test_whatever_the_answer_is_the_job_is_refused_or_has_one_of_its_plans(lua: Lua, answer: str) -> None:
    code, made, told, *_ = submitted(lua, answer=answer.replace("|", ""))
    assert code in ("0", "2002")
    assert bool(made) == (code == "0")
    assert told.startswith("--auto-gpus")


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("tres_per_task = 'gres:gpu:a100:2', num_tasks = 8", "2002"),  # 16 GPUs, where plans have 8 and 2
        ("tres_per_task = 'gres:gpu:a100:2', num_tasks = 4", "0"),
        ("tres_per_task = 'gres:gpu:2', ntasks_per_node = 3", "2002"),
        ("tres_per_socket = 'gres:gpu:a100:4', sockets_per_node = 2", "2002"),
        ("tres_per_socket = 'gres:gpu:a100:2', sockets_per_node = 2", "0"),
        ("tres_per_job = 'gres:gpu:a100:8,gres:gpu:v100:1'", "2002"),
        ("tres_per_node = 'gres:gpu:a100:4,gres:gpu:v100:1'", "2002"),
        ("tres_per_job = 'gres:gpu:8', tres_per_node = 'gres:gpu:4'", "0"),
        ("tres_per_job = 'gres:gpu:8', tres_per_node = 'gres:gpu:2'", "2002"),
    ],
)
def test_regression_a_plan_was_told_of_a_job_that_asks_for_other_gpus(lua: Lua, written: str, code: str) -> None:
    assert submitted(lua, written)[0] == code


@pytest.mark.parametrize(
    ("closed", "written"),
    [
        ("state_up = 2", ""),
        ("state_up = 1", ""),
        ("min_nodes = 3", ""),
        ("max_nodes = 1", ""),
        ("allow_accounts = 'phys,bio'", ""),
        ("allow_accounts = 'phys,bio'", "account = 'chem'"),
        ("deny_accounts = 'phys,chem'", "default_account = 'Chem'"),
        ("allow_qos = 'high'", "qos = 'low'"),
        ("deny_qos = 'low'", "qos = 'low'"),
    ],
)
def test_regression_a_plan_of_a_partition_that_takes_no_such_job_kept_the_next_one_from_being_taken(
    lua: Lua, closed: str, written: str
) -> None:
    try:
        lua.run(f"open, gpu_parts.a100 = gpu_parts.a100, {{ {closed} }}")
        assert "--partition=v100" in submitted(lua, written)[2]
        lua.run("gpu_parts.a100 = { state_up = 3, max_nodes = 2, allow_accounts = 'Phys,bio', deny_qos = 'high' }")
        assert "--partition=a100" in submitted(lua, "account = 'phys', qos = 'low'")[2]
    finally:
        lua.run("gpu_parts.a100 = open")


@pytest.mark.parametrize(
    ("written", "job"),
    [
        ("", "8 8 64 8"),
        ("num_tasks = 1, ntasks_per_node = 1, min_cpus = 1", "2 2 64 32"),  # as sbatch writes --ntasks-per-node=1
        ("num_tasks = 4, ntasks_per_node = 4, min_cpus = 4", "8 8 64 8"),
        ("num_tasks = 8, ntasks_per_node = 4, min_nodes = 2, max_nodes = 2, min_cpus = 8", "8 nil 64 8"),
        ("num_tasks = 4, min_cpus = 4", "4 nil 64 16"),
        ("num_tasks = 4, cpus_per_task = 3, min_cpus = 12", "4 nil 12 3"),
        ("overcommit = 1, min_cpus = 1", "8 8 1 8"),
    ],
)
def test_regression_tasks_and_cpus_of_one_node_were_those_of_a_job_of_several(lua: Lua, written: str, job: str) -> None:
    lua.set("answer", PLAN.encode())
    chunk = f"""
      local made = auto(answer, {{ {written} }})
      bftd.job_submit(made, gpu_parts, 1000)
      local shown = {{ made.num_tasks, made.environment.SLURM_NTASKS or "nil", made.min_cpus, made.cpus_per_task }}
      for at, value in ipairs(shown) do shown[at] = tostring(value):gsub("%.0$", "") end
      return table.concat(shown, " ")"""
    assert lua.run(chunk).decode() == job


def test_regression_a_partitions_own_bounds_on_a_node_made_slurm_refuse_the_job(lua: Lua) -> None:
    try:
        lua.run("open, gpu_parts.a100 = gpu_parts.a100, { max_cpus_per_node = 30, max_mem_per_node = 50000 }")
        assert "--cpus-per-task=7 --mem=50000M (" in submitted(lua)[2]
        lua.run("gpu_parts.a100 = { max_cpus_per_node = 4294967295, max_mem_per_node = 2 ^ 63 + 9 }")  # a bound by CPU
        assert "--cpus-per-task=8 --mem=64000M (" in submitted(lua)[2]
    finally:
        lua.run("gpu_parts.a100 = open")


@pytest.mark.parametrize(
    "answer",
    [
        PLAN.replace("mem=64000", "mem=" + "9" * 30),
        PLAN.replace("mem=64000", "mem=9223372036854775807"),
        PLAN.replace("mem=64000", "mem=0"),
        PLAN.replace("tasks=4", "tasks=60000").replace("cpus=8", "cpus=60000"),
    ],
)
def test_regression_a_forged_plan_had_more_than_any_node_has(lua: Lua, answer: str) -> None:
    code, made, *_ = submitted(lua, "ntasks_per_node = 1", answer=answer)
    assert (code, made) == ("2002", "ntasks_per_node=1")


@pytest.mark.parametrize("answer", ["x" + " why=" * 1630 + "\x01", ";" * 8191, " " * 8191, f"{PLAN} x" * 70])
def test_regression_a_forged_answer_kept_the_controller_busy(lua: Lua, answer: str) -> None:
    began = time.thread_time()
    for _ in range(5):
        assert submitted(lua, answer=answer)[0] == "2002"
    assert time.thread_time() - began < 0.25  # five times 200 ms before


def test_without_the_second_file_the_job_is_refused_and_others_are_let_through(tmp_path: Path) -> None:
    shutil.copy(LUA / "bftd.lua", tmp_path)
    state = Lua()
    try:
        state.run(SLURM + PARTS + f'bftd = dofile("{tmp_path}/bftd.lua")' + AUTO)
        code, made, told, *_ = submitted(state)
        assert (code, made) == ("-1", "")
        assert told == wording("slurm_plugin.bftd.not_here_now", value="--auto-gpus does")
        assert state.run("return bftd.job_submit(job({ script = '#!/bin/sh\\n' }), gpu_parts, 1000)") == b"0"
    finally:
        state.close()
