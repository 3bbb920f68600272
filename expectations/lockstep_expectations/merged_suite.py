"""Merged rows: as many as the merge counted, one per key, each an upsert or a delete with its order key.

Frame: `_table`, `_key` (the key's columns as text), `_cdc_op`, `_cdc_source`, `_cdc_seq`, `_cdc_row`.
"""

from __future__ import annotations

import great_expectations as gx
from great_expectations import expectations as gxe

from cdc_core.model.merged_columns import WINNER_OPS


def suite(rows: int) -> gx.ExpectationSuite:
    """`rows`: as the merge counted them."""
    complete = ("_cdc_op", "_cdc_source", "_cdc_seq", "_cdc_row")
    return gx.ExpectationSuite(
        name="merged",
        expectations=[
            gxe.ExpectTableRowCountToEqual(value=rows),
            gxe.ExpectCompoundColumnsToBeUnique(column_list=["_table", "_key"]),
            gxe.ExpectColumnValuesToBeInSet(column="_cdc_op", value_set=[op.value for op in WINNER_OPS]),
            *[gxe.ExpectColumnValuesToNotBeNull(column=column) for column in complete],
        ],
    )
