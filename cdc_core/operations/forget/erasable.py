"""What must be true before rows are erased. Each function raises where it is not, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import Refused, UsageError
from cdc_core.meta import RunRow, RunState
from cdc_core.model.block import TableRows
from cdc_core.model.readable import counted, some_of
from cdc_core.model.schema import TableSchema
from cdc_core.model.windows import from_us
from cdc_core.operations.apply.compact import ABANDONED_US, REMOVED_AFTER_US
from cdc_core.operations.apply.consumed import committed
from cdc_core.operations.extract.side_by_side import extract_up_to
from cdc_core.operations.forget.erased_keys import ErasedKeys
from cdc_core.operations.forget.erased_places import ErasureFindings
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify import lookup
from cdc_core.operations.verify.feeding import read_feeding
from cdc_core.operations.verify.source_rows import Read, SourceTables, open_source
from cdc_core.operations.verify.verify_job import WAIT_S
from cdc_core.stage.objects import find


def ask_sources(opened: OpenPipeline, keys: ErasedKeys, *, wait: bool) -> None:
    """No source has a row with one of the keys, and what it logged until then is staged, if that is waited for.

    Raises UsageError (usage.argument), RetryLater (stage.behind), and what reading the sources raises.
    """
    for configured in opened.pipeline.sources:
        with open_source(opened, configured.name) as source:
            fed, _ = read_feeding([source], lambda logical: logical == keys.table)
            feeding = fed.feeding(keys.table) if keys.table in fed.names else ()
            reads = [read for _, schema in feeding for read in _asked(source, schema, keys)]
        for read in reads if wait else ():
            extract_up_to(opened, configured.name, read.high, WAIT_S, where=keys.table)


def _asked(source: SourceTables, schema: TableSchema, keys: ErasedKeys) -> list[Read]:
    """schema: of a table that feeds the logical one, before the pipeline's rules."""
    shape = source.capture.shape(schema)
    there_now = {column.name.lower(): column for column in shape.columns}
    if any(name.lower() not in there_now for name in keys.key):
        raise Refused(
            f"{schema.name} does not have the key ({', '.join(keys.key)}) any more.",
            where=source.name,
            code="stage.key",
            remedy="copy the table again (`lockstep snapshot PIPELINE TABLE`), and purge what was staged before "
            "(`lockstep stage purge`)",
        )
    columns = [there_now[name.lower()] for name in keys.key]
    if any(column.type is not schema.column(column.name).type for column in columns):
        raise Refused(
            f"The key of {keys.table} is masked, so its rows cannot be looked up in the source.",
            where=keys.table,
            code="stage.key",
            remedy="give the keys as they are staged, and --although-it-exists once the rows are gone",
        )
    there: list[TableRows] = []
    reads = [
        source.lookup(schema, keys.table, lookup.condition(columns, some), there.append)
        for some in lookup.pieces(sorted(keys.texts))
    ]
    if there:
        raise UsageError(
            f"{schema.name} still has {counted(sum(rows.rows.num_rows for rows in there), 'row')} of these keys. "
            "Nothing was erased.",
            where=source.name,
            code="usage.argument",
            remedy="delete them at the source, and run `lockstep run PIPELINE`; or give --although-it-exists, to "
            "erase what is staged of them until now",
        )
    return reads


def require_alone(keys: ErasedKeys, findings: ErasureFindings) -> None:
    """Each change is about the named keys alone. Raises Refused (stage.key), UsageError (usage.unknown_name)."""
    others = {text for staged in findings.staged for file in staged.files.values() for text in file.found.others}
    others = others.union(*(lake.others for lake in findings.lakes)) - keys.texts
    if not others:
        return
    unknown = keys.texts - findings.keys
    texts = pa.array(sorted(others), pa.string())
    meant = texts.filter(pc.is_in(keys.alike(texts), value_set=keys.alike(pa.array(sorted(unknown), pa.string()))))
    if len(meant):
        raise _unknown(keys, unknown, f"write it as its rows have it: {keys.options(meant.to_pylist())}")
    raise Refused(
        f"Rows of {keys.table} had one of these keys and also another one: before it, after it, or one that the table "
        "takes for the same.",
        where=keys.table,
        code="stage.key",
        remedy=f"name both keys, if all rows that ever had them are to be erased: {keys.options(others)}",
    )


