"""Uploads, prepared."""

from __future__ import annotations

import hashlib

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client.admin.names import new_request_id
from lorry.client.prepared import ADAPTERS, Unary


def create_upload(adapter: str) -> Unary[pb.Upload]:
    """Opens one for a version's files; it is kept for a day."""
    request = pb.CreateUploadRequest(parent=adapter, request_id=new_request_id())
    return ADAPTERS.unary("CreateUpload", request, pb.Upload)


def get_upload(name: str) -> Unary[pb.Upload]:
    """What has arrived so far."""
    return ADAPTERS.unary("GetUpload", pb.GetUploadRequest(name=name), pb.Upload)


def put_chunk(upload: str, file: str, offset: int, data: bytes) -> Unary[pb.PutChunkResponse]:
    """Appends to a file. Not tried again by itself: who sends a file asks ``get_upload`` where to go on."""
    request = pb.PutChunkRequest(
        upload=upload, file=file, offset=offset, data=data, sha256=hashlib.sha256(data).hexdigest()
    )
    return ADAPTERS.unary("PutChunk", request, pb.PutChunkResponse, repeatable=False)


__all__ = ["create_upload", "get_upload", "put_chunk"]
