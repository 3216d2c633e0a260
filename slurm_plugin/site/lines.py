"""The lines that make every rule hold at one site, as text for each of its files."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources

from slurm_plugin.errors import SlurmError
from slurm_plugin.nodeset import fold
from slurm_plugin.read.settings import is_nothing
from slurm_plugin.site.edits import PARTITION, change, merged
from slurm_plugin.site.model import DaemonSettings, Site
from slurm_plugin.site.plugins import LUA_FILE
from slurm_plugin.site.rule import Edit, File, Rule, check

FILES: tuple[File, ...] = ("slurm.conf", "plugstack.conf", "job_submit.lua", "bftd.toml")

_WIDTH = 110
_HEADER: Mapping[File, str] = {
    "slurm.conf": "a line for a key that the file sets already replaces that one; restart slurmctld afterwards",
    "plugstack.conf": "add this line, after: make plugins, and a copy of build/plugins/spank_bftd.so to where it says",
    "job_submit.lua": "",
    "bftd.toml": "keys for the daemon's own configuration",
}


class NoNodes(SlurmError):
    """The nodes of a partition were not given, and the site's settings do not tell them."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Advised:
    """The edits for one site, each with the rule that asks for it, and the site before and after them."""

    before: Site
    after: Site
    edits: tuple[tuple[Rule, Edit], ...]
    rules: tuple[Rule, ...]

    def reason(self, key: str, asking: Rule) -> Rule:
        """Return the rule on a partition's option, which says more than a rule that asks for a whole partition."""
        return next((rule for rule in self.rules if rule.name == f"{asking.name}: {key}"), asking)


def advise(
    site: Site,
    rules: Collection[Rule],
    *,
    nodes: str = "",
    driver_nodes: str = "",
    keep: Collection[str] = (),
    configured: DaemonSettings | None = None,
) -> Advised:
    """Return the edits after which the rules find only faults that no line can mend.

    `nodes` and `driver_nodes` are node sets for partitions that do not exist yet: by default all nodes of the regular
    partitions, and the nodes in no partition. Rules named in `keep` are left as the site has them. `configured` is the
    daemon's present configuration, if it differs from the wanted one. Raise NoNodes.
    """
    now, edits = site, _names(site.wanted, configured or site.wanted, rules)
    for _ in range(2):  # an edit for one rule may break an earlier one
        for rule in rules:
            if rule.name in keep or not rule.applies(now) or check(now, [rule])[0].level == "ok":
                continue
            wanted = [_with_nodes(now, edit, nodes, driver_nodes) for edit in rule.edits(now)]
            edits += [(rule, edit) for edit in wanted]
            now = change(now, wanted)
    return Advised(site, now, tuple(_last_of_each(edits)), tuple(rules))


def render(advised: Advised, file: File) -> str:
    """Return the lines for one file, each with its reason as a comment; "" if it needs none."""
    edits = [(rule, edit) for rule, edit in advised.edits if edit.file == file]
    if not edits:
        return ""
    mark = "--" if file == "job_submit.lua" else "#"
    lines = _comment(mark, _HEADER[file])
    if file == "slurm.conf":
        lines += _slurm_conf(advised, edits)
    elif file == "bftd.toml":
        for section in dict.fromkeys(edit.target for _, edit in edits):
            lines.append(section)
            for rule, edit in edits:
                if edit.target == section:
                    lines += [*_comment(mark, f"{rule.name}: {rule.why}"), f'{edit.key} = "{edit.value}"']
    elif file == "job_submit.lua":
        lines = _job_submit_lua(advised, edits[0][1])
    else:
        for rule, edit in edits:
            lines += [*_comment(mark, f"{rule.name}: {rule.why}"), edit.key]
    return "\n".join(lines) + "\n"


def _job_submit_lua(advised: Advised, edit: Edit) -> list[str]:
    """Return the lines for the site's own file, or a whole file for a site that has none."""
    folder = resources.files("slurm_plugin") / "plugins" / "lua"
    copy = _comment("--", f"First copy {folder / LUA_FILE} beside this file.")
    if advised.before.lua.state != "absent":
        ours = "add these lines before the last `return`, in place of any that load bftd.lua already"
        return [*copy, *_comment("--", ours), edit.key]
    shipped = (folder / "job_submit.lua").read_text(encoding="utf-8")
    code = [line for line in shipped.splitlines() if not line.startswith("--")]
    first = next(index for index, line in enumerate(code) if LUA_FILE in line)
    return [*copy, *code[:first], edit.key, *code[first + 2 :]]


