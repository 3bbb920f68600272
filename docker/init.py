"""Prepares the compose set: Airflow's tables, the login of its user admin, the secret with which Spark's processes know
one another, and the bucket of the stage.

Repeating it changes nothing. It waits for no server: compose starts it when they are healthy, and again if it fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import boto3
import yaml


def main() -> int:
    done = subprocess.run(["airflow", "db", "migrate"], check=False)
    if done.returncode != 0:
        return done.returncode
    passwords = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    passwords.touch(mode=0o600)
    passwords.write_text(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}))
    make_spark_conf(Path("/opt/airflow/spark"), os.environ["SPARK_SECRET"])
    for file in sorted(Path("/pipelines").glob("*.yaml")):
        stage = yaml.safe_load(file.read_text(encoding="utf-8"))["stage"]
        if stage["uri"].startswith("s3://") and "s3_endpoint" in stage:
            make_bucket(stage["uri"].split("/")[2], stage["s3_endpoint"])
    return 0


def make_spark_conf(folder: Path, secret: str) -> None:
    """For master, worker and those who submit."""
    folder.mkdir(exist_ok=True)
    file = folder / "spark-defaults.conf"
    file.touch(mode=0o600)
    file.write_text(f"spark.authenticate true\nspark.authenticate.secret {secret}\nspark.network.crypto.enabled true\n")


def make_bucket(name: str, endpoint: str) -> None:
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    if name not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket=name)


if __name__ == "__main__":
    sys.exit(main())
