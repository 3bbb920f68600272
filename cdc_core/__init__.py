"""Lockstep's core: change data capture from MySQL and MariaDB binlogs to staged Parquet and guarded targets.

It knows neither Airflow nor Spark. Imports point one way: docs/architecture.md says which package may import which.
`import lockstep` is the public API; the modules of this package may change with any version.
"""
