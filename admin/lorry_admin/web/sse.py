"""Server-sent events: JSON in ``data``, so that no text can end a line of the stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers=HEADERS)


__all__ = ["HEADERS", "event", "stream"]
