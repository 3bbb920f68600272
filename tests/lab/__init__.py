"""What tests share. `lab.Lab` is a pipeline on real servers, `pipeline_file` its text, `origin.Origin` a database of a
source; `copying` copies a lab's tables, and `verified.Verified` is a lab with a target. `made_batches`, `made_blocks`
and `made_line` stand in for what comes before meta, stage and runs, `made_stages` writes real files of a stage, and
`target_rows.Table` is a table to write to.
`forked_commands` runs the command line. The `hostile_*` servers mean harm.
"""
