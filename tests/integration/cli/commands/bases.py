"""``lorry bases``; ``create`` reads a folder: test_bases.py."""

from __future__ import annotations

from lorry.api.v1 import tenant_admin_pb2 as tenants
from tests.integration.cli.answers import BASE
from tests.integration.cli.commands.case import case

CASES = [
    case(
        "bases list",
        "ListBaseModels",
        tenants.ListBaseModelsResponse(base_models=[BASE]),
        {"pageSize": 1000},
        ["models/smol", "8192", "b" * 64],
        (["baseModels", 0, "contextTokens"], 8192),
    ),
    case(
        "bases show smol",
        "GetBaseModel",
        BASE,
        {"name": "models/smol"},
        ["models/smol", "b" * 64, "c" * 64, "8192 tokens", "2026-11-01"],
        (["tokenizerSha256"], "c" * 64),
    ),
]
