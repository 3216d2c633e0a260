"""Each node is told the address by which it reaches the driver: on real networks, in a namespace of their own."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bftd.protocol.lease import Leases
from elastic.base.errors import UsageError
from elastic.driver.pilots import addresses
from elastic.driver.pilots import launcher as pilots
from elastic.driver.pilots.addresses import Routes, Unreachable, given_address
from elastic.driver.pilots.launcher import Pilot, PilotStarter
from elastic.driver.server import listen
from slurm_plugin.errors import SnapshotError
from slurm_plugin.read.types import NodeAddress
from slurm_plugin.submission.submission import Leftover, Placed, Refused
from tests.elastic.fakes import settings_for, until
from tests.support.messages import excerpt, fragment, pattern, says, wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

HERE = socket.gethostname()
ROOT = str(Path(__file__).parents[4])

# Two networks, as a service node has them, and a third that knows IPv6 alone.
NETWORKS = """
ip link set lo up
for name in one two six; do
    ip link add $name type veth peer name far-$name && ip link set $name up && ip link set far-$name up
done
ip addr add 10.1.0.5/16 dev one
ip addr add 10.2.0.5/16 dev two && ip addr add 10.3.0.5/16 dev two label two:1
ip -6 addr add fd00:6::5/64 dev six nodad
"""


def in_namespace(body: str, networks: str = NETWORKS) -> Any:
    """Runs Python in a network of its own; returns what it prints as JSON."""
    command = f"set -e\n{networks}\nexec {sys.executable} -c '{body}'"
    said = subprocess.run(
        ["unshare", *([] if os.getuid() == 0 else ["--user", "--map-root-user"]), "--net", "sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=STILL_S,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": ROOT},
    )
    if "unshare failed" in said.stderr or "Operation not" in said.stderr:
        pytest.skip("neither root nor user namespaces: no network of its own can be made")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


ASK = """
import json
from elastic.driver.pilots.addresses import Routes, Unreachable
from slurm_plugin.read.types import NodeAddress

def answer(node, address, host_name="another", **options):
    try:
        return Routes(lambda: {node: NodeAddress(address, host_name)}, **options).to(node)
    except Unreachable as error:
        return f"no: {error}"
"""


def test_regression_a_host_of_several_networks_told_all_nodes_the_address_of_its_name() -> None:
    asked = '[answer("n1", "10.1.7.7"), answer("n2", "10.2.7.7"), answer("n3", "10.3.7.7"), answer("n4", "fd00:6::9")]'
    found = in_namespace(f"{ASK}\nprint(json.dumps({asked}))".replace("'", '"'))
    assert found == ["10.1.0.5", "10.2.0.5", "10.3.0.5", "fd00:6::5"]


def test_a_node_without_a_route_is_told_so_and_never_an_address_that_is_not_its_own() -> None:
    asked = '[answer("n1", "192.0.2.7"), answer("n2", "2001:db8::7"), answer("n3", "fd00:6::9", ipv4_only=True)]'
    none, none6, only4 = in_namespace(f"{ASK}\nprint(json.dumps({asked}))")
    assert says(
        none,
        "elastic.routes.no_address",
        node="n1",
        address="192.0.2.7",
        why=wording("elastic.routes.no_route"),
        advice=fragment(excerpt("elastic.routes.set_variable", VARIABLE="BFT_DRIVER_ADDRESS")),
    )
    assert "no route" in none6
    assert says(only4, "elastic.routes.no_ipv4", node="n3")


def test_on_a_host_without_any_network_only_the_host_itself_is_reached() -> None:
    asked = f'[answer("n1", "127.0.0.1", "{HERE}"), answer("n2", "127.0.0.1"), answer("n3", "::1", "{HERE}")]'
    own, other, own6 = in_namespace(f"{ASK}\nprint(json.dumps({asked}))", "ip link set lo up")
    assert (own, own6) == ("127.0.0.1", "::1")
    assert "another host" in other


def test_what_listens_is_reached_by_ipv4_and_ipv6_and_tells_an_ipv4_address_as_such() -> None:
    body = """
import json, socket
from elastic.driver.server import listen
from elastic.link.address import plain, join_address, split_address
port_of = listen()
port_of.setblocking(True)
port, seen = port_of.getsockname()[1], []
for host in ("10.1.0.5", "10.3.0.5", "fd00:6::5", "127.0.0.1"):
    with socket.create_connection(split_address(join_address(host, port)), 10):
        peer, address = port_of.accept()
        seen.append(plain(address[0]))
        peer.close()
print(json.dumps(seen))
"""
    assert in_namespace(body) == ["10.1.0.5", "10.3.0.5", "fd00:6::5", "127.0.0.1"]


def test_where_the_kernel_has_no_ipv6_the_driver_listens_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def without(address: Any, *, family: int = socket.AF_INET, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(99, "Cannot assign requested address")
        return create(address, family=family, **options)

    monkeypatch.setattr(socket, "create_server", without)
    with listen() as listening:
        socket.create_connection(("127.0.0.1", listening.getsockname()[1]), 10).close()


def test_regression_the_interface_of_an_alias_or_of_ipv6_was_taken_for_the_loopback() -> None:
    body = """
