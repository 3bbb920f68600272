"""The heavy work between staged files and targets, on Spark: one small entry point per task of a run."""
