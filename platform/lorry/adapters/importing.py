"""An adapter's files out of a bucket of the platform's own object store. No torch.

The endpoint and the credentials are the deployment's: an address names a bucket and a prefix, never a host.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from lorry.adapters.manifest import CHUNK_BYTES, PLAIN_FILE
from lorry.adapters.s3 import s3_client
from lorry.adapters.store import RETRY_AFTER_S
from lorry.config import StoreConfig
from lorry.errors import FailedPrecondition, InvalidRequest, ObjectStoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_AT_ONCE = 4
"""Each may take minutes, so they have threads of their own."""
_REFUSED = frozenset({"403", "404", "AccessDenied", "AllAccessDisabled", "NoSuchBucket", "NoSuchKey"})


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """What an upload may be, too."""

    max_files: int
    max_file_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class _Object:
    key: str
    name: str
    size: int
    etag: str


class S3Importer:
    """One client; safe from any thread."""

    def __init__(self, config: StoreConfig, limits: ImportLimits) -> None:
        self._client: S3Client = s3_client(config)
        self._limits = limits
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="s3-import")

    async def fetch(self, bucket: str, prefix: str, folder: Path) -> None:
        """The objects directly under ``prefix`` (empty, or ending with a slash) as files of ``folder``.

        Raises InvalidRequest for a place without files, with folders in it, or with more than an upload may hold;
        FailedPrecondition where an object changes while it is read; ObjectStoreUnavailable.
        """
        await asyncio.get_running_loop().run_in_executor(self._threads, self._fetch, bucket, prefix, folder)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _fetch(self, bucket: str, prefix: str, folder: Path) -> None:
        where = f"s3://{bucket}/{prefix}"
        try:
            for found in self._listed(bucket, prefix, where):
                self._copy(bucket, found, folder / found.name, where)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "unknown")
            if code in _REFUSED:
                raise InvalidRequest.field(
                    "s3_uri", f"{where} cannot be read ({code}); see that it exists and that the platform may read it"
                ) from error
            raise _unavailable(where, code) from error
        except (BotoCoreError, HTTPClientError) as error:
            raise _unavailable(where, type(error).__name__) from error

    def _listed(self, bucket: str, prefix: str, where: str) -> list[_Object]:
        limits = self._limits
        answer = self._client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=limits.max_files + 2)
        rows = [row for row in answer.get("Contents", []) if row["Key"] != prefix]  # a folder's own marker
        if not rows:
            raise InvalidRequest.field("s3_uri", f"{where} holds no object; give the folder that PEFT saved")
        if answer.get("IsTruncated") or len(rows) > limits.max_files:
            raise InvalidRequest.field("s3_uri", f"{where} holds more than {limits.max_files} files; that is the limit")
        found = [_Object(row["Key"], row["Key"].removeprefix(prefix), row["Size"], row["ETag"]) for row in rows]
        for one in found:
            if not PLAIN_FILE.fullmatch(one.name):
                raise InvalidRequest.field(
                    "s3_uri", f"{where} holds {one.name[:80]!a}, which is no plain file; use a folder with files alone"
                )
            if one.size > limits.max_file_bytes:
                text = f"{where}{one.name} has {one.size} bytes; at most {limits.max_file_bytes}"
                raise InvalidRequest.field("s3_uri", text)
        if len({one.name.lower() for one in found}) < len(found):
            raise InvalidRequest.field("s3_uri", f"{where} holds two files that differ by case alone; rename one")
        if (total := sum(one.size for one in found)) > limits.max_bytes:
            raise InvalidRequest.field("s3_uri", f"{where} has {total} bytes; at most {limits.max_bytes}")
        return found

    def _copy(self, bucket: str, found: _Object, target: Path, where: str) -> None:
        try:
            answer = self._client.get_object(Bucket=bucket, Key=found.key, IfMatch=found.etag)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("412", "PreconditionFailed"):
                raise _changed(where, found) from error
            raise
        size = 0
        with closing(answer["Body"]) as body, open(target, "xb", opener=_private) as out:
            for block in body.iter_chunks(CHUNK_BYTES):
                size += len(block)
                if size > found.size:
                    raise _changed(where, found)
                out.write(block)
        if size != found.size:
            raise _changed(where, found)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _changed(where: str, found: _Object) -> FailedPrecondition:
    return FailedPrecondition(f"s3_uri: {where}{found.name} changed while it was read; send the request again")


def _unavailable(where: str, why: str) -> ObjectStoreUnavailable:
    return ObjectStoreUnavailable(
        f"s3_uri: {where} cannot be read now ({why}); try again later", retry_after_s=RETRY_AFTER_S
    )


__all__ = ["ImportLimits", "S3Importer"]