def require_known(keys: ErasedKeys, findings: ErasureFindings) -> None:
    """Raises UsageError (usage.unknown_name) for a key that nothing has: it may be misspelled."""
    if unknown := keys.texts - findings.keys:
        raise _unknown(keys, unknown, "write the values as the staged files have them, which `stage sql` shows")


def require_idle(opened: OpenPipeline) -> None:
    """No run may be reading the files, and no copy is under way. Raises Refused (stage.not_committed)."""
    now_us = opened.meta.now_us()
    holding = opened.meta.runs.holding([target.name for target in opened.pipeline.targets])
    for run in opened.meta.runs.unfinished(now_us - ABANDONED_US):
        what, where = f"The run {run.run_id} is not finished, and may be reading the files.", f"run {run.run_id}"
        if run.run_id in holding:
            raise _not_yet(what, where, "let it finish, or the next run take it over (`lockstep run PIPELINE`)")
        if run.state is RunState.FAILED:
            continue  # others have its batches
        # It ends where its next task would begin; a replay, whose batches nobody takes, with its last.
        until_us = run.updated_us + (ABANDONED_US if _is_replay(opened, run) else REMOVED_AFTER_US)
        if until_us > now_us:
            ends = f"{from_us(until_us):%Y-%m-%d %H:%M} UTC"
            raise _not_yet(what, where, f"let it finish; if its process is gone, it counts until {ends}")
    for source in opened.pipeline.sources:
        meta = opened.meta
        if meta.copies.find(source.name) or meta.copies.chunks(source.name) or meta.copied.decided(source.name):
            raise _not_yet(
                f"A copy of tables of {source.name} is not staged completely.",
                source.name,
                "finish it: `lockstep snapshot PIPELINE`",
            )


def _is_replay(opened: OpenPipeline, run: RunRow) -> bool:
    """As far as its plan can be read."""
    plan = find(opened.store, run.plan_path)
    try:
        return plan is not None and bool(json.loads(plan)["replay"])
    except (ValueError, KeyError, TypeError):
        return True


def require_applied(
    opened: OpenPipeline, keys: ErasedKeys, findings: ErasureFindings, *, although_it_exists: bool
) -> None:
    """Raises Refused (stage.not_committed): a target that has not taken the delete would keep the row."""
    for staged in findings.staged:
        batches = staged.batches(keys.table)
        ready, held_by = committed(opened.meta, opened.pipeline, staged.manifests)
        if any(batch.batch_id not in {each.batch_id for each in ready} for batch in batches):
            raise _not_yet(
                f"Changes of these rows are not applied: {held_by}.", staged.source, "run `lockstep run PIPELINE`"
            )
    for target, rows in findings.present.items():
        if not although_it_exists:
            raise _not_yet(
                f"The target {target!r} still has {counted(rows, 'row')} of these keys.",
                target,
                "apply the deletes (`lockstep run PIPELINE`), or delete rows there that somebody else wrote",
            )


def _unknown(keys: ErasedKeys, texts: Collection[str], remedy: str) -> UsageError:
    shown = some_of([keys.shown(text) for text in sorted(texts)], 5)
    return UsageError(
        f"Nothing has rows of {keys.table} with the key {shown}. Nothing was erased.",
        where="--key",
        code="usage.unknown_name",
        remedy=remedy,
    )


def _not_yet(what: str, where: str, remedy: str) -> Refused:
    return Refused(
        f"{what} Nothing was erased.", where=where, code="stage.not_committed", remedy=f"{remedy}; then erase again"
    )
