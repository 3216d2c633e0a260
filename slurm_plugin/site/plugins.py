"""Rules on the plug-ins, and on the key of the daemon that has to agree with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import slurm_plugin
from slurm_plugin.pilots import reservation
from slurm_plugin.read.settings import options
from slurm_plugin.site import plugstack
from slurm_plugin.site.accounts import QOS, factor_seen, needs_qos, qos_commands, qos_of
from slurm_plugin.site.helpers import setting
from slurm_plugin.site.model import Site, SiteFile
from slurm_plugin.site.rule import NOT_SHOWN, Edit, Rule

SPANK_FILE = plugstack.NAME
LUA_FILE = "bftd.lua"

# Shares of the idle node-seconds in benchmarks/impact, where jobs are queued nearly all the time.
_HARVEST = (
    "with it 80-96 % of the idle node-seconds are held while jobs wait; without, nothing by immediate "
    'allocations, which Slurm refuses whenever a regular job is queued, or 68 % with pilot_mode = "sbatch"'
)
_INSTALL = re.compile(r"\.install\s*\(([^)]*)\)")
_SETTING = re.compile(r"(\w+)\s*=\s*(?:\"([^\"]*)\"|(\d+))")
_LUA_COMMENT = re.compile(r"--(?!\[\[).*")
# A setting in the definitions of bftd.lua, indented by two: `name = "text", -- why` or `name = 60,`.
_LUA_DEFAULT = re.compile(r"^  (\w+) = (?:\"([^\"]*)\"|(\d+)),", re.MULTILINE)
_PLUGIN_LINE = re.compile(rf"^\s*(required|optional)\s+(\S*/)?{re.escape(SPANK_FILE)}\b", re.MULTILINE)


def lua_settings(text: str) -> dict[str, str] | None:
    """Return the settings that job_submit.lua passes to bftd.lua; None if it does not load it."""
    code = "\n".join(_LUA_COMMENT.sub("", line) for line in text.splitlines())
    found = _INSTALL.search(code)
    if found is None or LUA_FILE not in code:
        return None
    return {key: quoted or plain for key, quoted, plain in _SETTING.findall(found[1])}


def lua_module() -> str:
    """Return the bftd.lua of this release."""
    return (Path(slurm_plugin.__file__).parent / "plugins" / "lua" / LUA_FILE).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def lua_defaults() -> dict[str, str]:
    """Return the defaults of bftd.lua for settings missing in job_submit.lua, read from the file itself."""
    block = lua_module().partition("local settings = {")[2].partition("\n}")[0]
    return {key: quoted or plain for key, quoted, plain in _LUA_DEFAULT.findall(block)}


def expected_settings(site: Site) -> dict[str, str]:
    """Return the settings of bftd.lua that follow from the daemon's configuration."""
    wanted = site.wanted
    return {
        "partition": ",".join(wanted.harvested),
        "driver_partition": wanted.driver_partition,
        "pilot_mode": wanted.pilot_mode,
        "pilot_limit_min": str(wanted.pilot_limit_min),
        "socket": wanted.socket,
        **({"reservation": reservation.NAME} if _needs_reservation(site) else {}),
        **({"qos": qos_of(site, lua_settings(site.lua.text))} if needs_qos(site) else {}),
    }


def _needs_reservation(site: Site) -> bool:
    return site.wanted.pilot_mode == "salloc" and reservation.needed(site.release)


def _reservation_command(site: Site) -> str:
    nodes = sorted(site.nodes_of(site.wanted.driver_partition)) or ["SERVICE_NODE"]
    return " ".join(reservation.create_command(nodes[0], site.config.get("AccountingStorageEnforce", "")))


