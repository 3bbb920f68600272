"""The terms of the page, each with its meaning: shown where a term is used, and as a list at the page's end."""

from __future__ import annotations

TERMS = {
    "lag": "Time since the moment up to which all changes are staged. An idle source has no lag.",
    "complete up to": "Every change committed before this time is staged (the watermark).",
    "to commit": "Staged batches and rows that a target has not committed yet.",
    "window": "An interval of the pipeline's schedule. Each batch belongs to exactly one.",
    "batch": "A range of the source's log, made of whole transactions, staged in one step.",
    "epoch": "A number that grows with each new reader of a source. Writes of an earlier reader are refused.",
    "in the ring": "Changes in memory, between the source's log and the staged files.",
    "position": "Where the staged history ends in the source's binary log.",
    "log kept": "How long the source will keep the changes that are not extracted yet, before it purges them.",
    "late": "Intervals of the schedule that are over but not complete. The latest does not count; it may be running.",
    "partial": "The staged files lack rows of the table, such as those from before the pipeline started.",
    "verification": "A comparison of a target with the sources, as of places of their logs. Only the mode ordered "
    "compares every row and proves that they are equal; the evidence is on the stage.",
    "cutover": "The switch of an application from the sources to a target. Until the switch command is called, every "
    "error leads back to where it began.",
    "way back": "The pipeline that carries what the application writes after the switch to the old tables.",
    "existing rows": "Rows that a table had before it was captured. A copy brings them; the log has only changes.",
    "staged": "Changes that the run read from the staged files.",
    "key changes": "Updates that changed a row's key. Each counts as a delete and an insert.",
    "winners": "The last change of each key in the run: the changes to apply.",
    "superseded": "Changes that a later change of the same key in the same run makes unnecessary.",
    "written": "Winners that were written to the target.",
    "equal": "Written winners that the target already had, in the same version.",
    "stale": "Winners older than the row in the target. They are not written.",
    "absent": "Deletes of rows that the target does not have.",
    "quarantined": "Rows that the target rejected, set aside with the reason.",
    "adds up": "Staged and key changes = winners + superseded; winners = written + stale + absent + quarantined.",
    "from window to commit": "Time from the end of a run's window to its commit.",
}
