"""The error table of the gateway, row by row, over gRPC and HTTP: code, status, reason, and when to come back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest

from lorry import errors
from lorry.api.status import PUSHBACK_KEY, error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import LorryError
from lorry.ids import TenantId
from lorry.registry.entries import GrantEntry, PinEntry, QuotaEntry
from tests.integration.gateway.web import CHAT, COMPLETIONS, completion, raw, web
from tests.integration.gateway.world import OTHERS, PIRATE, World, read, ref, request


def nothing(here: World) -> None:
    """The world as it is made."""


def fails(error: LorryError, at: int = 0) -> Callable[[World], None]:
    """The engine does, as it does for real."""

    def provoke(here: World) -> None:
        here.engine.fault = lambda r: Fault(FaultKind.FAIL, at, error)

    return provoke


def faulty(kind: FaultKind, at: int = 0, **provenance: Any) -> Callable[[World], None]:
    def provoke(here: World) -> None:
        here.engine.fault = lambda r: Fault(kind, at, provenance=provenance)

    return provoke


def refused(error: LorryError) -> Callable[[World], None]:
    """What this service layer only passes on: admin calls and limits have tests of their own."""

    def provoke(here: World) -> None:
        real = here.gateway._generations.admission

        class Refusing:
            async def admit(self, message: Any, context: Any, noted: Any = None) -> Any:
                raise error

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        here.gateway._generations.admission = Refusing()  # type: ignore[assignment]  # see its docstring

    return provoke


def pinned(here: World) -> None:
    acme, adapter = TenantId("t-acme"), here.adapter(PIRATE).id
    here.source.change(pins=[(acme, adapter, PinEntry(acme, adapter, 1))])


def revoked_long_ago(here: World) -> None:
    grant = GrantEntry(TenantId("t-acme"), here.adapter(PIRATE).id, time.time() - 25 * 3600)
    here.source.change(grants=[grant])


def crowded(here: World) -> None:
    """The tenant's only seat is taken."""
    acme = TenantId("t-acme")
    here.source.change(quotas=[(acme, "", QuotaEntry("q-acme", acme, "", None, 1, None, None, None, 1))])
    (quota,) = here.gateway._limits._of(acme, "")
    quota.seats.taken = 1


def spent(here: World) -> None:
    """The registry has just said that nothing is left of the month's tokens."""
    acme = TenantId("t-acme")
    here.source.change(quotas=[(acme, "", QuotaEntry("q-acme", acme, "", None, None, None, 100, None, 1))])
    (quota,) = here.gateway._limits._of(acme, "")
    assert quota.budget is not None
    quota.budget._unspent, quota.budget.known_until = 0, float("inf")


def draining(here: World) -> None:
    here.gateway._generations.draining = True


@dataclass(frozen=True)
class Row:
    """``web`` and ``rpc``: the request, as each transport says it. ``retry``: seconds until it may be tried again,
    None never. ``field``: of the violation, in the client's own words."""

    error: type[LorryError]
    code: str
    status: int
    reason: str
    provoke: Callable[[World], None] = nothing
    web: dict[str, Any] = field(default_factory=dict)
    rpc: dict[str, Any] = field(default_factory=dict)
    who: str = "acme"
    retry: float | None = None
    field: str | None = None
    rpc_field: str | None = None
    timeout: float | None = None


def model(name: str, **more: Any) -> dict[str, Any]:
    return {"web": {"model": name}, "rpc": {"model": name}, **more}


def bad(name: str, rpc_name: str, web: dict[str, Any], rpc: dict[str, Any]) -> Row:
    return Row(
        *(errors.InvalidRequest, "INVALID_ARGUMENT", 400, "INVALID_REQUEST"),
        web=web,
        rpc=rpc,
        field=name,
        rpc_field=rpc_name,
    )


