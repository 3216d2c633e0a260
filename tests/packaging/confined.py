"""python confined.py UNIT COMMAND...: run a command under the system call rules of a systemd unit, without systemd.

What is applied: SystemCallFilter with SystemCallErrorNumber, MemoryDenyWriteExecute and NoNewPrivileges, by libseccomp
and prctl, as systemd does. systemd-analyze tells what the named sets of system calls hold.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_MDWE = 65  # Linux 6.3
_PR_MDWE_REFUSE_EXEC_GAIN = 1
_ALLOW = 0x7FFF0000
_UNKNOWN_CALL = -1
# What systemd allows whatever the unit says.
_ALWAYS = ("execve", "exit", "exit_group", "getrlimit", "rt_sigreturn", "sigreturn", "prlimit64")


def unit_values(unit: Path, key: str) -> list[str]:
    """All values of a key of a unit file, in order."""
    lines = [line.strip().partition("=") for line in unit.read_text().splitlines()]
    return [value for name, _, value in lines if name == key]


def allowed_calls(unit: Path) -> set[str]:
    """The system calls that the SystemCallFilter lines of a unit leave."""
    sets = _sets_of_calls()
    allowed = _members(["@default"], sets) | set(_ALWAYS)
    for value in unit_values(unit, "SystemCallFilter"):
        if value.startswith("~"):
            allowed -= _members(value[1:].split(), sets)
        else:
            allowed |= _members(value.split(), sets)
    return allowed


def _sets_of_calls() -> dict[str, list[str]]:
    listing = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True).stdout
    sets: dict[str, list[str]] = {}
    for line in listing.splitlines():
        if line.startswith("@"):
            members = sets.setdefault(line.strip(), [])
        elif line.startswith("    ") and not line.lstrip().startswith("#"):
            members.append(line.strip())
        elif line.startswith("#"):  # what follows is in no set
            break
    return sets


def _members(names: Iterable[str], sets: Mapping[str, Sequence[str]]) -> set[str]:
    found: set[str] = set()
    for name in names:
        found |= _members(sets[name], sets) if name.startswith("@") else {name}
    return found


def confine(unit: Path) -> None:
    """Put this process and all that it will start under the rules."""
    libc = ctypes.CDLL(None, use_errno=True)
    calls = allowed_calls(unit)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if unit_values(unit, "MemoryDenyWriteExecute") == ["yes"]:
        libc.prctl(_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)  # older kernels do without
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(0x00050000 | errno.EPERM)))
    for name in sorted(calls):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number != _UNKNOWN_CALL:
            seccomp.seccomp_rule_add(rules, ctypes.c_uint32(_ALLOW), number, 0)
    if seccomp.seccomp_load(rules):
        raise OSError("the filter could not be loaded")


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
