"""``lorry keys`` and ``lorry tenants``."""

from __future__ import annotations

from lorry.api.v1 import tenant_admin_pb2 as tenants
from tests.integration.cli.answers import KEY, MADE, TENANT
from tests.integration.cli.commands.case import case

CASES = [
    case(
        "keys create ann --role owner --expires 2027-01-01",
        "CreateApiKey",
        MADE,
        {"parent": "tenants/acme", "principal": "ann", "role": "ROLE_OWNER", "expireTime": "2027-01-01T00:00:00Z"},
        "lorry_the_text\n",
        (["apiKey", "lastFour"], "beef"),
    ),
    case(
        "keys list",
        "ListApiKeys",
        tenants.ListApiKeysResponse(api_keys=[KEY]),
        {"parent": "tenants/acme", "pageSize": 1000},
        ["ann", "owner", "beef"],
        (["apiKeys", 0, "principal"], "ann"),
    ),
    case(
        "keys rotate 0123456789abcdef --overlap 1h",
        "RotateApiKey",
        MADE,
        {"name": KEY.name, "overlap": "3600s"},
        "lorry_the_text\n",
        (["text"], "lorry_the_text"),
    ),
    case(
        "keys revoke 0123456789abcdef",
        "RevokeApiKey",
        KEY,
        {"name": KEY.name},
        "revoked since 2026-11-01",
        (["revokeTime"], "2026-11-01T12:00:00Z"),
    ),
    case(
        "tenants create acme --display-name Acme",
        "CreateTenant",
        TENANT,
        {"tenantId": "acme", "displayName": "Acme"},
        "tenants/acme is made",
        (["importPrefixes", 0], "s3://b/p/"),
    ),
    case(
        "tenants create acme --weight 37",
        "CreateTenant",
        TENANT,
        {"tenantId": "acme", "weight": 37},
        "tenants/acme is made",
        (["weight"], 37),
    ),
    case(
        "tenants list",
        "ListTenants",
        tenants.ListTenantsResponse(tenants=[TENANT]),
        {"pageSize": 1000},
        ["Acme", "e2", "37", "s3://b/p/"],
        (["tenants", 0, "suspended"], False),
    ),
    case(
        "tenants update acme --suspend --import-prefix s3://b/p/ --etag e2",
        "UpdateTenant",
        TENANT,
        {
            "tenant": {"name": "tenants/acme", "suspended": True, "importPrefixes": ["s3://b/p/"], "etag": "e2"},
            "updateMask": "suspended,importPrefixes",
        },
        "is changed",
        (["etag"], "e2"),
    ),
    case(
        "tenants update acme --weight 37",
        "UpdateTenant",
        TENANT,
        {"tenant": {"name": "tenants/acme", "weight": 37}, "updateMask": "weight"},
        "is changed",
        (["weight"], 37),
    ),
]