def lua_lines(site: Site, path: str) -> str:
    """Return the two lines for job_submit.lua, with the settings that differ from the defaults of bftd.lua."""
    settings = {"driver": site.wanted.driver, **expected_settings(site)}
    changed = {key: value for key, value in settings.items() if value != lua_defaults()[key]}
    braces = ", ".join(f"{key} = {value if value.isdecimal() else _quoted(value)}" for key, value in changed.items())
    commands = [_reservation_command(site)] if _needs_reservation(site) else []
    commands += qos_commands(site) if needs_qos(site) else []
    once = "".join(f"-- Once, as root, before: {command}\n" for command in commands)
    return (
        f'{once}local found, bftd = pcall(dofile, "{path}")\n'
        f"if found then bftd.install({{{braces}}}) "
        'else slurm.log_error("bftd is left out: %s", tostring(bftd)) end'
    )


def _quoted(text: str) -> str:
    return f'"{text}"'


def _beside(file: SiteFile, name: str) -> str:
    return f"{file.path.rpartition('/')[0]}/{name}"


def _lua_is_on(site: Site) -> bool:
    return "lua" in options(site.config.get("JobSubmitPlugins", ""))


def _lua_edits(site: Site) -> Sequence[Edit]:
    return (Edit("job_submit.lua", "", lua_lines(site, _beside(site.lua, LUA_FILE))),)


def _file_seen(file: SiteFile, good: bool) -> str:
    if file.state != "present":
        return f"{file.path} is {'not on this host' if file.state == 'absent' else 'not readable for you'}"
    return file.path if good else f"{file.path}, without our lines"


def _lua_seen(site: Site) -> str:
    settings = lua_settings(site.lua.text)
    if settings is None:
        return _file_seen(site.lua, good=False)
    if site.module_missing:
        return f"{site.lua.path}, but {site.module_missing} is not on this host"
    wrong = _disagreeing(site, settings)
    return f"{site.lua.path}, with {', '.join(wrong)}" if wrong else site.lua.path


def _disagreeing(site: Site, settings: dict[str, str]) -> list[str]:
    given = {**lua_defaults(), **settings}
    return [
        f"{key} = {given[key]} (bftd: {value})"
        for key, value in expected_settings(site).items()
        if not (int(given[key]) >= int(value) if value.isdecimal() else _all_of(value) <= _all_of(given[key]))
    ]


def _all_of(text: str) -> frozenset[str]:
    return frozenset(text.split(","))


def _lua_agrees(site: Site) -> bool:
    settings = lua_settings(site.lua.text)
    return settings is not None and not site.module_missing and not _disagreeing(site, settings)


def _spank_holds(site: Site) -> bool:
    found = _PLUGIN_LINE.search(site.plugstack.text)
    return found is not None and found[1] == "optional" and not _spank_missing(site)


def _spank_missing(site: Site) -> list[str]:
    return [path for path in site.missing_plugins if path.endswith(SPANK_FILE)]


def _spank_seen(site: Site) -> str:
    if missing := _spank_missing(site):
        return f"{missing[0]} is not on this host"
    found = _PLUGIN_LINE.search(site.plugstack.text)
    return found[0].strip() if found else _file_seen(site.plugstack, good=False)


def _spank_edits(site: Site) -> Sequence[Edit]:
    folder = site.config.get("PluginDir", "/usr/lib/slurm").split(":")[0]
    return (Edit("plugstack.conf", "", f"optional {folder}/{SPANK_FILE}"),)


def _reservation_seen(site: Site) -> str:
    if reservation.NAME in site.reservations:
        return reservation.NAME
    return "none" if _needs_reservation(site) else "none, and not needed"


def _pilot_mode(site: Site) -> str:
    """Return the mode that harvests most under this site's Slurm."""
    grants = _lua_is_on(site) and lua_settings(site.lua.text) is not None and not site.module_missing
    return "salloc" if grants and "defer" not in site.scheduler_parameters else "sbatch"


