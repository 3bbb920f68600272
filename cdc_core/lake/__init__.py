"""Iceberg targets: a mirror of each logical table, and what is needed to keep it right.

    mirror      `ns.t`: the present rows, each with the version of its last change (`_cdc_version`)
    tombstones  `ns.t__deleted`: the version of each key that was deleted; a row without a key stands for a TRUNCATE
    changes     `ns.t__changes`, by a table's rule: every change, once

By a table's rule, deleted rows stay in the mirror and say that they are deleted. They are their keys' tombstones.

The first two belong together: what a mirror shows is safe from older changes by its tombstones alone. All are keyed
tables: sorted files, position deletes (one file at most for each data file), no equality deletes. A run finds the rows
that it concerns (held_rows), classifies its winners (mirror), writes files (data_files), and makes one snapshot of each
table on a branch (snapshots). Readers see nothing of it before all tables are published together (publication).
"""
