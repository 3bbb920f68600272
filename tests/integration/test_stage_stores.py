"""One suite for every place a stage may lie in: a directory, and a bucket of a real S3 server."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, RetryLater, UsageError, severity
from cdc_core.stage import s3
from cdc_core.stage.layout import CopiedName, PartName, copied_path, part_path
from cdc_core.stage.manifest import Copies, sweep
from cdc_core.stage.objects import ObjectStore, check_writable
from cdc_core.stage.stores import open_store
from tests.lab.refusals import raises

SPECIAL = [
    "changes/cdc_table=a%2Fb@0025/part-1.parquet",
    "with space/and+plus/and=equals&amp",
    "emoji-😀/ünïcode/名前",
    "quote'and\"double/back\\slash/[glob]*?{x}",
    "a" * 180,
]


PIECE_BYTES = 5 << 20
"""The least that a store takes."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MULTIPART_BYTES", PIECE_BYTES)


@pytest.fixture(params=["file", "s3"])
def store(request, tmp_path) -> ObjectStore:
    if request.param == "file":
        return open_store(f"file://{tmp_path}/stage")
    name = request.getfixturevalue("bucket")
    return open_store(f"s3://{name}/deep/er", s3_endpoint=request.getfixturevalue("s3_server").endpoint)


def paths(store: ObjectStore, prefix: str = "") -> list[str]:
    return [info.path for info in store.list(prefix)]


def test_what_is_put_is_got_and_replaced(store):
    store.put("a/b.json", b"one")
    assert store.get("a/b.json") == b"one"
    store.put("a/b.json", b"two and more")
    assert store.get("a/b.json") == b"two and more"
    assert paths(store) == ["a/b.json"]


def test_what_is_put_if_absent_stays_whatever_characters_are_in_its_path(store):
    for path in SPECIAL:
        assert store.put_if_absent(path, b"x")
        assert not store.put_if_absent(path, b"y")
        assert store.get(path) == b"x"
        assert paths(store) == [path]
        assert paths(store, path) == [path]
        with store.open_input(path) as file:
            assert file.read() == b"x"
        store.delete(path)
        assert paths(store) == []


def test_a_path_that_could_leave_the_root_is_refused(store):
    for path in ("", "/a", "a//b", "a/../b", "./a", "a/"):
        for call in (store.get, store.delete, store.stat, lambda path: store.put(path, b"")):
            with raises(InternalError, "internal.defect"):
                call(path)


def test_of_twelve_concurrent_writers_of_one_name_exactly_one_wins(store):
    with ThreadPoolExecutor(12) as pool:
        for attempt in range(5):
            path = f"race/{attempt}.json"
            texts = [f"writer {n} ".encode() * 2000 for n in range(12)]
            won = list(pool.map(lambda text, path=path: store.put_if_absent(path, text), texts))
            assert sum(won) == 1
            assert store.get(path) == texts[won.index(True)]
    assert len(paths(store)) == 5


def test_a_prefix_is_text_and_listings_are_in_byte_order(store):
    for path in ("b/2", "b/10", "b-x/1", "ba", "b/é", "c/1"):
        store.put(path, path.encode())
    assert paths(store, "b") == ["b-x/1", "b/10", "b/2", "b/é", "ba"]
    assert paths(store, "b/") == ["b/10", "b/2", "b/é"]
    assert paths(store, "b/1") == ["b/10"]
    assert paths(store, "nothing/here/") == []


def test_a_listing_tells_size_and_time(store):
    store.put("a", b"12345")
    (info,) = store.list("")
    assert info.size_bytes == 5
    assert abs(info.modified - time.time()) < 60
    assert store.stat("a") == info
    assert store.stat("b") is None
    assert store.stat("b/c") is None


def test_more_than_a_page_of_objects_is_listed(bucket, s3_server):
    store = open_store(f"s3://{bucket}", s3_endpoint=s3_server.endpoint)
    listing = "provide-client-params.s3.ListObjectsV2"
    store._client.meta.events.register(listing, lambda params, **_: {**params, "MaxKeys": 20})
    names = [f"many/{n:05d}" for n in range(45)]
    for name in names:
        store.put(name, b"")
    assert paths(store, "many/") == names


def test_what_is_missing_is_data_at_risk(store):
    for call in (store.get, store.open_input):
        with raises(DataAtRisk, "stage.damaged") as caught:
            call("gone.parquet")
        assert "gone.parquet" in str(caught.value)


def test_deleting_what_is_not_there_is_no_error(store):
    store.delete("x/y")
    store.put("x/y", b"1")
    store.delete("x/y")
    store.delete("x/y")
    assert paths(store) == []


@pytest.mark.parametrize("size", [0, 100, PIECE_BYTES + 12345])
def test_a_file_of_any_size_is_written_under_the_first_free_name(store, tmp_path, size):
    written = [os.urandom(size) for _ in range(2)]
    for name, data in zip(("big", "other"), written, strict=True):
        output = store.open_output(["big", "other"], tmp_path)
        output.write(data)
        assert output.publish() == name
    assert [store.get(name) for name in paths(store)] == written


