"""Gives a pipeline's target a new layout, such as 16 x 16 shards in place of 8 x 8.

layout         a target with another number of shards, made from one that exists
pipeline_file  a target added to the text of a pipeline file, and let into the scheduled runs
base           whether everything that a new target needs is staged
fill           runs that apply the staged history to the new target, some batches at a time
successors     after a cutover: the pipeline whose sources are the former shards

Before a cutover the rows come from the stage alone. Afterwards the application writes to the shards, so that they are
the sources of another pipeline.
"""
