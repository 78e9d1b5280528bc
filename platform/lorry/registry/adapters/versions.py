"""Versions: validated, stored by content, then committed; in that order, so that a READY row always has its
objects and a failure leaves at most objects that nothing names."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lorry.adapters.manifest import files_digest, scan_directory
from lorry.adapters.report import Check
from lorry.errors import (
    AdapterDigestMismatch,
    AdapterRefused,
    FailedPrecondition,
    FieldViolation,
    InvalidRequest,
    ResourceNotFound,
)
from lorry.registry import audit, changes
from lorry.registry.adapters import content, repository
from lorry.registry.adapters.candidates import BaseFacts, Candidate, Validator
from lorry.registry.adapters.states import REASON_MAX, VersionStates, find
from lorry.registry.adapters.uploads import UploadLimits, Uploads, UploadState
from lorry.registry.adapters.watching import Attempt, Attempts, Examined, Made
from lorry.registry.authz import Caller, VerifiedTenantId, not_visible
from lorry.registry.bases import repository as bases
from lorry.registry.bases.service import check_sha256
from lorry.registry.changes import Change, Kind
from lorry.registry.db.conflicts import unique
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import AdapterVersion, BaseModel
from lorry.registry.entries import VersionState
from lorry.registry.idempotency import RequestKey, remember, replay
from lorry.registry.names import AdapterName
from lorry.registry.rights import require
from lorry.registry.s3uris import check_import
from lorry.registry.tenants.repository import open_tenant


class ObjectSink(content.ObjectBin, Protocol):
    """The part of ``lorry.adapters.store.ObjectStore`` that registration needs. All raise ObjectStoreUnavailable."""

    async def put_file(self, key: str, path: Path) -> None: ...


class Importer(Protocol):
    """``lorry.adapters.importing.S3Importer``."""

    async def fetch(self, bucket: str, prefix: str, folder: Path) -> None:
        """The files under ``prefix`` into an empty folder. Raises InvalidRequest for what is no adapter's folder, or is
        larger than an upload may be; FailedPrecondition; ObjectStoreUnavailable."""


@dataclass(frozen=True, slots=True)
class _Place:
    """What a new version belongs to, looked up before the long work."""

    tenant: VerifiedTenantId
    adapter_id: str
    base: BaseModel
    import_prefixes: tuple[str, ...]


class VersionService(VersionStates):
    """Raises RoleTooLow by ``rights``, and ResourceNotFound for what is not there or not the caller's to see."""

    def __init__(
        self,
        database: Database,
        uploads: Uploads,
        store: ObjectSink,
        validate: Validator,
        importer: Importer | None = None,
    ) -> None:
        """``importer`` None imports nothing."""
        super().__init__(database)
        self._importer = importer
        self._uploads = uploads
        self._store = store
        self._validate = validate
        self._attempts = Attempts()

    @property
    def limits(self) -> UploadLimits:
        return self._uploads.limits

    async def create_upload(self, caller: Caller, name: AdapterName, request_id: str = "") -> UploadState:
        """A repeated ``request_id`` is answered the same upload while it is open; the registry keeps nothing of it."""
        require(caller, "upload adapters")
        key = RequestKey.of(caller, "CreateUpload", request_id, name.bare)
        tenant, adapter_id = await self._adapter(caller, name)
        if not request_id:
            return await self._uploads.create(tenant, adapter_id)
        upload_id = hashlib.sha256("\0".join((key.tenant, key.method, request_id)).encode()).hexdigest()[:32]
        try:
            return await self._uploads.create(tenant, adapter_id, upload_id)
        except ResourceNotFound:
            raise InvalidRequest.field(
                "request_id", f"{request_id!r} was used for another request; use a new one"
            ) from None

    async def get_upload(self, caller: Caller, name: AdapterName, upload_id: str) -> UploadState:
        require(caller, "upload adapters")
        tenant, adapter_id = await self._adapter(caller, name)
        return await self._uploads.get(tenant, adapter_id, upload_id)

    async def put_chunk(
        self, caller: Caller, name: AdapterName, upload_id: str, file: str, offset: int, data: bytes, sha256: str
    ) -> int:
        """As ``Uploads.put``."""
        require(caller, "upload adapters")
        tenant, adapter_id = await self._adapter(caller, name)
        return await self._uploads.put(tenant, adapter_id, upload_id, file, offset, data, sha256)

    async def create(
        self,
        caller: Caller,
        name: AdapterName,
        upload_id: str,
        base: str,
        expected_sha256: str = "",
        request_id: str = "",
    ) -> AdapterVersion:
        """The adapter's next version, READY, with its files and base loaded.

        Raises AdapterRefused after a REJECTED version with its report was recorded; AdapterDigestMismatch
        where ``expected_sha256`` differs, and ObjectStoreUnavailable: then nothing was recorded, and the
        upload is still there.
        """
        require(caller, "create versions")
        key = RequestKey.of(caller, "CreateAdapterVersion", request_id, name.bare, upload_id, base, expected_sha256)
        place = await self._place(caller, name, base)
        return await self._create(caller, key, place, name, upload_id, expected_sha256)

    async def import_from(
        self,
        caller: Caller,
        name: AdapterName,
        uri: str,
        base: str,
        expected_sha256: str = "",
        request_id: str = "",
    ) -> AdapterVersion:
        """As ``create``, of the files under an ``s3://`` address within the tenant's import prefixes."""
        require(caller, "create versions")
        key = RequestKey.of(caller, "CreateAdapterVersion", request_id, name.bare, uri, base, expected_sha256)
        place = await self._place(caller, name, base)
        if (known := await self._replayed(key, place.tenant, name)) is not None:
            return known
        async with self._imported(place, uri) as upload_id:
            return await self._create(caller, key, place, name, upload_id, expected_sha256, uri)

    async def examine_import(
        self, caller: Caller, name: AdapterName, uri: str, base: str, expected_sha256: str = ""
    ) -> tuple[Candidate, BaseModel]:
        """As ``examine``, of the files under an ``s3://`` address."""
        require(caller, "create versions")
        place = await self._place(caller, name, base)
        async with self._imported(place, uri) as upload_id:
            return await self.examine(caller, name, upload_id, base, expected_sha256)

    @asynccontextmanager
    async def _imported(self, place: _Place, uri: str) -> AsyncIterator[str]:
        """An upload of this process's own with the files; it is gone afterwards, whatever came of it."""
        source = check_import("s3_uri", uri, place.import_prefixes)
        if self._importer is None:
            raise FailedPrecondition("s3_uri: this deployment's object store is a folder; upload the files instead")
        upload = await self._uploads.create(place.tenant, place.adapter_id)
        try:
            async with self._uploads.sealed(place.tenant, place.adapter_id, upload.id) as folder:
                if folder is None:
                    raise not_visible()
                await self._importer.fetch(source.bucket, source.prefix, folder)
            yield upload.id
        finally:
            await self._uploads.discard(upload.id)

    async def _create(
        self,
        caller: Caller,
        key: RequestKey,
        place: _Place,
        name: AdapterName,
        upload_id: str,
        expected_sha256: str,
        source_uri: str | None = None,
    ) -> AdapterVersion:
        async with self._uploads.sealed(place.tenant, place.adapter_id, upload_id) as folder:
            # An equal request may have had the upload until now.
            if (known := await self._replayed(key, place.tenant, name)) is not None:
                return known
            if folder is None:
                raise not_visible()
            with self._attempts.attempt(_attempt_of(place.tenant, place.adapter_id, upload_id)) as attempt:
                candidate = await self._examine(folder, place.base, expected_sha256, attempt)
                if candidate.report.ok:
                    for file in candidate.files:
                        # Never skipped for bytes that the store has: how long this takes must not tell whose they are.
                        await self._store.put_file(f"{candidate.prefix}/{file.path}", folder / file.path)
                try:
                    row = await self._commit(caller, key, place, name, candidate, folder, source_uri)
                except FailedPrecondition:  # its adapter went meanwhile, and a purge may be over
                    await self._drop(candidate)
                    raise
                attempt.ended(row)
        await self._uploads.discard(upload_id)
        return _answer(row)

    async def examine(
        self, caller: Caller, name: AdapterName, upload_id: str, base: str, expected_sha256: str = ""
    ) -> tuple[Candidate, BaseModel]:
        """``create`` without making anything (``validate_only``). Raises AdapterRefused."""
        require(caller, "create versions")
        place = await self._place(caller, name, base)
        async with self._uploads.sealed(place.tenant, place.adapter_id, upload_id) as folder:
            if folder is None:
                raise not_visible()
            with self._attempts.attempt(_attempt_of(place.tenant, place.adapter_id, upload_id)) as attempt:
                candidate = await self._examine(folder, place.base, expected_sha256, attempt)
                attempt.ended(Examined(candidate, place.base))
        if not candidate.report.ok:
            raise candidate.report.error()
        return candidate, place.base

    @asynccontextmanager
    async def watch(
        self, caller: Caller, name: AdapterName, upload_id: str
    ) -> AsyncIterator[AsyncIterator[Check | Made]]:
        """The checks of the call of ``create`` or ``examine`` on this upload that runs or is the next, or of the one
        that has just made a version of it, each as it becomes known; then what it made, or its error. Inside the block
        nothing is missed."""
        require(caller, "read versions")
        tenant, adapter_id = await self._adapter(caller, name)
        upload = _attempt_of(tenant, adapter_id, upload_id)

        async def still_there() -> None:
            await self._uploads.get(tenant, adapter_id, upload_id)

        if not self._attempts.knows(upload):
            await still_there()
        with self._attempts.watch(upload, still_there) as news:
            yield news

    def stop_watching(self) -> None:
        """Ends every watch: the server goes down."""
        self._attempts.close()

    async def _adapter(self, caller: Caller, name: AdapterName) -> tuple[VerifiedTenantId, str]:
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            return tenant, (await repository.open_adapter(session, tenant, name.adapter)).id

    async def _place(self, caller: Caller, name: AdapterName, base: str) -> _Place:
        tenant, adapter_id = await self._adapter(caller, name)
        async with self._database.read() as session:
            row = await bases.find(session, base)
            owner, _ = await open_tenant(session, caller, name.tenant)
        if row is None:
            raise InvalidRequest.field("base", f"models/{base} is not registered; ListBaseModels lists those that are")
        return _Place(tenant, adapter_id, row, tuple(owner.import_prefixes or ()))

    async def _replayed(self, key: RequestKey, tenant: VerifiedTenantId, name: AdapterName) -> AdapterVersion | None:
        async with self._database.read() as session:
            subject = await replay(session, key)
            if subject is None:
                return None
            return _answer(await find(session, tenant, AdapterName(name.tenant, name.adapter, version=int(subject))))

    async def _examine(self, folder: Path, base: BaseModel, expected_sha256: str, attempt: Attempt) -> Candidate:
        files = await asyncio.to_thread(scan_directory, folder)
        if not files:
            raise InvalidRequest.field("upload", "holds no file; PutChunk them first")
        sha256 = files_digest(files)
        if expected_sha256 and check_sha256("expected_sha256", expected_sha256.lower()) != sha256:
            raise AdapterDigestMismatch(
                f"expected_sha256: {expected_sha256.lower()} was expected, the uploaded files have {sha256}; "
                "no version was made",
                metadata={"want": expected_sha256.lower(), "have": sha256},
            )
        facts = BaseFacts(base.base_sha256, base.tokenizer_sha256, base.config)
        report = await self._validate(folder, facts, attempt.row)
        for check in report.checks[len(attempt.rows) :]:
            attempt.row(check)
        return Candidate(sha256, files, report)

    async def _commit(
        self,
        caller: Caller,
        key: RequestKey,
        place: _Place,
        name: AdapterName,
        candidate: Candidate,
        folder: Path,
        source_uri: str | None,
    ) -> AdapterVersion:
        report = candidate.report
        state = VersionState.READY if report.ok else VersionState.REJECTED
        async with self._database.write() as session:
            if report.ok:
                await content.lock_content(session, candidate.sha256)
            number = await repository.next_number(session, place.tenant, place.adapter_id)
            if report.ok:
                await self._keep(candidate, folder)
            row = await repository.insert_version(
                session,
                place.adapter_id,
                number,
                base_model_id=place.base.id,
                sha256=candidate.sha256,
                prefix=candidate.prefix,
                files=candidate.files,
                rank=report.rank,
                report=report.to_dict(),
                state=state,
                state_reason="" if report.ok else report.error().message[:REASON_MAX],
                created_by=caller.key_id,
                accepted=report.accepted,
                source_uri=source_uri,
            )
            async with unique(session, f"request_id: {key.request_id!r} is in use by another request; use a new one"):
                remember(session, key, str(number))
            subject = f"{name.bare}/versions/{number}"
            audit.append(session, place.tenant, caller, "version.create", subject, state=state, sha256=row.sha256)
            await changes.record(session, Change(Kind.ADAPTER, place.adapter_id))
            return await find(session, place.tenant, AdapterName(name.tenant, name.adapter, version=number))

    async def _keep(self, candidate: Candidate, folder: Path) -> None:
        """A purge of equal bytes may have destroyed the objects since they were put; from here on it waits."""
        for file in candidate.files:
            key = f"{candidate.prefix}/{file.path}"
            if not await self._store.exists(key):
                await self._store.put_file(key, folder / file.path)

    async def _drop(self, candidate: Candidate) -> None:
        """What was put for a version that is not made."""
        if not candidate.report.ok:
            return
        async with self._database.write() as session:
            await content.lock_content(session, candidate.sha256)
            shared = await content.others_have(session, None, candidate.sha256)
            await content.destroy(self._store, candidate.prefix, [file.path for file in candidate.files], shared)


def _attempt_of(tenant: VerifiedTenantId, adapter_id: str, upload_id: str) -> str:
    """Names an upload together with whose it is."""
    return f"{tenant}/{adapter_id}/{upload_id}"


def _answer(row: AdapterVersion) -> AdapterVersion:
    """``row`` if it is not REJECTED, else its refusal, from the stored report."""
    if row.state != VersionState.REJECTED:
        return row
    failed = [check for check in row.report["checks"] if check["outcome"] == "fail"]
    raise AdapterRefused(
        f"version {row.number} is REJECTED: {row.state_reason}",
        metadata={"version": str(row.number), "failed_checks": ",".join(check["id"] for check in failed[:5])},
        violations=[FieldViolation(check["id"], check["message"]) for check in failed],
    )


__all__ = ["Importer", "ObjectSink", "VersionService"]
