"""A processor: e-mail addresses without spaces and in lower case, and the domain of each in a column of its own.

`pip install ./examples/processor` where the source is read (beside Lockstep), then in the pipeline file:

    tables:
      processors: [{match: 'shop\\.customers', use: tidy_email, options: {column: email}}]
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def tidy_email(rows: pa.RecordBatch, table: str, *, column: str) -> pa.RecordBatch:
    tidy = pc.utf8_lower(pc.utf8_trim_whitespace(rows[column]))
    domain = pc.replace_substring_regex(tidy, "^.*@", "")
    at = rows.schema.get_field_index(column)
    return rows.set_column(at, rows.schema.field(at), tidy).append_column(f"{column}_domain", domain)
