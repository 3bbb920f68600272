"""What to do where the log lacks something for ever, which errors of several packages say in the same words."""

from __future__ import annotations

RESYNC = (
    "set tables.on_unreadable: resync, which leaves the table out from here on and has it copied again "
    "(on_unreadable: isolate only leaves it out)"
)
"""For one table."""
GIVE_UP = (
    "give up what cannot be read: `lockstep extract PIPELINE --source NAME --abandon FILE:OFFSET`, with the position "
    "up to which it was read, continues at the end of the log and has every table copied again"
)
"""For the log of a source."""
