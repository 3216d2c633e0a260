"""The way of a driver's requests to bftd: through its socket on this host, or by TCP from another one."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import aiohttp
from yarl import URL

from bftd.credentials import proofs
from bftd.credentials.munge import MungeError
from bftd.protocol.address import endpoint, is_path, split_address
from elastic.base.errors import DaemonError, UsageError

_ANSWER_BYTES = 16 << 20
"""The size limit of an answer: more than the longest possible list of leases."""


class Transport:
    """The connection to the daemon at `address`: the path of its socket, or `[user@]host:port`.

    By TCP each request carries a munge credential, and each answer must be from `user` (default: bftd). With `token`,
    which is for private clusters, neither is needed. Raises UsageError for an address that cannot be one.
    """

    def __init__(self, address: str, token: str | None = None, munge_socket: str = "") -> None:
        self._address = address
        self._headers = {"Content-Type": "application/json"}
        self._caller: proofs.CallerCredential | None = None
        self._where: tuple[str, int] | None = None
        if is_path(address):
            return
        try:
            user, host, port = split_address(address)
            self._where = host, port
            if token:
                self._headers["Authorization"] = f"Bearer {token}"
            else:
                self._caller = proofs.CallerCredential(user, munge_socket)
        except (ValueError, MungeError) as error:
            raise UsageError(str(error)) from None

    def session(self, timeout_s: float) -> aiohttp.ClientSession:
        """Returns a session for `request`."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        connector = aiohttp.UnixConnector(path=self._address) if self._where is None else None
        return aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=timeout)

    async def request(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Any
    ) -> tuple[int, dict[str, Any]]:
        """Sends one request; returns the status and the decoded answer.

        Raises DaemonError for an answer that is not the daemon's, aiohttp.ClientError or OSError when there is none.
        """
        sent = b"" if body is None else json.dumps(body).encode()
        failure: Exception = OSError(f"{self._address} has no address")
        for base in await self._bases():
            try:
                return await self._ask(session, base, method, path, sent)
            except aiohttp.ClientConnectorError as error:
                failure = error
            except ValueError as error:  # a library rejects the answer, or the address
                raise DaemonError(f"what answers at {self._address} is no bftd: {error}") from None
        raise failure

    async def _bases(self) -> list[str]:
        """Returns the daemon's URLs, numeric for munge, whose credentials name the address that is connected to."""
        if self._where is None:
            return ["bftd"]
        host, port = self._where
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(endpoint(address) for *_, address in found))

    async def _ask(
        self, session: aiohttp.ClientSession, base: str, method: str, path: str, sent: bytes
    ) -> tuple[int, dict[str, Any]]:
        nonce, headers = "", dict[str, str]()
        if self._caller is not None:
            try:
                nonce, headers = await asyncio.to_thread(self._caller.request, base, method, path, sent)
            except MungeError as error:
                raise DaemonError(str(error)) from None
        url = URL(f"http://{base}{path}", encoded=True)  # not re-encoded: the credential covers every character of it
        # A proxy that redirects to its login page must not get what is meant for the daemon.
        async with session.request(method, url, data=sent or None, headers=headers, allow_redirects=False) as response:
            content = await _content(response, self._address)
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if self._caller is not None:
            shown = response.headers.get(proofs.ANSWER_HEADER)
            try:
                await asyncio.to_thread(self._caller.check, nonce, response.status, content, shown)
            except MungeError as error:
                unproved = proofs.unproved(answer)
                raise DaemonError(f"what answers at {self._address} is not believed: {error}{unproved}") from None
        if not isinstance(answer, dict) or 300 <= response.status < 400:
            raise DaemonError(f"what answers at {self._address} is no bftd")
        return response.status, answer


async def _content(response: aiohttp.ClientResponse, address: str) -> bytes:
    """Reads the body of an answer; raises DaemonError for one larger than any of the daemon's."""
    content = bytearray()
    async for piece in response.content.iter_chunked(1 << 16):
        content += piece
        if len(content) > _ANSWER_BYTES:
            raise DaemonError(f"what answers at {address} is no bftd: its answer has no end")
    return bytes(content)
