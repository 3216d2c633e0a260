"""Jobs of traces: read with plain complaints, drawn by the seed alone, and runnable as they are asked for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.base.errors import UsageError
from studies.crius.baselines import Fcfs, Profiled
from studies.simulation import workload
from studies.simulation.clusters import capacity, crius_testbed, table1
from studies.simulation.engine import simulate
from studies.simulation.models import table2
from studies.simulation.reference import fastest, power_of_two
from studies.simulation.speeds import FormulaSpeeds
from tests.support.messages import excerpt, fragment, pattern, wording

pytestmark = pytest.mark.slow

MODELS = table2()
POOLS = table1()
SPEEDS = FormulaSpeeds(MODELS, POOLS)
HEAD = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"


def test_a_public_trace_is_read() -> None:
    found = workload.parse(f"{HEAD}\nb,5016,1,resnet50,7016,64,1,1000\na,5010,1,bert,5985,64,8,1300\n", "x.csv")
    assert [each.id for each in found] == ["a", "b"]
    assert found[0] == workload.TraceJob("a", 5010, 1300, 8, "bert", "", 0.75)
    assert found[1].late == 2.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", excerpt("studies.workload.no_column", name="x.csv", missing=fragment("submission_time"))),
        (
            "submission_time,duration\n1,2\n",
            excerpt("studies.workload.no_column", name="x.csv", missing=fragment("num_gpu")),
        ),
        ("submission_time,duration,num_gpu\n", excerpt("studies.workload.empty", name="x.csv")),
        ("submission_time,duration,num_gpu\n1,2,3\n1,x,3\n", "x.csv, line 3: duration='x': a number"),
        ("submission_time,duration,num_gpu\n1,nan,3\n", "duration='nan': a number"),
        ("submission_time,duration,num_gpu\n1,0,3\n", excerpt("studies.workload.bad_job", where="line 2")),
        (
            "submission_time,duration,num_gpu\n1,72000000,3\n",
            excerpt("studies.workload.too_long", duration_s=72000000),
        ),
        ("submission_time,duration,num_gpu\n1,5,0.5\n", excerpt("studies.workload.bad_job", where="line 2")),
        (
            "submission_time,duration,num_gpu,job_id\n1,5,1,a\n2,5,1,a\n",
            excerpt("studies.workload.job_twice", where="line 3", id="a"),
        ),
        (
            "submission_time,duration,num_gpu,deadline\n9,5,1,8\n",
            excerpt("studies.workload.bad_deadline", where="line 2"),
        ),
        ("submission_time,duration,num_gpu,model_name\n9,5,1,gpt:h=8\n", "batch_size=''"),
        ('submission_time,duration,num_gpu,batch_size,model_name\n9,5,1,8,"gpt:h=8,q=1"\n', "no such key"),
    ],
)
def test_a_wrong_trace_is_refused_with_the_line(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        workload.parse(text, "x.csv")
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.integers(0, 1000), st.sampled_from([0.5, 2.0]))
@settings(max_examples=10, deadline=None)
def test_jobs_are_the_seeds_fit_what_they_ask_for_and_ask_for_the_load(seed: int, load: float) -> None:
    trace = workload.generated(seed, 40)
    jobs = workload.jobs_of(trace, MODELS, POOLS, SPEEDS, seed=seed, load=load)
    assert jobs == workload.jobs_of(trace, MODELS, POOLS, SPEEDS, seed=seed, load=load)
    work = 0.0
    for job, each in zip(jobs, trace, strict=True):
        rate = fastest(SPEEDS, job.model, job.gpu_type, job.gpus)[1]
        assert rate > 0
        assert power_of_two(job.gpus)
        assert job.iterations / rate == pytest.approx(each.duration_s)
        work += job.gpus * each.duration_s
    assert work == pytest.approx(load * 1280 * jobs[-1].submit_s)


def test_seeds_differ() -> None:
    trace = workload.generated(1, 30)
    found = {workload.jobs_of(trace, MODELS, POOLS, SPEEDS, seed=seed) for seed in range(3)}
    assert len(found) == 3
    assert workload.window(trace, 10, 1) != workload.window(trace, 10, 2)
    assert workload.window(trace, 99, 1) == trace


def test_a_scheduler_that_gives_what_is_asked_for_at_once_takes_the_traces_time() -> None:
    trace = workload.generated(3, 20)
    jobs = workload.jobs_of(trace, MODELS, POOLS, SPEEDS, seed=3)
    endless = dict.fromkeys(capacity(POOLS), 10**6)
    found = simulate(jobs, endless, Fcfs(Profiled(SPEEDS, SPEEDS)), SPEEDS)
    for one, each in zip(found.jobs, trace, strict=True):
        assert one.completion_s == pytest.approx(each.duration_s)


def test_what_a_trace_says_is_kept() -> None:
    text = "gpt:h=1024,l=24,a=16,s=1024,V=50257,precision=bf16"
    head = "submission_time,duration,num_gpu,model_name,batch_size,gpu_type,deadline"
    trace = workload.parse(f'{head}\n0,60,3,"{text}",64,a40,120\n5,60,1,bert-1.3b/256,,a10,\n', "x.csv")
    models = workload.models_of(trace)
    speeds = FormulaSpeeds(models, POOLS)
    own, known = workload.jobs_of(trace, models, POOLS, speeds, seed=1, deadlines=True)
    assert (own.model, own.gpu_type, own.gpus, own.deadline_s) == (f"{text}/64", "a40", 4, 120)
    # 1.3 billion parameters do not fit one A10: the fewest that they do
    assert (known.model, known.gpu_type, known.gpus, known.deadline_s) == ("bert-1.3b/256", "a10", 2, None)


def test_a_type_that_is_not_there_and_a_model_that_fits_nowhere_are_refused() -> None:
    small = crius_testbed()
    speeds = FormulaSpeeds(MODELS, small)
    none = pattern("studies.workload.no_such_type", id="1", gpu_type="v100", pools="a40, a10")
    with pytest.raises(UsageError, match=none):
        workload.jobs_of([workload.TraceJob("1", 0, 1, 1, "", "v100")], MODELS, small, speeds, seed=1)
    tiny = {"a10": small["a10"].__class__(small["a10"].gpu, 2, 2, 1e10)}
    anywhere = wording("studies.workload.any_type")
    large = pattern("studies.workload.does_not_fit", id="1", model="moe-27b/256", where=anywhere)
    with pytest.raises(UsageError, match=large):
        workload.jobs_of(
            [workload.TraceJob("1", 0, 1, 1, "moe-27b/256")], MODELS, tiny, FormulaSpeeds(MODELS, tiny), seed=1
        )


def test_regression_a_job_whose_model_the_trace_names_asked_for_up_to_8_times_its_gpus() -> None:
    trace = workload.parse("submission_time,duration,num_gpu,model_name\n0,60,4,bert-0.76b/128\n", "x.csv")
    asked = {workload.jobs_of(trace, MODELS, POOLS, SPEEDS, seed=seed)[0].gpus for seed in range(20)}
    assert asked == {4}
