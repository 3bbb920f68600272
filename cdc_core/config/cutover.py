"""The key `cutover`: how an application is switched to a target."""

from __future__ import annotations

from pydantic import Field

from cdc_core.config.values import Age, Model


class Cutover(Model):
    """How `lockstep cutover` switches an application from the sources to a target."""

    stop_with: str | None = Field(
        None,
        min_length=1,
        description="command that stops the application's writes (LOCKSTEP_CUTOVER_PHASE=stop) and lets them continue "
        "(release); default: only locks keep them out",
    )
    switch_with: str | None = Field(
        None,
        min_length=1,
        description="command that leads the application to the new tables, called once; it ends with 0 if it has, and "
        "with 3 if it surely has not",
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
    attempts: int = Field(3, ge=1, le=100, description="how often writes are stopped before the command gives up")
    evidence: Age = Field("24h", description="a full verification that is older than this is made again first")