import json
from elastic.node.machine import interface_of

class Writer:
    def __init__(self, address):
        self.address = address
    def get_extra_info(self, _):
        return self.address

addresses = [("10.1.0.5", 1), ("10.2.0.5", 1), ("10.3.0.5", 1), ("fd00:6::5", 1, 0, 0), ("::ffff:10.1.0.5", 1, 0, 0)]
print(json.dumps([interface_of(Writer(name)) for name in [*addresses, ("127.0.0.1", 1), ("10.9.9.9", 1)]]))
"""
    assert in_namespace(body) == ["one", "two", "two", "six", "one", "lo", None]


def resolved(monkeypatch: pytest.MonkeyPatch, sources: dict[str, str | None]) -> None:
    """Names resolve to themselves; the route to each has this source."""

    def getaddrinfo(host: str, port: object, **_: object) -> list[Any]:
        if host not in sources:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (host, 9))]

    def source(family: int, target: tuple[str, int]) -> Any:
        found = sources.get(target[0])
        return None if found is None else addresses._address(found)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(addresses, "_source", source)


def test_regression_a_hosts_own_name_that_means_its_loopback_was_told_to_other_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Debian's /etc/hosts has 127.0.1.1 for the host's own name; the way out is by its network.
    resolved(monkeypatch, {HERE: "127.0.0.1", "192.0.2.1": "10.0.0.5", "n2": "10.0.0.5", "n3": "127.0.0.1"})
    known = {"n1": NodeAddress(HERE, HERE), "n2": NodeAddress("n2", "n2"), "n3": NodeAddress("n3", "n3")}
    found = Routes(lambda: known)
    assert [found.to("n1"), found.to("n2")] == ["10.0.0.5", "10.0.0.5"]
    unreachable = pattern(
        "elastic.routes.no_address",
        host_name=HERE,
        node="n3",
        why=fragment("another host"),
        advice=fragment("; set BFT_DRIVER_ADDRESS"),
    )
    with pytest.raises(Unreachable, match=unreachable):
        found.to("n3")


def test_slurm_is_asked_once_for_all_nodes_and_again_for_one_that_it_did_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved(monkeypatch, {f"10.0.0.{number}": "10.0.0.100" for number in range(9)})
    asked: list[int] = []
    known = {f"n{number}": NodeAddress(f"10.0.0.{number}", f"n{number}") for number in range(8)}
    found = Routes(lambda: asked.append(1) or dict(known))
    assert {found.to(node) for node in known} == {"10.0.0.100"}
    assert len(asked) == 1
    known["n8"] = NodeAddress("10.0.0.8", "n8")
    with pytest.raises(Unreachable, match="shows no node n8"):
        found.to("n8")
    assert len(asked) == 1, "not for each that asks for it"
    monkeypatch.setattr(addresses, "_UNKNOWN_EVERY_S", -1.0)
    assert found.to("n8") == "10.0.0.100"
    assert len(asked) == 2


def test_all_pilots_of_one_moment_have_slurm_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved(monkeypatch, {"10.0.0.1": "10.0.0.100"})
    asked: list[int] = []

    def nodes() -> dict[str, NodeAddress]:
        asked.append(1)
        time.sleep(0.05)
        return {f"n{number}": NodeAddress("10.0.0.1", "n") for number in range(64)}

    found = Routes(nodes)
    with ThreadPoolExecutor(64) as pool:
        assert set(pool.map(lambda number: found.to(f"n{number}"), range(64))) == {"10.0.0.100"}
    assert len(asked) == 1


def test_a_node_whose_address_slurm_cannot_tell_is_refused_and_not_taken_for_this_host() -> None:
    def away() -> dict[str, NodeAddress]:
        raise SnapshotError("scontrol gave no answer for 5 s: is slurmctld up?")

    with pytest.raises(
        Unreachable,
        match=pattern(
            "elastic.routes.address_unknown",
            node="n1",
            error=fragment(excerpt("slurm_plugin.client.no_answer", command="scontrol")),
        ),
    ):
        Routes(away).to("n1")


def test_where_slurm_hides_its_nodes_from_users_a_nodes_name_is_taken_for_its_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved(monkeypatch, {"n1": "10.0.0.5", "n2": "127.0.0.1"})
    asked: list[int] = []

    def hidden() -> dict[str, NodeAddress]:
        asked.append(1)
        raise SnapshotError("scontrol failed: slurm_load_node error: Access/permission denied")

    found = Routes(hidden)
    assert [found.to("n1"), found.to("n1")] == ["10.0.0.5"] * 2
    with pytest.raises(Unreachable, match="another host"):
        found.to("n2")
    with pytest.raises(Unreachable, match=pattern("elastic.routes.unresolved", address="n3", node="n3")):
        found.to("n3")
    assert len(asked) == 1


def test_a_given_address_holds_for_every_node_but_a_loopback_only_for_this_host() -> None:
    known = {"n1": NodeAddress("10.0.0.1", HERE), "n2": NodeAddress("10.0.0.2", "n2")}
    assert Routes(lambda: {}, "driver.cluster").to("n1") == "driver.cluster"
    assert Routes(lambda: known, "127.0.0.1").to("n1") == "127.0.0.1"
    with pytest.raises(Unreachable, match="means n2 itself there"):
        Routes(lambda: known, "::1").to("n2")
    with pytest.raises(Unreachable, match=pattern("elastic.routes.ipv6")):
        Routes(lambda: known, "fd00::1", ipv4_only=True).to("n1")


@pytest.mark.parametrize(
    "given", ["10.0.0.5:99", "http://svc1", "a b", "0.0.0.0", "::", "fe80::1", "fe80::1%eth0", "x,y"]
)
def test_an_address_that_cannot_be_one_is_the_users_mistake_and_told_at_the_start(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("BFT_DRIVER_ADDRESS", given)
    with pytest.raises(UsageError, match="BFT_DRIVER_ADDRESS"):
        given_address()


def test_a_name_is_given_only_if_it_resolves_or_nobody_can_tell_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BFT_DRIVER_ADDRESS", "localhost")
    assert given_address() == "localhost"
    number = socket.EAI_NONAME

    def fail(*_: object) -> None:
        raise socket.gaierror(number, "")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(UsageError, match="does not resolve"):
        given_address()
    number = socket.EAI_AGAIN
    assert given_address() == "localhost"
    monkeypatch.setenv("BFT_DRIVER_ADDRESS", "[fd00::7]")
    assert given_address() == "fd00::7"
    monkeypatch.setenv("BFT_DRIVER_ADDRESS", " ")
    assert given_address() == ""


class FakeLauncher:
    """Slurm's side of a starter."""

    def __init__(self, *_: object) -> None:
        self.cleared: list[Leftover] = []

    def agent_env(self, environ: object) -> dict[str, str]:
        return {}

    def clear(self, leftover: Leftover) -> None:
        self.cleared.append(leftover)


