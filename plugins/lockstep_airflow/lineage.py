"""What the tasks read and wrote, for OpenLineage: datasets, schemas, columns, counts, and the results of suites.

Airflow's OpenLineage provider asks an operator for it once a task has succeeded, and this module is imported only then.
Nothing is kept for it while a task works: all of it is looked up by the run, in meta and on the stage.

    extract, stage of a copy   tables of a source ─► staged tables
    quality                    what the suites found of staged rows and of the target's
    commit                     staged tables ─► tables of the target, as the ledger counts them

Names follow https://openlineage.io/docs/spec/naming: `mysql://host:port` and `database.table` (MariaDB, too), the
bucket or `file` and the folder of a staged table. A sharded table is one dataset, `lockstep://<pipeline>` and
`<target>.<table>`, with its shards as symlinks: a graph with a node for each shard would show nothing. A table of a
lake is its folder in the warehouse, as it is to Spark and Trino, with its name in the catalog as a symlink, the
catalog, and the snapshot of the run as its version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    catalog_dataset,
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    symlinks_dataset,
)

from cdc_core import config
from cdc_core.config import IcebergTarget, MysqlTarget, Pipeline, Target
from cdc_core.meta import BatchRow, Meta
from cdc_core.model.run_plan import LedgerEntry, RunPlan
from cdc_core.model.schema import TableSchema
from cdc_core.model.tasks import QUALITY
from cdc_core.mysql.connections import resolve
from cdc_core.operations.apply.plan import load
from cdc_core.source.capture import Capture
from cdc_core.source.capture.column_rules import HASH
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_stage
from cdc_core.targets.reading.sharding import shard_tables
from lockstep_airflow.credentials import exported
from lockstep_airflow.run_context import is_dry_run, run_name, window_of
from lockstep_airflow.table_assets import copied_batches, extracted_batches, staged_uri

if TYPE_CHECKING:
    from airflow.sdk import Context


Lineage = OperatorLineage[Any, Any]


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a dataset. others: the physical tables of a sharded one; the name of a lake's table in its
    catalog. facets: more of it."""

    namespace: str
    name: str
    others: tuple[Name, ...] = ()
    facets: Mapping[str, DatasetFacet] = field(default_factory=dict, compare=False)


@dataclass(slots=True)
class _Written:
    """What some batches have of a staged table. schemas: of the source tables that feed it, by name; the newest."""

    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    schemas: dict[str, tuple[int, TableSchema]] = field(default_factory=dict)


def of_extract(file: str, source: str, context: Context) -> Lineage:
    """What is staged of the run's window, by this task or an earlier one, and since the run began. Nothing of a dry
    run."""
    if is_dry_run(context):
        return OperatorLineage()
    with _opened(file) as (pipeline, meta, _):
        batches = extracted_batches(context, meta, source, window_of(context))
        return _staged(pipeline, source, meta, batches)


def of_copy(file: str, source: str, context: Context) -> Lineage:
    """What was copied and staged since the run began. Nothing of a dry run."""
    if is_dry_run(context):
        return OperatorLineage()
    with _opened(file) as (pipeline, meta, _):
        return _staged(pipeline, source, meta, copied_batches(context, meta, source))


def of_spark_job(file: str, job: str, target: str, context: Context) -> Lineage:
    """What the suites of the run have found, from quality. From the others nothing: what they wrote counts once it is
    committed."""
    if job != QUALITY.name:
        return OperatorLineage()
    with _opened(file) as (pipeline, meta, store):
        plan = load(meta, store, run_name(context, pipeline))
        return _checked(pipeline, plan, target, store)


def of_commit(file: str, target: str, context: Context) -> Lineage:
    """What the closed ledger of the run says."""
    with _opened(file) as (pipeline, meta, store):
        plan = load(meta, store, run_name(context, pipeline))
        ledger = [row.entry for row in meta.ledgers.find(plan.run_id, target)]
        return _committed(pipeline, plan, target, ledger)


@contextmanager
def _opened(file: str) -> Iterator[tuple[Pipeline, Meta, ObjectStore]]:
    pipeline = config.load(Path(file))
    with exported(pipeline), Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        yield pipeline, meta, open_stage(pipeline.stage)


