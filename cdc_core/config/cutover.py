"""The key `cutover`: how an application is switched to a target."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cdc_core.config.values import Age, Model


class PythonHook(Model):
    """A function of your own, instead of a command."""

    python: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="module:function, installed next to Lockstep; called with the keywords phase, cutover_id, pipeline "
        "and direction, in a process of its own. To switch, it returns True if it has, and False if it surely has not",
    )


Hook = Annotated[str, Field(min_length=1)] | PythonHook


class Cutover(Model):
    """How `lockstep cutover` switches an application from the sources to a target."""

    stop_with: Hook | None = Field(
        None,
        description="command, or function, that stops the application's writes (LOCKSTEP_CUTOVER_PHASE=stop) and lets "
        "them continue (release); default: only locks keep them out",
    )
    switch_with: Hook | None = Field(
        None,
        description="command, or function, that leads the application to the new tables, called once; a command ends "
        "with 0 if it has, and with 3 if it surely has not",
    )
    hook_s: float = Field(30.0, gt=0, description="how long one of these commands may take")
    budget_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="how long writes may be stopped: above it, they continue, and nothing has happened",
    )
    max_lag_s: float = Field(
        3.0, gt=0, description="writes are stopped once three runs in a row have taken less than this"
    )
    chase: Age = Field(
        "1h", description="how long runs are made until three in a row were quick; above it, nothing has happened"
    )
    patience_s: float = Field(
        10.0, gt=0, description="how long transactions that are open when writes stop are waited for"
    )
    open_transactions: Literal["wait", "kill"] = Field(
        "wait",
        description="what happens to transactions that are still open after patience_s: wait, so that nothing has "
        "happened and writes continue; or kill, which ends their connections: on MySQL of those that have written to "
        "the tables, on MariaDB, which does not say which these are, of all that have changed rows on the server",
    )
    prepared_transactions: Literal["wait", "rollback"] = Field(
        "wait",
        description="the same of XA transactions that are prepared and whose connection is gone: wait, or rollback, "
        "of all of them on the server",
    )
    attempts: int = Field(3, ge=1, le=100, description="how often writes are stopped before the command gives up")
    evidence: Age = Field("24h", description="a full verification that is older than this is made again first")
