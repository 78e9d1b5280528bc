"""While a gap in the change log has everything read again, the old snapshot serves as long as its policy lets it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.util import await_only

from lorry import errors
from lorry.registry import source as source_module
from lorry.registry.loading import everything
from lorry.registry.tables import Rows
from tests.integration.registry_gateway.test_paused import POLL_S, STALE_S, is_unavailable, recovers, stale
from tests.integration.registry_gateway.world import World, ended, hang, world
from tests.support.waiting import until


class Slow:
    """Full loads that stop after their first part until ``release``, as one of a million rows goes on for long."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._go_on = asyncio.Event()
        self._going = threading.Event()
        self.begun = 0

    def release(self) -> None:
        self._go_on.set()
        self._going.set()

    def everything(self, connection: Connection) -> Iterator[Rows]:
        self.begun += 1
        parts = everything(connection)
        yield next(parts)
        if threading.current_thread() is threading.main_thread():  # PostgreSQL's, in the event loop
            await_only(self._go_on.wait())
        else:
            self._going.wait()
        yield from parts


@asynccontextmanager
async def reloading(here: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Slow]:
    """Within the block the gateway reads everything; it is done after it."""
    slow = Slow()
    monkeypatch.setattr(source_module, "everything", slow.everything)
    monkeypatch.setattr(here.source, "_poll_timeout", 60.0)  # such a load shows that it moves; this one does not
    async with here.registry.database.write() as session:
        await session.execute(text("DELETE FROM change_log"))
        await session.execute(text("UPDATE registry_epoch SET epoch = epoch + 1"))
    try:
        await until(lambda: slow.begun == 1)
        yield slow
    finally:
        slow.release()


async def test_the_old_snapshot_serves_meanwhile(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(url, POLL_S, staleness="available") as here:
        customer = await here.customer("anna")
        await here.caught_up()
        old = here.source.current()
        async with reloading(here, monkeypatch):
            assert await here.look(customer) is None
            assert await ended(await here.begun(customer)) is None
            assert here.source.current() is old
        await until(lambda: here.source.current().epoch > old.epoch)
        assert here.source.full_loads == 2
        assert await ended(await here.begun(customer)) is None


async def test_strict_serves_nobody_by_rights_that_are_too_old(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken back meanwhile is not known before it is done, so new calls and live ones end after a while."""
    async with world(url, POLL_S, staleness="strict", staleness_seconds=STALE_S) as here:
        hang(here.engine)
        customer, other = await here.customer("anna"), await here.customer("bert")
        await here.caught_up()
        call = await here.begun(customer)
        async with reloading(here, monkeypatch):
            await here.registry.keys.revoke(here.admin, "anna", customer.key_id)
            assert await here.look(other) is None
            assert is_unavailable(await ended(call))
            await stale(here)
            assert is_unavailable(await here.look(customer))
            assert is_unavailable(await here.look(other))
        await recovers(here, other)
        await here.caught_up()
        assert type(await here.look(customer)) is errors.Unauthenticated
        assert here.source.full_loads == 2
