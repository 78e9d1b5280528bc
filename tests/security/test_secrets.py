"""Secrets are in no log, no error and no trailer, whatever is asked and however much is logged."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from lorry import errors
from lorry.api.v1 import generate_pb2 as g
from lorry.api.v1 import tenant_admin_pb2 as t
from lorry.engine.fake import Fault, FaultKind
from tests.security.places import ANSWER, PASSWORD, PROMPT, Place, generate
from tests.unit.engine_contract.fakes import always

FAULTS = (FaultKind.FAIL, FaultKind.END, FaultKind.HANG, FaultKind.PROVENANCE, FaultKind.DIE)


async def test_what_a_tenants_requests_can_make_it_say(place: Place) -> None:
    """Good ones, bad ones, and engines that fail in every way with the prompt and half an answer in their hands."""
    here = place.here
    anna = await here.furnish("anna")
    key = here.keys["anna owner"]
    paths = [f"lorry.api.v1.GenerateService/{method}" for method in ("Generate", "GenerateStream")]
    good = await here.call(paths[0], generate(anna.adapter), key)
    assert ANSWER in str(good.answers), "the marker is in what the tenant gets"
    for bad in (
        generate("tenants/anna/adapters/none"),
        generate(anna.adapter, labels={"x\n": PROMPT[:20]}),
        generate(anna.adapter, sampling=g.SamplingParams(temperature=-1)),
        generate(anna.adapter, expected_sha256="0" * 64),
        generate(anna.adapter, json_schema="{}"),
        generate(anna.adapter, PROMPT * 100_000),
        g.GenerateRequest(model=anna.adapter, chat=g.Chat(messages=[g.ChatMessage(role="user", content=PROMPT)])),
    ):
        place.hear("bad", await here.call(paths[0], bad, key))
    for body in (
        {"model": anna.adapter, "prompt": PROMPT, "max_tokens": 20},
        {"model": anna.adapter, "prompt": PROMPT, "n": 0},
        {"model": anna.adapter, "prompt": PROMPT, "tools": [1]},
        {"model": anna.adapter, "messages": [{"role": "user", "content": PROMPT}], "logprobs": 9},
    ):
        for route in ("/v1/completions", "/v1/chat/completions"):
            answer = await here.web.post(route, json=body, headers={"authorization": f"Bearer {key}"})
            if answer.status_code != 200:
                place.said.hear(f"HTTP {answer.status_code}", answer.text + repr(answer.headers))
    torn = json.dumps({"model": anna.adapter, "prompt": PROMPT}).encode()[:-5]
    answer = await here.web.post(
        "/v1/completions", content=torn, headers={"authorization": f"Bearer {key}", "content-type": "application/json"}
    )
    place.said.hear("torn body", answer.text)
    for kind in FAULTS:
        for at in (0, 2):
            error = errors.AdapterLoadFailed("adapter: it could not be loaded") if kind is FaultKind.FAIL else None
            fault = Fault(kind, at, error)
            here.engine.fault = always(fault)
            for path in paths:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        place.hear(path, await here.call(path, generate(anna.adapter), key))
                place.said.hear("state", json.dumps(here.gateway.state()))


async def test_what_bad_keys_make_it_say(place: Place) -> None:
    """What was nearly a key may be one somewhere else: it is not repeated."""
    here = place.here
    wrong = "lorry_0123456789abcdef_" + "feedc0de" * 8
    place.said.secrets["a wrong key"] = "feedc0de" * 8
    for path, request in (
        ("GenerateService/Generate", generate("models/tiny")),
        ("TenantAdminService/GetTenant", t.GetTenantRequest(name="tenants/anna")),
    ):
        for metadata in (
            [("authorization", f"Bearer {wrong}")],
            [("authorization", f"Bearer {wrong} {wrong}")],
            [("authorization", wrong)],
            [("authorization", f"Basic {wrong}")],
            [("authorization", f"Bearer {wrong}"), ("authorization", f"Bearer {wrong}")],
        ):
            place.hear("bad key", await here.call(f"lorry.api.v1.{path}", request, None, metadata))
            answer = await here.web.get("/v1/models", headers=metadata)
            place.said.hear(f"HTTP {answer.status_code}", answer.text + repr(answer.headers))
            assert answer.status_code == 401


async def test_what_failing_handlers_make_it_say(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log gets a traceback under an id, the caller the id alone."""
    here = place.here
    secret = place.said.secrets["words of an exception"] = "inner-words-77ab"
    key = here.keys["anna owner"]

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError(secret)

    heard, place.said.words = place.said.words, []
    monkeypatch.setattr(type(here.registry.tenants), "get", broken)
    monkeypatch.setattr(type(here.gateway._generations), "begin", broken)
    found = await here.call("lorry.api.v1.TenantAdminService/GetTenant", t.GetTenantRequest(name="tenants/anna"), key)
    assert (found.code, found.reason) == ("INTERNAL", "INTERNAL")
    place.hear("admin", found)
    for path in ("Generate", "GenerateStream"):
        place.hear(path, await here.call(f"lorry.api.v1.GenerateService/{path}", generate("models/tiny"), key))
    body = {"model": "models/tiny", "prompt": PROMPT}
    answer = await here.web.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code in (500, 502)
    place.said.hear("HTTP", answer.text + repr(answer.headers))
    logged = [text for where, text in place.said.words if where.startswith("log lorry.") and secret in text]
    assert len(logged) == 4, "the operator finds all of it"
    assert not any("Traceback" in text for where, text in place.said.words if not where.startswith("log "))
    place.said.words = [(where, text) for where, text in place.said.words if text not in logged] + heard


