"""Munge credentials by libmunge: the uid that made a message, on any host that shares the site's key.

The library is loaded at the first use, so that it is needed only where it is used. Calls block while munged is asked:
about a millisecond, and some seconds if it hangs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from bftd.protocol.errors import ProtocolError

_LIBRARY = "libmunge.so.2"
_DEFAULT_SOCKET = "/run/munge/munge.socket.2"
# enum munge_opt and enum munge_err of munge.h; they are part of the library's ABI.
_TTL, _ENCODE_TIME, _SOCKET, _UID_RESTRICTION = 4, 6, 8, 9
_SUCCESS, _NO_SOCKET, _TIMED_OUT = 0, 6, 7
_WHY = {
    15: "the credential has expired, or the hosts' clocks differ: ask again, and see that they are synchronised",
    16: "the credential is of the future: the hosts' clocks differ, synchronise them",
    17: "the credential was used before: each is good for one request",
    18: "the credential is meant for another user",
}
_INVALID = "the credential is not valid here: the hosts must share one munge key"


class MungeError(ProtocolError):
    """A credential that could not be made, or was refused; one line says why."""


class MungeMissing(MungeError):
    """The library is not installed here, or munged does not answer."""


@dataclass(frozen=True, slots=True)
class MungeCredential:
    """The contents of a valid credential: payload, the uid that made it, when (unix seconds), and its lifetime."""

    payload: bytes
    uid: int
    encoded_s: int
    ttl_s: int


def encode(payload: bytes, *, to_uid: int | None = None, ttl_s: int = 60, socket: str = "") -> str:
    """Make a credential of this process's uid that only `to_uid` can open; None means anybody.

    `socket` is munged's, "" its default. Raises MungeMissing or MungeError.
    """
    library = _library()
    with _context(socket) as context:
        _set(context, socket, _TTL, ctypes.c_int(ttl_s))
        if to_uid is not None:
            _set(context, socket, _UID_RESTRICTION, ctypes.c_uint32(to_uid))
        made = ctypes.c_void_p()
        code = library.munge_encode(ctypes.byref(made), context, payload, len(payload))
        try:
            _check(code, socket)
            return ctypes.string_at(made.value or 0).decode("ascii")
        finally:
            _free(made)


def decode(credential: str, *, socket: str = "") -> MungeCredential:
    """Open a credential; raises MungeError for one that is forged, expired, replayed or meant for another uid."""
    library = _library()
    payload, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    encoded, ttl_s = ctypes.c_long(), ctypes.c_int()
    with _context(socket) as context:
        text = credential.encode("ascii", "replace")
        try:
            code = library.munge_decode(
                text, context, *map(ctypes.byref, (payload, length, uid, gid))
            )  # a payload comes with most refusals too
            _check(code, socket)
            _get(context, _ENCODE_TIME, encoded)
            _get(context, _TTL, ttl_s)
            content = ctypes.string_at(payload.value, length.value) if payload.value else b""
        finally:
            _free(payload)
    return MungeCredential(content, uid.value, encoded.value, ttl_s.value)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise MungeMissing(f"{_LIBRARY} is not here: install munge, on Debian `apt-get install munge`") from None
    library.munge_ctx_create.restype = ctypes.c_void_p
    library.munge_ctx_create.argtypes = []
    library.munge_ctx_destroy.restype = None
    library.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    library.munge_strerror.restype = ctypes.c_char_p
    pointer = ctypes.c_void_p
    library.munge_encode.argtypes = [pointer, pointer, ctypes.c_char_p, ctypes.c_int]
    library.munge_decode.argtypes = [ctypes.c_char_p, *[pointer] * 5]
    # The rest of the arguments is variadic.
    library.munge_ctx_set.argtypes = library.munge_ctx_get.argtypes = [pointer, ctypes.c_int]
    return library


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.free.restype = None
    libc.free.argtypes = [ctypes.c_void_p]
    return libc


def _free(memory: ctypes.c_void_p) -> None:
    _libc().free(memory)


@contextmanager
def _context(socket: str) -> Iterator[ctypes.c_void_p]:
    library = _library()
    context = ctypes.c_void_p(library.munge_ctx_create())
    if not context:
        raise MungeError("munge is out of memory")
    try:
        if socket:
            _set(context, socket, _SOCKET, ctypes.c_char_p(socket.encode()))
        yield context
    finally:
        library.munge_ctx_destroy(context)


def _set(
    context: ctypes.c_void_p, socket: str, option: int, value: ctypes.c_int | ctypes.c_uint32 | ctypes.c_char_p
) -> None:
    _check(_library().munge_ctx_set(context, option, value), socket)


def _get(context: ctypes.c_void_p, option: int, value: ctypes.c_int | ctypes.c_long) -> None:
    _check(_library().munge_ctx_get(context, option, ctypes.byref(value)), "")


def _check(code: int, socket: str) -> None:
    if code == _SUCCESS:
        return
    if code in (_NO_SOCKET, _TIMED_OUT):
        where = socket or _DEFAULT_SOCKET
        raise MungeMissing(f"munged does not answer at {where}: start it, for example `systemctl start munge`")
    if code in _WHY:
        raise MungeError(_WHY[code])
    reason = _library().munge_strerror(code).decode(errors="replace").lower()
    raise MungeError(f"{_INVALID} (munge: {reason})")