def test_each_pilots_agent_is_told_its_own_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    resolved(monkeypatch, {"10.1.0.1": "10.1.0.5", "10.2.0.1": "fd00::5"})
    told: dict[str, str] = {}

    class Launcher(FakeLauncher):
        def place(self, request: Any, argv: object, env: dict[str, str]) -> Placed:
            told[request.node] = env["BFT_DRIVER"]
            return Placed("7")

    monkeypatch.setattr(pilots, "PilotLauncher", Launcher)

    async def body() -> list[str | None]:
        starter = PilotStarter(settings_for(tmp_path, backend="torchrun", given_address=""), 4711, "secret", print)
        known = {"n1": NodeAddress("10.1.0.1", "n1"), "n2": NodeAddress("10.2.0.1", "n2")}
        starter._routes = Routes(lambda: known)
        starter.go_by(Leases(1, 20.0, ()))
        refused = [await starter.place(Pilot(f"{node}.1", node, 600.0, "")) for node in ("n1", "n2", "n3")]
        await starter.close()
        return refused

    first, second, third = asyncio.run(body())
    assert (first, second) == (None, None)
    assert third
    assert third.startswith(wording("elastic.routes.no_such_node", advice="n3"))
    assert told == {"n1": "10.1.0.5:4711", "n2": "[fd00::5]:4711"}


def test_what_a_refused_placing_left_is_cleared_and_so_is_one_that_the_drivers_end_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    class Launcher(FakeLauncher):
        def place(self, request: Any, argv: object, env: dict[str, str]) -> Refused:
            if request.node == "n2":
                asked.set()
                assert answer.wait(20)
            return Refused("withdrawn: a job came", Leftover(request, "7"))

    monkeypatch.setattr(pilots, "PilotLauncher", Launcher)

    async def body() -> list[tuple[str, str | None]]:
        starter = PilotStarter(settings_for(tmp_path), 4711, "secret", print)
        starter.go_by(Leases(1, 20.0, ()))
        launcher: Any = starter._launcher
        assert await starter.place(Pilot("n1.1", "n1", 600.0, "")) == "withdrawn: a job came"
        await until("cleared", lambda: launcher.cleared)
        placing = asyncio.create_task(starter.place(Pilot("n2.1", "n2", 600.0, "")))
        await until("asked", asked.is_set)
        placing.cancel()
        await asyncio.gather(placing, return_exceptions=True)
        await until("looked for", lambda: len(launcher.cleared) == 2)
        answer.set()
        await starter.close()
        return [(leftover.request.node, leftover.job_id) for leftover in launcher.cleared[:2]]

    assert asyncio.run(body()) == [("n1", "7"), ("n2", None)]
