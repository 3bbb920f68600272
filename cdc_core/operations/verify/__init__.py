"""Verification: source and target proven equal, beside running writes, without a stop or a long read view.

The rows of the source are read chunk by chunk, each in a short view of its own, and pass the pipeline's own rules; the
rows of the target are read beside them. Both become canonical texts, of which hashes are compared. A key whose rows
differ is not a finding yet: the stage has every change of it, with its place in the log. A source row is right if it is
the key's state at `low` or after any change between `low` and `high` of its read; a target row is right if it is the
state that the consumed batches leave, or the state after any change that the target has not consumed yet. So a lag is
never a difference. What is neither is a finding, and the stage, the third corner, says which side is wrong. Of rows
that are equal the stage is not asked: it may still have a row that both sides have lost without a trace in the log.

`canonical` makes texts of rows; `columnwise`, `range_rows` and `comparison` compare them, and `judgement` judges those
that differ. `source_rows`, `target_rows` or `lake_rows`, and `staged_history` read the three corners; `staged_batches`
waits for the third. `table` joins them for the ranges of one table; `counting` is for the modes that only count.
`verify_job` is what a verification works with, `results` what it finds, `verify_progress` what a killed one leaves, and
`evidence` what was proven. `verifier` is the function to call.
"""
