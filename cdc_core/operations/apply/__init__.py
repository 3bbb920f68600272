"""The apply side: which batches a run takes, whether a change may be applied, and the account of what happened.

`plan` begins a run and `commit` ends it, `replay` plans a selection again. What is between them is in spark_jobs, and
`operations/pipeline_run.py` calls one after the other.
"""
