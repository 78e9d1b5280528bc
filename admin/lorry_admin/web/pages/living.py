"""What is live: memory, queue, requests that failed or took long. The operator's pages, and a tenant's own requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from lorry.client.admin.fleet import list_engine_memory, list_waiting_requests
from lorry.client.admin.records import list_recent_requests
from lorry_admin.web import sse
from lorry_admin.web.boards import Board, live_events, shape_of
from lorry_admin.web.living import memory_board, queue_board, recent_board
from lorry_admin.web.visits import Visit, Visiting, get_script

router = APIRouter()
Scripted = Annotated[Visit, Depends(get_script)]
ROWS = 200


@router.get("/operator/memory")
async def memory(visit: Visiting) -> Response:
    told = "What the engines behind this gateway hold, by tier, as they say it now."
    return await _page(visit, _memory, "Residency and memory", told, "No engine is behind this gateway.")


@router.get("/operator/memory/live")
async def memory_live(visit: Scripted) -> Response:
    return sse.stream(live_events(partial(_memory, visit)))


@router.get("/operator/queue")
async def queue(visit: Visiting) -> Response:
    told = "What waits in this gateway and its engines, with the reason that the engine's last plan gave."
    return await _page(visit, _queue, "Queue", told)


@router.get("/operator/queue/live")
async def queue_live(visit: Scripted) -> Response:
    return sse.stream(live_events(partial(_queue, visit)))


@router.get("/operator/requests")
async def requests(visit: Visiting) -> Response:
    told = "As this gateway remembers them since it started: a few of each tenant. Never a prompt, nor an answer."
    return await _page(visit, _all_recent, "Slow and failed requests", told)


@router.get("/operator/requests/live")
async def requests_live(visit: Scripted) -> Response:
    return sse.stream(live_events(partial(_all_recent, visit)))


@router.get("/tenants/{tenant}/requests")
async def own_requests(visit: Visiting) -> Response:
    told = "As the gateway that answers this page remembers them since it started. Never a prompt, nor an answer."
    return await _page(visit, _own_recent, "Slow and failed requests", told)


@router.get("/tenants/{tenant}/requests/live")
async def own_requests_live(visit: Scripted) -> Response:
    return sse.stream(live_events(partial(_own_recent, visit)))


async def _page(
    visit: Visit, look: Callable[[Visit], Awaitable[Board]], title: str, told: str, none: str = ""
) -> Response:
    board = await look(visit)
    return visit.page("board.html", board=board, shape=shape_of(board), title=title, told=told, none=none)


async def _memory(visit: Visit) -> Board:
    return memory_board(await visit.ask(list_engine_memory()))


async def _queue(visit: Visit) -> Board:
    return queue_board(await visit.ask(list_waiting_requests(ROWS)))


async def _all_recent(visit: Visit) -> Board:
    return await _recent(visit, "-")


async def _own_recent(visit: Visit) -> Board:
    return await _recent(visit, visit.tenant)


async def _recent(visit: Visit, tenant: str) -> Board:
    failed, slow = await asyncio.gather(
        visit.ask(list_recent_requests(tenant, page_size=ROWS)),
        visit.ask(list_recent_requests(tenant, slow=True, page_size=ROWS)),
    )
    return recent_board(failed.requests, slow.requests, tenants=tenant == "-")


__all__ = [
    "memory", "memory_live", "own_requests", "own_requests_live", "queue", "queue_live", "requests", "requests_live",
    "router",
]  # fmt: skip
