"""Where the demo lives: `.lockstep/demo` in the clone, with its servers, stage, meta database and Airflow home."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

from examples.sandbox.mariadb import MariaDb
from examples.sandbox.postgres import Postgres

REPOSITORY = Path(__file__).resolve().parents[2]
PIPELINE = "shop"


@dataclass(frozen=True)
class Place:
    """The demo's folders. All of it is removed when the demo starts again."""

    root: Path = REPOSITORY / ".lockstep" / "demo"

    @property
    def airflow_home(self) -> Path:
        return self.root / "airflow"

    @property
    def pipelines(self) -> Path:
        return self.root / "pipelines"

    @property
    def pipeline_file(self) -> Path:
        return self.pipelines / f"{PIPELINE}.yaml"

    @property
    def stage(self) -> Path:
        return self.root / "stage"

    @property
    def stage_uri(self) -> str:
        return self.stage.as_uri()

    @property
    def meta_url(self) -> str:
        return f"sqlite:///{self.root / 'meta.db'}"

    @property
    def warehouse(self) -> Path:
        return self.root / "lake"

    @property
    def catalog_url(self) -> str:
        return f"sqlite:///{self.warehouse / 'catalog.db'}"

    def start_over(self) -> None:
        """Empty folders and the pipeline file."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.pipelines.mkdir(parents=True)
        self.stage.mkdir()
        self.warehouse.mkdir()
        template = Template((Path(__file__).parent / "shop.yaml").read_text(encoding="utf-8"))
        # A cron expression or a regular expression may hold a '$': only our three names are filled in.
        text = template.safe_substitute(stage=self.stage_uri, meta=self.meta_url, warehouse=self.warehouse.as_uri())
        self.pipeline_file.write_text(text, encoding="utf-8")

    @contextmanager
    def servers(self) -> Iterator[tuple[MariaDb, MariaDb]]:
        """Source and target, on data that outlive the `with` block."""
        with ExitStack() as running, ThreadPoolExecutor(2) as pool:
            started = [
                pool.submit(MariaDb.start, self.root / name, server_id=server_id)
                for name, server_id in (("source", 1), ("target", 2))
            ]
            source, target = (running.enter_context(future.result()) for future in started)
            yield source, target

    def airflow_database(self) -> Postgres:
        """For Airflow's metadata, on data that outlive the `with` block."""
        return Postgres.start(self.root / "airflow-database")


def connections(place: Place, source: MariaDb, target: MariaDb) -> dict[str, str]:
    """The environment variables that the pipeline file names."""
    return {"SHOP_SOURCE": source.url, "SHOP_TARGET": target.url, "SHOP_LAKE": place.catalog_url}
