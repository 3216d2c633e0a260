"""The alert rules for Prometheus: what each watches, how bad it is, what to do, and series by which it is tried.

`tools.monitoring` writes them into docs/monitoring/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]

_COMMANDS = "sum by (job, instance, command)"
# Of the series that a rule is tried with: those of one daemon, which stands for the rule and the case.
ANY = "@"
_ONE = f'job="bftd", instance="{ANY}"'


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule: `for_` is how long `expr` must hold, `when` and `todo` are for people, `page` leads to more.

    `fault` are series, name with labels and values a minute in promtool's notation, with which it fires at `at_min`;
    `calm` are those with which it does not.
    """

    name: str
    severity: Severity
    expr: str
    for_: str
    summary: str
    todo: str
    page: str
    fault: tuple[tuple[str, str], ...]
    calm: tuple[tuple[str, str], ...]
    at_min: int = 120


def _series(name: str, values: str, **labels: str) -> tuple[str, str]:
    more = "".join(f', {key}="{value}"' for key, value in labels.items())
    return f"{name}{{{_ONE}{more}}}", values


_FREE = _series("bftd_growth_allowed", "1x200")
_WANTED = _series("bftd_wanted_nodes", "4x200")

ALERTS: tuple[Alert, ...] = (
    Alert(
        "BftdDown", "critical", 'up{job="bftd"} == 0', "2m",
        "bftd does not answer",
        "Look at `systemctl status bftd` and `journalctl -u bftd -p warning`. Training goes on, and nodes are given "
        "back, but nothing grows. Where bftd runs, Prometheus may not be let in: see `[web] listen`.",
        "../howto/operate.md#what-can-go-wrong",
        (_series("up", "0x200"),), (_series("up", "1x200"),),
    ),
    Alert(
        "BftdAbsent", "critical", 'absent(up{job="bftd"})', "10m",
        "Prometheus watches no bftd",
        "The scrape job `bftd` is gone from Prometheus's configuration, or finds no target: put it back.",
        "../howto/monitoring.md#setup",
        (), (_series("up", "1x200"),),
    ),
    Alert(
        "BftdRestarts", "warning", 'changes(process_start_time_seconds{job="bftd"}[1h]) > 3', "0m",
        "bftd was started more than three times within an hour",
        "It fails, or systemd's watchdog ends it: `journalctl -u bftd -p warning` says why.",
        "../howto/operate.md#what-can-go-wrong",
        (_series("process_start_time_seconds", "0+0x60 100+100x10 1000x130"),),
        (_series("process_start_time_seconds", "5x200"),), 75,
    ),
    Alert(
        "BftdSnapshotStale", "warning", "bftd_snapshot_age_seconds > 60", "1m",
        "Slurm was not read for {{ $value | humanizeDuration }}",
        "Nothing grows meanwhile. `journalctl -u bftd` says what Slurm answers; try `sinfo` on the daemon's host. A "
        "controller that is restarted is back within a minute.",
        "../howto/operate.md#what-can-go-wrong",
        (_series("bftd_snapshot_age_seconds", "0+60x200"),), (_series("bftd_snapshot_age_seconds", "1x200"),),
    ),
    Alert(
        "BftdSlurmUnreadable", "critical", "bftd_snapshot_age_seconds > 300", "1m",
        "Slurm was not read for {{ $value | humanizeDuration }}",
        "As for BftdSnapshotStale; by now the machine's idle nodes are lost to training. Is slurmctld up, and may "
        "bftd's user ask it?",
        "../howto/operate.md#what-can-go-wrong",
        (_series("bftd_snapshot_age_seconds", "0+60x200"),), (_series("bftd_snapshot_age_seconds", "90x200"),),
    ),
    Alert(
        "BftdSlurmErrors", "warning",
        f"{_COMMANDS} (rate(bftd_slurm_command_errors_total[10m])) > 0.1 * "
        f"{_COMMANDS} (rate(bftd_slurm_command_duration_seconds_count[10m]))",
        "5m",
        "{{ $labels.command }} fails in {{ $value | humanize }} calls a second, more than one in ten",
        "`bftd_slurm_command_errors_total` says how: `unanswered` is a controller under load or away, `failed` has its "
        "reason in the log, `not_run` is a command that is missing on the daemon's host.",
        "../howto/slurm.md#if-it-fails",
        (_series("bftd_slurm_command_errors_total", "0+30x200", command="squeue", outcome="unanswered"),
         _series("bftd_slurm_command_duration_seconds_count", "0+60x200", command="squeue")),
        (_series("bftd_slurm_command_errors_total", "0+1x200", command="squeue", outcome="unanswered"),
         _series("bftd_slurm_command_duration_seconds_count", "0+60x200", command="squeue")),
    ),
    Alert(
        "BftdSlurmSlow", "warning",
        "histogram_quantile(0.9, sum by (job, instance, command, le) "
        "(rate(bftd_slurm_command_duration_seconds_bucket[10m]))) > 2",
        "15m",
        "one call of {{ $labels.command }} in ten takes {{ $value | humanizeDuration }} or more",
        "slurmctld is under load: `sdiag` says from whom. bftd asks less often by itself, and gives back as ever.",
        "slurm.md#what-is-read-and-how-often",
        (_series("bftd_slurm_command_duration_seconds_bucket", "0+1x200", command="squeue", le="2.5"),
         _series("bftd_slurm_command_duration_seconds_bucket", "0+60x200", command="squeue", le="5.0"),
         _series("bftd_slurm_command_duration_seconds_bucket", "0+60x200", command="squeue", le="+Inf")),
        (_series("bftd_slurm_command_duration_seconds_bucket", "0+60x200", command="squeue", le="0.1"),
         _series("bftd_slurm_command_duration_seconds_bucket", "0+60x200", command="squeue", le="+Inf")),
    ),
    Alert(
        "BftdNothingGrows", "warning",
        'bftd_growth_allowed == 0 unless on (job, instance) bftd_growth_blocked{reason=~"paused|hours"} == 1',
        "10m",
        "no trainer may grow, and nobody has said so",
        "`bft status` says why in its first lines, `bftd_growth_blocked` by kind: the partition must not be harvested, "
        "pilots of another bftd run, the ledger or Slurm cannot be used, the delay that regular jobs are promised is "
        "spent.",
        "../howto/operate.md#what-can-go-wrong",
        (_series("bftd_growth_allowed", "0x200"), _series("bftd_growth_blocked", "1x200", reason="partition"),
         _series("bftd_growth_blocked", "0x200", reason="paused")),
        (_series("bftd_growth_allowed", "0x200"), _series("bftd_growth_blocked", "1x200", reason="paused")),
    ),
    Alert(
        "BftdPausedLong", "info", 'bftd_pauses{kind="all"} > 0', "24h",
        "everything is paused for more than a day",
        "`bft status` says who paused it and why; `bft unpause` lifts it.",
        "../howto/operate.md#pause-and-unpause",
        (_series("bftd_pauses", "1x1600", kind="all"),), (_series("bftd_pauses", "0x1600", kind="all"),), 1500,
    ),
    Alert(
        "BftdIdleThoughWanted", "info",
        'sum by (job, instance) (bftd_nodes{state="idle"}) > 0 and on (job, instance) bftd_wanted_nodes > 0 '
        "and on (job, instance) bftd_growth_allowed == 1",
        "1h",
        "{{ $value }} nodes of the pool are idle though trainers could use more",
        "`bft explain JOB` says why a trainer does not take them: too few for its least size, another class, a limit "
        "of its user's, or not worth the stall.",
        "../howto/limits.md",
        (_series("bftd_nodes", "3x200", state="idle", node_class="a100x4"), _WANTED, _FREE),
        (_series("bftd_nodes", "3x200", state="idle", node_class="a100x4"),
         _series("bftd_wanted_nodes", "0x200"), _FREE),
    ),
    Alert(
        "BftdGiveBackOverdue", "critical",
        "bftd_overdue_nodes > 0 or increase(bftd_give_backs_overdue_total[5m]) > 0", "0m",
        "a node was asked back and was still held when give_back_bound_s was over",
        "`bft status` names it, or the log. The daemon has cancelled its pilot already; a node that stays has a "
        "process that cannot be killed, or a slurmd that does not answer. A regular job may be waiting for it.",
        "../howto/operate.md#what-can-go-wrong",
        (_series("bftd_overdue_nodes", "0x60 1x140"),), (_series("bftd_overdue_nodes", "0x200"),),
    ),
    Alert(
        "BftdGiveBackSlow", "warning",
        "increase(bftd_give_backs_late_total[1h]) > 0.01 * increase(bftd_give_back_duration_seconds_count[1h])",
        "0m",
        "the 99th percentile of give-backs is above give_back_bound_s",
        "More than one in a hundred nodes came back late within the hour. `bft history --events` names them: look for "
        "nodes that are always the same, and at Epilog and UnkillableStepTimeout.",
        "../evidence/benchmarks.md#giving-nodes-back-and-resizes",
        (_series("bftd_give_backs_late_total", "0+1x200"),
         _series("bftd_give_back_duration_seconds_count", "0+10x200")),
        (_series("bftd_give_backs_late_total", "0x200"),
         _series("bftd_give_back_duration_seconds_count", "0+10x200")),
    ),
    Alert(
        "BftdLedgerNotWritten", "critical", "bftd_ledger_writable == 0", "1m",
        "the ledger cannot be written",
        "Nothing grows until it can; nothing is lost while the daemon runs. `bft status` says why: mostly a full disk.",
        "../howto/history.md#write-failures",
        (_series("bftd_ledger_writable", "0x200"),), (_series("bftd_ledger_writable", "1x200"),),
    ),
    Alert(
        "BftdLedgerFull", "warning", "bftd_ledger_full == 1 or bftd_ledger_size_bytes > 0.9 * bftd_ledger_max_bytes",
        "10m",
        "the ledger has reached the size that it may have, or nearly so",
        "Its oldest events go first, so that `bft explain` and `bft history` reach less far back. Raise `[ledger] "
        "max_bytes`, if the disk has space.",
        "../howto/history.md#retention",
        (_series("bftd_ledger_full", "0x200"), _series("bftd_ledger_size_bytes", "95x200"),
         _series("bftd_ledger_max_bytes", "100x200")),
        (_series("bftd_ledger_full", "0x200"), _series("bftd_ledger_size_bytes", "50x200"),
         _series("bftd_ledger_max_bytes", "100x200")),
    ),
    Alert(
        "BftdOrphanJobs", "warning", "bftd_orphan_jobs > 0", "15m",
        "no lease stands behind {{ $value }} jobs of the harvested partitions",
        "`bft status` names jobs and users: somebody goes round the daemon, or a driver misbehaves. `[slurm] operator` "
        "has bftd end them.",
        "../howto/limits.md#jobs-without-a-lease",
        (_series("bftd_orphan_jobs", "1x200"),), (_series("bftd_orphan_jobs", "0x200"),),
    ),
    Alert(
        "BftdQuarantineGrows", "warning",
        "delta(bftd_quarantined_nodes[1h]) >= 3 or "
        "bftd_quarantined_nodes > on (job, instance) 0.02 * sum by (job, instance) (bftd_nodes)",
        "5m",
        "workers fail on ever more nodes",
        "`bft nodes` lists those in quarantine, the drivers' logs what failed. Many at once mean a broken driver, "
        "image or file server rather than broken nodes.",
        "../howto/operate.md#what-can-go-wrong",
        (_series("bftd_quarantined_nodes", "0x60 0+1x140"),
         _series("bftd_nodes", "1000x200", state="idle", node_class="a100x4")),
        (_series("bftd_quarantined_nodes", "2x200"),
         _series("bftd_nodes", "1000x200", state="idle", node_class="a100x4")),
    ),
    Alert(
        "BftdEarmarksWasted", "warning", "bftd_earmarks_wary > 0", "15m",
        "too many of the nodes that were earmarked for waiting jobs led to no start",
        "Nodes are earmarked only for users whose jobs start there; the others preempt. The daemon's log has a line "
        "for each earmark and how it ended: see whether these jobs wait for licences or switches, whether one user "
        "takes his back again and again, and by `sdiag` whether backfill cycles come so far.",
        "earmarks.md#jobs-that-do-not-start",
        (_series("bftd_earmarks_wary", "0x60 1x140"),), (_series("bftd_earmarks_wary", "0x60 1x5 0x135"),),
    ),
    Alert(
        "BftdDriverSilent", "warning", "bftd_silent_drivers > 0", "5m",
        "nothing is heard of the drivers of {{ $value }} trainers",
        "`bft status` names them. They get no more nodes; their service node may be down, or cut off from the daemon.",
        "../howto/limits.md#drivers-that-hang-or-lie",
        (_series("bftd_silent_drivers", "1x200"),), (_series("bftd_silent_drivers", "0x200"),),
    ),
    Alert(
        "BftdTrainingLow", "warning",
        'bftd_training_ratio{window="1h"} < 0.5 and on (job, instance) bftd_wanted_nodes > 0 '
        "and on (job, instance) bftd_growth_allowed == 1",
        "1h",
        "only {{ $value | humanizePercentage }} of the pool's node-seconds of the last hour were training, though "
        "trainers could use more",
        "Where `bftd_held_ratio` is low as well, nodes are not lent: `bft explain JOB` of those that wait. Where it is "
        "high, trainers hold nodes that start or are resized: `bft tune` tells what another `t_fwd_s` would have "
        "brought. A pool that changes all the time earns less.",
        "../howto/replay.md",
        (_series("bftd_training_ratio", "0.2x200", window="1h"), _WANTED, _FREE),
        (_series("bftd_training_ratio", "0.2x200", window="1h"), _series("bftd_wanted_nodes", "0x200"), _FREE),
    ),
    Alert(
        "BftdEfficiencyLow", "info", 'bftd_u_ratio{window="24h"} < 0.6', "1h",
        "U of the last day is {{ $value | humanizePercentage }}",
        "Trainers lose more than usual to stalls and lost steps: `bftd_resize_stall_seconds` and `bft explain JOB` say "
        "whose. A larger `t_fwd_s` resizes less often.",
        "../evidence/paper.md",
        (_series("bftd_u_ratio", "0.4x200", window="24h"),), (_series("bftd_u_ratio", "0.8x200", window="24h"),),
    ),
    Alert(
        "BftdDelayBudgetSpent", "critical", 'bftd_alarms{kind="delay"} > 0', "0m",
        "pilots have delayed regular jobs by more than delay_s_per_hour allows",
        "Nothing new is lent until the last hour has less. `bft history --events` has the starts that pilots touched "
        "(`regular_start`): a few long delays are lock-outs or pilots that do not leave, many short ones a budget that "
        "is too small for the site.",
        "../howto/operate.md#the-delay-that-a-site-promises",
        (_series("bftd_alarms", "1x200", kind="delay"),), (_series("bftd_alarms", "0x200", kind="delay"),),
    ),
    Alert(
        "BftdSolverFails", "critical", 'bftd_alarms{kind="no_plan"} > 0', "1m",
        "no solver can make a plan",
        "The trainers go on with the nodes that they have. `bft status` and the log say what failed.",
        "solvers.md#solvers-that-fail",
        (_series("bftd_alarms", "1x200", kind="no_plan"),), (_series("bftd_alarms", "0x200", kind="no_plan"),),
    ),
    Alert(
        "BftdSolverReplaced", "warning", 'bftd_alarms{kind="solver"} > 0', "5m",
        "the solver that bftd is to use fails",
        "Nodes are lent all the same: `bft status` says why it fails and which solver solves in its place. "
        "`bftd --check-config` tries it once; `systemctl reload bftd` has it tried at once.",
        "solvers.md#solvers-that-fail",
        (_series("bftd_alarms", "1x200", kind="solver"),), (_series("bftd_alarms", "0x200", kind="solver"),),
    ),
    Alert(
        "BftdSolverDistrusted", "info", "increase(bftd_solver_distrusted_total[1h]) > 0", "0m",
        "{{ $labels.engine }} says of solutions that they are worth what they are not",
        "The plans are right, since its word is not believed, but take longer. Install another release of it.",
        "solvers.md#engines-are-not-believed",
        (_series("bftd_solver_distrusted_total", "0+1x200", engine="highs"),),
        (_series("bftd_solver_distrusted_total", "1x200", engine="highs"),),
    ),
    Alert(
        "BftdTickSlow", "warning",
        "histogram_quantile(0.9, sum by (job, instance, le) (rate(bftd_tick_duration_seconds_bucket[10m]))) > 1",
        "15m",
        "bftd itself takes {{ $value | humanizeDuration }} to take in a snapshot",
        "Its host is overloaded, or the solver is one that cannot keep up: compare `bftd_solve_duration_seconds` with "
        "`bftd_decision_duration_seconds`.",
        "../evidence/benchmarks.md#a-large-cluster",
        (_series("bftd_tick_duration_seconds_bucket", "0+1x200", le="1.0"),
         _series("bftd_tick_duration_seconds_bucket", "0+60x200", le="2.5"),
         _series("bftd_tick_duration_seconds_bucket", "0+60x200", le="+Inf")),
        (_series("bftd_tick_duration_seconds_bucket", "0+60x200", le="0.1"),
         _series("bftd_tick_duration_seconds_bucket", "0+60x200", le="+Inf")),
    ),
    Alert(
        "BftdPluginStale", "critical", 'bftd_alarms{kind="plugin"} > 0', "1m",
        "Slurm does not load bftd's SPANK plug-in, and every sbatch of the host prints an error",
        "Slurm was upgraded, or the file is gone. `bft site plugin --off` takes its line out of plugstack.conf on "
        "every host that has it; then build the plug-in again.",
        "../howto/install.md#upgrading-slurm",
        (_series("bftd_alarms", "1x200", kind="plugin"),), (_series("bftd_alarms", "0x200", kind="plugin"),),
    ),
    Alert(
        "BftdAlarm", "critical", 'bftd_alarms{kind!~"overdue|no_plan|solver|plugin|delay"} > 0', "0m",
        "bftd has raised an alarm of the kind {{ $labels.kind }}",
        "`bft status` has its sentence: operator mode has stopped itself, or pilots of another bftd run in the "
        "partition. It stays until a reload.",
        "../howto/operate.md#two-daemons",
        (_series("bftd_alarms", "1x200", kind="operator"),), (_series("bftd_alarms", "0x200", kind="operator"),),
    ),
)  # fmt: skip
