"""The key `cutover`: how an application is switched to a target."""

from __future__ import annotations

from pydantic import Field

from cdc_core.config.value_types import Age, Model


class CutoverOptions(Model):
    """How `lockstep cutover` switches an application from the sources to a target."""

    stop_with: str | None = Field(
        None,
        min_length=1,
        description="command that stops the application's writes (LOCKSTEP_CUTOVER_PHASE=stop), or "
        "lets them continue (release); default: only locks stop them",
    )
    switch_with: str | None = Field(
        None,
        min_length=1,
        description="command that leads the application to the new tables, called once; a command "
        "ends with 0 if it has, with 3 if it certainly has not",
    )
    hook_s: float = Field(30.0, gt=0, description="how long one of these may take")
    budget_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="how long writes may be stopped; after that they continue",
    )
    max_lag_s: float = Field(3.0, gt=0, description="writes are stopped once three runs in a row took less than this")
    chase: Age = Field("1h", description="how long to wait for three quick runs before giving up")
    patience_s: float = Field(
        10.0, gt=0, description="how long to wait for transactions that are open when writes stop"
    )
    attempts: int = Field(3, ge=1, le=100, description="how often writes are stopped before the command gives up")
    evidence: Age = Field("24h", description="a full verification older than this is made again first")