def _staged(pipeline: Pipeline, source: str, meta: Meta, batches: Sequence[BatchRow]) -> Lineage:
    # Whether the source compares names in lower case is not asked for here: rather a column too many counts as masked.
    capture = Capture(pipeline.tables, pipeline.routes, lower_case=True)
    files = meta.batches.files([batch.batch_id for batch in batches])
    schemas = meta.schemas.find(sorted({file.schema_id for of_batch in files.values() for file in of_batch}))
    written: dict[str, _Written] = {}
    for of_batch in files.values():
        for file in of_batch:
            table = written.setdefault(file.table, _Written())
            table.rows += file.rows
            table.size_bytes += file.size_bytes
            table.files += 1
            schema = schemas.get(file.schema_id)
            if schema is not None and table.schemas.get(schema.name, (-1, schema))[0] <= file.max_seq:
                table.schemas[schema.name] = file.max_seq, schema
    server = _server(pipeline.source(source).connections[0])
    inputs: dict[str, InputDataset] = {}
    outputs = []
    for logical, table in sorted(written.items()):
        feeding = [schema for _, schema in table.schemas.values()]
        columns: dict[str, list[column_lineage_dataset.InputField]] = {}
        for schema in feeding:
            origin = Name(server, schema.name)
            inputs.setdefault(schema.name, InputDataset(server, schema.name))
            if capture.processes(schema):  # a function of the user's: which column came of which, only it knows
                continue
            for column in schema.columns:
                masked = column.type == HASH and capture.masks(schema, column.name)
                columns.setdefault(column.name, []).append(_field(origin, column.name, masked=masked))
        outputs.append(
            _output(
                staged_name(pipeline, logical),
                feeding,
                columns,
                output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                    rowCount=table.rows, size=table.size_bytes, fileCount=table.files
                ),
            )
        )
    return OperatorLineage(inputs=[inputs[name] for name in sorted(inputs)], outputs=outputs)


def _committed(pipeline: Pipeline, plan: RunPlan, target: str, ledger: Iterable[LedgerEntry]) -> Lineage:
    inputs, outputs, ledger = [], [], list(ledger)
    by_name = {table.table: table for table in plan.merge_set(plan.target(target).merge_set).tables}
    there = target_names(pipeline, pipeline.target(target), [entry.table for entry in ledger], run_id=plan.run_id)
    for entry in sorted(ledger, key=lambda entry: entry.table):
        schemas = plan.current_schemas(by_name[entry.table])
        staged = staged_name(pipeline, entry.table)
        columns = {
            column.name: [_field(staged, column.name, masked=False)] for schema in schemas for column in schema.columns
        }
        read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=entry.staged_rows)
        inputs.append(InputDataset(staged.namespace, staged.name, inputFacets={"inputStatistics": read}))
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=entry.written)
        outputs.append(_output(there[entry.table], schemas, columns, statistics))
    return OperatorLineage(inputs=inputs, outputs=outputs)


def _checked(pipeline: Pipeline, plan: RunPlan, target: str, store: ObjectStore) -> Lineage:
    found: dict[str, list[Mapping[str, Any]]] = {"staged": [], "merged": [], "target": []}
    own: list[Mapping[str, Any]] = []
    for path in [info.path for info in store.list(f"{plan.quality_folder(target)}/") if info.path.endswith(".json")]:
        verdict = json.loads(store.get(path))
        if "table" in verdict:
            own.append(verdict)
        else:
            found[path.rpartition("/")[2].removesuffix(".json")].append(verdict)
    inputs = []
    tables = sorted(table.table for table in plan.merge_set(plan.target(target).merge_set).tables)
    names = target_names(pipeline, pipeline.target(target), tables, run_id=plan.run_id)
    for table in tables:
        before = [*found["staged"], *found["merged"], *(checked for checked in own if checked["table"] == table)]
        for name, verdicts in ((staged_name(pipeline, table), before), (names[table], found["target"])):
            if verdicts:
                inputs.append(InputDataset(name.namespace, name.name, inputFacets=_assertions(verdicts)))
    return OperatorLineage(inputs=inputs)


def staged_name(pipeline: Pipeline, logical: str) -> Name:
    """The name of the folder of a staged table."""
    return Name(*_place(staged_uri(pipeline, logical)))