RULES: tuple[Rule, ...] = (
    Rule(
        name="JobSubmitPlugins",
        right="lua among them",
        why="job_submit.lua gives pilots a priority number above every queued job's, without which Slurm refuses an "
        "immediate allocation; it also makes sbatch --elastic work and keeps all else out of the harvested partition",
        loses=_HARVEST,
        wrong="advice",
        seen=setting("JobSubmitPlugins"),
        holds=_lua_is_on,
        edits=lambda site: (
            Edit(
                "slurm.conf",
                "",
                "JobSubmitPlugins",
                ",".join([*options(site.config.get("JobSubmitPlugins", "")), "lua"]),
            ),
        ),
    ),
    Rule(
        name="job_submit.lua",
        right=f"loads {LUA_FILE} with the daemon's partitions, pilot mode and limit",
        why="it loads the code that gives pilots their number; it stands beside slurm.conf on the controller's host, "
        "so run this there",
        loses="without its lines the same as without JobSubmitPlugins=lua; with other partitions or a shorter pilot "
        "limit than the daemon's it refuses the pilots",
        wrong="advice",
        seen=_lua_seen,
        holds=_lua_agrees,
        edits=_lua_edits,
        applies=_lua_is_on,
    ),
    Rule(
        name="pilots' reservation",
        right=f"after 22.05: {reservation.NAME}, of a service node, years ahead, with FLEX",
        why="after 22.05 the partitions' PriorityTier is compared before the priority number, so the number alone gets "
        "no pilot past a queued job; jobs of a reservation are not compared with those of none",
        loses='without it Slurm refuses every pilot of pilot_mode = "salloc"; the command that makes it stands beside '
        "the lines for job_submit.lua",
        wrong="advice",
        seen=_reservation_seen,
        holds=lambda site: not _needs_reservation(site) or reservation.NAME in site.reservations,
        applies=_lua_is_on,
    ),
    Rule(
        name="pilots' QOS",
        right=f"a QOS with UsageFactor=0 ({QOS}) that all users may use, where AccountingStorageEnforce has limits",
        why="limits on used time (GrpTRESMins, GrpWall) count a pilot's CPUs and nodes whatever is billed; only a "
        "job's own QOS spares them, that of the partition does not (measured), so bftd.lua gives pilots this one and "
        "refuses it to all other jobs",
        loses="pilots eat what their users' regular jobs are granted: two of 4 CPUs that ran 12 s took 1 of an "
        "account's CPU minutes, and nothing with the QOS (measured). The commands stand beside the lines for "
        "job_submit.lua; whoever may not use the QOS gets no pilot",
        wrong="advice",
        seen=lambda site: factor_seen(site, qos_of(site, lua_settings(site.lua.text))),
        holds=lambda site: (site.usage_factors or {}).get(qos_of(site, lua_settings(site.lua.text))) == 0.0,
        applies=lambda site: needs_qos(site) and _lua_is_on(site),
    ),
    Rule(
        name="PlugStackConfig",
        right=f"a file with the line: optional {SPANK_FILE}",
        why="the SPANK plug-in adds --elastic to sbatch, and #SBATCH --elastic; optional, because with required a "
        "fault of the file refuses every job",
        loses="users write bft sbatch --elastic instead of sbatch --elastic: nothing else is lost",
        wrong="advice",
        seen=lambda site: _spank_seen(site) if "PlugStackConfig" in site.config else NOT_SHOWN,
        holds=_spank_holds,
        edits=_spank_edits,
    ),
    Rule(
        name="SPANK plug-in",
        right="for the major and minor release of this host's Slurm",
        why="after an upgrade Slurm does not load a plug-in that was compiled for the release before",
        loses="every sbatch, salloc and srun prints an error, though it goes on, and workflow tools take that for a "
        "failure; bft site plugin --off takes its line out until it is built again",
        wrong="must",
        seen=lambda site: site.plugin_fault or "nothing is known against it",
        holds=lambda site: not site.plugin_fault,
        applies=lambda site: _PLUGIN_LINE.search(site.plugstack.text) is not None,
    ),
    Rule(
        name="pilot_mode",
        right="salloc with job_submit.lua, sbatch without it or with defer",
        why="immediate allocations never wait in the queue; without the Lua file, or with defer, Slurm refuses them",
        loses=_HARVEST,
        wrong="advice",
        seen=lambda site: site.wanted.pilot_mode,
        holds=lambda site: site.wanted.pilot_mode == _pilot_mode(site),
        edits=lambda site: (Edit("bftd.toml", "[slurm]", "pilot_mode", _pilot_mode(site)),),
    ),
)
