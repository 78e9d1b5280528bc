"""What the scripted server answers: a tenant's whole life, one message of each kind."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import fleet_pb2 as fleet
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenants
from lorry.api.v1 import user_admin_pb2 as users

PIRATE = "tenants/acme/adapters/pirate"
V3, V4 = f"{PIRATE}/versions/3", f"{PIRATE}/versions/4"
NOON = Timestamp(seconds=1_793_534_400)
READY = adapters.ADAPTER_VERSION_STATE_READY
ADAPTER = adapters.Adapter(name=PIRATE, display_name="Pirate", last_version=4, etag="e1", create_time=NOON)
DELETED = adapters.Adapter(name=PIRATE, delete_time=NOON, purge_time=NOON)
THREE = adapters.AdapterVersion(
    name=V3,
    version=3,
    sha256="3" * 64,
    base="models/smol",
    state=READY,
    rank=8,
    size_bytes=10,
    create_time=NOON,
    files=[adapters.AdapterVersionFile(path="adapter_config.json", size=10, sha256="c" * 64)],
    checks=[adapters.ValidationCheck(id="kind", outcome="pass", message="LoRA", value="LoRA")],
)
FOUR = adapters.AdapterVersion(
    name=V4,
    version=4,
    sha256="4" * 64,
    base="models/smol",
    state=adapters.ADAPTER_VERSION_STATE_DEPRECATED,
    rank=16,
    size_bytes=20,
    files=[
        adapters.AdapterVersionFile(path="adapter_config.json", size=10, sha256="d" * 64),
        adapters.AdapterVersionFile(path="tokenizer.json", size=10, sha256="e" * 64),
    ],
    checks=[adapters.ValidationCheck(id="kind", outcome="pass", message="DoRA", value="DoRA")],
)
ALIAS = adapters.Alias(
    name=f"{PIRATE}@prod", version=3, revision=7, canary_version=4, canary_permille=50, etag="e7", update_time=NOON
)
RESIDENCY = adapters.Residency(
    name=V3,
    replicas=[
        adapters.ReplicaResidency(replica="r0", device=True, running=2),
        adapters.ReplicaResidency(replica="r1", disk=True, seen_time=NOON),
    ],
)
KEY = tenants.ApiKey(
    name="tenants/acme/apiKeys/0123456789abcdef",
    principal="ann",
    role=tenants.ROLE_OWNER,
    last_four="beef",
    create_time=NOON,
    revoke_time=NOON,
)
MADE = tenants.CreateApiKeyResponse(api_key=KEY, text="lorry_the_text")
TENANT = tenants.Tenant(name="tenants/acme", display_name="Acme", etag="e2", import_prefixes=["s3://b/p/"], weight=37)
BASE = tenants.BaseModel(
    name="models/smol", base_sha256="b" * 64, tokenizer_sha256="c" * 64, context_tokens=8192, create_time=NOON
)
GRANT = tenants.Grant(name="tenants/acme/grants/gr_1", resource=PIRATE, create_time=NOON)
REVOKED = tenants.Grant(name="tenants/acme/grants/gr_0", resource=PIRATE, create_time=NOON, revoke_time=NOON)
PIN = tenants.Pin(tenant="tenants/acme", version=V3, mode=tenants.PIN_MODE_HARD, create_time=NOON)
QUOTA = tenants.Quota(
    name="tenants/acme/quotas/q1",
    adapter=PIRATE,
    limits=tenants.QuotaLimits(concurrency=4, tokens_per_month=1000),
    etag="e3",
    use=tenants.QuotaUse(month="2026-11", tokens_used=12, tokens_leased=34),
)
SUM = tenants.UsageSum(
    time="2026-11-01T00:00:00Z",
    model=PIRATE,
    requests=5,
    prompt_tokens=60,
    output_tokens=70,
    ttft=tenants.LatencyHistogram(bounds=[0.1, 1.0], counts=[4, 1, 0]),
)
REFUSED = tenants.UnbilledSum(time="2026-11-02T00:00:00Z", reason="QUOTA_EXCEEDED", requests=9)
EVENT = tenants.AuditEvent(sequence=9, create_time=NOON, actor="system", action="key.revoke", subject=KEY.name)
USER = users.User(
    name="tenants/acme/users/ann", username="ann@acme", role=tenants.ROLE_OPERATOR, create_time=NOON, etag="e4"
)
WEB_SESSION = users.WebSession(
    name="tenants/acme/sessions/ws_1", user=USER.name, agent="Firefox", address="10.0.0.7", create_time=NOON
)
PRICE = users.Price(
    tenant="tenants/acme", effective_time=NOON, currency="EUR", prompt="0.15", cached_prompt="0.05", output="0.6"
)
REPLICA = fleet.Replica(
    name="replicas/r0",
    kind=fleet.REPLICA_KIND_GATEWAY,
    state=fleet.REPLICA_STATE_DRAINING,
    address="10.0.0.1:50061",
    build="0.1.0",
    running=3,
    seen_time=NOON,
)
MODEL = pb.Model(name=PIRATE, base="models/smol", version=3, sha256="3" * 64, aliases=[f"{PIRATE}@prod"])
WHO = pb.ResolvedModel(adapter=PIRATE, version=3, sha256="3" * 64, alias="prod", canary=True, pinned=False)
STREAM = [
    pb.GenerateStreamResponse(seq=0, start=pb.StreamStart(request_id="rq", model=WHO)),
    pb.GenerateStreamResponse(seq=1, delta=pb.Delta(text="ahoy")),
    pb.GenerateStreamResponse(
        seq=2,
        end=pb.StreamEnd(
            model=WHO,
            usage=pb.Usage(output_tokens=2),
            choices=[pb.ChoiceEnd(finish_reason=pb.FINISH_REASON_STOP, output_tokens=2)],
        ),
    ),
]
VERSIONS = {"ListAdapterVersions": adapters.ListAdapterVersionsResponse(versions=[FOUR, THREE])}
ALIASES = {"ListAliases": adapters.ListAliasesResponse(aliases=[ALIAS])}
GRANTS = tenants.ListGrantsResponse(grants=[REVOKED, GRANT])
