"""What Spark is told for the jobs of a pipeline."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from cdc_core.apply.jobs import LOCAL_CONF, s3_jars, settings_of
from cdc_core.config import Pipeline, parse
from cdc_core.errors import UsageError

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


def test_a_bucket_brings_its_jars_and_no_key_stands_in_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    found = settings_of(pipeline("s3://bucket/x", ', s3_endpoint: "http://127.0.0.1:9"'), "local[2]")
    assert "hadoop-aws" in found["spark.jars.packages"]
    assert found["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"
    assert found["spark.driver.memory"] == "3g"
    assert not {"the-key", "the-secret"} & set(found.values())


def test_jars_that_were_fetched_are_used_as_they_are_and_a_pipeline_may_bring_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    s3_jars().mkdir(parents=True)
    jars = (s3_jars() / "a.jar", s3_jars() / "b.jar")
    for jar in jars:
        jar.touch()
    made = pipeline("s3://bucket/x")
    assert settings_of(made, "local[2]")["spark.jars"] == f"{jars[0]},{jars[1]}"
    assert "spark.jars.packages" not in settings_of(made, "local[2]")
    assert "spark.jars" not in settings_of(pipeline(), "local[2]")
    own = made.model_copy(update={"spark": made.spark.model_copy(update={"conf": {"spark.jars.packages": "g:a:1"}})})
    assert settings_of(own, "local[2]")["spark.jars.packages"] == "g:a:1"
    assert "spark.jars" not in settings_of(own, "local[2]")


DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"
EXAMPLES = [yaml.safe_load(one)["spark"] for one in re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)]


@pytest.mark.parametrize("spark", EXAMPLES, ids=lambda one: one["master"].partition(":")[0])
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
    masters = {str(one["master"]).partition(":")[0] for one in EXAMPLES}
    assert masters == {"local[*]", "spark", "yarn", "k8s", "sc"}


def test_executors_elsewhere_find_credentials_of_a_bucket_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    provider = "spark.hadoop.fs.s3a.aws.credentials.provider"
    made = pipeline("s3://bucket/stage")
    assert provider in settings_of(made, "local[2]")
    assert provider not in settings_of(made, "spark://spark.example:7077")


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
