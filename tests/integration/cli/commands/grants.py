"""``lorry grants`` and ``lorry pin``."""

from __future__ import annotations

from lorry.api.v1 import tenant_admin_pb2 as tenants
from tests.integration.cli.answers import GRANT, GRANTS, PIN, PIRATE, REVOKED, V3
from tests.integration.cli.commands.case import case

CASES = [
    case(
        "grants create models/smol --tenant beta",
        "CreateGrant",
        GRANT,
        {"parent": "tenants/beta", "resource": "models/smol"},
        "gr_1",
        (["resource"], PIRATE),
    ),
    case(
        "grants list",
        "ListGrants",
        GRANTS,
        {"parent": "tenants/acme", "pageSize": 1000},
        [PIRATE, "gr_0"],
        (["grants", 1, "name"], GRANT.name),
    ),
    case("grants revoke gr_1", "RevokeGrant", REVOKED, {"name": GRANT.name}, "revoked since", (["name"], REVOKED.name)),
    case(
        "grants revoke pirate",
        "RevokeGrant",
        REVOKED,
        {"name": GRANT.name},
        "revoked since",
        (["name"], REVOKED.name),
        also={"ListGrants": GRANTS},
    ),
    case(
        "pin set pirate/versions/3 --mode default",
        "SetPin",
        PIN,
        {"parent": "tenants/acme", "version": V3, "mode": "PIN_MODE_DEFAULT"},
        "gets",
        (["mode"], "PIN_MODE_HARD"),
    ),
    case(
        "pin list",
        "ListPins",
        tenants.ListPinsResponse(pins=[PIN]),
        {"parent": "tenants/acme", "pageSize": 1000},
        [V3, "hard"],
        (["pins", 0, "version"], V3),
    ),
    case("pin clear pirate", "ClearPin", None, {"parent": "tenants/acme", "adapter": PIRATE}, "no pin", ([], {})),
]
