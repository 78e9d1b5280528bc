"""A request that is sent again while its first try still runs: both are answered the same, on either database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lorry.errors import InvalidRequest
from tests.integration.admin.conftest import Platform
from tests.integration.admin.test_request_ids import OTHER, REQUESTS, _request, prepared

AT_ONCE = 8


@pytest.mark.parametrize("name", REQUESTS)
async def test_equal_requests_at_once_are_one(with_base: Platform, tmp_path: Path, name: str) -> None:
    fields = await prepared(with_base, tmp_path, name)
    request = _request(name, **fields, request_id="r-1")
    calls = [with_base.admin.call(name, request) for _ in range(AT_ONCE)]
    found: list[Any] = await asyncio.gather(*calls)
    if name in ("CreateApiKey", "RotateApiKey"):
        assert len([one for one in found if one.text]) == 1, "a secret is told once"
        for one in found:
            one.ClearField("text")
    assert all(one == found[0] for one in found)


async def test_another_request_at_once_with_the_same_id_is_refused(with_base: Platform, tmp_path: Path) -> None:
    fields = await prepared(with_base, tmp_path, "CreateAdapter")
    both = [
        with_base.admin.call("CreateAdapter", _request("CreateAdapter", **fields | more, request_id="r-1"))
        for more in ({}, OTHER["CreateAdapter"])
    ]
    found = await asyncio.gather(*both, return_exceptions=True)
    refused = [one for one in found if isinstance(one, BaseException)]
    assert [type(one) for one in refused] == [InvalidRequest]
