"""The gateway against requests that cost too much, and moments in which its surroundings fail."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import EngineClient, EngineInfo
from lorry.errors import InternalError, InvalidRequest, LorryError
from lorry.gateway import UsageRow, UsageSpool, read_rows
from lorry.gateway.checks import check_fields
from lorry.gateway.ledger import LedgerDrain
from lorry.gateway.routes import EngineRoutes
from lorry.gateway.service import _read_page_token
from lorry.registry.usage.service import Usage
from tests.integration.gateway.world import make_snapshot
from tests.unit.engine_contract.fakes import fake_engine

ROW = UsageRow("us_0", "t", "p", "k", "r", "", 0, "", "b" * 64, "engine-0", 3, 4, 0, "OK", 1.0, 2.0)


def test_stop_ids_are_bounded() -> None:
    """Each is compared with every token of the request, in the loop that all requests share."""
    request = pb.GenerateRequest(model="models/m", prompt="x")
    request.stopping.stop_token_ids.extend([5] * 100_000)
    with pytest.raises(InvalidRequest, match=r"stopping\.stop_token_ids"):
        check_fields(request, 320)


def test_violations_are_bounded() -> None:
    """Or one request makes the loop build a message of many megabytes, of which 1 KiB is sent."""
    request = pb.GenerateRequest(model="models/m")
    request.chat.messages.extend([pb.ChatMessage()] * 100_000)
    with pytest.raises(InvalidRequest) as caught:
        check_fields(request, 320)
    assert len(caught.value.violations) <= 1000


@pytest.mark.parametrize("token", ["é", "ü=="])
def test_a_page_token_of_other_characters_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest):
        _read_page_token(token)


async def test_a_crowd_without_a_route_asks_the_engine_once() -> None:
    class Counted:
        asked = 0

        async def info(self) -> EngineInfo:
            self.asked += 1
            await asyncio.sleep(0)
            return await fake_engine().info()

    engine = Counted()
    base = make_snapshot()[0].tables.bases["b-smol"]
    routes = EngineRoutes([cast(EngineClient, engine)])
    await asyncio.gather(*(routes.route(base) for _ in range(20)))
    assert engine.asked <= 2


async def test_a_write_that_fails_half_way_costs_no_later_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "usage.jsonl"
    spool, write = UsageSpool(path), os.write
    answers = iter([True])

    def full(file: int, data: Any) -> int:
        if next(answers, False):
            return write(file, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InternalError):
        await spool.record(ROW)
    monkeypatch.setattr(os, "write", write)
    await spool.record(replace(ROW, ledger_id="us_1"))
    await spool.close()
    assert [row.ledger_id for row in read_rows(path)][-1] == "us_1"


async def test_a_row_after_close_goes_nowhere(tmp_path: Path) -> None:
    """The descriptor's number may be another file's by then."""
    spool = UsageSpool(tmp_path / "usage.jsonl")
    await spool.close()
    with (tmp_path / "other").open("wb"):
        with suppress(LorryError):
            spool.post(ROW)
        if spool._writer is not None:
            await spool._writer
    assert (tmp_path / "other").read_bytes() == b""


async def test_a_mark_that_a_crash_emptied_does_not_stop_the_drain(tmp_path: Path) -> None:
    class Ledger:
        async def write(self, rows: Sequence[Usage]) -> None:
            assert len(rows) == 1

    path = tmp_path / "usage.jsonl"
    spool = UsageSpool(path)
    await spool.record(ROW)
    await spool.close()
    (tmp_path / "usage.jsonl.offset").write_text("")
    assert await LedgerDrain(path, Ledger()).drain() == 1
