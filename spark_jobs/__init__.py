"""The heavy work between staged files and targets, on Spark: one thin entry point per task of a run."""
