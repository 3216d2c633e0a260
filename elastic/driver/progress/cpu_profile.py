"""The result of `bft size cpu` for a trainer's script, looked up when the driver starts.

`bft size need` reports it, in a process of its own. Whatever becomes of it, the trainer trains as it would without.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from bftd.protocol.errors import Malformed
from bftd.protocol.fields import Fields, printable
from elastic.base.timing import PROFILE_S
from elastic.driver.pilots.request import NodePartRequest, ProfiledNeed
from elastic.driver.settings import DriverSettings

_REASON_MOST = 300
_DAY_S = 86400.0


async def look(settings: DriverSettings, shares: NodePartRequest) -> None:
    """Has pilots ask for the profiled share; a profile of other arguments counts only if the user asked for one."""
    share = settings.spec.share
    if share.never or share.cpus:
        return
    shares.looking()
    try:
        need = await _need(settings)
        same, old_s = need.flag("same_arguments"), need.number("age_s", 0.0)
        cpus, memory_bytes = need.whole("cpus", minimum=1), need.whole("memory_bytes", minimum=1)
        whose = f"bft size cpu on {printable(need.text('host', '')[:80])}, {_age(old_s)}"
        if not (same or share.asked):
            shares.note(f"pilots have whole nodes: {whose}, was with other arguments; share=profile goes by it")
            return
        shares.profiled(ProfiledNeed(cpus, memory_bytes), whose)
    except (OSError, ValueError, Malformed, asyncio.TimeoutError) as error:
        if share.asked:
            copy = settings.argv[0]  # the user knows the one that was submitted
            text = str(error).replace(copy, str(settings.script_dir / Path(copy).name))
            shares.note(f"pilots have whole nodes: {_line(text) or 'no answer about a profile'}")
    finally:
        shares.looked()


async def _need(settings: DriverSettings) -> Fields:
    """Returns the child's answer.

    Raises ValueError with the child's reason, OSError if it cannot be started, and asyncio.TimeoutError.
    """
    child = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("bft")), "size", "need", "--json", "--", *settings.argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, words = await asyncio.wait_for(child.communicate(), PROFILE_S)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        raise ValueError(words.decode(errors="replace").removeprefix("bft: "))
    return Fields(json.loads(output), "profile")


def _age(age_s: float) -> str:
    days = int(age_s / _DAY_S)
    return "today" if not days else f"{days} day{'s' if days > 1 else ''} ago"


def _line(text: str) -> str:
    return " ".join(printable(text[:_REASON_MOST]).split())
