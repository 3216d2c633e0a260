"""An inventory as a file: written, corrected, read, and what is wrong with it told in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.base.errors import UsageError
from sizing.inventory.file import parse, text_of, to_json
from sizing.inventory.gpus import CATALOGUE, recognise
from sizing.inventory.inventory import GpuNodes, Inventory, PartitionOffer
from tests.support.messages import excerpt, fragment, pattern, wording

NAME_WANTED = wording("sizing.fields.name_wanted")
PLACE = "gpus.json, partitions, 1, groups, 1"


def wrong(key: str, shown: str, wanted: str, where: str = "") -> str:
    return wording("sizing.fields.wrong", where=where, key=key, shown=shown, wanted=wanted)


GROUP: dict[str, Any] = {"nodes": "n[1-3]", "gpu_type": "t4", "gpus": 4, "cpus": 32, "memory_bytes": 2**38}


def file_of(types: dict[str, Any] | None = None, **changes: Any) -> str:
    """A file with one partition of one group."""
    groups = [{**GROUP, **changes}]
    return json.dumps({"types": types or {}, "partitions": [{"partition": "gpu", "groups": groups}]})


counts = st.integers(0, 8)


@st.composite
def groups(draw: st.DrawFn, first: int) -> GpuNodes:
    names = tuple(f"n{number}" for number in range(first, first + draw(st.integers(1, 5))))
    gpus, cpus, memory_bytes = draw(st.integers(1, 8)), draw(st.integers(0, 128)), draw(st.integers(0, 2**40))
    some = st.sets(st.sampled_from(names))

    def part(most: int) -> dict[str, int]:
        chosen = draw(some)
        return {name: draw(st.integers(0, most)) for name in names if name in chosen}

    return GpuNodes(
        nodes=names,
        gpu_type=draw(st.sampled_from(["t4", "a100-sxm-80gb", "a100-pcie-40gb-1g.5gb"])),
        gpus=gpus,
        cpus=cpus,
        memory_bytes=memory_bytes,
        gres_type=draw(st.sampled_from(["", "t4", "a100"])),
        features=tuple(draw(st.lists(st.sampled_from(["ib", "nvlink"]), unique=True))),
        network_bytes_s=draw(st.floats(1.0, 1e12)),
        idle={name: draw(st.integers(0, gpus)) for name in names},
        idle_cpus=part(cpus),
        idle_memory_bytes=part(memory_bytes),
    )


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    offers = tuple(
        PartitionOffer(
            name,
            tuple(draw(groups(10 * at)) for at in range(draw(st.integers(0, 3)))),
            draw(st.none() | st.integers(1, 9)),
            draw(st.none() | st.floats(1.0, 1e9)),
            draw(st.booleans()),
        )
        for name in draw(st.lists(st.sampled_from(["gpu", "long"]), unique=True))
    )
    used = sorted({group.gpu_type for offer in offers for group in offer.groups})
    types = {name: known.type for name in used if (known := recognise(name)) is not None}
    return Inventory(types, offers, tuple(draw(st.lists(st.text()))), tuple(draw(st.lists(st.text()))))


@settings(max_examples=60, deadline=None)
@given(inventories())
def test_what_is_written_is_read_back_without_loss(inventory: Inventory) -> None:
    assert parse(text_of(inventory)) == inventory


def test_a_value_that_the_site_corrects_is_no_longer_assumed() -> None:
    data = to_json(parse(file_of()))
    assert "memory_bytes" in parse(json.dumps(data)).types["t4"].assumed
    data["types"]["t4"]["memory_bytes"] -= 1
    data["types"]["t4"]["flops"]["fp16"] = 5e13
    known = parse(json.dumps(data)).types["t4"]
    assert known.flops["fp16"] == 5e13
    assert known.assumed == CATALOGUE["t4"].assumed - {"memory_bytes", "flops"}
    # and so is one that he confirms
    data = to_json(parse(file_of()))
    data["types"]["t4"]["assumed"].remove("memory_bytes")
    assert "memory_bytes" not in parse(json.dumps(data)).types["t4"].assumed


def test_regression_a_data_sheets_figure_counted_as_measured_after_it_was_written_and_read() -> None:
    # a name that could mean several boards, and one that the catalogue takes for another than the site does
    types = {"a100": {"like": "a100-sxm-80gb"}, "l40": {"like": "l40s"}, "turbo": {"like": "h100", "cost": 7}}
    inventory = parse(file_of(types))
    assert inventory.types["a100"].assumed == CATALOGUE["a100-sxm-80gb"].assumed
    again = parse(text_of(inventory))
    assert again == inventory
    assert {name: known.assumed for name, known in again.types.items()} == {
        name: known.assumed for name, known in inventory.types.items()
    }


def test_a_file_may_say_only_what_is_other_than_the_catalogue_has_it() -> None:
    text = json.dumps({"types": {"big": {"like": "h100-sxm-80gb", "names": ["h100x"], "cost": 9}}})
    known = parse(text).types["big"]
    assert (known.memory_bytes, known.cost, known.names) == (CATALOGUE["h100-sxm-80gb"].memory_bytes, 9, ("h100x",))
    assert "cost" not in known.assumed
    assert "memory_bytes" in known.assumed
    assert parse(text).offers == ()


def test_a_type_that_nobody_knows_is_told_whole() -> None:
    told = {"memory_bytes": 2**35, "flops": {"fp16": 1e14, "fp32": 2e13}, "memory_bytes_s": 1e12}
    known = parse(json.dumps({"types": {"turbo": told}})).types["turbo"]
    assert known.flops == {"fp32": 2e13, "tf32": 2e13, "fp16": 1e14, "bf16": 2e13}
    assert known.assumed == {"link", "link_bytes_s", "cost"}


def test_where_nothing_is_said_of_what_is_idle_it_is_all() -> None:
    (group,) = parse(file_of()).offers[0].groups
    assert group.idle == {"n1": 4, "n2": 4, "n3": 4}
    (group,) = parse(file_of(idle={"n[1-2]": 1})).offers[0].groups
    assert group.idle == {"n1": 1, "n2": 1, "n3": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", excerpt("sizing.fields.not_json", name="gpus.json", lineno=1, colno=2)),
        ("[]", excerpt("sizing.fields.not_an_object", where="gpus.json")),
        ('{"types": {}, "types": {}}', "gpus.json: " + wording("sizing.fields.field_twice", key="types")),
        ("[" * 100_000, excerpt("sizing.fields.too_deep", name="gpus.json")),
        (
            '{"typs": {}}',
            wording("sizing.fields.unknown_field", where="gpus.json", key="typs", hint="")
            + wording("sizing.fields.hint", near="types"),
        ),
        ('{"types": []}', excerpt("sizing.fields.not_an_object", where="gpus.json: types is []")),
        ('{"types": {"turbo": {}}}', "gpus.json, types, turbo: flops is missing: give operations a second"),
        (
            '{"types": {"t4": {"memory_bytes": -1}}}',
            wording("studies.search_log.not_whole", where="gpus.json, types, t4", column="memory_bytes", said=-1)
            + " of 1",
        ),
        (
            '{"types": {"t4": {"cost": NaN}}}',
            wrong("cost", "NaN", wording("sizing.fields.number_wanted", least=0), "gpus.json, types, t4"),
        ),
        (
            '{"types": {"t4": {"flops": {"fp8": 1}}}}',
            excerpt("sizing.fields.unknown_field", where="gpus.json, types, t4, flops", key=fragment("fp8")),
        ),
        (
            '{"types": {"x": {"like": "y"}}}',
            wrong("like", '"y"', wording("sizing.inventory_file.catalogue_type_wanted"), "gpus.json, types, x"),
        ),
        ('{"types": {"a100": {}}}', "a100 is taken for a100-pcie-40gb"),
        (
            '{"partitions": [{}]}',
            wrong("partition", "missing", wording("sizing.fields.text_wanted"), "gpus.json, partitions, 1"),
        ),
        (
            '{"partitions": [{"partition": "a"}, {"partition": "a"}]}',
            excerpt("sizing.inventory_file.partition_twice", name="gpus.json", partition="a"),
        ),
        (
            file_of(gpu_type="turbo"),
            wrong("gpu_type", '"turbo"', excerpt("sizing.inventory_file.file_type_wanted"), PLACE),
        ),
        (
            file_of(gpus=0),
            wrong("gpus", "0", wording("sizing.fields.whole_wanted", least=1), PLACE),
        ),
        (file_of(gpus=True), wrong("gpus", "true", wording("sizing.fields.whole_wanted", least=1))),
        (file_of(nodes=""), 'nodes is "": give ' + wording("sizing.inventory_file.nodes_wanted")),
        (file_of(nodes="n[1-"), "gpus.json, partitions, 1, groups, 1: nodes: "),
        (
            file_of(idle={"n1": 5}),
            excerpt("sizing.fields.bad_count", key=fragment("idle"), folded="n1", count=5, most=4),
        ),
        (
            file_of(idle={"n7": 1}),
            excerpt(
                "sizing.fields.names_node", key=fragment("idle"), node="n7", why=wording("sizing.fields.not_of_group")
            ),
        ),
        (file_of(idle={"n1": 1, "n[1-2]": 2}), "idle names n1, twice"),
        (file_of(cpus=10**400), "give " + wording("sizing.fields.whole_wanted", least=0)),
        (file_of(network_bytes_s=10**400), "give " + wording("sizing.fields.number_wanted", least=1)),
        (file_of(cpus=0).replace('"cpus": 0', f'"cpus": 1{"0" * 5000}'), excerpt("sizing.fields.too_deep")),
        (file_of(gres_type="a100\n#SBATCH -x"), "give " + wording("sizing.fields.text_wanted")),
        (file_of(features=["a\x1b[0m"]), "give " + wording("sizing.fields.texts_wanted")),
        (file_of(features="ib"), wrong("features", '"ib"', wording("sizing.fields.texts_wanted"))),
        (file_of(features=["a&b"]), wrong("features", '["a&b"]', wording("sizing.fields.names_wanted"))),
        (
            file_of(gres_type="a100 --wrap=x"),
            wrong("gres_type", '"a100 --wrap=x"', NAME_WANTED),
        ),
        (file_of().replace('"gpu"', '"gpu #"'), wrong("partition", '"gpu #"', NAME_WANTED)),
        (file_of().replace('"gpu"', '"gpu*"'), wrong("partition", '"gpu*"', NAME_WANTED)),
        (file_of().replace('"gpu"', '""'), wrong("partition", '""', NAME_WANTED)),
        (
            file_of(nodes="v[1-9999]w[1-9999]"),
            wording("slurm_plugin.nodeset.too_many_nodes", text="v[1-9999]w[1-9999]"),
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_the_place(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text, name="gpus.json")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_regression_plans_were_made_without_end_for_nodes_of_any_number_of_gpus() -> None:
    with pytest.raises(
        UsageError,
        match="gpus is 9223372036854775807: give " + pattern("sizing.inventory_file.gpus_wanted", MOST_GPUS=1024),
    ):
        parse(file_of(gpus=2**63 - 1))
    assert parse(file_of(gpus=1024)).offers[0].groups[0].gpus == 1024


def test_a_node_in_two_groups_with_the_same_gpus_is_refused() -> None:
    text = json.dumps({"partitions": [{"partition": "gpu", "groups": [GROUP, {**GROUP, "nodes": "n3"}]}]})
    with pytest.raises(UsageError, match=pattern("sizing.inventory_file.node_twice", node=fragment("n3"))):
        parse(text)
