"""An adapter's files on their way through the web app, and the validation as it goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from starlette.datastructures import UploadFile

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client.admin.adapters import create_adapter, get_adapter
from lorry.client.admin.differences import state_word
from lorry.client.admin.uploads import create_upload, put_chunk
from lorry.client.admin.versions import create_version, watch
from lorry.client.prepared import Unary
from lorry.errors import AlreadyExists, InvalidRequest, LorryError
from lorry.registry.names import check_part
from lorry_admin.web import sse
from lorry_admin.web.answers import error_json
from lorry_admin.web.visits import Visit

WATCH_S = 5.0
"""For the rows that are still on their way when the version is there."""


async def adapter_of(visit: Visit, adapter: str, display_name: str) -> str:
    """Its resource's name, made where it is new. Raises InvalidRequest, and what creating raises."""
    name = f"tenants/{visit.tenant}/adapters/{check_part('adapter', adapter)}"
    try:
        await visit.ask(create_adapter(visit.tenant, adapter, display_name))
    except AlreadyExists:
        await visit.ask(get_adapter(name))
    return name


async def upload_of(visit: Visit, adapter: str, files: Sequence[UploadFile]) -> str:
    """Sends all files; the upload's name."""
    if not files:
        raise InvalidRequest.field("files", "none was chosen; choose the files of the folder that PEFT saved")
    state = await visit.ask(create_upload(adapter))
    for file in files:
        name, offset = plain_name(file.filename or ""), 0
        while True:
            data = await file.read(int(state.max_chunk_bytes))
            if not data and offset:
                break
            await visit.ask(put_chunk(state.name, name, offset, data))
            offset += len(data)
            if not data:
                break
    return state.name


def plain_name(name: str) -> str:
    """Browsers send a folder's files with its name before theirs."""
    return name.replace("\\", "/").rsplit("/", 1)[-1]


async def creating(visit: Visit, adapter: str, base: str, upload: str) -> AsyncIterator[bytes]:
    """Makes the version, and tells each row of its validation as it becomes known: ``check`` events, then ``version``
    or ``error``."""
    caller, news = visit.caller(), asyncio.Queue[pb.ValidationCheck | None]()
    rows = caller.open(watch(upload), None)
    await _begun(rows)
    call: Unary[pb.AdapterVersion] = create_version(adapter, base, upload=upload)
    making = asyncio.create_task(caller.unary(call))
    telling = asyncio.create_task(_tell(rows, news))
    ending = asyncio.create_task(_end(making, telling, news))
    try:
        while (check := await news.get()) is not None:
            yield sse.event("check", check_json(check))
        yield outcome(visit, adapter, await asyncio.gather(making, return_exceptions=True))
    finally:
        rows.cancel()
        for task in (making, telling, ending):
            task.cancel()
        await asyncio.gather(making, telling, ending, return_exceptions=True)


async def importing(visit: Visit, adapter: str, base: str, s3_uri: str) -> AsyncIterator[bytes]:
    """As ``creating``, out of a bucket: its rows come with the version."""
    call = visit.ask(create_version(adapter, base, s3_uri=s3_uri))
    yield outcome(visit, adapter, await asyncio.gather(call, return_exceptions=True))


def outcome(visit: Visit, adapter: str, made: Sequence[Any]) -> bytes:
    """Of one call."""
    found = made[0]
    if isinstance(found, LorryError):
        number = found.metadata.get("version", "")
        url = f"/{adapter}/versions/{number}" if number.isdigit() else ""
        return sse.event("error", {**error_json(found), "url": url})
    if isinstance(found, BaseException):
        raise found
    version = {"number": found.version, "sha256": found.sha256, "state": state_word(found), "url": f"/{found.name}"}
    return sse.event("version", version)


def check_json(check: pb.ValidationCheck) -> dict[str, str]:
    return {
        "id": check.id,
        "outcome": check.outcome,
        "message": check.message,
        "value": check.value,
        "limit": check.limit,
    }


async def _begun(rows: Any) -> None:
    """No row can be missed from here on. What the watch is refused with, the call that makes the version is too."""
    try:
        await rows.initial_metadata()
    except grpc.RpcError:
        return


async def _tell(rows: Any, news: asyncio.Queue[pb.ValidationCheck | None]) -> None:
    try:
        async for message in rows:
            if message.HasField("check"):
                news.put_nowait(message.check)
    except grpc.RpcError:
        return  # how it ended is the call's to say


async def _end(
    making: asyncio.Task[pb.AdapterVersion], telling: asyncio.Task[None], news: asyncio.Queue[pb.ValidationCheck | None]
) -> None:
    await asyncio.wait([making])
    await asyncio.wait([telling], timeout=WATCH_S)
    news.put_nowait(None)


__all__ = [
    "WATCH_S", "adapter_of", "check_json", "creating", "importing", "outcome", "plain_name", "upload_of",
]  # fmt: skip
