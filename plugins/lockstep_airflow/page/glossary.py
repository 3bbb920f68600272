"""The terms of the page, each with its meaning: shown where a term is used, and as a list at the page's end."""

from __future__ import annotations

TERMS = {
    "lag": "Time since the moment up to which every change is staged. An idle source has no lag.",
    "complete to": "Every change that was committed before this time is staged (the watermark).",
    "to commit": "Staged batches, and their rows, that a target has not committed yet.",
    "window": "An interval of the pipeline's schedule. Each batch belongs to one.",
    "batch": "A stretch of the source's log, whole transactions only, staged in one step.",
    "epoch": "Grows with each new reader of a source; what an older one still sends is refused.",
    "in the ring": "Changes in the reader's memory, between the log and the files.",
    "position": "Where in the source's binary log the staged history ends.",
    "log kept": "How long the source still has the changes that are not extracted yet, before it purges them.",
    "late": "Intervals of the schedule that ended and are not complete, not counting the latest, which may be at work.",
    "partial": "Rows of the table are missing in the staged files, such as those from before the pipeline began.",
    "staged": "Changes that the run took from the files.",
    "key changes": "Updates that changed a row's key: each counts as a removal and an insertion.",
    "winners": "The last change of each key in the run: what has to be applied.",
    "superseded": "Changes after which a later one of the same key came in the same run.",
    "written": "Winners that the target took.",
    "equal": "Of those written: rows that the target had already, in the same version.",
    "stale": "Winners that are older than the row that the target has; they are not applied.",
    "absent": "Deletions of rows that the target does not have.",
    "quarantined": "Rows that the target does not take, set aside with the reason.",
    "adds up": "Staged and key changes = winners + superseded; winners = written + stale + absent + quarantined.",
    "from window to commit": "Time from the end of a run's window to its commit.",
}
