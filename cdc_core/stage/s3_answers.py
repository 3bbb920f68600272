"""What an answer of a bucket's endpoint must have to be believed.

A proxy, a network's login page or a broken gateway answers `200 OK` too. Of each answer this module requires what only
the bucket knows: the checksum of what was stored, the range and size of what is read, the name and the keys of what is
listed. An answer without that is RetryLater (stage.unreachable), and nothing counts as stored, absent or listed by it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cdc_core.errors import RetryLater
from cdc_core.stage.objects import ObjectInfo

_MD5 = re.compile(r"[0-9a-f]{32}")


def unusable(what: str, where: str) -> RetryLater:
    return RetryLater(
        f"The bucket's endpoint gave an answer that cannot be right: {what}.",
        where=where,
        code="stage.unreachable",
        remedy="check what answers at stage.s3_endpoint: a proxy, a gateway or the login page of a network may; the "
        "next attempt may succeed",
    )


def etag_of(answer: Mapping[str, Any], where: str) -> str:
    """The object's ETag, which every store of objects sends."""
    etag = str(answer.get("ETag") or "").strip('"')
    if not etag:
        raise unusable("it has no ETag", where)
    return etag


def md5(data: bytes) -> str:
    """What most servers use as ETag of an object that was put by one request."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def contradicts(etag: str, data: bytes) -> bool:
    """Whether the ETag looks like a checksum, and is not that of these bytes. It may be that of an encrypted object."""
    return bool(_MD5.fullmatch(etag)) and etag != md5(data)


def length_of(answer: Mapping[str, Any], where: str) -> int:
    size = answer.get("ContentLength")
    if not isinstance(size, int) or size < 0:
        raise unusable("it has no length", where)
    return size


def info_of(answer: Mapping[str, Any], path: str, where: str) -> ObjectInfo:
    """From an answer to HeadObject."""
    etag_of(answer, where)
    modified = answer.get("LastModified")
    if modified is None:
        raise unusable("it has no time of modification", where)
    return ObjectInfo(path, length_of(answer, where), modified.timestamp())


def require_range(answer: Mapping[str, Any], start: int, stop: int, size: int, where: str) -> None:
    """The answer has the bytes start..stop-1 of an object of this size."""
    found, expected = str(answer.get("ContentRange", "")), f"bytes {start}-{stop - 1}/{size}"
    if found != expected:
        raise unusable(f"its range is {found[:80]!r} where {expected!r} was asked for", where)
    if length_of(answer, where) != stop - start:
        raise unusable(f"it has {answer['ContentLength']} bytes instead of {stop - start}", where)


def page_of(answer: Mapping[str, Any], bucket: str, prefix: str, where: str) -> Sequence[Mapping[str, Any]]:
    """The objects on a page of a listing, of which each has a key, a size and a time."""
    items: Sequence[Mapping[str, Any]] = answer.get("Contents", ())
    if answer.get("Name") != bucket:
        raise unusable(f"a listing of {str(answer.get('Name'))[:80]!r} instead of the bucket", where)
    if answer.get("Prefix", prefix) != prefix:
        raise unusable(f"a listing of {str(answer['Prefix'])[:80]!r} instead of {prefix!r}", where)
    if not isinstance(answer.get("IsTruncated"), bool):
        raise unusable("a listing that does not say whether it is complete", where)
    if answer["IsTruncated"] and not answer.get("NextContinuationToken"):
        raise unusable("a listing that is not complete and does not say how it continues", where)
    if answer.get("KeyCount", len(items)) != len(items):
        raise unusable(f"a listing of {answer['KeyCount']} keys that has {len(items)}", where)
    for item in items:
        key = item.get("Key", "")
        if not key.startswith(prefix) or "Size" not in item or "LastModified" not in item:
            raise unusable(f"a listing of {prefix!r} with the entry {key[:200]!r}", where)
    return items


def require_deleted(answer: Mapping[str, Any], where: str) -> None:
    meta = answer.get("ResponseMetadata", {})
    kind = str(meta.get("HTTPHeaders", {}).get("content-type", ""))
    if meta.get("HTTPStatusCode") != 204 and "html" in kind:
        raise unusable(f"HTTP {meta.get('HTTPStatusCode')} with {kind[:40]!r} for a deletion", where)
