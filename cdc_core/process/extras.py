"""Optional parts of an installation, as pyproject.toml names them: who needs one that is missing says which.

lockstep-cdc                reads, stages and shows: extract, check, stage, status, the Python API
lockstep-cdc[s3]            a stage in a bucket
lockstep-cdc[postgres]      a meta database on PostgreSQL
lockstep-cdc[pandas]        rows as DataFrames of pandas
lockstep-cdc[polars]        rows as DataFrames of Polars
lockstep-cdc[spark]         the jobs that apply what is staged
lockstep-cdc[connect]       the same at a Spark Connect endpoint
lockstep-cdc[lake]          targets of Iceberg tables
lockstep-cdc[quality]       their checks, with Great Expectations
lockstep-cdc[airflow]       the DAGs, the sensor and the page
lockstep-cdc[openlineage]   what they emit for OpenLineage
"""

from __future__ import annotations

import importlib.util

from cdc_core.errors import UsageError

_MODULES = {
    "airflow": "airflow",
    "connect": "zstandard",
    "lake": "pyiceberg",
    "pandas": "pandas",
    "polars": "polars",
    "quality": "great_expectations",
    "s3": "boto3",
    "spark": "pyspark",
}
"""The module that shows whether an extra is installed."""


def require(*extras: str, by: str) -> None:
    """by: what needs them, in words for people. Raises UsageError (install.missing)."""
    missing = [extra for extra in extras if importlib.util.find_spec(_MODULES[extra]) is None]
    if missing:
        modules = " and ".join(_MODULES[extra] for extra in missing)
        raise UsageError(
            f"{by} needs {modules}, which {'is' if len(missing) == 1 else 'are'} not installed in this Python.",
            where=by,
            code="install.missing",
            remedy=f"pip install 'lockstep-cdc[{','.join(missing)}]'",
        )
