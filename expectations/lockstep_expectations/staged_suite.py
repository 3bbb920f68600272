"""Staged rows: bookkeeping complete, operations known, order keys unique within a table, positions possible.

Frame: `_table`, `_cdc_op`, `_cdc_ts`, `_cdc_source`, `_cdc_file`, `_cdc_pos`, `_cdc_row`, `_cdc_seq`.
"""

from __future__ import annotations

import great_expectations as gx
from great_expectations import expectations as gxe

from cdc_core.model.staged_columns import DELETE, INSERT, SNAPSHOT, TRUNCATE, UPDATE

COMPLETE = ("_cdc_op", "_cdc_ts", "_cdc_source", "_cdc_file", "_cdc_pos", "_cdc_row", "_cdc_seq")


def suite(rows: int) -> gx.ExpectationSuite:
    """`rows`: as the manifests count them."""
    return gx.ExpectationSuite(
        name="staged",
        expectations=[
            gxe.ExpectTableRowCountToEqual(value=rows),
            *[gxe.ExpectColumnValuesToNotBeNull(column=column) for column in COMPLETE],
            gxe.ExpectColumnValuesToBeInSet(column="_cdc_op", value_set=[INSERT, UPDATE, DELETE, SNAPSHOT, TRUNCATE]),
            gxe.ExpectColumnValuesToBeBetween(column="_cdc_row", min_value=0),
            gxe.ExpectColumnValuesToBeBetween(column="_cdc_seq", min_value=0),
            gxe.ExpectColumnValuesToBeBetween(column="_cdc_pos", min_value=4),
            gxe.ExpectCompoundColumnsToBeUnique(column_list=["_table", "_cdc_source", "_cdc_seq", "_cdc_row"]),
        ],
    )
