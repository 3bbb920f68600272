"""Reads the log of tables that the application must not have written to.

When a person has said that the application was switched: did the old tables take writes after the final position? Their
gates may have been opened before the answer. So the cutover closes the gates again and reads the log, before the way
back writes there as well, because the log does not distinguish its writes from the application's. Until the log was
read, the cutover stays SWITCHED.

`written_in` reads the log of tables that a cutover had opened for the application, and closed again because the
application was not switched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from cdc_core.errors import DataAtRisk, LockstepError, RetryLater
from cdc_core.meta import BatchRow, Cutover, Meta
from cdc_core.model.position import Position
from cdc_core.operations.apply.plan import definitions
from cdc_core.operations.cutover.cutover_states import State
from cdc_core.operations.cutover.hold import written_since
from cdc_core.operations.cutover.moving import Moving
from cdc_core.operations.cutover.undoing import close
from cdc_core.operations.cutover.work import Written, read
from cdc_core.operations.verify.changed_keys import as_read, changed_keys
from cdc_core.stage.objects import ObjectStore

_NAMED = 10
"""Rows that are named of a table."""


def written_in(meta: Meta, store: ObjectStore, batches: Sequence[BatchRow]) -> Written:
    """The changes of these batches. Raises what reading them raises."""
    files = meta.batches.files([batch.batch_id for batch in batches])
    listed = [file for of_batch in files.values() for file in of_batch]
    schemas = definitions(meta.schemas.find(sorted({file.schema_id for file in listed})), files, batches, store)
    rows, keys = Counter[str](), dict[str, dict[str, None]]()
    for file in as_read(store, listed):
        rows[file.table] += file.rows
        schema, named = schemas[file.schema_id], keys.setdefault(file.table, {})
        for some in changed_keys(store, file, schema):
            values = (", ".join(map(str, row.values())) for row in some.select(schema.key).to_pylist())
            named |= dict.fromkeys(islice(values, _NAMED))
    return Written(rows, "; ".join(f"{table}: {', '.join(list(named)[:_NAMED])}" for table, named in keys.items()))


def look_again(moving: Moving) -> None:
    """Closes the gates and asks the log, if that is still to be done. Raises RetryLater (cutover.unchecked) while a
    later try may help; what can never be looked up is noted."""
    work, details = moving.work, moving.cutover.details
    if not details.get("unchecked"):
        return
    tables, token = read(details["tables"]), details["arming"]
    reached = {source: Position.from_text(text) for source, text in details["reached"].items()}
    slipped, failed = 0, list[LockstepError]()
    try:
        close(work, tables.sources, token)
    except LockstepError as error:
        failed.append(error)
    try:
        slipped = written_since(work, reached)
    except LockstepError as error:
        failed.append(error)
    why = "; ".join(str(failure) for failure in failed)
    said = f"nobody knows whether the old tables took writes after the switch: {why}" if why else ""
    if slipped:
        said = f"the old tables took {slipped:,} changes after the final position, which the new ones do not have"
    moving.to(State.SWITCHED, error=said, unchecked=why, slipped=slipped)
    if any(failure.retriable for failure in failed):
        raise RetryLater(
            "The application was switched. Whether the old tables took writes after the final position could not be "
            f"looked up, and the way back waits for that: {why}",
            where=f"cutover {moving.cutover.cutover_id}",
            code="cutover.unchecked",
            remedy=f"`lockstep cutover resume {work.opened.name}` looks again once the servers answer",
        )


def found_in(cutover: Cutover) -> DataAtRisk | None:
    """What `look_again` has found, or could not find out."""
    slipped, unchecked = cutover.details.get("slipped", 0), cutover.details.get("unchecked")
    if not slipped and not unchecked:
        return None
    return DataAtRisk(
        f"The application was switched, and the old tables took {slipped:,} changes after the final position, which "
        "the new tables lack."
        if slipped
        else "The application was switched, and whether the old tables took writes after the final position can never "
        f"be looked up: {unchecked}",
        where=f"cutover {cutover.cutover_id}",
        code="cutover.slipped_before",
        remedy=f"`lockstep run {cutover.way_back}`, then `lockstep verify {cutover.way_back}` names the rows; carry "
        "them over by hand",
    )
