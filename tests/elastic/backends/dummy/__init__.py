"""A back-end as small as one can be: its folder and its row in the table. Only tests register it."""

from __future__ import annotations

from elastic.backends import Kind

KIND = Kind(
    name="dummy",
    driver="tests.elastic.backends.dummy.driver:DummyBackend",
    node="tests.elastic.backends.dummy.node:DummyNode",
    preload="tests.elastic.backends.dummy.node:preload",
    library="nothing",
    rank_variable="DUMMY_RANK",
    asked_for=r"^\s*import dummytrain\b",
    interface_variables=("DUMMY_IFACE",),
    defaults={"DUMMY_LEVEL": "quiet"},
    uploads_in_background=True,
    noise=r"^so long$",
)
