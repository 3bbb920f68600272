"""What tests share. `lab.Lab` is a pipeline on real servers, `pipeline_file` its text, `origin.Origin` a database of a
source. `made_batches`, `made_blocks` and `made_line` stand in for what comes before meta, stage and runs, and
`target_rows.Table` is a table to write to. `forked_commands` runs the command line. The `hostile_*` servers mean harm.
"""
