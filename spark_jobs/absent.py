"""Values that the log did not carry: each is the row's last older one, through changes of its key.

A row lives under a key from its birth there (insert, snapshot, arrival from another key) to its delete or departure.
A row that arrives without all values has the rest under the key that it left, where it may have arrived the same way:
the chain is followed in as many joins as its length has binary digits. Values that no change of the run has are in the
target, perhaps still under one of these older keys: `_cdc_key_chain`, newest first, with the version of each departure.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cdc_core.model.merged import KEY_CHAIN, ORIGIN
from cdc_core.model.staged import DELETE, LITERAL, OP, ROW, SEQ, SOURCE, TS
from spark_jobs.columns import c
from spark_jobs.key_changes import ARRIVED, INHERITS, LACKS, SIDE, key_names, keys, lacks, split

_BIRTH, _NEXT = "_cdc_birth", "_cdc_next"
_PLACE = (SOURCE, SEQ, ROW)


def filled(at: int) -> str:
    """The column of the older value of the fillable column `at`: a struct of v (the value) and l (its literal)."""
    return f"_cdc_fill{at}"


def known_value(name: str) -> tuple[Column, Column]:
    """(whether a change settles a column of the row; its value, as in `filled`). An arrival settles all columns: no
    older change under its key has what it lacks. A delete settles nothing: what comes after it is another row."""
    has = (c(OP) != DELETE) & ~lacks(name)
    literal = F.element_at(c(LITERAL), F.lit(name))
    return has | c(ARRIVED), F.struct(c(name).alias("v"), literal.alias("l"), has.alias("known"))


def if_known(value: Column) -> Column:
    return F.when(value["known"], value.dropFields("known"))


def with_literals(own: Column, fill: Sequence[str], taken: Sequence[Column]) -> Column:
    """The literals of a row with the columns `taken` filled."""
    if not fill:
        return own
    entries = [
        F.when(
            taken[at] & c(filled(at), "l").isNotNull(),
            F.struct(F.lit(name).alias("key"), c(filled(at), "l").alias("value")),
        )
        for at, name in enumerate(fill)
    ]
    every = F.concat(F.coalesce(F.map_entries(own), F.array()), F.array_compact(F.array(*entries)))
    return F.when(F.size(every) > 0, F.map_from_entries(every))


def through_key_changes(
    changes: DataFrame, columns: T.StructType, key: Sequence[str], fill: Sequence[str]
) -> DataFrame:
    """The changes; those that bring a row under a new key have the values that it had under older keys in the run.
    If there are any such changes, with `_cdc_key_chain`. fill: the columns that an older change may have."""
    sides = split(changes, columns, key).withColumns(dict(zip(key_names(key), keys(columns, key), strict=True)))
    if sides.where(c(INHERITS)).isEmpty():
        return changes
    left = (c(SIDE) == 1) & c(INHERITS)
    row = [SOURCE, *([ORIGIN] if ORIGIN in changes.columns else []), *key_names(key)]
    sides = sides.join(sides.where(left).select(*[c(name) for name in row]).distinct(), row, "left_semi")
    life = Window.partitionBy(*[c(name) for name in row]).orderBy(SEQ, ROW)
    link = F.struct(*[c(name) for name in (*key, LITERAL, TS, *_PLACE)])
    values = [known_value(name) for name in fill]
    birth = F.struct(c(INHERITS), *[c(name) for name in _PLACE])
    nodes = sides.select(
        *[c(name) for name in _PLACE],
        left.alias("_cdc_left"),
        *[
            if_known(F.last(F.when(settles, v), True).over(life)).alias(filled(at))
            for at, (settles, v) in enumerate(values)
        ],
        F.last(F.when(c(ARRIVED), birth), True).over(life).alias(_BIRTH),
        F.array(link).alias(KEY_CHAIN),
    ).where(c("_cdc_left"))
    nodes = nodes.select(
        *[c(name) for name in _PLACE],
        *[c(filled(at)) for at in range(len(fill))],
        F.when(c(_BIRTH, INHERITS), c(_BIRTH).dropFields(INHERITS)).alias(_NEXT),
        c(KEY_CHAIN),
    )
    while True:
        nodes = nodes.localCheckpoint()
        if nodes.where(c(_NEXT).isNotNull()).isEmpty():
            break
        nodes = _one_leap(nodes, fill)
    return _joined(changes, columns, fill, nodes)


def _one_leap(nodes: DataFrame, fill: Sequence[str]) -> DataFrame:
    """Doubles each chain: adds what the node at `next` has, and where that continues."""
    names = [*[filled(at) for at in range(len(fill))], _NEXT, KEY_CHAIN]
    further = nodes.select(
        F.struct(*[c(name) for name in _PLACE]).alias("_far_place"), *[c(name).alias("_far" + name) for name in names]
    )
    return nodes.join(further, c(_NEXT) == c("_far_place"), "left").select(
        *[c(name) for name in _PLACE],
        *[F.coalesce(c(name), c("_far" + name)).alias(name) for name in names[:-2]],
        c("_far" + _NEXT).alias(_NEXT),
        F.concat(c(KEY_CHAIN), F.coalesce(c("_far" + KEY_CHAIN), F.array())).alias(KEY_CHAIN),
    )


def _joined(changes: DataFrame, columns: T.StructType, fill: Sequence[str], nodes: DataFrame) -> DataFrame:
    number = {name: at for at, name in enumerate(fill)}
    taken = [lacks(name) & c(filled(at)).isNotNull() for at, name in enumerate(fill)]
    got = F.array_compact(F.array(*[F.when(one, F.lit(name)) for one, name in zip(taken, fill, strict=True)]))
    own = [
        F.when(taken[number[name]], c(filled(number[name]), "v")).otherwise(c(name)).alias(name)
        if name in number
        else c(name)
        for name in columns.fieldNames()
    ]
    kept = [c(name) for name in changes.columns if name not in {*columns.fieldNames(), LITERAL, LACKS}]
    return changes.join(nodes.drop(_NEXT), list(_PLACE), "left").select(
        *own,
        *kept,
        with_literals(c(LITERAL), fill, taken).alias(LITERAL),
        F.array_except(c(LACKS), got).alias(LACKS),
        c(KEY_CHAIN),
    )
