"""Enum values that an API of today does not know are refused by their field's name, never read as another."""

from __future__ import annotations

from typing import Any

import pytest

from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.errors import InvalidRequest
from tests.integration.admin.conftest import Platform

ANNA = "tenants/anna"
NONE: Any = 99
ASKED: dict[str, tuple[str, Any]] = {
    "ListRecentRequests": ("kind", pb.ListRecentRequestsRequest(parent=ANNA, kind=NONE)),
    "ListAdapters": ("view", adapter_pb.ListAdaptersRequest(parent=ANNA, view=NONE)),
    "SetPin": ("mode", pb.SetPinRequest(parent=ANNA, version=f"{ANNA}/adapters/json/versions/1", mode=NONE)),
    "CreateApiKey": ("role", pb.CreateApiKeyRequest(parent=ANNA, principal="p", role=NONE)),
    "ExportUsage": ("format", pb.ExportUsageRequest(parent=ANNA, format=NONE)),
}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # no database has a part in it
@pytest.mark.parametrize("method", ASKED)
async def test_a_number_that_is_no_value_is_refused(platform: Platform, method: str) -> None:
    await platform.tenant("anna")
    field, request = ASKED[method]
    refused = await platform.admin.error(method, request)
    assert type(refused) is InvalidRequest, refused
    assert [one.field for one in refused.violations] == [field]