def _slurm_conf(advised: Advised, edits: list[tuple[Rule, Edit]]) -> list[str]:
    lines: list[str] = []
    for rule, edit in edits:
        if not edit.target:
            before = advised.before.config.get(edit.key, "")
            now = "" if is_nothing(before) else f" (now {before})"
            lines += [*_comment("#", f"{edit.key}{now}: {rule.why}"), edit.text]
    targets = list(dict.fromkeys(edit.target for _, edit in edits if edit.target))
    for target in targets:
        if not target.startswith(PARTITION):
            lines += _list_setting(advised, target, edits)
    for target in targets:
        if target.startswith(PARTITION):
            lines += _partition(advised, target, [(rule, edit) for rule, edit in edits if edit.target == target])
    return lines


def _list_setting(advised: Advised, target: str, edits: list[tuple[Rule, Edit]]) -> list[str]:
    """Return one line with all options of a list, including the site's own."""
    ours = [(rule, edit) for rule, edit in edits if edit.target == target]
    lines = []
    for rule, edit in ours:
        option = f"without {edit.key[1:]}" if edit.key.startswith("-") else edit.text
        lines += _comment("#", f"{option}: {rule.why}")
    text = merged(advised.before.config.get(target, ""), [edit for _, edit in ours])
    return [*lines, f"{target}={text}" if text else f"# (no {target} line at all)"]


def _partition(advised: Advised, target: str, edits: list[tuple[Rule, Edit]]) -> list[str]:
    name, words = target.removeprefix(PARTITION), " ".join(edit.text for _, edit in edits)
    lines = []
    for key, rule in ((edit.key, advised.reason(edit.key, rule)) for rule, edit in edits):
        lines += _comment("#", f"{name} {key}: {rule.why}")
    if not advised.before.has(name):
        return [*lines, f"{target} {words}"]
    # A second line of the same name would keep slurmctld from starting, so this must not be pasted unchanged.
    return [*lines, f"# in the line {target}, set:", f"#+ {words}"]


def _comment(mark: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{mark} ", subsequent_indent=f"{mark} ", break_on_hyphens=False)


def _last_of_each(edits: Iterable[tuple[Rule, Edit]]) -> list[tuple[Rule, Edit]]:
    """Keep the later of two edits of the same place."""
    return list({_place(edit): (rule, edit) for rule, edit in edits}.values())


def _place(edit: Edit) -> tuple[str, ...]:
    """Return the place that an edit sets; edits of the plug-ins' files replace all there, one per file."""
    return (edit.file,) if edit.file in ("plugstack.conf", "job_submit.lua") else (edit.file, edit.target, edit.key)


def _names(wanted: DaemonSettings, configured: DaemonSettings, rules: Iterable[Rule]) -> list[tuple[Rule, Edit]]:
    """Return edits of the daemon's keys for the partitions, if it does not have these names yet."""
    of = {rule.name: rule for rule in rules}
    keys = {"partition": of["harvested partition"], "driver_partition": of["driver partition"]}
    return [
        (rule, Edit("bftd.toml", "[slurm]", key, getattr(wanted, key)))
        for key, rule in keys.items()
        if getattr(wanted, key) != getattr(configured, key) and getattr(wanted, key) not in configured.partitions
    ]


def _with_nodes(site: Site, edit: Edit, nodes: str, driver_nodes: str) -> Edit:
    """Fill in the nodes of a partition, which only the caller or the site can know."""
    if edit.key != "Nodes" or edit.value:
        return edit
    if edit.target == f"{PARTITION}{site.wanted.driver_partition}":
        return replace(edit, value=driver_nodes or _folded(_partitionless(site), "--driver-nodes", "the drivers"))
    own = site.nodes_of(site.wanted.partition) or frozenset(
        node for name in site.regular for node in site.nodes_of(name)
    )
    return replace(edit, value=nodes or _folded(own - site.nodes_of(site.wanted.driver_partition), "--nodes", "pilots"))


def _partitionless(site: Site) -> frozenset[str]:
    used = frozenset(node for name in site.partitions for node in site.nodes_of(name))
    return frozenset(site.node_names) - used


def _folded(nodes: frozenset[str], option: str, whom: str) -> str:
    if not nodes:
        raise NoNodes(f"say which nodes are for {whom}, with {option}: nodes that slurm.conf defines, such as n[1-4]")
    return fold(sorted(nodes))
