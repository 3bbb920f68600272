"""What Airflow loads at the start of each of its processes, by the entry point `airflow.plugins`.

It must stay cheap: every component pays for its imports. It registers a name, so that `airflow plugins` shows
which Lockstep is installed; DAGs come from dags/, and nothing needs to be registered for them.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class LockstepPlugin(AirflowPlugin):
    name = "lockstep"
