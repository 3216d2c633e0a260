"""Counts of unclear data met while a trace is made, and the sentences that report them.

No unclear case is settled without being counted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

# name -> sentence; {} is the count
SENTENCES = {
    "gaps": "{} gaps in which nothing was known: no node counts as idle there",
    "gap_s": "{} s of gaps altogether",
    "jobs": "{} job-node pairs",
    "steps_ignored": "{} job steps were ignored: the job's own row tells when it had its nodes",
    "jobs_never_started": "{} jobs never started",
    "jobs_without_nodes": "{} jobs ran on nodes that the file does not name: those nodes may look idle",
    "jobs_still_running": "{} jobs without an end count as running until the end of the trace "
    "(sacctmgr show runawayjobs finds false ones)",
    "ends_unknown": "{} jobs are over, but without an end: their nodes count as busy until the end of the trace",
    "ends_before_start": "{} jobs end before they start and were ignored: their nodes may look idle",
    "jobs_suspended": "{} jobs were suspended: their nodes count as busy all the same",
    "jobs_ignored": "{} jobs of the ignored partitions do not count as use",
    "duplicates_dropped": "{} rows are there twice and were counted once",
    "rows_superseded": "{} rows tell another end of a job than others: a known end counts, else the later one",
    "ambiguous_times": "{} times lie in the hour that a change of clocks repeats: jobs count as longer there",
    "node_counts_differ": "{} jobs have another number of nodes than their list of nodes",
    "nodes_not_listed": "{} nodes of jobs are not in the node list and were left out: if they were taken away since, "
    "their idle time is missing",
    "nodes_cut_by_record": "{} nodes were not part of the cluster all the time, by slurmdbd's own record of its nodes: "
    "they are not idle while they were not",
    "nodes_cut_at_first": "{} nodes have no job or event in the first day or longer: they count as installed at their "
    "first one (--events with ClusterNodes tells for sure)",
    "nodes_cut_at_last": "{} nodes of jobs are not in the cluster today: they count as taken away at the end of their "
    "last job or event",
    "overlapping_jobs": "{} times a job came to a node that had a job already: it is idle when the last one has gone",
    "node_events": "{} periods in which a node was down or drained: it is not idle then",
    "reservations": "{} reservations: their nodes are not idle then",
    "short_idle_dropped": "{} idle periods were too short and were dropped",
    "idle_throughout": "{} nodes were idle all the time: are they down, or not for jobs at all? (--events, --nodes)",
    "longest_silence_s": "{} s is the longest time without a start or end of a job: is it a hole in the accounting?",
    "pilots_idle": "{} times a node with one of bftd's own pilots counted as idle",
    "resumed": "{} times the recording was taken up again",
}


def notes(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield one sentence for each count that is not 0, in the order above; unknown counts come by their name."""
    for name, sentence in SENTENCES.items():
        if count := counts.get(name, 0):
            yield sentence.format(f"{count:,}")
    for name, count in counts.items():
        if name not in SENTENCES and count:
            yield f"{name}: {count:,}"
