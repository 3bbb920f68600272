"""A target that only replays feed: what they have applied counts, and where nothing tells it, nothing is equal."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.one_server import FIRST_MARIADB
from tests.lab.verified import Verified


@FIRST_MARIADB
def test_of_a_target_that_only_replays_feed_a_row_that_was_set_back_by_hand_is_no_lag(
    verified: Callable[..., Verified],
) -> None:
    run = verified()
    run.change_target(replay_only=True, existing="keep")

    def verify(*arguments: str) -> tuple[int, str, str, int, int]:
        done = run("verify", *arguments)
        (one,) = done.document["tables"]
        code = done.error["code"] if done.code else ""
        return done.code, code, one["verdict"], one["moving"], one["unsettled"]

    run.make("number", range(20))
    run.extract()
    run.source("UPDATE number SET v = 'now' WHERE id < 10")
    run.extract()
    run.target(f"CREATE TABLE number LIKE {run.origin.name}.number")
    run.target(f"INSERT INTO number SELECT * FROM {run.origin.name}.number")
    run.target("UPDATE number SET v = 'v3' WHERE id = 3")  # as it was
    # Nothing is known to be applied, so that nothing tells this from a lag.
    assert verify() == (3, "verify.not_replayed", "unsettled", 0, 1)
    run.target("DELETE FROM number WHERE id = 3")
    assert verify("--mode", "count") == (3, "verify.not_replayed", "unsettled", 0, 1)

    run.ok("run", "--replay", "--target", "copy")
    assert verify() == (0, "", "equal", 0, 0)
    run.target("UPDATE number SET v = 'v3' WHERE id = 3")
    assert verify() == (4, "verify.differs", "different", 0, 0)
    run.target("UPDATE number SET v = 'now' WHERE id = 3")
    # What no replay has brought is a lag.
    run.source("UPDATE number SET v = 'later' WHERE id = 5")
    assert verify() == (0, "", "equal so far", 1, 0)
    # A replay of the newest batch adds to what is known.
    newest = sorted(path.stem for path in run.folder.glob("stage/manifests/shop/*.json"))[-1]
    run.ok("run", "--replay", "--target", "copy", "--from", f"shop/{newest}")
    assert verify() == (0, "", "equal", 0, 0)
