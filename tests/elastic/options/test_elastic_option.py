"""The value of --elastic: what is written is read again, and what cannot be is one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.protocol.requirements import Requirements
from elastic.backends import KINDS
from elastic.base.errors import UsageError
from elastic.options.elastic_option import ElasticSpec, features_of
from elastic.options.node_share import NodeShare
from tests.support.messages import excerpt, fragment, wording

EXPRESSIONS = (
    "step (?P<step>[0-9]+)",
    r" (?P<samples>\d+) of \d+, 'loss': (?P<loss>[-+.e\d]+), ",
    '"step": (?P<step>[0-9]+)|,progress=(?P<samples>[0-9]+)',
)


@st.composite
def specs(draw: st.DrawFn) -> ElasticSpec:
    low = draw(st.integers(1, 5000))
    high = draw(st.integers(low, 6000))
    positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
    sizes = draw(st.none() | st.sets(st.integers(low, high), min_size=1, max_size=6))
    return ElasticSpec(
        low,
        high,
        backend=draw(st.none() | st.sampled_from(list(KINDS))),
        sizes=tuple(sorted(sizes)) if sizes else None,
        weight=draw(positive),
        up_cost_s=draw(st.none() | positive),
        down_cost_s=draw(st.none() | positive),
        workers_per_node=draw(st.none() | st.integers(1, 64)),
        gpu=draw(st.sampled_from(["", "a100", "1g.5gb", "nvidia_h100-80gb"])),
        gpus=draw(st.integers(0, 16)),
        mix=draw(st.booleans()),
        without=draw(st.sampled_from([(), ("v100",), ("k80", "1g.5gb")])),
        frozen_s=draw(st.none() | positive),
        estimates=(estimates := draw(st.booleans())),
        estimate_batch=draw(st.none() | st.integers(1, 999_999_999)) if estimates else None,
        resume=draw(st.none() | st.from_regex("[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}", fullmatch=True)),
        state_path=draw(st.sampled_from([None, "/lustre/me/run7", "/a=b"])),
        container=draw(st.sampled_from([None, "docker://nvcr.io#nvidia/pytorch:24.01-py3", "/images/a.sqsh"])),
        save_share=draw(st.none() | st.floats(0, 0.05, exclude_min=True)),
        progress=draw(st.none() | st.sampled_from(EXPRESSIONS)),
        share=draw(
            st.sampled_from([NodeShare.parse(None), NodeShare.parse("no"), NodeShare.parse("profile")])
            | st.builds(NodeShare, st.integers(1, 999), st.integers(1, 999_999_999).map(lambda mib: mib * 2**20))
        ),
    )


@given(specs())
def test_a_spec_that_is_written_is_read_again_the_same(spec: ElasticSpec) -> None:
    assert ElasticSpec.parse(spec.format()) == spec


@given(st.text() | st.text("0123456789-,=:._abceghikmnoprstuwxz", max_size=30).map(lambda tail: "1-4," + tail))
def test_any_text_is_a_spec_or_one_line_that_says_what_is_wrong(text: str) -> None:
    said = ""
    try:
        spec = ElasticSpec.parse(text)
    except UsageError as error:
        said = str(error)
    else:
        assert 1 <= spec.nodes_min <= spec.nodes_max
    assert len(said.splitlines()) <= 1


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "MIN-MAX"),
        ("four", "MIN-MAX"),
        ("1-", "MIN-MAX"),
        ("-3", "MIN-MAX"),
        ("1-2-3", "MIN-MAX"),
        ("9" * 5000, "MIN-MAX"),
        ("1-4\n2", "MIN-MAX"),
        ("0", excerpt("elastic.spec.smallest_is_one")),
        ("0-3", excerpt("elastic.spec.smallest_is_one")),
        ("4-1", wording("elastic.spec.min_above_max", text="4-1", least=1, most=4)),
        ("1-4,backend=mpi", "known: horovod, torchrun"),
        ("1-4,backend=horvod", wording("sizing.fields.hint", near="horovod")),
        ("1-4,bakend=horovod", "did you mean backend=?"),
        ("1-4,fast", "known: backend="),
        ("1-4,", "unknown option ''"),
        ("1-4,sizes=1:8", "size 8 is outside 1-4"),
        ("1-4,sizes=", "sizes=1:2:4:8"),
        ("1-4,sizes=1/2", "sizes=1:2:4:8"),
        ("1-4,weight=0", excerpt("elastic.spec.not_positive", name=fragment("weight"), value=0)),
        ("1-4,weight=nan", "positive number"),
        ("1-4,up=inf", "positive number"),
        ("1-4,up=-1", "positive number"),
        ("1-4,down=soon", "positive number"),
        ("1-4,frozen=0", excerpt("elastic.spec.not_positive", name=fragment("frozen"), value=0)),
        ("1-4,save_share=0.2", excerpt("elastic.spec.saves_too_often", value="0.2")),
        ("1-4,save_share=none", excerpt("elastic.spec.not_positive", name=fragment("save_share"))),
        ("1-4,frozn=9", "did you mean frozen=?"),
        ("1-4,workers=0", excerpt("elastic.spec.not_whole")),
        ("1-4,resume=", excerpt("elastic.spec.not_a_job_id")),
        ("1-4,resume=" + "7" * 129, excerpt("elastic.spec.not_a_job_id")),
        ("1-4,resume=../7", excerpt("elastic.spec.not_a_job_id")),
        ("1-4,workers=1.5", excerpt("elastic.spec.not_whole")),
        ("1-4,workers=²", "ASCII alone"),
        ("1-4,gpu=", "for example gpu=a100:4"),
        ("1-4,gpu=:4", "for example gpu=a100:4"),
        ("1-4,gpu=a100:", "for example gpu=a100:4"),
        ("1-4,gpu=a100:0", "for example gpu=a100:4"),
        ("1-4,gpu=0", "for example gpu=a100:4"),
        ("1-4,gpu=4:4", "for example gpu=a100:4"),
        ("1-4,gpu=a100:4:2", "for example gpu=a100:4"),
        ("1-4,gpu=a/b", "for example gpu=a100:4"),
        ("1-4,without=", "for example without=k80:v100"),
        ("1-4,without=4", "for example without=k80:v100"),
        ("1-4,curve=", "curve=estimate, or"),
        ("1-4,curve=guess", "curve=estimate, or"),
        ("1-4,curve=estimate:", "curve=estimate:32"),
        ("1-4,curve=estimate:0", "curve=estimate:32"),
        ("1-4,curve=estimate:8:8", "curve=estimate:32"),
        ("1-4,mix=1", wording("sizing.fields.hint", near="mix")),
        ("1-4,mixed", wording("sizing.fields.hint", near="mix")),
        (" 1-4", "MIN-MAX"),
        ("1-4,state=/a b", "no spaces"),
        ("1-4,state=/é", "ASCII alone"),
        ("1-4,state=run7", excerpt("elastic.spec.not_a_folder")),
        ("1-4,state=/", excerpt("elastic.spec.not_a_folder")),
        ("1-4,state=/a'b", excerpt("elastic.spec.not_a_folder")),
        ("1-4,stat=/a", "did you mean state=?"),
        ("1-4,container=", "give an image"),
        ('1-4,container="a"', "give an image"),
        ("1-4,contaner=a", "did you mean container=?"),
        ("1-4,share=", excerpt("elastic.share.malformed")),
        ("1-4,share=4", excerpt("elastic.share.malformed")),
        ("1-4,share=4:16", excerpt("elastic.share.malformed")),
        ("1-4,share=0:16G", excerpt("elastic.share.malformed")),
        ("1-4,share=4:0G", excerpt("elastic.share.malformed")),
        ("1-4,share=4:16g", excerpt("elastic.share.malformed")),
        ("1-4,share=yes", excerpt("elastic.share.malformed")),
        ("1-4,progres=x", "did you mean progress=?"),
        ("1-4,progress", "did you mean progress=?"),
        ("1-4,progress=", excerpt("elastic.spec.no_group")),
        ("1-4,progress=(?P<loss>[0-9]+)", excerpt("elastic.spec.no_group")),
        ("1-4,progress=(?P<step>[0-9]+) (?P<los>.*)", excerpt("elastic.spec.no_group")),
        ("1-4,progress=(?P<step>[0-9]+", excerpt("elastic.spec.not_a_regex", error="missing )")),
        ("1-4,progress=(?P<step>*)", excerpt("elastic.spec.not_a_regex", error="nothing to repeat")),
        ("1-4,progress=(?P<step>a{99999999999999999999})", excerpt("elastic.spec.not_a_regex")),
        ("1-4,progress=[(?P<step>]", "there is none"),
        ("1-4,progress=époque (?P<step>[0-9]+)", r"\xe9 for example"),
        ("1-4,progress=(?P<step>[0-9]+)\n", r"\xe9 for example"),
    ],
)
def test_an_impossible_value_is_refused_with_one_line_that_helps(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        ElasticSpec.parse(text)
    assert hint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2


def test_what_is_behind_progress_is_its_expression_with_spaces_commas_and_all() -> None:
    expression = EXPRESSIONS[2] + ",mix "
    spec = ElasticSpec.parse("1-4,workers=2,progress=" + expression)
    assert (spec.progress, spec.workers_per_node, spec.mix) == (expression, 2, False)


@pytest.mark.parametrize(
    ("text", "gpu", "gpus"), [("gpu=a100", "a100", 0), ("gpu=a100:4", "a100", 4), ("gpu=4", "", 4), ("mix", "", 0)]
)
def test_gpus_are_asked_for_by_type_by_number_or_by_both(text: str, gpu: str, gpus: int) -> None:
    spec = ElasticSpec.parse(f"1-8,{text}")
    assert (spec.gpu, spec.gpus, spec.mix) == (gpu, gpus, text == "mix")
    assert spec.requirements(("ib",)) == Requirements(gpu, gpus, ("ib",), text == "mix")


def test_the_features_of_a_constraint_are_those_that_are_all_asked_for() -> None:
    assert features_of("a100&ib&a100") == ("a100", "ib")
    for constraint in ("a|b", "[a&b]", "a*2", "", "a&", "&", "a b", "!a", "a,b", "(a)"):
        with pytest.raises(UsageError, match="joined by &"):
            features_of(constraint)


def test_one_number_means_exactly_so_many_nodes() -> None:
    assert ElasticSpec.parse("3") == ElasticSpec(3, 3)


def test_sizes_are_kept_in_order_and_once_each() -> None:
    assert ElasticSpec.parse("1-8,sizes=4:1:4:8").sizes == (1, 4, 8)


def test_the_nodes_that_a_trainer_can_run_on_are_those_that_were_asked_for() -> None:
    assert [ElasticSpec.parse("2-4").allowed.largest(count) for count in range(7)] == [0, 0, 2, 3, 4, 4, 4]
    assert [ElasticSpec.parse("1-4,sizes=1:4").allowed.largest(count) for count in range(6)] == [0, 1, 1, 1, 4, 4]
