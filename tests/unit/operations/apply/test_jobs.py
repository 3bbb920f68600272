"""What Spark is told for the jobs of a pipeline."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from cdc_core.config import Pipeline, parse
from cdc_core.errors import UsageError
from cdc_core.operations.apply.jobs import LOCAL_CONF, settings_of

YAML = """
pipeline: shop
sources: [{name: one, connection: "env:SHOP", server_id: 9}]
tables: {include: ['shop\\..*']}
stage: {uri: "file:///stage"}
meta: {url: "sqlite:////m.db"}
spark: {conf: {spark.driver.memory: 3g}}
targets: [{name: shards, connections: ["env:T0", "airflow:t1"], tables: {"*": {database: "db"}}}]
"""


def pipeline(uri: str = "file:///stage", extra: str = "") -> Pipeline:
    return parse(YAML.replace('"file:///stage"', f'"{uri}"{extra}'), where="test")


DOCUMENT = Path(__file__).parents[4] / "docs" / "spark.md"
EXAMPLES = [yaml.safe_load(text)["spark"] for text in re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)]


@pytest.mark.parametrize("spark", EXAMPLES, ids=lambda spark: spark["master"].partition(":")[0])
def test_spark_is_told_what_the_document_of_each_spark_says(spark: dict[str, object]) -> None:
    made = parse(yaml.safe_dump({**yaml.safe_load(YAML), "spark": spark}), where="docs/spark.md")
    found = settings_of(made, made.spark.master)
    assert found.items() >= dict(made.spark.conf).items()
    # What holds on this machine alone must not keep executors elsewhere from the driver.
    here = [name for name, value in LOCAL_CONF.items() if found.get(name) == value]
    assert ("spark.driver.bindAddress" in here) == made.spark.master.startswith("local")
    if made.spark.master.startswith("sc://"):
        assert found == dict(made.spark.conf), "a session there takes few settings"


def test_the_document_has_an_example_for_each_kind_of_master() -> None:
    masters = {str(example["master"]).partition(":")[0] for example in EXAMPLES}
    assert masters == {"local[*]", "spark", "yarn", "k8s", "sc"}


@pytest.mark.parametrize(
    ("spark", "said"),
    [
        ("{conf: {spark.submit.deployMode: cluster}}", "deployMode"),
        ("{master: 'sc://h:1/;token=t0p'}", "SPARK_CONNECT_AUTHENTICATE_TOKEN"),
    ],
)
def test_a_spark_that_cannot_be_meant_is_refused(spark: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse(YAML.replace("spark: {conf: {spark.driver.memory: 3g}}", f"spark: {spark}"), where="test")
    assert "t0p" not in str(caught.value)
