"""``lorry quota``, ``lorry usage`` and ``lorry audit``."""

from __future__ import annotations

from lorry.api.v1 import tenant_admin_pb2 as tenants
from tests.integration.cli.answers import EVENT, PIRATE, QUOTA, REFUSED, SUM
from tests.integration.cli.commands.case import case

CASES = [
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
        tenants.QueryUsageResponse(sums=[SUM], unbilled=[REFUSED]),
        {
            "parent": "tenants/acme",
            "startTime": "2026-11-01T00:00:00Z",
            "endTime": "2026-11-30T10:00:00Z",
            "groupBy": ["USAGE_DIMENSION_DAY", "USAGE_DIMENSION_MODEL"],
            "pageSize": 1000,
        },
        [PIRATE, "70", "<=0.1 s", "<=1 s", "not in the ledger", "2026-11-02T00:00:00Z  QUOTA_EXCEEDED  9"],
        (["sums", 0, "outputTokens"], "70"),
    ),
    case(
        "usage query --since 2026-11-01 --until 2026-11-30",
        "QueryUsage",
        tenants.QueryUsageResponse(unbilled=[tenants.UnbilledSum(reason="QUOTA_EXCEEDED", requests=9)]),
        {
            "parent": "tenants/acme",
            "startTime": "2026-11-01T00:00:00Z",
            "endTime": "2026-11-30T00:00:00Z",
            "pageSize": 1000,
        },
        ["none", "\nQUOTA_EXCEEDED  9"],
        (["unbilled", 0], {"time": "", "reason": "QUOTA_EXCEEDED", "requests": "9"}),
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
]
