"""Lockstep's core: change data capture from MySQL and MariaDB binlogs to staged Parquet and guarded targets.

It knows neither Airflow nor Spark. Imports point one way:
errors <- model <- config <- {binlog, sink, ring, stage, meta, apply, target} <- source <- extract <- cli.
"""
