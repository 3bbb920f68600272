"""Lockstep's page in Airflow's UI: what every pipeline of the folder has staged and applied, and what went wrong.

No route changes anything, here or in a pipeline's meta database; buttons start DAG runs by Airflow's own REST
interface. Airflow's web server serves it, so it sees what that host sees: the pipelines folder, the meta databases and
Airflow's own, and the stage for the checks of a run; neither sources nor targets.

    routes      permissions, and the form of the answers
    figures     the figures of each pipeline, as one plain document
    airflow_state  what Airflow's database adds: switched off or on, runs that failed
    glossary    the terms, explained
    page.js     starts a DAG run, opens Airflow's pages, keeps the page fresh
"""
