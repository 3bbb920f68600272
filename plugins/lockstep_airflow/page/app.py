"""The routes of the page: who may ask, and what a browser may do with the answer.

Keeps true: nothing is answered without Airflow's login; a pipeline is shown to those who may read the runs of its DAG,
files that are no pipeline to those who may see import errors; what comes from a log, a file or an error is escaped.
The page loads nothing from elsewhere and has no script: its policy allows neither.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from airflow.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cdc_core.cli.output import duration, shown, size
from lockstep_airflow.page.figures import figures
from lockstep_airflow.pipelines import pipelines_folder

HERE = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
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
_templates.globals |= {"shown": shown, "size": size, "duration": duration}


@app.middleware("http")
async def with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


@app.get("/")
def page(request: Request, user: GetUserDep) -> HTMLResponse:
    text = _templates.get_template("page.html").render(seen=_figures(request, user))
    return HTMLResponse(text.encode(errors="backslashreplace"))  # names of files need not be UTF-8


@app.get("/status.json")
def status(request: Request, user: GetUserDep) -> Response:
    return Response(json.dumps(_figures(request, user)), media_type="application/json")


@app.get("/style.css")
def style() -> FileResponse:
    return FileResponse(HERE / "style.css")


def _figures(request: Request, user: Any) -> dict[str, Any]:
    def may_read(dag_id: str) -> bool:
        try:
            requires_access_dag("GET", DagAccessEntity.RUN, dag_id)(request, user)
        except HTTPException:
            return False
        return True

    folder = pipelines_folder(str(Path(conf.get("core", "dags_folder")) / "any.py"))
    broken = get_auth_manager().is_authorized_view(access_view=AccessView.IMPORT_ERRORS, user=user)
    return figures(folder, may_read, with_broken=broken)
