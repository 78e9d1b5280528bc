"""Every command once in words and once in JSON: what it asks the server, and what it makes of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import fleet_pb2 as fleet
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenants
from lorry.api.v1 import user_admin_pb2 as users
from lorry.cli.app import build_parser
from tests.integration.cli.answers import (
    ADAPTER,
    ALIAS,
    ALIASES,
    DELETED,
    EVENT,
    FOUR,
    GRANT,
    GRANTS,
    KEY,
    MADE,
    MODEL,
    NOON,
    PIN,
    PIRATE,
    PRICE,
    QUOTA,
    REPLICA,
    RESIDENCY,
    REVOKED,
    STREAM,
    SUM,
    TENANT,
    THREE,
    USER,
    V3,
    V4,
    VERSIONS,
    WEB_SESSION,
)
from tests.integration.cli.conftest import KEY as API_KEY
from tests.integration.cli.conftest import Terminal
from tests.support.recorder import Recorder


@dataclass(frozen=True)
class Case:
    """``asks``: what the server was asked last, as proto JSON; ``says``: words of the text; ``holds``: (path, value) in
    the JSON document."""

    line: str
    method: str
    asks: dict[str, Any]
    says: Sequence[str]
    holds: tuple[Sequence[str | int], Any]
    scripts: dict[str, Any] = field(default_factory=dict)
    status: int = 0


def case(line: str, method: str, answer: Any, asks: dict[str, Any], says: Any, holds: Any, **more: Any) -> Case:
    words = [says] if isinstance(says, str) else says
    return Case(line, method, asks, words, holds, {method: answer, **more.pop("also", {})}, **more)


CASES = [
    case(
        "models",
        "ListModels",
        pb.ListModelsResponse(models=[MODEL]),
        {"pageSize": 1000},
        [PIRATE, "@prod"],
        (["models", 0, "version"], "3"),
    ),
    case(
        "generate --model pirate@prod hi --stop x --stop yy --min-tokens 1 --top-p 0.5 --top-k 9 --sticky-key me"
        " --label team=a --label b=",
        "GenerateStream",
        STREAM,
        {
            "model": f"{PIRATE}@prod",
            "chat": {"messages": [{"role": "user", "content": "hi"}]},
            "stickyKey": "me",
            "labels": {"team": "a", "b": ""},
            "sampling": {"temperature": 0.0, "topP": 0.5, "topK": 9, "n": 1},
            "stopping": {"maxTokens": 128, "minTokens": 1, "stop": ["x", "yy"]},
            "output": {},
            "coldLoad": "COLD_LOAD_WAIT",
        },
        "ahoy\n",
        (["choices", 0, "finishReason"], "FINISH_REASON_STOP"),
    ),
    case(
        "adapters list --deleted",
        "ListAdapters",
        adapters.ListAdaptersResponse(adapters=[ADAPTER]),
        {"parent": "tenants/acme", "pageSize": 1000, "showDeleted": True},
        [PIRATE, "Pirate", "2026-11-01T"],
        (["adapters", 0, "etag"], "e1"),
    ),
    case(
        "adapters show pirate",
        "GetAdapter",
        ADAPTER,
        {"name": PIRATE},
        ["Pirate", "prod", "4 (50/1000)", "deprecated"],
        (["versions", 1, "state"], "ADAPTER_VERSION_STATE_READY"),
        also=VERSIONS | ALIASES,
    ),
    case(
        "adapters show pirate/versions/3",
        "GetAdapterVersion",
        THREE,
        {"name": V3},
        ["3" * 64, "c" * 64, "LoRA"],
        (["files", 0, "path"], "adapter_config.json"),
    ),
    case(
        "adapters show pirate@prod",
        "GetAdapterVersion",
        THREE,
        {"name": V3},
        "ready",
        (["version"], "3"),
        also={"GetAlias": ALIAS},
    ),
    case(
        "adapters versions pirate",
        "ListAdapterVersions",
        VERSIONS["ListAdapterVersions"],
        {"parent": PIRATE, "pageSize": 1000},
        ["deprecated", "ready"],
        (["versions", 1, "rank"], 8),
    ),
    case(
        "adapters diff pirate pirate/versions/4",
        "GetAdapterVersion",
        lambda request, _: THREE if request.name == V3 else FOUR,
        {"name": V4},
        ["tokenizer.json", "10 bytes " + "c" * 64, "LoRA", "DoRA", "8", "16", "other files"],
        (["differences", 0], {"kind": "field", "name": "state", "a": "ready", "b": "deprecated"}),
        also=VERSIONS,
    ),
    case(
        "adapters quarantine pirate/versions/3 --reason bad",
        "QuarantineAdapterVersion",
        THREE,
        {"name": V3, "reason": "bad"},
        "quarantined",
        (["name"], V3),
    ),
    case(
        "adapters deprecate pirate/versions/3 --reason old",
        "DeprecateAdapterVersion",
        THREE,
        {"name": V3, "reason": "old"},
        "deprecated",
        (["name"], V3),
    ),
    case(
        "adapters preload pirate/versions/3 --wait 1m",
        "PreloadAdapterVersion",
        RESIDENCY,
        {"name": V3, "wait": "60s"},
        ["r0", "yes", "2"],
        (["replicas", 0, "device"], True),
    ),
    case(
        "adapters evict pirate/versions/3",
        "EvictAdapterVersion",
        RESIDENCY,
        {"name": V3},
        "r0",
        (["replicas", 0, "host"], False),
    ),
    case("adapters residency pirate", "GetResidency", RESIDENCY, {"name": V3}, "r0", (["name"], V3), also=VERSIONS),
    case(
        "adapters delete pirate --etag e1",
        "DeleteAdapter",
        DELETED,
        {"name": PIRATE, "etag": "e1"},
        "is deleted; it is purged after 2026-11-01",
        (["purgeTime"], "2026-11-01T12:00:00Z"),
    ),
    case("adapters undelete pirate", "UndeleteAdapter", ADAPTER, {"name": PIRATE}, "there again", (["name"], PIRATE)),
    case(
        "adapters purge pirate --yes",
        "PurgeAdapter",
        adapters.PurgeReceipt(
            adapter=PIRATE,
            purge_time=NOON,
            versions=[adapters.PurgedVersion(version=3, files=2, bytes=10)],
            replicas=[adapters.PurgedReplica(replica="r0", kv_pages=4)],
        ),
        {"name": PIRATE},
        ["2 files, 10 bytes", "4 KV pages"],
        (["versions", 0, "bytes"], "10"),
    ),
    case(
        "adapters push pirate s3://bucket/pirate --base models/smol",
        "CreateAdapterVersion",
        THREE,
        {"parent": PIRATE, "base": "models/smol", "s3Uri": "s3://bucket/pirate"},
        [V3, "ready"],
        (["sha256"], "3" * 64),
    ),
    case(
        "alias set pirate@prod 3 --etag new",
        "SetAlias",
        ALIAS,
        {"parent": PIRATE, "aliasId": "prod", "version": "3", "etag": "new"},
        ["is version 3, 50/1000 to version 4", "e7"],
        (["canaryVersion"], "4"),
    ),
    case(
        "alias list pirate",
        "ListAliases",
        ALIASES["ListAliases"],
        {"parent": PIRATE, "pageSize": 1000},
        ["prod", "4 (50/1000)"],
        (["aliases", 0, "revision"], "7"),
    ),
    case(
        "alias history pirate@prod",
        "ListAliasRevisions",
        adapters.ListAliasRevisionsResponse(
            revisions=[adapters.Alias(name=ALIAS.name, deleted=True, revision=8), ALIAS]
        ),
        {"name": ALIAS.name, "pageSize": 1000},
        ["deleted", "7"],
        (["revisions", 0, "deleted"], True),
    ),
    case(
        "alias canary pirate@prod 4 50",
        "SetCanary",
        ALIAS,
        {"name": ALIAS.name, "version": "4", "permille": 50},
        "50/1000",
        (["canaryPermille"], 50),
    ),
    case(
        "alias promote pirate@prod --etag e7",
        "PromoteCanary",
        ALIAS,
        {"name": ALIAS.name, "etag": "e7"},
        "revision 7",
        (["version"], "3"),
    ),
    case("alias rollback pirate@prod", "RollbackAlias", ALIAS, {"name": ALIAS.name}, "revision 7", (["version"], "3")),
    case(
        "alias delete pirate@prod",
        "DeleteAlias",
        adapters.Alias(name=ALIAS.name, deleted=True),
        {"name": ALIAS.name},
        "is deleted",
        (["deleted"], True),
    ),
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
        "tenants list",
        "ListTenants",
        tenants.ListTenantsResponse(tenants=[TENANT]),
        {"pageSize": 1000},
        ["Acme", "e2", "s3://b/p/"],
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
    case(
        "quota set --adapter pirate --concurrency 4 --tokens-per-month 0",
        "SetQuota",
        QUOTA,
        {"parent": "tenants/acme", "adapter": PIRATE, "limits": {"concurrency": 4, "tokensPerMonth": "0"}},
        "is set (etag e3)",
        (["limits", "concurrency"], 4),
    ),
    case(
        "quota list",
        "ListQuotas",
        tenants.ListQuotasResponse(quotas=[QUOTA]),
        {"parent": "tenants/acme", "pageSize": 1000},
        ["1000", "12 + 34 held (2026-11)"],
        (["quotas", 0, "use", "tokensUsed"], "12"),
    ),
    case("quota delete q1", "DeleteQuota", None, {"name": "tenants/acme/quotas/q1"}, "is gone", ([], {})),
    case(
        "usage query --since 2026-11-01 --until 2026-11-30T10:30Z --by day,model",
        "QueryUsage",
        tenants.QueryUsageResponse(sums=[SUM]),
        {
            "parent": "tenants/acme",
            "startTime": "2026-11-01T00:00:00Z",
            "endTime": "2026-11-30T10:00:00Z",
            "groupBy": ["USAGE_DIMENSION_DAY", "USAGE_DIMENSION_MODEL"],
            "pageSize": 1000,
        },
        [PIRATE, "70", "<=0.1 s", "<=1 s"],
        (["sums", 0, "outputTokens"], "70"),
    ),
    case(
        "audit list --limit 1",
        "ListAuditEvents",
        tenants.ListAuditEventsResponse(events=[EVENT, EVENT]),
        {"parent": "tenants/acme", "pageSize": 1000},
        ["key.revoke", "system"],
        (["events"], 1),
    ),
    case(
        "audit verify --known-hash ab --known-sequence 4",
        "VerifyAudit",
        tenants.VerifyAuditResponse(intact=True, events=9, head_hash="ff"),
        {"parent": "tenants/acme", "knownHash": "ab", "knownSequence": "4"},
        "intact: 9 events, head ff",
        (["intact"], True),
    ),
    case(
        "audit verify",
        "VerifyAudit",
        tenants.VerifyAuditResponse(events=9, broken_sequence=5, problem="hash"),
        {"parent": "tenants/acme"},
        "BROKEN at event 5: hash",
        (["brokenSequence"], "5"),
        status=1,
    ),
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
    case(
        "replicas list",
        "ListReplicas",
        fleet.ListReplicasResponse(replicas=[REPLICA]),
        {"pageSize": 1000},
        ["gateway", "draining", "10.0.0.1:50061"],
        (["replicas", 0, "running"], 3),
    ),
    case(
        "replicas drain r0",
        "DrainReplica",
        REPLICA,
        {"name": "replicas/r0"},
        "draining",
        (["state"], "REPLICA_STATE_DRAINING"),
    ),
    case(
        "replicas undrain replicas/r0",
        "UndrainReplica",
        REPLICA,
        {"name": "replicas/r0"},
        "takes requests",
        (["name"], "replicas/r0"),
    ),
]
ELSEWHERE = {
    "login",
    "logout",
    "whoami",
    "doctor",
    "chat",
    "usage export",  # test_account.py, test_doctor.py, test_talking.py
    "adapters validate",
    "adapters formats",  # tests/unit/cli/test_adapters.py
    "demo",
    "serve",
    "migrate",
    "model",  # tests/e2e
}


def commands() -> Iterator[str]:
    """Every command that the parser knows."""
    for name, parser in subparsers(build_parser()):
        actions = list(subparsers(parser))
        yield from (f"{name} {action}" for action, _ in actions) if actions else (name,)


def subparsers(parser: Any) -> Iterator[tuple[str, Any]]:
    for action in parser._actions:
        if hasattr(action, "choices") and isinstance(action.choices, dict):
            yield from action.choices.items()


def test_every_command_is_here_or_elsewhere() -> None:
    tested = {
        " ".join(one.line.split()[: 2 if " ".join(one.line.split()[:2]) in set(commands()) else 1]) for one in CASES
    }
    assert tested | ELSEWHERE == set(commands())
    assert not tested & ELSEWHERE


@pytest.mark.parametrize("one", CASES, ids=[one.line[:40] for one in CASES])
def test_a_command_in_words_and_in_json(lorry: Terminal, server: Recorder, one: Case) -> None:
    for method, answer in one.scripts.items():
        if answer is not None:
            server.script(method, answer if not isinstance(answer, list) else [*answer])
    words = lorry(*one.line.split())
    assert words.status == one.status, words.err
    for text in one.says:
        assert text in words.out
    told = lorry(*one.line.split(), "--json")
    assert told.status == one.status, told.err
    found = told.json
    path, value = one.holds
    for step in path:
        found = found[step]
    assert (len(found) if isinstance(value, int) and isinstance(found, list) else found) == value
    for request in server.of(one.method)[-1:]:
        asked = MessageToDict(request)
        asked.pop("requestId", None)
        assert asked == one.asks
    assert {call.metadata["authorization"] for call in server.calls} == {f"Bearer {API_KEY}"}
