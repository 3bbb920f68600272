"""A plugin of dbt-duckdb: every staged change of a logical table, each under a single key. `table` of the source's meta
is the name of the table."""

from __future__ import annotations

from typing import Any

from dbt.adapters.duckdb.plugins import BasePlugin
from dbt.adapters.duckdb.utils import SourceConfig

import lockstep


class Plugin(BasePlugin):  # type: ignore[misc]
    def initialize(self, config: dict[str, Any]) -> None:
        self._stage = config["stage"]

    def load(self, source_config: SourceConfig) -> Any:
        return lockstep.open(self._stage)[source_config["table"]].changes(by_key=True).to_arrow()