def test_a_big_file_is_read_from_any_place(store, tmp_path):
    data = os.urandom(3 << 20)
    store.put("big", data)
    with store.open_input("big") as file:
        file.seek(-100, os.SEEK_END)
        assert file.read() == data[-100:]
        file.seek(2 << 20)
        assert file.read(10) == data[2 << 20 : (2 << 20) + 10]
        assert file.seek(0) == 0
        assert file.read() == data


@pytest.fixture
def uploads(bucket, s3_server, tmp_path):
    """A large output of a bucket, while it is written: what it holds, and the pieces that lie in the bucket."""
    store = open_store(f"s3://{bucket}/x", s3_endpoint=s3_server.endpoint)
    store.put("t/1", b"listed by a manifest")
    client = s3_server.client()
    data = os.urandom(2 * PIECE_BYTES + 12345)

    def pieces() -> int:
        found = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        return sum(
            len(client.list_parts(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]).get("Parts", []))
            for upload in found
        )

    return store, data, pieces


def test_a_large_output_goes_up_while_it_is_written_and_is_seen_when_it_is_published(uploads, tmp_path):
    store, data, pieces = uploads
    output = store.open_output(["t/1", "t/2"], tmp_path / "scratch")
    for start in range(0, len(data), 1 << 20):
        output.write(memoryview(data)[start : start + (1 << 20)])
    for _ in range(3000):
        if pieces() == 2:
            break
        time.sleep(0.01)
    assert pieces() == 2
    assert paths(store) == ["t/1"]
    assert output.publish() == "t/2"
    assert store.get("t/2") == data
    assert store.get("t/1") == b"listed by a manifest"
    assert pieces() == 0


