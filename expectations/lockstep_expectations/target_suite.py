"""Target rows: every row that was to be written, read back, is as it should be, or has a later change.

Frame: `_table`, `_shard`, `_key`, `_cdc_op`, `_outcome` (cdc_core.targets.tables.compare_columns).
"""

from __future__ import annotations

import great_expectations as gx
from great_expectations import expectations as gxe

GOOD = ("same", "newer")


def suite(rows: int) -> gx.ExpectationSuite:
    """`rows`: those that the filter passed to the write, and the departures from shards."""
    return gx.ExpectationSuite(
        name="target",
        expectations=[
            gxe.ExpectTableRowCountToEqual(value=rows),
            gxe.ExpectColumnValuesToNotBeNull(column="_outcome"),
            gxe.ExpectColumnValuesToBeInSet(column="_outcome", value_set=list(GOOD)),
        ],
    )
