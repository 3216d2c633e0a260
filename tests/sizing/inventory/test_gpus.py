"""The catalogue of GPUs, and what a site's name for one is taken for."""

from __future__ import annotations

import pytest

from sizing.inventory.gpus import CATALOGUE, GIB, PRECISIONS, recognise

# The total capacity that torch tells of such boards in GiB: the least that people show in reports of errors.
SEEN_GIB = {
    "p100-pcie-16gb": 15.89,
    "v100-sxm-16gb": 15.77,
    "v100-sxm-32gb": 31.73,
    "t4": 14.56,
    "a10": 22.06,
    "a30": 23.50,
    "a40": 44.34,
    "l4": 22.03,
    "l40s": 44.39,
    "a100-sxm-40gb": 39.38,
    "a100-sxm-80gb": 79.14,
    "h100-sxm-80gb": 79.11,
    "h100-nvl-94gb": 93.01,
    "h200-sxm-141gb": 139.72,
    "gh200-96gb": 94.50,
    "b200-180gb": 178.35,
    "rtx-2080ti": 10.75,
    "rtx-3090": 23.69,
    "rtx-4090": 23.52,
    "mi250x": 63.98,
    "mi300x": 191.45,
}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia_a100-sxm4-80gb", "a100-sxm-80gb"),
        ("A100-SXM-80GB", "a100-sxm-80gb"),
        ("a100-pcie-40gb", "a100-pcie-40gb"),
        ("a100_64gb", "a100-sxm-64gb"),
        ("h100_pcie", "h100-pcie-80gb"),
        ("nvidia_h100_80gb_hbm3", "h100-sxm-80gb"),
        ("nvidia_h100_nvl", "h100-nvl-94gb"),
        ("tesla_v100-sxm2-16gb", "v100-sxm-16gb"),
        ("v100s", "v100s-pcie-32gb"),
        ("Tesla-T4", "t4"),
        ("l4", "l4"),
        ("l40", "l40"),
        ("l40s", "l40s"),
        ("a10", "a10"),
        ("rtx_2080_ti", "rtx-2080ti"),
        ("nvidia_geforce_rtx_3090", "rtx-3090"),
        ("rtx4090", "rtx-4090"),
        ("quadro_rtx_6000", "quadro-rtx-6000"),
        ("nvidia_rtx_6000_ada_generation", "rtx-6000-ada"),
        ("rtx_a6000", "rtx-a6000"),
        ("mi250x", "mi250x"),
        ("amd_instinct_mi210", "mi210"),
        ("mi300a", "mi300a"),
        ("pvc", "max-1550"),
    ],
)
def test_a_name_as_sites_write_it_is_one_type_without_a_doubt(name: str, meant: str) -> None:
    known = recognise(name)
    assert known is not None
    assert (known.type.name, known.note) == (meant, "")


@pytest.mark.parametrize(
    "name", ["k80", "gtx1080", "rtx_pro_6000", "quadro_6000", "rtx2080", "a1000", "tesla", "", "gpu"]
)
def test_a_name_of_something_else_is_not_taken_for_a_type(name: str) -> None:
    assert recognise(name) is None


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("a100", "a100-pcie-40gb"),
        ("tesla_v100", "v100-pcie-16gb"),
        ("h100", "h100-pcie-80gb"),
        ("rtx6000", "quadro-rtx-6000"),
        ("nvidia_gh200_480gb", "gh200-96gb"),
    ],
)
def test_a_name_of_several_types_is_taken_for_the_least_of_them_and_says_so(name: str, least: str) -> None:
    known = recognise(name)
    assert known is not None
    assert known.type.name == least
    assert known.note.startswith(f"{name} is taken for {least}, ")


def test_the_features_of_a_node_decide_where_the_name_does_not() -> None:
    def meant(name: str, *features: str) -> str:
        known = recognise(name, features)
        return known.type.name if known else ""

    assert meant("a100", "a100_80", "sxm4") == "a100-sxm-80gb"
    assert meant("v100", "gpumem32gb", "pcie") == "v100-pcie-32gb"
    assert meant("rtx_6000", "ada") == "rtx-6000-ada"
    assert meant("", "skylake", "a100", "80gb", "hgx") == "a100-sxm-80gb"
    # of another GPU, of a rack, of the node's own memory, or a number: these say nothing of it
    assert meant("a100", "h100_80gb", "rack_80", "mem80gb_ram", "80") == "a100-pcie-40gb"
    assert meant("", "rack_a_10", "gen4") == ""


def test_a_slice_is_a_type_of_its_own_with_its_own_memory() -> None:
    names = ["a100_1g.5gb", "nvidia_h100_80gb_hbm3_1g.10gb", "a100_3g.20gb", "nvidia_h200_1g.18gb", "a100-mig-2g.10gb"]
    found = [known.type for name in names if (known := recognise(name)) is not None]
    assert [known.name for known in found] == [
        "a100-pcie-40gb-1g.5gb",
        "h100-sxm-80gb-1g.10gb",
        "a100-pcie-40gb-3g.20gb",
        "h200-nvl-141gb-1g.18gb",
        "a100-pcie-40gb-2g.10gb",
    ]
    assert all(known.slice for known in found)
    # what nvidia-smi shows of them: 4864, 9728, 19968, 16384 and 9984 MiB
    for known, seen_mib in zip(found, [4864, 9728, 19968, 16384, 9984], strict=True):
        assert 0.8 * seen_mib <= known.memory_bytes / 2**20 <= seen_mib
    whole = CATALOGUE["a100-pcie-40gb"]
    assert found[0].flops["bf16"] < whole.flops["bf16"] / 7
    # the memory of a slice tells of which board it is one
    larger = recognise("a100_1g.10gb")
    assert larger is not None
    assert larger.type.name == "a100-pcie-80gb-1g.10gb"


@pytest.mark.parametrize(("name", "seen"), SEEN_GIB.items())
def test_usable_memory_is_a_little_below_what_a_program_sees(name: str, seen: float) -> None:
    assert 0.96 * seen <= CATALOGUE[name].memory_bytes / GIB <= seen


def test_every_row_of_the_catalogue_is_whole_plausible_and_known_by_its_own_name() -> None:
    for name, known in CATALOGUE.items():
        again = recognise(name)
        assert again is not None
        assert (again.type, again.note) == (known, "")
        assert set(known.flops) == set(PRECISIONS)
        assert known.flops["fp32"] <= known.flops["tf32"] <= known.flops["fp16"]
        assert known.flops["fp32"] <= known.flops["bf16"] <= known.flops["fp16"]
        assert 8 * GIB < known.memory_bytes < 256 * GIB
        assert 1e10 < known.link_bytes_s < known.memory_bytes_s
        assert 0.2 <= known.cost <= 3
        assert "memory_bytes" in known.assumed