def test_a_large_output_that_is_discarded_leaves_no_pieces(uploads, tmp_path):
    store, data, pieces = uploads
    output = store.open_output(["t/2"], tmp_path / "scratch")
    output.write(data)
    output.discard()
    assert pieces() == 0
    assert paths(store) == ["t/1"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("published", [True, False])
def test_a_discarded_output_leaves_only_other_files(store, tmp_path, published):
    store.put("t/w=1/other", b"1")
    output = store.open_output(["t/w=1/1"], tmp_path / "scratch")
    output.write(b"abc")
    if published:
        output.publish()
    output.discard()
    assert paths(store) == ["t/w=1/other"]
    assert [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()] == []


def test_the_probe_passes_and_leaves_nothing(store):
    check_writable(store)
    assert paths(store) == []


def test_the_probe_refuses_a_store_that_ignores_the_condition(store):
    class Careless(type(store)):
        def put_if_absent(self, path: str, data: bytes) -> bool:
            self.put(path, data)
            return True

    careless = store
    careless.__class__ = Careless
    with raises(Refused, "stage.unsuitable"):
        check_writable(careless)
    assert paths(store) == []


def test_locations_are_printed_as_tools_open_them(tmp_path, bucket, s3_server):
    directory = open_store(f"file://{tmp_path}")
    assert directory.location("t=a@002fb/x") == f"{tmp_path}/t=a@002fb/x"
    assert directory.spark_uri("t=a@002fb/x") == f"file:{tmp_path}/t=a@002fb/x"
    in_bucket = open_store(f"s3://{bucket}/pre/", s3_endpoint=s3_server.endpoint)
    assert in_bucket.location("a b") == f"s3://{bucket}/pre/a b"
    assert in_bucket.spark_uri("a b") == f"s3a://{bucket}/pre/a b"


def test_leftovers_of_killed_writers_are_hidden_and_discarded_when_old(tmp_path):
    store = open_store(f"file://{tmp_path}")
    store.put("m/1", b"1")
    (tmp_path / "m/.tmp-0123").write_bytes(b"half")
    assert paths(store) == ["m/1"]
    (left,) = store.leftovers()
    assert (left.path, left.upload) == ("m/.tmp-0123", "")
    store.discard(left)
    store.discard(left)
    assert not (tmp_path / "m/.tmp-0123").exists()
    assert paths(store) == ["m/1"]


def test_unfinished_multipart_uploads_are_discarded_when_old(bucket, s3_server):
    store = open_store(f"s3://{bucket}/x", s3_endpoint=s3_server.endpoint)
    client = s3_server.client()

    def begin(path: str) -> str:
        upload = client.create_multipart_upload(Bucket=bucket, Key=f"x/{path}")["UploadId"]
        client.upload_part(Bucket=bucket, Key=f"x/{path}", UploadId=upload, PartNumber=1, Body=b"abc")
        return path

    ended, live, other = (
        part_path("t", 0, PartName(*name, 0)) for name in (("shop", 4, 2), ("shop", 4, 3), ("b", 4, 1))
    )
    begun = {begin(ended), begin(live), begin(other), begin("runs/r/part")}
    outside = client.create_multipart_upload(Bucket=bucket, Key="y/part")["UploadId"]
    assert {leftover.path for leftover in store.leftovers()} == begun
    assert sweep(store, "shop", live_epoch=3).leftovers == ()
    assert {leftover.path for leftover in sweep(store, "shop", live_epoch=3, older_than_s=-3600).leftovers} == {
        ended,
        "runs/r/part",
    }
    assert {leftover.path for leftover in store.leftovers()} == {live, other}
    for leftover in store.leftovers():
        store.discard(leftover)
        store.discard(leftover)
    assert [upload["UploadId"] for upload in client.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [outside]


def test_unfinished_uploads_of_copied_rows_are_discarded_when_their_copier_has_ended(bucket, s3_server):
    store = open_store(f"s3://{bucket}", s3_endpoint=s3_server.endpoint)
    client = s3_server.client()
    ended, live, other = (
        copied_path("t", 0, CopiedName(*name, 0)) for name in (("shop", 1, 2), ("shop", 2, 3), ("b", 1, 1))
    )
    for path in (ended, live, other):
        client.create_multipart_upload(Bucket=bucket, Key=path)
    copies = Copies(live_epoch=3)
    leftovers = sweep(store, "shop", live_epoch=9, copies=copies, older_than_s=-3600).leftovers
    assert [leftover.path for leftover in leftovers] == [ended]
    assert {leftover.path for leftover in store.leftovers()} == {live, other}


def refusal(store: ObjectStore) -> LockstepError:
    with pytest.raises(LockstepError) as caught:
        check_writable(store)
    return caught.value


def test_a_wrong_secret_is_refused_and_not_shown(bucket, s3_server, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-private")
    error = refusal(open_store(f"s3://{bucket}", s3_endpoint=s3_server.endpoint))
    assert (severity(type(error)), error.code) == (Refused, "stage.denied")
    assert "wrong-and-private" not in str(error)


def test_missing_credentials_are_refused(bucket, s3_server, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    error = refusal(open_store(f"s3://{bucket}", s3_endpoint=s3_server.endpoint))
    assert (severity(type(error)), error.code) == (Refused, "stage.denied")
    assert "AWS_ACCESS_KEY_ID" in str(error)


def test_a_bucket_that_does_not_exist_is_refused(bucket, s3_server):
    error = refusal(open_store("s3://there-is-no-such-bucket", s3_endpoint=s3_server.endpoint))
    assert (severity(type(error)), error.code) == (Refused, "stage.denied")
    assert "there-is-no-such-bucket" in str(error)


def test_a_server_that_does_not_answer_is_worth_a_retry(bucket):
    error = refusal(open_store(f"s3://{bucket}", s3_endpoint="http://127.0.0.1:9"))
    assert (severity(type(error)), error.code) == (RetryLater, "stage.unreachable")


def test_a_uri_without_a_bucket_is_a_usage_error():
    with raises(UsageError, "config.invalid"):
        open_store("s3:///prefix")


def test_a_directory_that_cannot_be_written_is_refused_for_no_retry_helps(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    for place in (f"{tmp_path}/file/stage", "/proc/lockstep/stage", f"{tmp_path}/{'x' * 300}"):
        store = open_store(f"file://{place}")
        error = refusal(store)
        assert (severity(type(error)), error.code) == (Refused, "disk.not_permitted"), place
        with pytest.raises(Refused):
            store.open_output(["a"], tmp_path)


def test_what_the_account_may_not_write_is_refused_and_what_is_full_is_worth_a_retry(tmp_path):
    store = open_store(f"file://{tmp_path}")
    for lasting in (errno.EACCES, errno.EPERM, errno.EROFS):
        assert type(store._unwritable("a", OSError(lasting, os.strerror(lasting)))) is Refused
    for passing in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        assert type(store._unwritable("a", OSError(passing, os.strerror(passing)))) is RetryLater


FULL = """
import sys
from pathlib import Path
from cdc_core.errors import RetryLater
from cdc_core.stage.stores import open_store
root = Path(sys.argv[1])
store = open_store(f"file://{root}")
for call in (lambda: store.put("m/1", b"x" * 100_000), lambda: store.put_if_absent("m/2", b"x" * 100_000)):
    try:
        call()
    except RetryLater as error:
        assert error.code == "disk.error", error
    else:
        raise SystemExit("the full disk was not noticed")
output = store.open_output(["p/1"], root)
try:
    output.write(b"x" * 100_000)
except RetryLater as error:
    print(error)
output.discard()
print(sorted(str(path) for path in root.rglob("*") if path.is_file()))
"""


def test_a_full_disk_is_worth_a_retry_and_leaves_nothing(tmp_path):
    """The operating system refuses writes behind 64 KiB of a file (EFBIG), as it would on a full disk (ENOSPC)."""
    answer = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)),
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "disk.error" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "[]"
