"""Where a driver is: the same text on both ends, for IPv4, IPv6 and names."""

from __future__ import annotations

import pytest

from elastic.link.address import join_address, plain, split_address


@pytest.mark.parametrize("host", ["10.0.0.7", "svc1.cluster", "fd00::7", "::1"])
def test_what_is_joined_is_split_again(host: str) -> None:
    assert split_address(join_address(host, 4711)) == (host, 4711)


def test_an_ipv6_address_has_brackets() -> None:
    assert join_address("fd00::7", 5) == "[fd00::7]:5"


@pytest.mark.parametrize("text", ["", "host", "host:", ":5", "host:x", "[fd00::7]"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(text)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("10.0.0.7", "10.0.0.7"),
        ("fe80::1%eth0", "fe80::1"),
        ("FD00:0:0:0:0:0:0:7", "fd00::7"),
        ("svc1", "svc1"),
    ],
)
def test_an_address_is_the_same_text_whatever_socket_tells_it(told: str, expected: str) -> None:
    assert plain(told) == expected
