"""`lockstep spark`: what Spark needs on the machine that submits."""

from __future__ import annotations

import typer

from cdc_core.cli.options import JsonOption
from cdc_core.cli.output import CliOutput

app = typer.Typer(name="spark", help="Fetch what Spark needs on the machine that submits.", no_args_is_help=True)


@app.command(name="fetch-jars")
def fetch_jars(as_json: JsonOption = False) -> None:
    """Download the jars that Spark needs for a stage in a bucket (14 MB, from Maven Central), once.

    \b
      lockstep spark fetch-jars

    They are stored in $LOCKSTEP_CACHE, by default ~/.cache/lockstep, where every run finds them. Without them,
    Spark resolves them at each start with a stage in a bucket, which takes seconds, and network access the first
    time. A stage in a directory does not need them. The command needs Java; to use a proxy, set
    JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=…
    """
    from cdc_core.apply.spark_jars import SIZE_MB, fetch_s3_jars

    output = CliOutput(as_json)
    if not as_json:
        output.note(f"looking for Spark's jars for buckets ({SIZE_MB} MB where they have to be fetched)")
    folder, fetched = fetch_s3_jars()
    jars = sorted(path.name for path in folder.glob("*.jar"))
    document = {"folder": str(folder), "jars": jars, "fetched": fetched}
    output.answer(document, f"{len(jars)} jars {'are now' if fetched else 'were already'} in {folder}")
