"""A Lua interpreter for tests: the library that slurmctld's own plug-in runs, so nothing more needs installing."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest

_GLOBALS = -10002  # LUA_GLOBALSINDEX


class Lua:
    """One interpreter; values go in as global strings and come out as what a chunk returns."""

    def __init__(self) -> None:
        name = ctypes.util.find_library("lua5.1")
        if name is None:
            pytest.skip("liblua5.1 is not installed; Slurm's package of plug-ins brings it")
        self._library = ctypes.CDLL(name)
        self._library.luaL_newstate.restype = ctypes.c_void_p
        self._library.lua_tolstring.restype = ctypes.c_void_p
        self._state = ctypes.c_void_p(self._library.luaL_newstate())
        self._library.luaL_openlibs(self._state)

    def close(self) -> None:
        """Free it."""
        self._library.lua_close(self._state)

    def set(self, name: str, value: bytes) -> None:
        """Give a global variable a string."""
        self._library.lua_pushlstring(self._state, value, ctypes.c_size_t(len(value)))
        self._library.lua_setfield(self._state, _GLOBALS, name.encode())

    def run(self, chunk: str) -> bytes:
        """Run a chunk and return its result as a string; an error in it fails the test."""
        failed = self._library.luaL_loadstring(self._state, chunk.encode())
        failed = failed or self._library.lua_pcall(self._state, 0, 1, 0)
        length = ctypes.c_size_t()
        address = self._library.lua_tolstring(self._state, -1, ctypes.byref(length))
        result = ctypes.string_at(address, length.value) if address else b""
        self._library.lua_settop(self._state, 0)
        assert not failed, result.decode(errors="replace")
        return result
