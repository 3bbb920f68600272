"""The moments at which something is killed, in the order of a run. `make crash-matrix` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Case:
    """moment: for people. module, function, when, victim, call: see hook/sitecustomize.py; victim also a server of the
    case: `target`, `meta` (on the target's server), `s3` (the stage is a bucket), `connect`. after: what remains, and
    what the next start does with it. sample: part of `make test`."""

    step: str
    moment: str
    killed: str
    module: str
    function: str
    when: str
    after: str
    victim: str = "process"
    call: int = 1
    sample: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        """Kinds of servers: rows are looked up by conditions of each kind's own."""
        return ("mariadb", "mysql9") if self.step == "reverse query" else ("mariadb",)

    @property
    def id(self) -> str:
        return f"{self.step}: {self.killed}, {self.moment}".replace(" ", "_")


SUFFIXES = {"mariadb": "", "mysql9": "-mysql9"}
"""Of a case's name in a report, by the kind of its source."""
AT_ENDPOINT = "-remote"
"""The same, where Spark is at a Connect endpoint."""

WRITER, META, PLAN = "cdc_core.stage.writer", "cdc_core.meta.pipeline_meta", "cdc_core.operations.apply.plan"
CHUNK = "cdc_core.operations.copy.chunk_file"
EVIDENCE = "cdc_core.operations.verify.evidence"
COMMIT, WRITE, PREPARE = (
    "cdc_core.operations.apply.commit",
    "cdc_core.targets.writing.row_writer",
    "cdc_core.targets.writing.prepare",
)
IN_PARTS = "merge in parts"
"""A step of its own here: the merge of a table that Spark shuffles by key."""
WRITE_PARTS = "write in parts"
"""The same: a run that has many rows for a table."""
SUBMIT, COMPARE = ("spark_jobs.driver", "Driver.submit"), "cdc_core.targets.tables.compare_columns"
TASK, DRIVER, WORKER, JVM = "the task", "the driver", "a Python worker", "the driver's JVM"
TARGET, META_SERVER, S3 = "the target server", "the meta database", "the S3 server"
AGAIN = "the next run takes over the whole run"
ALL_PARTS = "the next run writes all parts; those that are there change nothing"

CASES = (
    Case("extract", "before the parts are durable", TASK, WRITER, "BatchWriter._publish", "before",
         "orphan files remain; the range is staged again"),
    Case("extract", "parts durable, no manifest yet", TASK, WRITER, "BatchWriter._publish", "after",
         "orphan files remain; the range is staged again"),
    Case("extract", "manifest written, meta not updated", TASK, META, "Batches.commit", "before",
         "the batch is adopted from the chain", sample=True),
    Case("extract", "meta updated, ring not acknowledged", TASK, META, "Batches.commit", "after",
         "continues after the batch"),
    Case("extract", "before the parts are durable", S3, WRITER, "BatchWriter._publish", "before",
         "the range is staged again", victim="s3"),
    Case("extract", "parts durable, no manifest yet", S3, WRITER, "BatchWriter._publish", "after",
         "orphan files remain; the range is staged again", victim="s3"),
    Case("extract", "manifest written, meta not updated", META_SERVER, META, "Batches.commit", "before",
         "the batch is adopted from the chain", victim="meta"),
    Case("extract", "meta updated, ring not acknowledged", META_SERVER, META, "Batches.commit", "after",
         "continues after the batch", victim="meta"),
    Case("copy", "before a chunk is planned in meta", TASK, META, "TableCopies.plan_chunk", "before",
         "the copy continues with this chunk", call=2),
    Case("copy", "chunk planned, not read", TASK, META, "TableCopies.plan_chunk", "after",
         "the copy continues with this chunk", call=2),
    Case("copy", "before a chunk's files are durable", TASK, CHUNK, "ChunkFile.finish", "before",
         "the chunk is read again", call=2),
    Case("copy", "chunk durable, not in meta", TASK, META, "TableCopies.chunk_read", "before",
         "orphan files remain; the chunk is read again", call=2),
    Case("copy", "chunk in meta", TASK, META, "TableCopies.chunk_read", "after",
         "the copy continues after the chunk", call=2),
    Case("copy", "all chunks read, no manifest decided", TASK, META, "CopiedBatches.decide", "before",
         "the same chunks are staged"),
    Case("copy", "manifest decided, not written", TASK, META, "CopiedBatches.decide", "after",
         "the same manifest is written"),
    Case("copy", "manifest written, not recorded", TASK, META, "Batches.record_copied", "before",
         "the same manifest is recorded", sample=True),
    Case("copy", "manifest recorded", TASK, META, "Batches.record_copied", "after", "nothing is left to copy"),
    Case("copy", "chunk durable, not in meta", META_SERVER, META, "TableCopies.chunk_read", "before",
         "orphan files remain; the chunk is read again", victim="meta", call=2),
    Case("copy", "manifest decided, not written", META_SERVER, META, "CopiedBatches.decide", "after",
         "the same manifest is written", victim="meta"),
    Case("copy", "before a chunk's files are durable", S3, CHUNK, "ChunkFile.finish", "before",
         "the chunk is read again", victim="s3", call=2),
    Case("copy", "manifest decided, not written", S3, META, "CopiedBatches.decide", "after",
         "the same manifest is written", victim="s3"),
    Case("repair", "before the files of a claim are durable", TASK, CHUNK, "ChunkFile.finish", "before",
         "the rows are looked up again"),
    Case("repair", "claims durable, no manifest decided", TASK, META, "CopiedBatches.decide", "before",
         "orphan files remain; the rows are looked up again"),
    Case("repair", "manifest decided, not written", TASK, META, "CopiedBatches.decide", "after",
         "the same manifest is written"),
    Case("repair", "manifest written, not recorded", TASK, META, "Batches.record_copied", "before",
         "the same manifest is recorded"),
    Case("repair", "staged, nothing applied", TASK, META, "Batches.record_copied", "after",
         "what is staged is applied, and nothing is looked up again"),
    Case("repair", "applied, a row left in a wrong shard", TASK, "cdc_core.operations.repair.repairer", "remove_row",
         "before", "the row in the wrong shard is a finding again"),
    Case("repair", "a row removed from a wrong shard", TASK, "cdc_core.operations.repair.repairer", "remove_row",
         "after", "the rows are equal"),
    Case("repair", "manifest decided, not written", META_SERVER, META, "CopiedBatches.decide", "after",
         "the same manifest is written", victim="meta"),
    Case("repair", "manifest decided, not written", S3, META, "CopiedBatches.decide", "after",
         "the same manifest is written", victim="s3"),
    Case("reverse query", "before the files of a claim are durable", TASK, CHUNK, "ChunkFile.finish", "before",
         "the rows are looked up again"),
    Case("reverse query", "claims durable, no manifest decided", TASK, META, "CopiedBatches.decide", "before",
         "orphan files remain; the rows are looked up again"),
    Case("reverse query", "manifest decided, not written", TASK, META, "CopiedBatches.decide", "after",
         "the same manifest is written"),
    Case("reverse query", "manifest written, not recorded", TASK, META, "Batches.record_copied", "before",
         "the same manifest is recorded"),
    Case("reverse query", "staged, nothing applied", TASK, META, "Batches.record_copied", "after",
         "what is staged is applied, and nothing is looked up"),
    Case("reverse query", "manifest decided, not written", META_SERVER, META, "CopiedBatches.decide", "after",
         "the same manifest is written", victim="meta"),
    Case("reverse query", "manifest decided, not written", S3, META, "CopiedBatches.decide", "after",
         "the same manifest is written", victim="s3"),
    Case("plan", "before the record exists", TASK, META, "RunRegister.claim", "before", "nothing remains"),
    Case("plan", "record exists, batch not processed", TASK, META, "RunRegister.claim", "after",
         "the next run takes over the claim of the dead run"),
    Case("plan", "plan written, nothing merged", TASK, PLAN, "plan", "after", AGAIN),
    Case("plan", "before the record exists", META_SERVER, META, "RunRegister.claim", "before", "nothing remains",
         victim="meta"),
    Case("plan", "record exists, no plan", S3, META, "RunRegister.claim", "after",
         "the next run takes over the claim of the dead run", victim="s3"),
    Case("merge", "during merge", WORKER, "cdc_core.model.merged_columns", "merged_schema", "after", AGAIN),
    Case("merge", "before the counts are written", DRIVER, "spark_jobs.merge", "merge_tables", "after", AGAIN),
    Case("merge", "during merge", JVM, "spark_jobs.spark_session", "open_session", "after", AGAIN, victim="jvm"),
    Case("merge", "during merge", S3, "spark_jobs.merge", "merge_tables", "before", AGAIN, victim="s3"),
    Case("merge", "merged, nothing filtered", TASK, *SUBMIT, "after", AGAIN),
    Case(IN_PARTS, "some files cut, others not", WORKER, "cdc_core.history.parts", "split", "before", AGAIN),
    Case(IN_PARTS, "some parts merged, others not", WORKER, "spark_jobs.merge", "_merged", "after", AGAIN),
    Case(IN_PARTS, "all parts merged, not counted", DRIVER, "spark_jobs.shuffle", "shuffled", "after", AGAIN),
    Case(IN_PARTS, "before any file is cut", S3, "spark_jobs.shuffle", "shuffled", "before", AGAIN, victim="s3"),
    Case("filter", "before any table is prepared", TARGET, PREPARE, "prepare_several", "before", AGAIN,
         victim="target"),
    Case("filter", "tombstones made, no version column", DRIVER, PREPARE, "_create_by_key", "after", AGAIN),
    Case("filter", "tombstones made, no version column", TARGET, PREPARE, "_create_by_key", "after", AGAIN,
         victim="target"),
    Case("filter", "one table prepared, others not", DRIVER, PREPARE, "_add_missing", "after", AGAIN),
    Case("filter", "one table prepared, others not", TARGET, PREPARE, "_add_missing", "after", AGAIN,
         victim="target"),
    Case("filter", "all tables prepared", DRIVER, PREPARE, "prepare_several", "after", AGAIN, call=2),
    Case("filter", "during filter", WORKER, "cdc_core.targets.writing.versions", "versions_of", "before", AGAIN),
    Case("filter", "before the counts are written", DRIVER, "spark_jobs.filter", "filter_tables", "after", AGAIN),
    Case("filter", "during filter", TARGET, "cdc_core.targets.writing.versions", "versions_of", "before", AGAIN,
         victim="target"),
    Case("filter", "filtered, nothing written", TASK, *SUBMIT, "after", AGAIN, call=2),
    Case("write", "before a shard's transaction", WORKER, WRITE, "write_shard", "before", AGAIN),
    Case("write", "inside a shard's transaction", WORKER, WRITE, "note", "before",
         "the server rolls it back; " + AGAIN),
    Case("write", "inside a shard's transaction", TARGET, WRITE, "note", "before",
         "the transaction is gone; " + AGAIN, victim="target"),
    Case("write", "a shard committed, not reported to Spark", WORKER, WRITE, "write_shard", "after",
         "the same rows are written again and change nothing", sample=True),
    Case("write", "all shards committed, counts not written", DRIVER, "spark_jobs.write", "write_tables", "after",
         "the same rows are written again and change nothing"),
    Case("write", "a shard committed, not reported to Spark", TARGET, WRITE, "write_shard", "after",
         "the same rows are written again and change nothing", victim="target"),
    Case("write", "all shards committed, counts not written", S3, "spark_jobs.write", "write_tables", "after",
         "the same rows are written again and change nothing", victim="s3"),
    Case(WRITE_PARTS, "some parts of a shard committed, others not", WORKER, WRITE, "write_shard", "after", ALL_PARTS,
         call=3),
    Case(WRITE_PARTS, "some parts of a shard committed, others not", DRIVER, WRITE, "write_shard", "after", ALL_PARTS,
         call=3),
    Case(WRITE_PARTS, "inside the transaction of a later part", TARGET, WRITE, "note", "before", ALL_PARTS,
         victim="target", call=3),
    Case("write", "written, not marked as applied", META_SERVER, COMMIT, "mark_applied", "before", AGAIN,
         victim="meta"),
    Case("write", "written, not marked as applied", TASK, COMMIT, "mark_applied", "before", AGAIN),
    Case("write", "marked as applied", TASK, COMMIT, "mark_applied", "after", AGAIN),
    Case("quality", "one result saved, others not", DRIVER, "spark_jobs.quality", "_keep", "after", AGAIN),
    Case("quality", "while rows are read back", WORKER, COMPARE, "outcomes", "before", AGAIN),
    Case("quality", "while rows are read back", TARGET, COMPARE, "outcomes", "before", AGAIN, victim="target"),
    Case("quality", "before a result is saved", S3, "spark_jobs.quality", "_keep", "before", AGAIN, victim="s3"),
    Case("quality", "all results saved, nothing committed", TASK, *SUBMIT, "after", AGAIN, call=4),
    Case("commit", "before the counts are read", S3, COMMIT, "_account", "before", AGAIN, victim="s3"),
    Case("commit", "records read, offset not committed", TASK, META, "RunRegister.commit", "before", AGAIN),
    Case("commit", "before the commit", META_SERVER, META, "RunRegister.commit", "before", AGAIN, victim="meta"),
    Case("commit", "offset committed, not reported", META_SERVER, META, "RunRegister.commit", "after",
         "the next run finds nothing to do", victim="meta"),
    Case("commit", "offset committed, not reported", TASK, META, "RunRegister.commit", "after",
         "the next run finds nothing to do"),
    Case("verify", "range compared, not in meta", TASK, META, "Verifications.keep_progress", "before",
         "the range is verified again", call=2),
    Case("verify", "range in meta", TASK, META, "Verifications.keep_progress", "after",
         "the verification continues after the range", call=2),
    Case("verify", "all ranges in meta, no evidence", TASK, EVIDENCE, "keep", "before",
         "the evidence is written, and nothing is read again"),
    Case("verify", "evidence written, verification not ended in meta", TASK, META, "Verifications.finish", "before",
         "the evidence is written once more"),
    Case("verify", "verification ended in meta", TASK, META, "Verifications.finish", "after",
         "the next verification begins from the start"),
    Case("verify", "range compared, not in meta", META_SERVER, META, "Verifications.keep_progress", "before",
         "the range is verified again", victim="meta", call=2),
)  # fmt: skip


def at_endpoint() -> list[Case]:
    """The cases of Spark's jobs, at a Connect endpoint: its server takes the place of the driver's JVM."""
    steps = ("merge", "filter", "write", "quality")
    return [replace(case, victim="connect") if case.killed == JVM else case for case in CASES if case.step in steps]


def table(outcomes: Mapping[str, str] | None = None) -> list[str]:
    """The cases as lines of Markdown; outcomes: by id."""
    heads = ["step", "killed", "when", "what happens then"]
    rows = [[case.step, case.killed, case.moment, case.after] for case in CASES]
    if outcomes is not None:
        heads.append("then")
        for case, row in zip(CASES, rows, strict=True):
            row.append(outcomes.get(case.id, "not run"))
    return [f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows]]
