"""What the log says of logins: who, from where, how it ended, and never what anybody typed as a password."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lorry.logs import JsonFormatter, fields_of
from lorry.registry.accounts.throttle import USERNAME
from lorry_admin.web.login_log import LOGGER, who
from tests.integration.web.world import Browser, World, world

RIGHT, WRONG, NEW = "a long password", "a wr0ng password", "an even longer password"


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, real_accounts=True) as made:
        await made.tenant("acme")
        await made.admin.create_user("acme", "anna", "owner", password=RIGHT)
        yield made


async def test_a_line_for_every_login_and_logout(real: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    anna = real.browser()
    await anna.log_in("anna@acme", WRONG)
    await anna.log_in("Anna@ACME", RIGHT)
    session = (await anna.get("/account")).status_code
    assert session == 200
    await password(anna, WRONG)
    await password(anna, RIGHT)
    await anna.get("/account")
    await anna.post("/logout")
    await anna.get("/login")
    await anna.http.post("/login", data={"csrf": "forged", "username": "anna@acme", "password": NEW})
    lines = told(caplog)
    assert [(one["action"], one["outcome"]) for one in lines] == [
        ("login", "UNAUTHENTICATED"),
        ("login", "OK"),
        ("password", "UNAUTHENTICATED"),
        ("password", "OK"),
        ("logout", "OK"),
        ("login", "PERMISSION_DENIED"),
    ]
    assert {(one["principal"], one["tenant"], one["address"]) for one in lines} == {("anna", "acme", "127.0.0.1")}
    begun = {one["session"] for one in lines if "session" in one}
    assert len(begun) == 1, "the same session began, changed its password and ended"
    assert {record.levelno for record in caplog.records if record.name == LOGGER} == {logging.INFO}
    no_password(caplog)


async def test_a_lock_out_stands_out(real: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    mallory = real.browser()
    for _ in range(USERNAME.free + 1):
        await mallory.log_in("anna@acme", WRONG)
    last = [record for record in caplog.records if record.name == LOGGER][-1]
    assert last.levelno == logging.WARNING
    assert fields_of(last)["outcome"] == "TOO_MANY_LOGINS"
    assert fields_of(last)["principal"] == "anna"
    assert fields_of(last)["retry_after_s"] > 0
    no_password(caplog)


async def test_what_is_no_name_is_not_told(real: World, caplog: pytest.LogCaptureFixture) -> None:
    """People type their passwords into the field above."""
    caplog.set_level(logging.INFO, LOGGER)
    anna = real.browser()
    for typed in (RIGHT, "two words@acme", "anna@acme\nforged line", "h@unter2"):
        await anna.log_in(typed, "h@unter2")
    assert [set(one) for one in told(caplog)] == [{"action", "address", "outcome", "code"}] * 4
    no_password(caplog, "h@unter2")


def test_who_is_named() -> None:
    assert who(" Anna@Acme ") == ("anna", "acme")
    for text in ("anna", "@acme", "anna@", "anna@a@b", "", "an na@acme"):
        assert who(text) == ("", "")


async def password(browser: Browser, current: str) -> None:
    await browser.get("/account")
    await browser.post("/account/password", {"password": current, "new_password": NEW, "again": NEW})


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [dict(fields_of(record)) for record in caplog.records if record.name == LOGGER]


def no_password(caplog: pytest.LogCaptureFixture, *more: str) -> None:
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert not [line for line in lines for secret in (RIGHT, WRONG, NEW, *more) if secret in line]