UNAUTHENTICATED = (errors.Unauthenticated, "UNAUTHENTICATED", 401, "UNAUTHENTICATED")
NOT_FOUND = (errors.ModelNotFound, "NOT_FOUND", 404, "MODEL_NOT_FOUND")
S, T = pb.SamplingParams, pb.StoppingParams
ROWS: dict[str, Row] = {
    "missing key": Row(*UNAUTHENTICATED, who=""),
    "bad key": Row(*UNAUTHENTICATED, who="lorry_0123456789abcdef_" + "0" * 64),
    "expired key": Row(*UNAUTHENTICATED, who="expired"),
    "revoked key": Row(*UNAUTHENTICATED, who="revoked"),
    "unknown model": Row(*NOT_FOUND, **model("tenants/acme/adapters/nothing")),
    "never granted": Row(*NOT_FOUND, **model(OTHERS)),
    "unknown base": Row(*NOT_FOUND, **model("models/nothing")),
    "not a name": Row(*NOT_FOUND, **model("../../etc/passwd")),
    "grant revoked": Row(
        *(errors.GrantRevoked, "PERMISSION_DENIED", 403, "GRANT_REVOKED"), **model("tenants/acme/adapters/revoked")
    ),
    "grant revoked a day ago": Row(*NOT_FOUND, provoke=revoked_long_ago),
    "tenant suspended": Row(*(errors.TenantSuspended, "PERMISSION_DENIED", 403, "TENANT_SUSPENDED"), who="suspended"),
    "role too low": Row(
        *(errors.RoleTooLow, "PERMISSION_DENIED", 403, "ROLE_TOO_LOW"), provoke=refused(errors.RoleTooLow("role: low"))
    ),
    "pin differs": Row(
        *(errors.PinMismatch, "FAILED_PRECONDITION", 409, "PIN_MISMATCH"),
        provoke=pinned,
        **model(f"{PIRATE}/versions/2"),
    ),
    "expected_sha256 differs": Row(
        *(errors.PinMismatch, "FAILED_PRECONDITION", 409, "PIN_MISMATCH"),
        web={"expected_sha256": "0" * 64},
        rpc={"expected_sha256": "0" * 64},
    ),
    "tenant quota": Row(
        *(errors.QuotaExceeded, "RESOURCE_EXHAUSTED", 429, "QUOTA_EXCEEDED"),
        provoke=crowded,
        retry=1.0,
    ),
    "token budget spent": Row(
        *(errors.TokenBudgetSpent, "RESOURCE_EXHAUSTED", 429, "TOKEN_BUDGET_SPENT"),
        provoke=spent,
    ),
    "overload": Row(
        *(errors.Overloaded, "UNAVAILABLE", 503, "OVERLOADED"),
        provoke=fails(errors.Overloaded("queue: full", retry_after_s=0.2)),
        retry=0.2,
    ),
    "queue timeout": Row(
        *(errors.QueueTimeout, "UNAVAILABLE", 503, "QUEUE_TIMEOUT"),
        provoke=fails(errors.QueueTimeout("queue_timeout: waited 3 s", retry_after_s=1.0)),
        retry=1.0,
    ),
    "draining": Row(*(errors.Draining, "UNAVAILABLE", 503, "DRAINING"), provoke=draining, retry=1.0),
    "object store down": Row(
        *(errors.ObjectStoreUnavailable, "UNAVAILABLE", 503, "OBJECT_STORE_UNAVAILABLE"),
        provoke=fails(errors.ObjectStoreUnavailable("store: does not answer", retry_after_s=4.0)),
        retry=4.0,
    ),
    "engine gone": Row(
        *(errors.EngineUnavailable, "UNAVAILABLE", 503, "ENGINE_UNAVAILABLE"), **model("models/lost"), retry=1.0
    ),
    "adapter cold": Row(
        *(errors.AdapterCold, "UNAVAILABLE", 503, "ADAPTER_COLD"),
        web={"cold_load": "reject"},
        rpc={"cold_load": pb.COLD_LOAD_REJECT},
        retry=1.0,
    ),
    "adapter quarantined": Row(
        *(errors.AdapterQuarantined, "FAILED_PRECONDITION", 409, "ADAPTER_QUARANTINED"),
        **model("tenants/acme/adapters/bad"),
    ),
    "version not ready": Row(
        *(errors.VersionNotReady, "FAILED_PRECONDITION", 409, "VERSION_NOT_READY"),
        **model("tenants/acme/adapters/unready"),
    ),
    "object missing": Row(
        *(errors.AdapterObjectMissing, "FAILED_PRECONDITION", 409, "ADAPTER_OBJECT_MISSING"),
        provoke=fails(errors.AdapterObjectMissing("adapter: its object is missing")),
    ),
    "digest differs": Row(
        *(errors.AdapterDigestMismatch, "FAILED_PRECONDITION", 409, "ADAPTER_DIGEST_MISMATCH"),
        provoke=fails(errors.AdapterDigestMismatch("adapter: its digest differs")),
    ),
    "load failed": Row(
        *(errors.AdapterLoadFailed, "FAILED_PRECONDITION", 409, "ADAPTER_LOAD_FAILED"),
        provoke=fails(errors.AdapterLoadFailed("adapter: its load failed")),
    ),
    "empty prompt": bad("prompt", "prompt", {"prompt": ""}, {"prompt": ""}),
    "no ids": bad("prompt", "token_ids", {"prompt": []}, {"token_ids": pb.TokenIds()}),
    "bad token id": bad(
        "prompt[1]", "token_ids[1]", {"prompt": [3, 4_000_000]}, {"token_ids": {"ids": [3, 4_000_000]}}
    ),
    "max_tokens 0": bad("max_tokens", "stopping.max_tokens", {"max_tokens": 0}, {"max_tokens": 0}),
    "longer than the context": bad("max_tokens", "stopping.max_tokens", {"max_tokens": 512}, {"max_tokens": 512}),
    "a prompt longer than the context": bad(
        *("prompt", "prompt", {"prompt": "word " * 2000, "max_tokens": None}),
        {"prompt": "word " * 2000, "stopping": T()},
    ),
    "can never fit": bad(
        *("n", "sampling.n", {"n": 16, "max_tokens": 5000}), {"sampling": S(n=16), "max_tokens": 5000}
    ),
    "a sampling field": bad("top_p", "sampling.top_p", {"top_p": 2}, {"sampling": S(top_p=2)}),
    "adapter refused": Row(
        *(errors.AdapterRefused, "INVALID_ARGUMENT", 400, "ADAPTER_REFUSED"),
        provoke=refused(errors.AdapterRefused("adapter_config.json: r is 0")),
    ),
    "name exists": Row(
        *(errors.AlreadyExists, "ALREADY_EXISTS", 409, "ALREADY_EXISTS"),
        provoke=refused(errors.AlreadyExists("name: is taken")),
    ),
    "stale etag": Row(
        *(errors.StaleEtag, "ABORTED", 409, "STALE_ETAG"), provoke=refused(errors.StaleEtag("etag: is an older one"))
    ),
    "deadline": Row(
        *(errors.DeadlineExceeded, "DEADLINE_EXCEEDED", 504, "DEADLINE_EXCEEDED"),
        provoke=faulty(FaultKind.HANG),
        timeout=0.1,
    ),
    "not served yet": Row(
        *(errors.NotServedYet, "UNIMPLEMENTED", 501, "NOT_SERVED_YET"),
        web={"priority": 1},
        rpc={"priority": 1},
        field="priority",
    ),
    "provenance mismatch": Row(
        *(errors.ProvenanceMismatch, "INTERNAL", 502, "PROVENANCE_MISMATCH"),
        provoke=faulty(FaultKind.PROVENANCE, adapter=ref(PIRATE, 1).digest),
    ),
    "logits not finite": Row(
        *(errors.NonFiniteLogits, "INTERNAL", 502, "NON_FINITE_LOGITS"),
        provoke=fails(errors.NonFiniteLogits("logits: not finite")),
    ),
    "a stream that would end OK and empty": Row(
        *(errors.EmptyStream, "INTERNAL", 502, "EMPTY_STREAM"), provoke=faulty(FaultKind.END)
    ),
}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with web() as made:
        base = made.tables.bases["b-smol"]
        if base.context_tokens != 512:
            raise AssertionError("rows speak of a context of 512")
        yield made


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ROWS)
async def test_row(here: World, name: str, whole: bool) -> None:
    row = ROWS[name]
    if name == "can never fit":
        here.source.change(bases=[replace(here.tables.bases["b-smol"], context_tokens=10_000)])
    row.provoke(here)
    error, pushback = await _by_grpc(here, row, whole)
    assert type(error) is row.error
    assert (error.grpc_code, error.http_status, error.reason) == (row.code, row.status, row.reason)
    assert error.retry_after_s == row.retry
    wanted = -1 if row.error is errors.TokenBudgetSpent else None if row.retry is None else round(row.retry * 1000)
    assert pushback == wanted
    if row.rpc_field is not None:
        assert [one.field for one in error.violations] == [row.rpc_field]

    answer = await _by_http(here, row, stream=not whole)
    told = answer.json()["error"]
    assert answer.status_code == row.status
    assert answer.headers["content-type"] == "application/json"
    no_budget = row.error is errors.TokenBudgetSpent
    assert told["code"] == ("insufficient_quota" if no_budget else row.reason)
    assert told["lorry"]["reason"] == row.reason
    assert told["lorry"].get("metadata", {}) == error.metadata
    assert answer.headers["x-request-id"]
    assert answer.headers["x-should-retry"] == ("false" if row.retry is None else "true")
    after = answer.headers.get("retry-after")
    assert after == (None if row.retry is None else str(max(1, -(-row.retry // 1).__trunc__())))
    assert ("www-authenticate" in answer.headers) == (row.status == 401)
    own_words = (errors.Unauthenticated, errors.DeadlineExceeded)  # of its header; of the gRPC client's
    if row.rpc_field is None and row.error not in own_words:
        assert told["message"] == error.message, "the same words on both"
    if row.field is not None:
        assert told["param"] == row.field
        assert row.field in told["message"]


async def _by_grpc(here: World, row: Row, whole: bool) -> tuple[LorryError, int | None]:
    metadata = here.metadata(row.who) if row.who else ()
    rpc = dict(row.rpc)
    message = request(**rpc)
    if rpc.get("prompt") == "":
        message.prompt = ""
    method = here.stub.Generate if whole else here.stub.GenerateStream
    call = method(message, metadata=metadata, timeout=row.timeout)
    with pytest.raises(grpc.RpcError) as caught:
        await (call if whole else anext(aiter(call)))
    ended: Any = caught.value
    pushback = dict(ended.trailing_metadata() or ()).get(PUSHBACK_KEY)
    return error_from_rpc(ended), None if pushback is None else int(pushback)


async def _by_http(here: World, row: Row, stream: bool) -> Any:
    body = completion(**row.web, stream=stream)
    headers = {} if row.timeout is None else {"lorry-timeout-seconds": str(row.timeout)}
    async with raw(here, row.who) as client:
        if not row.who:
            del client.headers["authorization"]
        return await client.post(COMPLETIONS, json=body, headers=headers)


async def test_a_rate_that_is_used_up_for_real_says_when_on_both(here: World) -> None:
    acme = TenantId("t-acme")
    quota = QuotaEntry("q-1", acme, "", 1, None, None, None, None, 1)
    here.source.change(quotas=[(acme, "", quota)])
    row = ROWS["tenant quota"]
    assert (await _by_http(here, row, stream=False)).status_code == 200
    error, pushback = await _by_grpc(here, row, whole=False)
    assert type(error) is errors.QuotaExceeded
    assert error.retry_after_s is not None
    assert 40 < error.retry_after_s <= 60
    assert pushback == round(error.retry_after_s * 1000)
    for stream in (True, False):
        answer = await _by_http(here, row, stream=stream)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "QUOTA_EXCEEDED")
        assert 40 < int(answer.headers["retry-after"]) <= 60
    assert len(here.engine.seen) == 1


async def test_unknown_and_never_granted_read_the_same_on_both(here: World) -> None:
    words = set()
    for name, row in ROWS.items():
        if row.error is errors.ModelNotFound and row.provoke is nothing:
            error, _ = await _by_grpc(here, row, whole=False)
            answer = await _by_http(here, row, stream=False)
            told = answer.json()["error"]
            words.add((error.message, told["message"], told["param"], str(error.metadata), str(told["lorry"])))
            async with raw(here) as client:
                shown = await client.get(f"/v1/models/{row.web['model']}")
                if not name.startswith("not a"):  # a path is made shorter by clients
                    assert shown.status_code == 404
                    assert shown.json()["error"]["message"] == told["message"]
                chatted = await client.post(
                    CHAT, json={"model": row.web["model"], "messages": [{"role": "user", "content": "x"}]}
                )
                assert chatted.json()["error"] == told
    assert len(words) == 1


MID: dict[str, tuple[type[LorryError], Callable[[World], None]]] = {
    "grant revoked": (errors.GrantRevoked, lambda here: here.revoke_grant()),
    "engine dies": (errors.EngineUnavailable, lambda here: here.engine.die()),
}


@pytest.mark.parametrize("name", MID)
async def test_an_error_in_the_middle_ends_a_stream_so_on_both(here: World, name: str) -> None:
    kind, strike = MID[name]
    here.engine.fault = lambda r: Fault(FaultKind.HANG, 4)
    call = here.call(request(output=pb.OutputParams(flush=True)))
    assert (await anext(call.__aiter__())).WhichOneof("event") == "start"
    async with raw(here) as client, client.stream("POST", COMPLETIONS, json=completion(stream=True)) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: {")
        strike(here)
        rest = [line async for line in lines if line]
    assert rest[-2] == "event: error"
    assert f'"code":"{kind.reason}"' in rest[-1]
    assert "data: [DONE]" not in rest
    _, error = await read(call)
    assert type(error) is kind
