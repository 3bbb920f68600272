"""The verdict of one of our suites on more rows than the driver takes: tasks of Spark judge parts of them.

Rows that an expectation tells apart by several columns are spread by a hash of these, but for columns with few values,
so that two rows that are alike meet in one part; how many there are in all is judged at the end. Measured against a
frame of Spark that GX's Spark engine judges, this takes less than half of the time: no row becomes one of the JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_core.history.codes import whole
from cdc_core.history.parts import Parts, by_part
from cdc_core.process.quiet_libraries import quiet_libraries
from spark_jobs.job import Job
from spark_jobs.late_modules import OF_GREAT_EXPECTATIONS, late
from spark_jobs.quality_rows import JudgedRows
from spark_jobs.shuffle import shuffled
from spark_jobs.suite_runner import EXAMPLES, SUITES, judge, judge_stage, passes
from spark_jobs.table_tasks import most_tasks, packed

with late(OF_GREAT_EXPECTATIONS):
    import great_expectations as gx
    from great_expectations import expectations as gxe

PART_ROWS = 250_000
"""A task judges about so many rows, which it has in memory as columns of Arrow and of pandas."""
CUT_ROWS = 1 << 18
"""So many rows are cut at once, so that pieces are not tiny."""


def judge_in_parts(job: Job, stage: str, rows: JudgedRows) -> dict[str, Any]:
    """The verdict of a stage's suite."""
    suite, begin = SUITES[stage](rows.count), rows.begin
    parts = Parts(max(-(-rows.count // PART_ROWS), 1))
    apart = [name for name in _told_apart_by(suite) if not pa.types.is_dictionary(rows.schema.field(name).type)]

    def cut(unit: Sequence[tuple[int, Any]]) -> Iterator[Iterable[tuple[int, pa.Table]]]:
        with begin() as work:
            for some in _gathered(table for _, piece in unit for table in work(piece)):
                numbers = (
                    parts.of([whole(some.column(name)) for name in apart])
                    if apart
                    else np.arange(some.num_rows) * parts.count // some.num_rows
                )
                yield by_part(some, numbers, parts.count)

    def work(part: int, pieces: Iterator[pa.Table]) -> Iterator[dict[str, Any]]:
        quiet_libraries()
        own = pa.concat_tables(pieces).unify_dictionaries()
        yield judge_stage(own, stage, own.num_rows)

    units = packed(rows.pieces, min(most_tasks(job), rows.most or len(rows.pieces)))
    verdicts = shuffled(job, units, cut, parts.count, work)
    return _together(verdicts or [judge_stage(rows.schema.empty_table(), stage, 0)], suite, rows.count)


def _told_apart_by(suite: gx.ExpectationSuite) -> list[str]:
    """The columns by which the suite tells rows apart; none if it looks at each row alone."""
    found = [one.column_list for one in suite.expectations if isinstance(one, gxe.ExpectCompoundColumnsToBeUnique)]
    return list(found[0]) if found else []


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    some: list[pa.Table] = []
    for table in tables:
        some.append(table)
        if sum(one.num_rows for one in some) >= CUT_ROWS:
            yield pa.concat_tables(some).unify_dictionaries()
            some = []
    if any(one.num_rows for one in some):
        yield pa.concat_tables(some).unify_dictionaries()


def _together(verdicts: Sequence[dict[str, Any]], suite: gx.ExpectationSuite, count: int) -> dict[str, Any]:
    """The verdict on all rows, of which `count` are expected, from those on the parts."""
    expectations = [_of_parts(same) for same in zip(*(one["expectations"] for one in verdicts), strict=True)]
    numbers = [one for one in suite.expectations if isinstance(one, gxe.ExpectTableRowCountToEqual)]
    every = pa.table({"part": np.zeros(sum(one["rows"] for one in verdicts), np.int8)})
    of_all = judge(every, gx.ExpectationSuite(name=suite.name, expectations=numbers), count)["expectations"]
    kinds = {one["expectation"] for one in of_all}
    expectations = of_all + [one for one in expectations if one["expectation"] not in kinds]
    examples = [example for one in verdicts for example in one.get("examples", ())]
    return {
        **verdicts[0],
        "success": passes(expectations),
        "rows": count,
        "expectations": expectations,
        **({"examples": examples[:EXAMPLES]} if examples else {}),
    }


def _of_parts(same: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What was found of one expectation, with what was found in the first part that does not meet it."""
    failed = [one for one in same if not one["success"]]
    if not failed:
        return same[0]
    unexpected = sum(one["result"].get("unexpected_count") or 0 for one in failed)
    result = {"failing parts": f"{len(failed)} of {len(same)}", **failed[0]["result"], "unexpected_count": unexpected}
    return failed[0] | {"result": result}
