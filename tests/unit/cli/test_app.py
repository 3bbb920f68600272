"""How the command line answers: one document with --json, readable errors, exit codes by class."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from cdc_core.cli.output import table
from cdc_core.cli.performable import performable
from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, RetryLater, UsageError
from cdc_core.model.readable import size
from tests.lab.pipeline_file import write_pipeline

Lockstep = Callable[..., Any]


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    return write_pipeline(tmp_path, "shop", source="connection: env:SHOP_UNSET")


def test_version_is_that_of_the_package(lockstep: Lockstep) -> None:
    assert lockstep("--version").out == f"lockstep {version('lockstep-cdc')}\n"


def test_without_arguments_it_shows_help_and_is_no_success(lockstep: Lockstep) -> None:
    done = lockstep()
    assert "Usage: lockstep" in done.out
    assert done.code == 2


def test_help_shows_the_environment_variable_of_an_option(lockstep: Lockstep) -> None:
    out = lockstep("extract", "--help").out
    assert {"LOCKSTEP_PIPELINES", "LOCKSTEP_JSON"} == set(re.findall(r"LOCKSTEP_\w+", out))


@pytest.mark.parametrize("arguments", [["extrakt"], ["extract"], ["extract", "shop", "--untill", "now"], ["meta", "x"]])
def test_a_wrong_command_line_is_a_usage_error(lockstep: Lockstep, arguments: list[str]) -> None:
    done = lockstep(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert "usage: " in done.err
    assert "--help" in done.err


def test_with_json_a_wrong_command_line_is_a_document_too(lockstep: Lockstep) -> None:
    done = lockstep("extract", "shop", "--wrong", "--json")
    error = json.loads(done.out)["error"]
    assert done.code == 2
    assert done.err == ""
    assert (error["code"], error["class"], error["where"]) == ("usage.argument", "usage", "lockstep extract")


@pytest.mark.parametrize(
    ("kind", "code"), [(UsageError, 2), (Refused, 3), (DataAtRisk, 4), (RetryLater, 75), (InternalError, 70)]
)
def test_every_class_of_error_has_its_exit_code_and_the_same_document(
    lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch, pipeline: Path, kind: type[LockstepError], code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind("It [broke].", where="binlog.000001:4", code="some.code", remedy="mend it")

    monkeypatch.setattr("cdc_core.meta.Meta.open", fail)
    done = lockstep("status", pipeline, "--json")
    assert done.code == code
    assert json.loads(done.out) == {
        "error": {
            "code": "some.code", "class": kind.exit_class, "what": "It [broke].", "where": "binlog.000001:4",
            "remedy": "mend it",
        }
    }  # fmt: skip
    done = lockstep("status", pipeline)
    assert done.code == code
    assert done.out == ""
    for part in (kind.exit_class, "It [broke].", "binlog.000001:4", "mend it", "some.code"):
        assert part in done.err


def test_an_unexpected_exception_says_how_to_report_it(
    lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch, pipeline: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("cdc_core.meta.Meta.open", fail)
    done = lockstep("status", pipeline)
    assert done.code == 70
    assert "ZeroDivisionError: by nought" in done.err
    assert "Reporting a defect" in done.err
    assert "Traceback" not in done.err
    monkeypatch.setenv("LOCKSTEP_DEBUG", "1")
    assert "Traceback" in lockstep("status", pipeline).err


def test_an_interrupt_leaves_with_130(lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch, pipeline: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cdc_core.meta.Meta.open", interrupt)
    done = lockstep("status", pipeline, "--json")
    assert done.code == 130
    assert json.loads(done.out)["error"]["code"] == "run.interrupted"


def test_a_pipeline_is_found_by_name_in_the_folder(
    lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch, pipeline: Path
) -> None:
    assert json.loads(lockstep("status", "shop", "--pipelines", pipeline.parent, "--json").out)["pipeline"] == "shop"
    monkeypatch.setenv("LOCKSTEP_PIPELINES", str(pipeline.parent))
    assert lockstep("status", "shop").code == 75  # it was never extracted


def test_a_name_that_is_not_there_is_answered_with_those_that_are(lockstep: Lockstep, pipeline: Path) -> None:
    done = lockstep("status", "shopp", "--pipelines", pipeline.parent, "--json")
    error = json.loads(done.out)["error"]
    assert (done.code, error["code"]) == (2, "usage.unknown_name")
    assert "shop" in error["remedy"]


def test_a_name_leads_to_the_file_in_the_pipelines_folder_or_else_to_the_one_here(
    lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch, pipeline: Path
) -> None:
    """Messages name pipelines: what they advise can be pasted where the file is, too."""
    monkeypatch.delenv("LOCKSTEP_PIPELINES", raising=False)
    monkeypatch.chdir(pipeline.parent)
    assert json.loads(lockstep("status", pipeline.stem, "--json").out)["pipeline"] == "shop"
    folder = pipeline.parent / "dags/pipelines"
    folder.mkdir(parents=True)
    (folder / pipeline.name).write_text("pipeline: Wrong")
    assert json.loads(lockstep("status", pipeline.stem, "--json").out)["error"]["where"].endswith(
        f"dags/pipelines/{pipeline.name}"
    )


def test_a_source_or_time_that_is_not_there_is_refused_before_anything_happens(
    lockstep: Lockstep, pipeline: Path
) -> None:
    for arguments, code in (
        (["--source", "other"], "usage.unknown_name"),
        (["--until", "yesterday"], "usage.argument"),
        (["--until", "2026-01-01T00:00:00"], "usage.argument"),
        (["--follow", "--until", "2026-01-01T00:00:00Z"], "usage.argument"),
    ):
        done = lockstep("extract", pipeline, *arguments, "--json")
        assert (done.code, json.loads(done.out)["error"]["code"]) == (2, code)
    assert not (pipeline.parent / "meta.db").exists()


@pytest.mark.parametrize("command", ["verify", "repair", "ddl resume"])
def test_a_target_that_is_not_there_is_refused_alike_by_all_commands(
    lockstep: Lockstep, pipeline: Path, command: str
) -> None:
    done = lockstep(*command.split(), pipeline, "--target", "other", "--json")
    error = json.loads(done.out)["error"]
    assert (done.code, error["code"], error["where"]) == (2, "usage.unknown_name", "--target")


def test_an_unset_connection_is_named(lockstep: Lockstep, pipeline: Path) -> None:
    done = lockstep("extract", pipeline, "--json")
    assert (done.code, json.loads(done.out)["error"]["code"]) == (2, "config.unset")


def test_an_empty_stage_has_nothing_to_show_and_that_is_no_error(lockstep: Lockstep, pipeline: Path) -> None:
    assert json.loads(lockstep("stage", "ls", pipeline, "--json").out)["batches"] == []
    assert json.loads(lockstep("stage", "verify", pipeline, "--json").out)["ok"] is True
    for asked in (
        ("export", pipeline, "shop.orders", "-o", pipeline.parent / "x.parquet"),
        ("sql", pipeline, 'FROM "shop.orders"'),
    ):
        done = lockstep("stage", *asked, "--json")
        assert (done.code, "nothing is staged yet" in json.loads(done.out)["error"]["remedy"]) == (2, True)


def test_a_way_back_that_no_cutover_has_written_is_not_asked_of_init(lockstep: Lockstep, pipeline: Path) -> None:
    error = json.loads(lockstep("cutover", "back", pipeline, "--json").out)["error"]
    assert (error["code"], "`lockstep cutover run" in error["remedy"]) == ("usage.nothing_open", True)


def test_an_export_does_not_overwrite_unless_told(lockstep: Lockstep, pipeline: Path) -> None:
    for what in ("shop.orders", "--all"):
        done = lockstep("stage", "export", pipeline, what, "-o", pipeline, "--json")
        assert (done.code, json.loads(done.out)["error"]["code"]) == (2, "usage.output_file")


def test_meta_upgrade_and_rebuild_of_a_new_pipeline_change_nothing_twice(lockstep: Lockstep, pipeline: Path) -> None:
    for _ in range(2):
        assert lockstep("meta", "upgrade", pipeline).code == 0
        rebuilt = json.loads(lockstep("meta", "rebuild", pipeline, "--json").out)
        assert rebuilt["sources"] == [{"source": "shop", "restored": 0, "position": None}]


def test_a_cell_is_shown_as_it_is_and_not_as_markup() -> None:
    made = table("t", ("a", "b"), [("[red]x[/]", 1234567)])
    assert [[cell.plain for cell in row] for row in made.rows] == [["[red]x[/]", "1,234,567"]]


def test_sizes_are_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB"]


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("conf/shop.yaml", ("conf/shop.yaml", "conf/shop.yaml", "conf/back.yaml", "conf/shop.yaml")),
        ("shop", ("shop", "shop", "back", "shop")),
    ],
)
def test_a_command_of_a_remedy_names_a_file_that_the_shell_leads_to(
    given: str, written: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    for name in ("shop", "back"):
        (tmp_path / "conf" / f"{name}.yaml").touch()
    monkeypatch.chdir(tmp_path)
    options = () if "/" in given else ("--pipelines", "conf")
    monkeypatch.setattr("sys.argv", ["lockstep", "run", given, *options])
    asked = ("run PIPELINE", "run shop", "cutover abort back", "verify")
    expected = [
        f"`lockstep {' '.join((*command.split()[: -1 if command != 'verify' else 1], name, *options))}`"
        for command, name in zip(asked, written, strict=True)
    ]
    assert [performable(f"`lockstep {command}`") for command in asked] == expected


def test_a_remedy_names_the_given_file_where_the_pipeline_is_named_otherwise(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pipeline.rename(pipeline.with_name("orders.yaml"))
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr("sys.argv", ["lockstep", "run", "orders.yaml"])
    assert performable("`lockstep meta rebuild shop`") == "`lockstep meta rebuild orders.yaml`"
    assert performable("`lockstep meta rebuild other`") == "`lockstep meta rebuild other`"
