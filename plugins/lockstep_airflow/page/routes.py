"""The routes of the page: permissions, and what a browser may do with the answer.

Keeps true: nothing is answered without Airflow's login; a pipeline is shown to users who may read the runs of its DAG,
unusable files to users who may see import errors; text from a log, a file or an error is escaped.
The page loads nothing from elsewhere, and its policy allows nothing else. Nothing is written here: its buttons, shown
to users who may use them, start runs by Airflow's own REST interface, which checks again and records the user.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from airflow.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cdc_core.model.readable import duration, shown, size
from lockstep_airflow.bundle import configured_pipelines
from lockstep_airflow.page import figures
from lockstep_airflow.page.glossary import TERMS
from lockstep_airflow.pipelines import pipelines_folder
from lockstep_airflow.specs import dag_id_of

HERE = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

app = FastAPI(title="Lockstep", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(get_user)])
_templates = Environment(
    loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_templates.filters |= {"shown": shown, "size": size, "duration": duration}
_templates.globals |= {"shown": shown, "size": size, "duration": duration, "terms": TERMS}


@app.middleware("http")
async def with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


@app.get("/")
def page(request: Request, user: GetUserDep) -> HTMLResponse:
    return _html("page.html", seen=_figures(request, user))


@app.get("/status.json")
def status(request: Request, user: GetUserDep) -> Response:
    return Response(json.dumps(_figures(request, user)), media_type="application/json")


@app.get("/ledger/{pipeline}/{run_id}")
def ledger(pipeline: str, run_id: str, request: Request, user: GetUserDep) -> HTMLResponse:
    """The account of one run, which the run's tasks link to."""
    _require("GET", dag_id_of(pipeline), request, user)
    seen = figures.ledger(_folder(), pipeline, run_id)
    if seen is None:
        raise HTTPException(404, f"There is no pipeline {pipeline!r}.")
    return _html("ledger.html", seen=seen, run_id=run_id)


@app.get("/style.css")
def style() -> FileResponse:
    return FileResponse(HERE / "style.css")


@app.get("/page.js")
def script() -> FileResponse:
    return FileResponse(HERE / "page.js")


def _html(template: str, **values: Any) -> HTMLResponse:
    text = _templates.get_template(template).render(**values)
    return HTMLResponse(text.encode(errors="backslashreplace"))  # file names need not be UTF-8


def _require(method: ResourceMethod, dag_id: str, request: Request, user: Any) -> None:
    """Raises HTTPException 403 for users who may not read, or start, runs of the DAG."""
    requires_access_dag(method, DagAccessEntity.RUN, dag_id)(request, user)


def _folder() -> Path:
    in_bundle = configured_pipelines(conf.getjson("dag_processor", "dag_bundle_config_list", fallback=[]))
    return pipelines_folder(str(Path(conf.get("core", "dags_folder")) / "any.py"), in_bundle)


def _figures(request: Request, user: Any) -> dict[str, Any]:
    def may(method: ResourceMethod, dag_id: str) -> bool:
        try:
            _require(method, dag_id, request, user)
        except HTTPException:
            return False
        return True

    broken = get_auth_manager().is_authorized_view(access_view=AccessView.IMPORT_ERRORS, user=user)
    return figures.figures(_folder(), partial(may, "GET"), partial(may, "POST"), with_broken=broken)
