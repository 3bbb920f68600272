"""The Spark jobs as plain data."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from cdc_core.apply.jobs import environ_for, is_local, s3_jars, spark_job
from cdc_core.config import MetaConfig, Pipeline, parse
from cdc_core.errors import UsageError
from cdc_core.model.tasks import SPARK_JOBS

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


@pytest.mark.parametrize("name", SPARK_JOBS)
def test_a_job_names_a_file_that_exists_and_the_variables_its_driver_needs(name: str) -> None:
    where = {"merge_set": "0"} if name == "merge" else {"target": "shards"}
    job = spark_job(name, "runs/r/plan.json", Path("p.yaml"), pipeline(), **where)
    assert Path(job.application).is_file()
    assert job.arguments[:4] == ("--plan", "runs/r/plan.json", "--pipeline", "p.yaml")
    assert job.environment == (() if name == "merge" else ("T0", "LOCKSTEP_CONN_T1"))
    secrets = {"SHOP": "a", "SHOP_META": "b", "T0": "c", "LOCKSTEP_CONN_T1": "d"}
    made = pipeline().model_copy(update={"meta": MetaConfig(url="env:SHOP_META")})
    assert environ_for(made, {"HOME": "/", **secrets}, job.environment).keys() == {"HOME", *job.environment}
    assert job.packages == ()
    assert job.conf["spark.driver.memory"] == "3g"


def test_a_bucket_brings_its_jars_and_no_key_stands_in_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    made = pipeline("s3://bucket/x", ', s3_endpoint: "http://127.0.0.1:9"')
    job = spark_job("merge", "plan.json", Path("p.yaml"), made, merge_set="0")
    command = " ".join(job.command("local[2]"))
    assert "hadoop-aws" in command
    assert "spark.hadoop.fs.s3a.connection.ssl.enabled=false" in command
    assert "the-key" not in command
    assert "the-secret" not in command
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= set(job.environment)


def test_jars_that_were_fetched_are_used_as_they_are_and_a_pipeline_may_bring_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    s3_jars().mkdir(parents=True)
    jars = (s3_jars() / "a.jar", s3_jars() / "b.jar")
    for jar in jars:
        jar.touch()
    made = pipeline("s3://bucket/x")
    job = spark_job("merge", "p", Path("p.yaml"), made, merge_set="0")
    assert (job.jars, job.packages) == (tuple(str(jar) for jar in jars), ())
    assert f"--jars {jars[0]},{jars[1]}" in " ".join(job.command("local[2]"))
    assert spark_job("merge", "p", Path("p.yaml"), pipeline(), merge_set="0").jars == ()
    own = made.model_copy(update={"spark": made.spark.model_copy(update={"conf": {"spark.jars.packages": "g:a:1"}})})
    job = spark_job("merge", "p", Path("p.yaml"), own, merge_set="0")
    assert (job.jars, job.packages) == ((), ())


def test_a_job_without_its_set_or_target_is_a_usage_error() -> None:
    for name in (*SPARK_JOBS, "other"):
        with pytest.raises(UsageError):
            spark_job(name, "plan.json", Path("p.yaml"), pipeline())


DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"
EXAMPLES = [yaml.safe_load(one)["spark"] for one in re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)]


@pytest.mark.parametrize("spark", EXAMPLES, ids=lambda one: one["master"].partition(":")[0])
def test_spark_submit_is_given_what_the_document_of_each_spark_says(spark: dict[str, object]) -> None:
    made = parse(yaml.safe_dump({**yaml.safe_load(YAML), "spark": spark}), where="docs/spark.md")
    master = made.spark.master
    job = spark_job("merge", "p", Path("p.yaml"), made, merge_set="0", local=is_local(master))
    command = job.command(master)
    if master.startswith("sc://"):
        assert command == [sys.executable, job.application, *job.arguments]
        return
    assert command[:3] == ["spark-submit", "--master", master]
    settings = dict(one.split("=", 1) for one in command if "=" in one)
    assert settings.items() >= dict(made.spark.conf).items()
    assert settings["spark.pyspark.driver.python"] == sys.executable
    # What holds on this machine alone must not keep executors elsewhere from the driver.
    assert (settings.get("spark.driver.host") == "127.0.0.1") == is_local(master)
    assert ("spark.driver.bindAddress" in settings) == is_local(master)


def test_a_driver_without_spark_submit_asks_for_the_same_python_of_executors() -> None:
    made = parse(YAML.replace("spark.driver.memory: 3g", "spark.pyspark.python: /opt/python"), where="test")
    command, variables = spark_job("merge", "p", Path("p.yaml"), made, merge_set="0", local=False).driver("spark://h:1")
    assert command[0] == sys.executable
    assert variables["PYSPARK_PYTHON"] == "/opt/python"
    assert "--master spark://h:1" in variables["PYSPARK_SUBMIT_ARGS"]
    assert spark_job("merge", "p", Path("p.yaml"), made, merge_set="0", local=False).driver("sc://h:1")[1] == {}


def test_the_document_has_an_example_for_each_kind_of_master() -> None:
    masters = {str(one["master"]).partition(":")[0] for one in EXAMPLES}
    assert masters == {"local[*]", "spark", "yarn", "k8s", "sc"}


def test_executors_elsewhere_find_credentials_of_a_bucket_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    provider = "spark.hadoop.fs.s3a.aws.credentials.provider"
    made = pipeline("s3://bucket/stage")
    assert provider in spark_job("merge", "p", Path("p.yaml"), made, merge_set="0").conf
    assert provider not in spark_job("merge", "p", Path("p.yaml"), made, merge_set="0", local=False).conf


def test_an_endpoint_of_whoever_submits_reaches_no_application() -> None:
    assert environ_for(pipeline(), {"SPARK_REMOTE": "sc://other", "HOME": "/"}, ()) == {"HOME": "/"}


@pytest.mark.parametrize(
    ("spark", "said"),
    [
        ("{conf: {spark.submit.deployMode: cluster}}", "deployMode"),
        ("{master: 'sc://h:1'}", "session: remote"),
        ("{session: remote, master: 'spark://h:1'}", "sc://host:15002"),
        ("{session: remote, master: 'sc://h:1/;token=t0p'}", "SPARK_CONNECT_AUTHENTICATE_TOKEN"),
    ],
)
def test_a_spark_that_cannot_be_meant_is_refused(spark: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse(YAML.replace("spark: {conf: {spark.driver.memory: 3g}}", f"spark: {spark}"), where="test")
    assert "t0p" not in str(caught.value)
