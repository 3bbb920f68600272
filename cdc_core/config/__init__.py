"""The pipeline file: parsed once, at the edge, into frozen models.

The file never contains secrets: a server is named by `env:VAR` (an environment variable with a URL
`mysql://user:password@host:port`) or `airflow:CONN_ID`. docs/configuration.md lists every key; `json_schema()` is the
same for editors. One module for each group of keys.
"""

from __future__ import annotations

from cdc_core.config.capture_options import CaptureRules, Columns, Processor, Route, RowFilter
from cdc_core.config.copy_options import MOST_READERS, ThrottleOptions
from cdc_core.config.cutover_options import CutoverOptions
from cdc_core.config.file import back_file, json_schema, load, models_in, parse
from cdc_core.config.pipeline import Pipeline
from cdc_core.config.run_options import Airflow, Quality, Suite
from cdc_core.config.source_options import Source, StartConfig, StartPosition
from cdc_core.config.storage_options import Limits, StageConfig
from cdc_core.config.target_options import (
    ONE_TABLE,
    Guard,
    IcebergTarget,
    KeptCuts,
    LakeTable,
    MysqlTable,
    MysqlTarget,
    Sharding,
    Target,
    TargetTable,
)
from cdc_core.config.value_types import NAME, WAY_BACK_SUFFIX
from cdc_core.config.verify_options import Verify

__all__ = [
    "MOST_READERS",
    "NAME",
    "ONE_TABLE",
    "WAY_BACK_SUFFIX",
    "Airflow",
    "CaptureRules",
    "Columns",
    "CutoverOptions",
    "Guard",
    "IcebergTarget",
    "KeptCuts",
    "LakeTable",
    "Limits",
    "MysqlTable",
    "MysqlTarget",
    "Pipeline",
    "Processor",
    "Quality",
    "Route",
    "RowFilter",
    "Sharding",
    "Source",
    "StageConfig",
    "StartConfig",
    "StartPosition",
    "Suite",
    "Target",
    "TargetTable",
    "ThrottleOptions",
    "Verify",
    "back_file",
    "json_schema",
    "load",
    "models_in",
    "parse",
]
