"""The pipeline file: parsed once, at the edge, into frozen models.

The file never contains secrets: a server is named by `env:VAR` (an environment variable with a URL
`mysql://user:password@host:port`) or `airflow:CONN_ID`. docs/configuration.md lists every key; `json_schema()` is the
same for editors. One module for each group of keys.
"""

from __future__ import annotations

from cdc_core.config.capture import CaptureRules, Columns, Processor, Route, RowFilter
from cdc_core.config.copies import MOST_READERS, ReverseQuery, Snapshot, Throttle
from cdc_core.config.cutover import Cutover, Hook, PythonHook
from cdc_core.config.file import json_schema, load, models_in, parse
from cdc_core.config.pipeline import Pipeline
from cdc_core.config.proofs import Repair, Verify
from cdc_core.config.runs import Airflow, Quality, Spark, Suite
from cdc_core.config.source import Source, StartConfig, StartPosition
from cdc_core.config.storage import Limits, MetaConfig, Retention, StageConfig
from cdc_core.config.target import ONE_TABLE, FormerShard, Guard, Sharding, Target, TargetTable
from cdc_core.config.values import MIB, NAME, WAY_BACK_SUFFIX

__all__ = [
    "MIB",
    "MOST_READERS",
    "NAME",
    "ONE_TABLE",
    "WAY_BACK_SUFFIX",
    "Airflow",
    "CaptureRules",
    "Columns",
    "Cutover",
    "FormerShard",
    "Guard",
    "Hook",
    "Limits",
    "MetaConfig",
    "Pipeline",
    "Processor",
    "PythonHook",
    "Quality",
    "Repair",
    "Retention",
    "ReverseQuery",
    "Route",
    "RowFilter",
    "Sharding",
    "Snapshot",
    "Source",
    "Spark",
    "StageConfig",
    "StartConfig",
    "StartPosition",
    "Suite",
    "Target",
    "TargetTable",
    "Throttle",
    "Verify",
    "json_schema",
    "load",
    "models_in",
    "parse",
]
