"""What is told of requests and admin calls, as log lines and as traces, holds no secret and keeps its lines, whatever a
user names things."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from lorry.api.v1 import adapter_admin_pb2 as a
from lorry.api.v1 import generate_pb2 as g
from lorry.api.v1 import tenant_admin_pb2 as t
from lorry.api.v1 import user_admin_pb2 as u
from lorry.config import TraceConfig
from lorry.engine.fake import Fault, FaultKind
from tests.security.leaks import Said, listening
from tests.security.world import world
from tests.support.collector import collecting
from tests.unit.engine_contract.fakes import tokenizer

PROMPT, ANSWER, STOP = "prompt-marker-51e0 my card", "answer-marker-9a77", "stop-marker-4c1d"
LABEL, PASSWORD = "label-marker-88d2", "Pass-word-3f9c1d7e5b"
EVIL = "x\n2026-01-01 00:00:00,000 ERROR lorry.gateway.requests all is lost\r\x1b[2J\u2028"


async def test_requests_and_admin_calls_are_told_without_secrets(tmp_path: Path) -> None:
    said = Said({"prompt": PROMPT, "answer": ANSWER, "stop string": STOP, "label": LABEL, "password": PASSWORD})
    with collecting() as collector, listening(said):
        async with world(tmp_path, traces=TraceConfig(collector.endpoint)) as here:
            await here.tenant("anna", "owner", "member")
            names, key = await here.furnish("anna"), here.keys["anna owner"]
            said.secrets |= {f"key of {who}": one.rpartition("_")[2] for who, one in here.keys.items()}
            here.engine.script = lambda request: tokenizer().encode(ANSWER, add_special=False)
            said.words.clear()
            asked = {
                "good": g.GenerateRequest(model=names.adapter, prompt=PROMPT, request_id="mine-1", labels={"l": LABEL}),
                "stopped": g.GenerateRequest(
                    model=names.adapter, prompt=PROMPT, stopping=g.StoppingParams(stop=[STOP], max_tokens=9)
                ),
                "chat": g.GenerateRequest(
                    model=names.adapter, chat=g.Chat(messages=[g.ChatMessage(role="user", content=PROMPT)])
                ),
                "nonsense": g.GenerateRequest(model=PROMPT + EVIL, prompt=PROMPT, request_id=PROMPT + EVIL),
                "a key": g.GenerateRequest(model=key, prompt=PROMPT),
                "evil": g.GenerateRequest(
                    model=f"{names.adapter}{EVIL}",
                    prompt=PROMPT,
                    request_id=EVIL,
                    labels={EVIL: LABEL},
                    sticky_key=EVIL,
                ),
            }
            for path in ("Generate", "GenerateStream"):
                for request in asked.values():
                    await here.call(f"lorry.api.v1.GenerateService/{path}", request, key)
            here.engine.fault = lambda _: Fault(FaultKind.DIE, 2)
            await here.call("lorry.api.v1.GenerateService/Generate", asked["good"], key)
            here.engine.revive()
            headers = {"authorization": f"Bearer {key}"}
            body = {"model": PROMPT, "prompt": PROMPT, "stop": [STOP], "user": LABEL}
            await here.web.post("/v1/completions", json=body, headers=headers)
            calls = (
                ("AdapterAdminService/CreateAdapter", a.CreateAdapterRequest(parent="tenants/anna", adapter_id=EVIL)),
                ("AdapterAdminService/DeleteAdapter", a.DeleteAdapterRequest(name=f"tenants/anna/adapters/{EVIL}")),
                ("TenantAdminService/CreateApiKey", t.CreateApiKeyRequest(parent="tenants/anna", principal=EVIL)),
                (
                    "TenantAdminService/CreateApiKey",
                    t.CreateApiKeyRequest(parent="tenants/anna", request_id=key + EVIL),
                ),
                ("TenantAdminService/RevokeApiKey", t.RevokeApiKeyRequest(name=key)),
                (
                    "UserAdminService/CreateUser",
                    u.CreateUserRequest(parent="tenants/anna", user_id="new", role=t.ROLE_MEMBER, password=PASSWORD),
                ),
            )
            for path, admin_request in calls:
                await here.call(f"lorry.api.v1.{path}", admin_request, key)
            traces = await asyncio.to_thread(collector.traces, 2 * len(asked) + 2)
            said.hear("collector", str(collector.requests) + str(collector.metadata))
    assert said.leaks() == []
    told = [json.loads(text) for where, text in said.words if where == "json line"]
    texts = [text for where, text in said.words if where == "text line"]
    ended = [line for line in told if line["logger"] == "lorry.gateway.requests"]
    assert len(ended) == len(traces) == 2 * len(asked) + 2
    assert {line["tenant"] for line in ended} == {"anna"}
    assert {line["trace_id"] for line in ended} == {trace.root.trace_id for trace in traces}
    good = [line for line in ended if line.get("request_id") == "mine-1"]
    assert [line["outcome"] for line in good] == ["OK", "OK", "ENGINE_UNAVAILABLE"]
    assert all(len(line["digest"]) == 64 for line in good)
    changes = [(line["method"], line["outcome"]) for line in told if line["logger"] == "lorry.admin"]
    assert [method for method, _ in changes] == [path.partition("/")[2] for path, _ in calls]
    for where, text in said.words:
        if where == "json line":
            assert "\n" not in text
            assert text.isascii()
    for text in texts:
        first, *more = text.split("\n")
        assert first.isprintable()
        assert all(line.startswith("    | ") for line in more)
    assert not any("all is lost" in text for text in texts), "what is no name is left out"
