"""``lorry users`` and ``lorry prices``."""

from __future__ import annotations

from lorry.api.v1 import user_admin_pb2 as users
from tests.integration.cli.answers import PRICE, USER, WEB_SESSION
from tests.integration.cli.commands.case import case

CASES = [
    case(
        "users create ann --role operator",
        "CreateUser",
        users.CreateUserResponse(user=USER, password="made-up-here"),
        {"parent": "tenants/acme", "userId": "ann", "role": "ROLE_OPERATOR"},
        "made-up-here\n",
        (["password"], "made-up-here"),
    ),
    case(
        "users list",
        "ListUsers",
        users.ListUsersResponse(users=[USER]),
        {"parent": "tenants/acme", "pageSize": 1000},
        ["ann@acme", "operator", "e4"],
        (["users", 0, "username"], "ann@acme"),
    ),
    case(
        "users set-role ann operator --etag e3",
        "UpdateUser",
        USER,
        {"user": {"name": USER.name, "role": "ROLE_OPERATOR", "etag": "e3"}, "updateMask": "role"},
        "is operator (etag e4)",
        (["role"], "ROLE_OPERATOR"),
    ),
    case(
        "users disable ann",
        "UpdateUser",
        USER,
        {"user": {"name": USER.name, "disabled": True}, "updateMask": "disabled"},
        "is disabled and logged out",
        (["etag"], "e4"),
    ),
    case(
        "users enable tenants/acme/users/ann",
        "UpdateUser",
        USER,
        {"user": {"name": USER.name}, "updateMask": "disabled"},
        "may log in",
        (["etag"], "e4"),
    ),
    case(
        "users password ann",
        "SetUserPassword",
        users.SetUserPasswordResponse(user=USER, password="made-up-here"),
        {"name": USER.name},
        "made-up-here\n",
        (["user", "name"], USER.name),
    ),
    case(
        "users sessions",
        "ListSessions",
        users.ListSessionsResponse(sessions=[WEB_SESSION]),
        {"parent": "tenants/acme", "pageSize": 1000},
        ["ann", "10.0.0.7", "Firefox"],
        (["sessions", 0, "address"], "10.0.0.7"),
    ),
    case(
        "users end-session ws_1",
        "EndSession",
        None,
        {"name": WEB_SESSION.name},
        "tenants/acme/sessions/ws_1 is ended",
        ([], {}),
    ),
    case(
        "prices set EUR --prompt 0.15 --cached 0.05 --output 0.6 --from 2026-11-01",
        "SetPrice",
        PRICE,
        {
            "parent": "tenants/acme",
            "currency": "EUR",
            "prompt": "0.15",
            "cachedPrompt": "0.05",
            "output": "0.6",
            "effectiveTime": "2026-11-01T00:00:00Z",
        },
        "pays 0.15 (cached 0.05, output 0.6) EUR for a million tokens from 2026-11-01 on",
        (["cachedPrompt"], "0.05"),
    ),
    case(
        "prices list",
        "ListPrices",
        users.ListPricesResponse(prices=[PRICE]),
        {"parent": "tenants/acme", "pageSize": 1000},
        ["2026-11-01", "EUR", "0.15", "0.05", "0.6"],
        (["prices", 0, "currency"], "EUR"),
    ),
]
