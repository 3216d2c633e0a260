"""The proof of both ends, and the seals that follow it: what somebody without the secret can try."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.base.errors import WireError
from elastic.link.authentication import PROOF_BYTES, Examination, Introduction, Seal, Seals, new_secret
from elastic.link.wire import Message, decode, encode

ABOUT: Message = {"role": "agent", "lease": "n1.3"}
lines = st.binary(max_size=40).map(lambda text: text.replace(b"\n", b" ") + b"\n")


def introduced(peers_secret: str, drivers_secret: str, about: Message = ABOUT) -> tuple[Seals, Seals]:
    """Both ends' seals, or the WireError of the end that finds the other one wanting."""
    introduction = Introduction(peers_secret, about)
    examination = Examination(drivers_secret, introduction.hello)
    proof, seals = introduction.answer(examination.challenge)
    return seals, examination.seals(proof)


def test_a_secret_has_256_bits_and_is_never_used_twice() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(bytes.fromhex(new_secret())) == 32


@given(st.lists(st.tuples(st.booleans(), lines), max_size=8))
def test_what_one_end_seals_the_other_opens_in_both_directions(said: list[tuple[bool, bytes]]) -> None:
    peer, driver = introduced("s", "s")
    for upwards, line in said:
        one, other = (peer, driver) if upwards else (driver, peer)
        assert other.incoming.opened(one.outgoing.line(line)) == line


@pytest.mark.parametrize(("peers", "drivers"), [("s", "t"), ("", "s"), ("s", ""), ("s" * 64, "s" * 63)])
def test_an_end_that_does_not_know_the_secret_is_found_out_by_the_other(peers: str, drivers: str) -> None:
    introduction = Introduction(peers, ABOUT)
    examination = Examination(drivers, introduction.hello)
    with pytest.raises(WireError):
        introduction.answer(examination.challenge)
    # A peer that goes on all the same, with whatever it can make of what it knows.
    nonce = decode(examination.challenge)["nonce"]
    agreeing = Examination(peers, introduction.hello)
    challenge = decode(agreeing.challenge) | {"nonce": nonce}
    for proof in (
        b"",
        b"0" * PROOF_BYTES,
        str(challenge["proof"]).encode(),
        decode(examination.challenge)["proof"].encode(),
    ):
        with pytest.raises(WireError):
            examination.seals(proof)


def test_the_secret_itself_is_in_nothing_that_is_sent() -> None:
    secret = new_secret()
    introduction = Introduction(secret, ABOUT)
    examination = Examination(secret, introduction.hello)
    proof, seals = introduction.answer(examination.challenge)
    sent = introduction.hello + examination.challenge + proof + seals.outgoing.line(encode({"op": "ready"}))
    assert secret.encode() not in sent
    assert bytes.fromhex(secret) not in sent


def test_a_proof_sent_back_to_whom_it_came_from_proves_nothing() -> None:
    introduction = Introduction("s", ABOUT)
    examination = Examination("s", introduction.hello)
    with pytest.raises(WireError):
        examination.seals(decode(examination.challenge)["proof"].encode())
    proof, _ = introduction.answer(examination.challenge)
    with pytest.raises(WireError):
        introduction.answer(encode(decode(examination.challenge) | {"proof": proof.decode()}))
    with pytest.raises(WireError):
        introduction.answer(introduction.hello)


def test_a_recorded_connection_opens_no_second_one() -> None:
    introduction = Introduction("s", ABOUT)
    first = Examination("s", introduction.hello)
    proof, _ = introduction.answer(first.challenge)
    with pytest.raises(WireError):
        Examination("s", introduction.hello).seals(proof)
    # Nor does a recorded driver convince a new agent.
    with pytest.raises(WireError):
        Introduction("s", ABOUT).answer(first.challenge)


@pytest.mark.parametrize("changes", [{"role": "worker"}, {"lease": "n2.1"}, {"local_rank": 1}, {"nonce": "0"}])
def test_a_proof_holds_for_the_hello_that_it_was_made_for_alone(changes: Message) -> None:
    introduction = Introduction("s", ABOUT)
    altered = Examination("s", encode(decode(introduction.hello) | changes))
    with pytest.raises(WireError):
        introduction.answer(altered.challenge)
    examination = Examination("s", introduction.hello)
    proof, _ = introduction.answer(examination.challenge)
    with pytest.raises(WireError):
        altered.seals(proof)


@given(st.none() | st.integers() | st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()))
def test_any_challenge_is_a_proof_or_a_wire_error(value: object) -> None:
    introduction = Introduction("s", ABOUT)
    for message in ({"nonce": value}, {"nonce": "0", "proof": value}, {"nonce": "\ud800", "proof": "\ud800"}):
        with pytest.raises(WireError):
            introduction.answer(encode({"op": "challenge", **message}))
    with pytest.raises(WireError):
        introduction.answer(json.dumps(value).encode())


def test_a_first_line_that_is_no_hello_is_refused() -> None:
    for line in (b"GET / HTTP/1.1\r\n", b"\x80\x04\x95\n", b"[" * 4000 + b"\n", encode({"op": "leaving"}), b""):
        with pytest.raises(WireError):
            Examination("s", line)


@given(lines, st.integers(0, 200), st.integers(1, 255))
def test_a_message_with_any_byte_altered_is_refused(line: bytes, place: int, change: int) -> None:
    peer, driver = introduced("s", "s")
    sealed = bytearray(peer.outgoing.line(line))
    place %= len(sealed)
    if place == 64:
        return  # the blank between the seal and the message says nothing
    sealed[place] ^= change
    with pytest.raises(WireError):
        driver.incoming.opened(bytes(sealed))


def test_a_message_again_left_out_out_of_order_or_of_another_connection_is_refused() -> None:
    def fresh() -> tuple[list[bytes], Seal]:
        peer, driver = introduced("s", "s")
        return [peer.outgoing.line(encode({"op": "out", "line": str(number)})) for number in range(3)], driver.incoming

    for order in ([0, 0], [1], [0, 2], [0, 1, 0]):
        sealed, seal = fresh()
        for index in order[:-1]:
            seal.opened(sealed[index])
        with pytest.raises(WireError):
            seal.opened(sealed[order[-1]])
    sealed, _ = fresh()
    _, seal = fresh()
    with pytest.raises(WireError):
        seal.opened(sealed[0])
    # Nor back to who sent it.
    peer, _ = introduced("s", "s")
    with pytest.raises(WireError):
        peer.incoming.opened(peer.outgoing.line(b"x\n"))
