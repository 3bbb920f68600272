"""Lockstep in Airflow: a pipeline file becomes a DAG. Importing this package costs nothing; its modules import
Airflow's SDK, and the packages of cdc_core that do the work only while a task runs."""
