"""`lockstep spark`: what Spark needs on the machine that submits."""

from __future__ import annotations

import typer

from cdc_core.cli.options import JsonOption
from cdc_core.cli.output import Output

app = typer.Typer(name="spark", help="What Spark needs on the machine that submits.", no_args_is_help=True)


@app.command(name="fetch-jars")
def fetch_jars(as_json: JsonOption = False) -> None:
    """Fetch the jars by which Spark reads and writes a stage in a bucket (14 MB, from Maven Central), once.

    \b
      lockstep spark fetch-jars

    They are kept in $LOCKSTEP_CACHE, by default ~/.cache/lockstep, where every run finds them. Without them each run
    with a stage in a bucket lets spark-submit look for them, which takes seconds, and the network at first. A stage in
    a directory needs none. It needs Java; a proxy is given to Java by JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=…
    """
    from cdc_core.apply.spark_jars import SIZE_MB, fetch_s3_jars

    output = Output(as_json)
    if not as_json:
        output.note(f"looking for Spark's jars for buckets ({SIZE_MB} MB where they have to be fetched)")
    folder, fetched = fetch_s3_jars()
    jars = sorted(path.name for path in folder.glob("*.jar"))
    document = {"folder": str(folder), "jars": jars, "fetched": fetched}
    output.answer(document, f"{len(jars)} jars {'are now' if fetched else 'were already'} in {folder}")
