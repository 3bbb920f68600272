"""Repair: rows that a verification found to differ are looked up in the source again, staged, applied and verified.

A finding becomes a claim about single rows (`CopiedChunk.by_key`): rows that the source has are staged as copied rows
(op `r`), keys that it does not have as deletes, both at the order key just before `low` of the look-up. So whatever the
log brings from `low` on is newer, in any order of batches and replays. An ordinary run applies the batch, under the
guard and with its ledger. The claim says nothing of other rows: the coverage of the table stays as it was, and rows
that were not named keep their versions.

`repaired_keys` says which keys of which tables, `claims` looks them up and stages them, `held` (or `held_in_lake`) asks
a target what it has under a key, `held` removes what the route of a row does not lead to, `repairer` joins them:
`repair` is the function to call, by the command and by a DAG.
"""
