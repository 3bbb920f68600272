"""Copies of existing rows, read beside the stream and staged as claims.

A claim says: at `low` or later, the rows of a table within a range of keys were these. Its rows are staged with the op
`r` and an order key just before `low`, so whatever the log brings from `low` on is newer, and whatever it brought
before is older. Claims and the stream may therefore be applied in any order. A value may be newer than its order key
says, because the row changed between `low` and the read; the log then brings that change before `high`. So a claim is
staged only once the chain of manifests has reached `high`.

`watermarks` finds low and high, `key_ranges` and `chunks` cut a table into ranges, `copier` reads them from a
`read_source`, and `staging` makes batches of them.
"""
