"""The page: the gain of a centre, then the sections of each site, then how the page was made."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from bftd.base.errors import UsageError
from bftd.base.format import decimal, duration, percent
from bftd.simulation.report import price
from bftd.simulation.report.html import Content, document, shown, table, tag
from bftd.simulation.report.model import Case, Provenance, Replayed
from bftd.simulation.report.sections import compared, policy_name, sections
from bftd.simulation.report.style import CSS

# Medians of `benchmarks.give_back` and figures of `benchmarks.impact` with Slurm's default settings, as the results in
# benchmarks/results have them.
START_IDLE_S, START_HARVESTED_S = 0.14, 0.61
START_PREEMPTED_S, CHANCE_S = 0.20, 78
SLOTS_LOST, SLOTS = 2, 71

# The meaning of the page's words and figures, and its limits.
_METHOD = (
    "The trace says which nodes no job held, and when. It is replayed through the very code that decides in bftd's "
    "daemon, with simulated trainers that earn samples at the speed their scaling curves give, stand still for their "
    "rescale costs, and lose nodes the moment the trace says that a job takes them.",
    "U = A_e / A_s: A_e is what the trainers earned, A_s what as many trainers at once would earn on N_eq dedicated "
    "nodes, the mean number of idle ones, with the best allocation and no costs. Where networks are mixed, U may "
    "exceed 100%: their samples count alike, and which of them are trained when is not the same there.",
    "Node-hours recovered count the same work by what it takes of a dedicated node, each trainer at the size at which "
    "it makes the most of one. They can be compared between any two settings, as U cannot. Where networks are mixed, "
    "their share of the idle node-hours is another figure than U.",
    "Equal share gives each trainer as many nodes as any other. Rigid jobs are what centres run in a preemptible "
    "partition today: all of one size, the best power of two unless one was given, at most pj_max at once, killed as a "
    "whole when one node goes, and resumed from their last checkpoint.",
    "Where there is a log of jobs, a simulated slurmctld runs them again many times, with bftd and without, each time "
    "with another phase of backfill: a course. Two jobs that swap nodes within a second lead to another course, so "
    "single jobs and single courses tell little. Jobs have whole nodes there, and Slurm's settings are those that the "
    "log tells, else its defaults. Where the simulation does not reproduce the waits of the log, no price is given.",
    "What regular jobs pay is not part of a replay: the trace is played as it was recorded, and no regular job in it "
    "starts later. It was measured on private clusters instead. Without a queue, a job of 4 nodes started "
    f"{START_HARVESTED_S} s after its submission where all 8 nodes were harvested, and after {START_IDLE_S} s where "
    "they were idle (medians of python -m benchmarks.give_back). In streams of jobs on 16 nodes with Slurm's default "
    f"settings, a job started {START_PREEMPTED_S} s after Slurm preempted pilots for it, {SLOTS_LOST} of {SLOTS} lost "
    f"its slot, and a difference of mean waits below {CHANCE_S} s cannot be told from chance "
    "(python -m benchmarks.impact).",
)
_TITLE = "What would my centre gain?"


def page(cases: Sequence[Case], provenance: Provenance) -> bytes:
    """Return the report as one HTML file that needs nothing else; the same arguments give the same bytes."""
    if not cases:
        raise UsageError("there is nothing to report: name a trace or a stored result")
    several = len(cases) > 1
    names = ", ".join(shown(case.name) for case in cases)
    header = tag("header", tag("h1", _TITLE), tag("p", f"Idle nodes of {names}, put to work by bftd", class_="subtle"))
    overview: list[Content] = [tag("section", _overview(cases), id="overview")] if several else []
    articles = [_article(case, f"s{number}-" if several else "", several) for number, case in enumerate(cases, start=1)]
    main = tag("main", header, *overview, *articles, _method(), _made(cases, provenance))
    return document(f"{_TITLE} {names}", CSS, main)


def _article(case: Case, prefix: str, several: bool) -> Element:
    level = "h3" if several else "h2"
    name = [tag("h2", shown(case.name))] if several else []
    parts = [
        tag("section", tag(level, heading, id=f"{key}-h"), *content, id=key, aria_labelledby=f"{key}-h")
        for key, heading, content in sections(case, prefix)
    ]
    return tag("article", *name, tag("section", *_summary(case), id=f"{prefix}summary"), *parts)


def _summary(case: Case) -> list[Content]:
    """Return the summary at the top."""
    notes = [tag("p", note, class_="subtle") for note in case.notes]
    main = case.main
    if main is None:
        sentence = (
            _expected_text(case)
            or _price_text(case)
            or "No replay of bftd's own policy was given, so there is nothing to tell of it."
        )
        return [tag("p", sentence, class_="lead"), *_cards(case), *notes]
    nodes = int(main.data["run"]["inputs"]["trace"]["nodes"])
    idle = decimal(float(main.data["eq_nodes"]))
    start = f"For {duration(main.duration_s)}, {idle} of {nodes:,} nodes stood idle on average. bftd would have "
    lead = tag("p", start, *_gain(case, main), class_="lead")
    sentence = _expected_text(case)
    return [lead, *_cards(case), *([tag("p", sentence)] if sentence else []), *notes]


def _gain(case: Case, main: Replayed) -> list[Content]:
    weekly = case.recovered_per_week
    if weekly is None:
        share = tag("strong", f"{percent(main.efficiency)} of the training")
        return ["done on them ", share, " that the same trainers do on as many dedicated nodes."]
    share = tag("strong", f"{percent(weekly / main.idle_per_week)} of that time into training")
    return ["turned ", share, ", beside the regular queue."]


def _cards(case: Case) -> list[Content]:
    main, weekly = case.main, case.recovered_per_week
    cards: list[tuple[str, str, str]] = []
    if weekly is not None:
        idle = f" of {main.idle_per_week:,.0f} that stood idle" if main is not None else ""
        of = f"recovered{idle}: what the same work takes on dedicated nodes"
        cards.append(("Node-hours a week", f"{weekly:,.0f}", of))
    elif main is not None:
        cards.append(("Idle node-hours a week", f"{main.idle_per_week:,.0f}", "which the regular queue left over"))
    if main is not None:
        others = ", ".join(f"{percent(each.efficiency)} with {policy_name(each)}" for each in compared(case)[1:])
        of = "of the samples that as many dedicated nodes make"
        cards.append(("Efficiency U", percent(main.efficiency), f"{of}; {others}" if others else of))
    if case.price is not None and case.price.waits:
        wait = case.price.waits[0]
        of = f"of {duration(wait.of_s)}, simulated with the site's own jobs; by chance up to {duration(wait.null_s)}"
        cards.append(("The mean wait changes by", price.relative(wait.mean_s, wait), of))
        return [_dl(cards)]
    paid = (
        f"{START_HARVESTED_S} s against {START_IDLE_S} s on a private cluster of 8 nodes without a queue (python -m "
        "benchmarks.give_back); not part of this replay. Behind a queue it is more, see How to read this"
    )
    cards.append(("A regular job starts later by", f"{START_HARVESTED_S - START_IDLE_S:.2f}\u202fs", paid))
    return [_dl(cards)]


def _dl(cards: Sequence[tuple[str, str, str]]) -> Element:
    made = [tag("div", tag("dt", what), tag("dd", value), tag("dd", of, class_="of")) for what, value, of in cards]
    return tag("dl", *made, class_="cards")


def _price_text(case: Case) -> str:
    """Return what only a log of jobs tells in a sentence, "" without one."""
    if case.price is None:
        return ""
    weekly = f"{case.price.node_hours_per_week:,.0f} node-hours a week"
    harvest = "" if case.price.why_not else f"bftd would harvest {weekly}. "
    return f"{harvest}{shown(case.price.sentence())}"


def _expected_text(case: Case) -> str:
    """Return the range of the weekly figure in one sentence, or "" if there is nothing to add."""
    expected = case.expected
    if expected is None:
        return ""
    setting = f"t_fwd {expected.t_fwd_s:g} s and pj_max {expected.pj_max}"
    weekly = f"{expected.node_hours_per_week:,.0f} node-hours recovered a week"
    start = (
        f"bft advise recommends {setting}, and expects {weekly}" if case.recommended else f"With {setting}, {weekly}"
    )
    if expected.low is None or expected.high is None or expected.confidence is None:
        return f"{start}; the trace is too short to tell how much weeks differ." if case.recommended else ""
    return (
        f"{start}: {expected.low:,.0f} to {expected.high:,.0f} with {percent(expected.confidence)} confidence, "
        "judging by how much the days of the trace differ."
    )


def _overview(cases: Sequence[Case]) -> Element:
    rows = []
    for case in cases:
        shown_name, main, weekly = shown(case.name), case.main, case.recovered_per_week
        recovered = f"{weekly:,.0f}" if weekly is not None else "-"
        if main is not None:
            equal = [each for each in compared(case)[1:] if each.policy == "equal-share"]
            rows.append(
                (shown_name, decimal(float(main.data["eq_nodes"])), percent(main.efficiency),
                 percent(equal[0].efficiency) if equal else "-", recovered)
            )  # fmt: skip
        else:
            rows.append((shown_name, "-", "-", "-", recovered))
    return table(("", "idle nodes", "U", "equal share", "node-hours a week"), rows)


def _method() -> Element:
    return tag(
        "section",
        tag("h2", "How to read this", id="method-h"),
        *(tag("p", text) for text in _METHOD),
        id="method",
        aria_labelledby="method-h",
    )


def _made(cases: Sequence[Case], provenance: Provenance) -> Element:
    rows = [
        (shown(case.name), policy_name(each), f"{each.arguments['t_fwd_s']:g} s", f"{each.arguments['pj_max']}",
         percent(each.efficiency, 2))
        for case in cases
        for each in case.replays
    ]  # fmt: skip
    inputs = [
        tag("dd", tag("code", shown(path)), f" ({what}) SHA-256 ", tag("code", digest))
        for path, what, digest in provenance.inputs
    ]
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions.items())
    described = tag(
        "dl",
        tag("dt", "Command"),
        tag("dd", tag("code", shown(provenance.command))),
        tag("dt", "Versions"),
        tag("dd", versions),
        tag("dt", "Inputs"),
        *inputs,
        tag("dt", "Settings"),
        *(tag("dd", setting) for setting in _settings(cases)),
        class_="made",
    )
    replays = table(("Trace", "policy", "t_fwd", "pj_max", "U"), rows) if rows else tag("p", "No replay was made.")
    folded = tag("details", tag("summary", f"All {len(rows)} replays"), replays)
    return tag(
        "section",
        tag("h2", "How this page was made", id="made-h"),
        described,
        folded,
        id="made",
        aria_labelledby="made-h",
    )


def _settings(cases: Sequence[Case]) -> list[str]:
    """Return the arguments of the main replays that are not in the table, each set once."""
    settings = []
    for case in cases:
        if case.main is not None:
            arguments = case.main.arguments
            flat = [
                f"{key} {value}"
                for key, value in arguments.items()
                if value is not None and not isinstance(value, dict)
            ]
            mends = arguments.get("mends") or {}
            settings.append(", ".join([*flat, *(f"{key} {value}" for key, value in mends.items())]))
    return list(dict.fromkeys(shown(text) for text in settings)) or ["those of the stored results"]
