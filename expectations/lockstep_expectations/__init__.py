"""What staged, merged and target rows must be like, as Great Expectations suites: one module per stage.

Each suite runs over one narrow frame that holds the rows of all tables of a run, so that its cost does not grow with
the number of tables. Severity `critical` (the default) fails the run; `warning` is only reported.
"""