def _place(uri: str) -> tuple[str, str]:
    """The namespace and the name of a folder."""
    parts = urlsplit(uri)
    return ("file", parts.path) if parts.scheme == "file" else (f"{parts.scheme}://{parts.netloc}", parts.path[1:])


def target_names(pipeline: Pipeline, target: Target, tables: Iterable[str], *, run_id: str) -> dict[str, Name]:
    """The names of tables of a target, by their logical names. run_id: whose snapshots of a lake are meant. Raises
    UsageError (config.unset, config.invalid), and what a catalog raises."""
    if isinstance(target, IcebergTarget):
        return _lake_names(pipeline, target, tables, run_id)
    return {table: _database_name(pipeline, target, table) for table in tables}


def _lake_names(pipeline: Pipeline, target: IcebergTarget, tables: Iterable[str], run_id: str) -> dict[str, Name]:
    from cdc_core.lake.catalogs import catalog_answers, identifier, name_of, open_catalog
    from cdc_core.stage.cuts import newest_first

    cuts = (cut for _, cut in newest_first(open_stage(pipeline.stage), target.name) if cut.run_id == run_id)
    snapshots = {table.logical: table.snapshot for cut in islice(cuts, 1) for table in cut.tables}
    names, kind = {}, target.catalog.get("type", "rest")
    with open_catalog(target) as catalog, catalog_answers(target):
        for logical in tables:
            name = identifier(target, logical)
            namespace, folder = _place(catalog.load_table(name).location())
            facets: dict[str, DatasetFacet] = {
                "catalog": catalog_dataset.CatalogDatasetFacet("iceberg", kind, target.name, source="lockstep")
            }
            if snapshots.get(logical) is not None:
                facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(snapshots[logical]))
            names[logical] = Name(namespace, folder, (Name(f"iceberg://{target.name}", name_of(name)),), facets)
    return names


def _database_name(pipeline: Pipeline, target: MysqlTarget, logical: str) -> Name:
    places = [
        Name(_server(target.connections[table.connection]), table.name) for table in shard_tables(target, logical)
    ]
    if len(places) == 1:
        return places[0]
    return Name(f"lockstep://{pipeline.pipeline}", f"{target.name}.{logical}", tuple(places))


def _server(reference: str) -> str:
    server = resolve(reference)
    return f"mysql://{server.host}:{server.port}"


def _field(origin: Name, column: str, *, masked: bool) -> column_lineage_dataset.InputField:
    how = column_lineage_dataset.Transformation("DIRECT", "TRANSFORMATION" if masked else "IDENTITY", masking=masked)
    return column_lineage_dataset.InputField(origin.namespace, origin.name, column, [how])


def _output(
    name: Name,
    schemas: Sequence[TableSchema],
    columns: Mapping[str, list[column_lineage_dataset.InputField]],
    statistics: output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
) -> OutputDataset:
    types = {column.name: str(column.type) for schema in schemas for column in schema.columns}
    facets: dict[str, DatasetFacet] = {
        "schema": schema_dataset.SchemaDatasetFacet(
            [schema_dataset.SchemaDatasetFacetFields(column, kind) for column, kind in types.items()]
        ),
        "columnLineage": column_lineage_dataset.ColumnLineageDatasetFacet(
            {column: column_lineage_dataset.Fields(origins) for column, origins in columns.items()}
        ),
        **name.facets,
    }
    if name.others:
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(
            [symlinks_dataset.Identifier(identifier.namespace, identifier.name, "TABLE") for identifier in name.others]
        )
    return OutputDataset(name.namespace, name.name, facets=facets, outputFacets={"outputStatistics": statistics})


def _assertions(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, InputDatasetFacet]:
    """Columns are named only of suites of the pipeline's own: Lockstep's own judge a frame about the rows."""
    assertions = [
        data_quality_assertions_dataset.Assertion(
            expectation["expectation"],
            expectation["success"],
            column=expectation["arguments"].get("column") if "table" in verdict else None,
            severity="error" if expectation["severity"] == "critical" else "warn",
            name=verdict["suite"],
        )
        for verdict in verdicts
        for expectation in verdict["expectations"]
    ]
    return {"dataQualityAssertions": data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(assertions)}
