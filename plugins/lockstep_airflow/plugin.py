"""Loaded by Airflow at the start of each of its processes, by the entry point `airflow.plugins`.

Must stay cheap: every component pays for its imports, and only the web server needs the page's. DAGs come from
dags/; nothing needs to be registered for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

_Messages = Callable[..., Awaitable[Any]]


async def page(scope: MutableMapping[str, Any], receive: _Messages, send: _Messages) -> None:
    """The page as an ASGI application, imported by the first request."""
    from lockstep_airflow.page.routes import app

    await app(scope, receive, send)


class LockstepPlugin(AirflowPlugin):
    name = "lockstep"
    fastapi_apps: list[Any] = [{"name": "Lockstep", "app": page, "url_prefix": "/lockstep"}]  # noqa: RUF012 (as Airflow's)
    external_views: list[Any] = [  # noqa: RUF012
        # Without a leading slash: Airflow may live below a path of its host.
        {"name": "Lockstep", "href": "lockstep/", "url_route": "lockstep", "destination": "nav", "nav_top_level": True}
    ]
