"""Adapter objects in S3, or anything that speaks it. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from lorry.adapters.manifest import CHUNK_BYTES
from lorry.adapters.store import RETRY_AFTER_S, ObjectBytes, ObjectStore, StreamBroken, check_key, missing
from lorry.config import StoreConfig
from lorry.errors import InvalidRequest, LorryError, ObjectStoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_DENIED = frozenset({"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"})


def s3_client(config: StoreConfig) -> S3Client:
    """Raises InvalidRequest for an endpoint with credentials in it."""
    if config.endpoint_url is not None and "@" in urlsplit(config.endpoint_url).netloc:
        raise InvalidRequest.field("store.endpoint_url", "holds credentials; give access_key and secret_key")
    return boto3.session.Session().client(
        "s3",
        endpoint_url=config.endpoint_url,
        aws_access_key_id=config.access_key,
        aws_secret_access_key=config.secret_key,
        region_name=config.region,
        config=Config(
            connect_timeout=config.connect_timeout_s,
            read_timeout=config.read_timeout_s,
            retries={"total_max_attempts": max(1, config.attempts), "mode": "standard"},
            max_pool_connections=16,
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


class S3Store(ObjectStore):
    """Path-style addressing, so that any server works. Attempts and timeouts are the configuration's."""

    def __init__(self, config: StoreConfig, bucket: str, prefix: str = "") -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._attempts = max(1, config.attempts)
        self._client = s3_client(config)

    def __repr__(self) -> str:
        return f"S3Store(bucket={self._bucket!r}, prefix={self._prefix!r})"

    def prepare_sync(self) -> None:
        with self._asking("the bucket"):
            try:
                self._client.head_bucket(Bucket=self._bucket)
            except ClientError as error:
                if _code(error) not in (*_MISSING, "NoSuchBucket"):
                    raise
                if self._client.meta.region_name == "us-east-1":  # S3 refuses to be told its default
                    self._client.create_bucket(Bucket=self._bucket)
                else:
                    where: Any = {"LocationConstraint": self._client.meta.region_name}
                    self._client.create_bucket(Bucket=self._bucket, CreateBucketConfiguration=where)

    def put_file_sync(self, key: str, path: Path) -> None:
        full = self._prefix + check_key(key)
        with open(path, "rb") as body, self._asking(key):
            self._client.put_object(Bucket=self._bucket, Key=full, Body=body)

    def exists_sync(self, key: str) -> bool:
        full = self._prefix + check_key(key)
        with self._asking(key):
            try:
                self._client.head_object(Bucket=self._bucket, Key=full)
            except ClientError as error:
                if _code(error) in _MISSING:
                    return False
                raise
            return True

    def delete_sync(self, key: str) -> None:
        full = self._prefix + check_key(key)
        with self._asking(key):
            self._client.delete_object(Bucket=self._bucket, Key=full)

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _open(self, key: str) -> Iterator[ObjectBytes]:
        with self._asking(key):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
        body = answer["Body"]

        def blocks() -> Iterator[bytes]:
            try:
                yield from body.iter_chunks(CHUNK_BYTES)
            except (BotoCoreError, HTTPClientError, OSError) as error:
                raise StreamBroken(key) from error

        try:
            yield ObjectBytes(answer["ContentLength"], blocks())
        finally:
            body.close()

    @contextmanager
    def _asking(self, key: str) -> Iterator[None]:
        """Turns boto's errors into ours. They name the bucket and key, never a credential."""
        try:
            yield
        except ClientError as error:
            raise self._translated(key, _code(error)) from error
        except (BotoCoreError, HTTPClientError) as error:
            raise ObjectStoreUnavailable(
                f"object {key}: the store does not answer ({type(error).__name__}) after {self._attempts} attempts; "
                "see that it runs and that store.endpoint_url is right",
                metadata={"key": key},
                retry_after_s=RETRY_AFTER_S,
            ) from error

    def _translated(self, key: str, code: str) -> LorryError:
        if code in _MISSING:
            return missing(key)
        if code in _DENIED:
            remedy = "check store.access_key, store.secret_key and what they may do"
        elif code == "NoSuchBucket":
            remedy = f"make the bucket {self._bucket}, or correct store.url"
        else:
            remedy = "try again later"
        return ObjectStoreUnavailable(
            f"object {key}: the store answers {code}; {remedy}",
            metadata={"key": key, "code": code},
            retry_after_s=RETRY_AFTER_S,
        )


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "unknown")


__all__ = ["S3Store", "s3_client"]