async def test_what_a_path_can_write_into_the_log(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a line of its own, and nothing that moves a terminal's cursor."""
    from lorry.gateway.http import app

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(app, "show_model", broken)
    key = place.here.keys["anna member"]
    evil = "/v1/models/x%0aERROR%20all%20is%20lost%1b[2J%e2%80%a8"
    assert (await place.here.web.get(evil, headers={"authorization": f"Bearer {key}"})).status_code in (500, 502)
    (line,) = [text for where, text in place.said.words if "failed, request id" in text and "all is lost" in text]
    first = line.partition("\n")[0]
    assert "all is lost" in first
    assert first.isascii()
    assert first.isprintable()


async def test_what_admin_calls_make_it_say(place: Place) -> None:
    """A key's text is in the one answer that makes it, and nowhere after it: no list, no audit, no second look."""
    here = place.here
    owner = here.client("anna owner")
    made = await owner.call(
        "CreateApiKey", t.CreateApiKeyRequest(parent="tenants/anna", principal="robot", role=t.ROLE_MEMBER)
    )
    turned = await owner.call("RotateApiKey", t.RotateApiKeyRequest(name=made.api_key.name))
    for at, answer in enumerate((made, turned)):
        place.said.secrets[f"new key {at}"] = answer.text.rpartition("_")[2]
    for method, request in (
        ("ListApiKeys", t.ListApiKeysRequest(parent="tenants/anna")),
        ("ListAuditEvents", t.ListAuditEventsRequest(parent="tenants/anna")),
        ("RevokeApiKey", t.RevokeApiKeyRequest(name=turned.api_key.name)),
        ("GetTenant", t.GetTenantRequest(name="tenants/anna")),
    ):
        place.said.hear(method, str(await owner.call(method, request)))
    mask = FieldMask(paths=["import_prefixes"])
    bad = t.Tenant(name="tenants/anna", import_prefixes=[f"s3://user:{PASSWORD}@bucket/x/"])
    refused = await here.call(
        "lorry.api.v1.TenantAdminService/UpdateTenant",
        t.UpdateTenantRequest(tenant=bad, update_mask=mask),
        here.keys["admin"],
    )
    assert refused.code == "INVALID_ARGUMENT"
