"""Erasure of rows by their keys: from staged files, from what was made of them, from lakes, and from the bookkeeping of
targets.

`erased_keys` knows which changes are about the keys. Each of the others has the places of one kind, finds the rows
there, and removes them: `erase_staged` (batches, copied rows, compacted ranges), `erase_derived` (files of runs,
evidence), `erase_traces` (tombstones in targets), `erase_lake`; `erased_places` asks all of them. `erasable` has what
must be true before, and `forgetting` the order of the steps.
"""
