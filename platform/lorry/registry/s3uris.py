"""S3 URIs that a tenant may name: plain folders of plain buckets, judged as text before anything is asked of a store.

``s3://bucket/a/b/``: a bucket by S3's own naming rules (no IP address, none of S3's reserved words), then at least one
segment of letters, digits and ``. _ = -``. So there is no user, host, port, query, fragment, escape, empty segment or
``..`` that a client library could read differently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lorry.errors import InvalidRequest

PREFIXES_MAX = 16
URI_MAX = 512
_LABEL = r"[a-z0-9]+(?:-+[a-z0-9]+)*"
_BUCKET = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_URI = re.compile(r"s3://([a-z0-9.-]{3,63})/((?:[A-Za-z0-9._=-]+/)*[A-Za-z0-9._=-]+)/?")
_ADDRESS = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
_RESERVED_STARTS = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


@dataclass(frozen=True, slots=True)
class S3Folder:
    """``prefix`` ends with ``/`` and does not begin with one."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def holds(self, other: S3Folder) -> bool:
        """Whether ``other`` is this folder or lies in it. Both end with a ``/``, so ``team-a/`` does not hold
        ``team-abc/``."""
        return self.bucket == other.bucket and other.prefix.startswith(self.prefix)


def parse_folder(field: str, text: str) -> S3Folder:
    """``s3://bucket/prefix``, with or without a ``/`` at its end, or InvalidRequest."""
    found = _URI.fullmatch(text) if len(text) <= URI_MAX else None
    if found is None or ".." in text or "." in found[2].split("/"):
        raise InvalidRequest.field(
            field,
            f"{text[:80]!a} is not a folder of a bucket; use `s3://bucket/prefix/` of at most {URI_MAX} characters, "
            "with letters, digits and . _ = - in the prefix, and neither '..' nor '//'",
        )
    bucket = found[1]
    reserved = bucket.startswith(_RESERVED_STARTS) or bucket.endswith(_RESERVED_ENDS)
    if reserved or not _BUCKET.fullmatch(bucket) or _ADDRESS.fullmatch(bucket):
        raise InvalidRequest.field(field, f"{bucket!a} is not a bucket's name by S3's rules; use the bucket's own")
    return S3Folder(bucket, f"{found[2]}/")


def check_prefixes(field: str, texts: Sequence[str]) -> list[str]:
    """What a tenant may import from, without repetitions: at most 16 folders, each written with the ``/`` at its end.
    Else InvalidRequest naming ``{field}[{index}]``."""
    if len(texts) > PREFIXES_MAX:
        raise InvalidRequest.field(field, f"{len(texts)} prefixes; use at most {PREFIXES_MAX}")
    found: dict[str, None] = {}
    for index, text in enumerate(texts):
        folder = parse_folder(f"{field}[{index}]", text)
        if not text.endswith("/"):
            raise InvalidRequest.field(
                f"{field}[{index}]", f"{text[:80]!a} does not end with '/', so that it would hold its neighbours too"
            )
        found[str(folder)] = None
    return list(found)


def check_import(field: str, text: str, prefixes: Sequence[str]) -> S3Folder:
    """The folder that ``text`` names, which one of ``prefixes`` (as ``check_prefixes`` answered them) holds; else
    InvalidRequest, in equal words whether or not anything is there."""
    folder = parse_folder(field, text)
    if not any(parse_folder("import_prefixes", prefix).holds(folder) for prefix in prefixes):
        raise InvalidRequest.field(
            field,
            f"{str(folder)[:200]!a} is not within what this tenant may import from; ask the platform's administrator "
            "for an import prefix, or upload the files",
        )
    return folder


__all__ = ["PREFIXES_MAX", "URI_MAX", "S3Folder", "check_import", "check_prefixes", "parse_folder"]
