"""Whatever a user can type comes back as text: in HTML, in attributes, in SVG, in JSON, and in code that is copied."""

from __future__ import annotations

import ast
import json
import re
import shlex
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from lorry.registry import Usage
from tests.integration.web.filled import verified
from tests.integration.web.world import BASE, Browser, World

EVIL = "\"'></textarea></title><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7919*7907 }}javascript:alert(1)"


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def assert_harmless(text: str, where: str) -> None:
    """No tag, handler or address came from ``EVIL``; and it was not lost, so the page did show it."""
    for tag, attributes in Tags(text).found:
        assert not any(name.startswith("on") for name in attributes), (where, tag, attributes)
        assert "alert(1)" not in (attributes.get("src") or ""), where
        assert not (attributes.get("href") or "").startswith("javascript:"), where
        if tag == "script":
            assert re.fullmatch(r"/static/[0-9a-f]{16}/[a-z]+\.js", attributes.get("src") or ""), where
        if tag == "img":
            assert (attributes.get("src") or "").startswith("/static/"), where
    assert "<script>" not in text, where
    assert str(7919 * 7907) not in text, where


FORMS: list[tuple[str, str, dict[str, Any]]] = [
    ("anna", "/tenants/acme/keys", {"principal": EVIL, "role": EVIL, "days": EVIL}),
    ("anna", "/tenants/acme/keys", {"principal": "ok", "role": EVIL}),
    ("anna", "/tenants/acme/users", {"user": EVIL, "role": "member"}),
    ("anna", "/tenants/acme/audit", {"known_hash": EVIL, "known_sequence": "1"}),
    ("anna", "/tenants/acme/adapters/pirate/aliases", {"alias": EVIL, "version": "1"}),
    ("anna", "/tenants/acme/adapters/pirate/aliases", {"alias": "x", "version": EVIL, "etag": EVIL}),
    ("anna", "/tenants/acme/adapters/pirate/aliases/prod/canary", {"version": "2", "permille": EVIL, "percent": EVIL}),
    ("anna", "/tenants/acme/adapters/pirate/pin", {"version": "1", "mode": EVIL}),
    ("anna", "/tenants/acme/adapters/pirate/rename", {"display_name": "x" * 300 + EVIL}),
    ("anna", "/tenants/acme/register", {"adapter": EVIL, "display_name": EVIL, "base": EVIL, "s3_uri": EVIL}),
    ("anna", "/tenants/acme/register", {"adapter": "ok", "base": EVIL, "s3_uri": "s3://bucket/x"}),
    (
        "anna",
        "/tenants/acme/playground",
        {"model_a": EVIL, "model_b": EVIL, "prompt": EVIL, "system": EVIL, "stop": EVIL},
    ),
    ("anna", "/tenants/acme/playground", {"model_a": BASE, "prompt": EVIL, "seed": EVIL}),
    ("anna", "/tenants/acme/playground", {"model_a": BASE, "prompt": EVIL, "do": "code", "stop": EVIL, "system": EVIL}),
    ("root", "/tenants/acme/quotas", {"adapter": EVIL, "requests_per_minute": EVIL}),
    ("root", "/tenants/acme/quotas", {"adapter": EVIL, "requests_per_minute": "5", "etag": EVIL}),
    ("root", "/tenants/acme/prices", {"currency": EVIL, "prompt": EVIL, "output": EVIL, "day": ""}),
    ("root", "/operator/tenants", {"tenant": EVIL, "display_name": EVIL}),
    ("root", "/operator/tenants/acme", {"display_name": EVIL, "import_prefixes": EVIL}),
    ("root", "/operator/tenants/acme/grants", {"resource": EVIL}),
    ("root", "/operator/bases", {"name": EVIL, "base_sha256": EVIL, "tokenizer_sha256": EVIL, "config_json": EVIL}),
]


async def test_every_form(here: World) -> None:
    name = await here.adapter("acme", "pirate", (0, 1))
    await here.admin.set_alias(name, "prod", 1)
    users: dict[str, Browser] = {who: await here.logged_in(who) for who in ("anna", "root")}
    for who, path, fields in FORMS:
        response = await users[who].post(path, fields)
        assert response.status_code in (200, 303, 400, 404, 409), (path, response.text)
        assert_harmless(response.text, path)
    login = await here.browser().log_in(EVIL, EVIL, next=EVIL, kept=EVIL)
    assert_harmless(login.text, "/login")


async def test_what_is_stored_is_shown_as_text(here: World) -> None:
    """Display names, reasons, labels and configs are free text."""
    name = await here.adapter("acme", "pirate", (0, 1))
    text = EVIL[:190]
    await here.admin.update_adapter(name, display_name=text)
    await here.admin.update_tenant("acme", display_name=text)
    await here.admin.quarantine_version(f"{name}/versions/1", text)
    await here.admin.deprecate_version(f"{name}/versions/2", text)
    anna, root = await here.logged_in("anna"), await here.logged_in("root")
    shown = 0
    at = "/tenants/acme/adapters"
    for who, page in [
        (anna, at),
        (anna, f"{at}/pirate"),
        (anna, f"{at}/pirate/versions/1"),
        (anna, f"{at}/pirate/versions/2"),
        (anna, f"{at}/pirate/diff?a=1&b=2"),
        (anna, "/tenants/acme/audit"),
        (root, "/operator/tenants"),
        (root, "/operator/tenants/acme"),
    ]:
        response = await who.get(page)
        assert response.status_code == 200
        assert_harmless(response.text, page)
        shown += "alert(1)" in response.text
    assert shown >= 6


async def test_addresses(here: World) -> None:
    anna = await here.logged_in("anna")
    evil = "%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E"
    for path in (
        f"/tenants/acme/adapters/{evil}",
        f"/tenants/{evil}/keys",
        f"/{evil}",
        f"/tenants/acme?period={evil}",
        f"/tenants/acme/usage?by={evil}",
        f"/tenants/acme/usage?from={evil}",
        f"/tenants/acme/adapters?page={evil}",
        f"/tenants/acme/adapters/pirate/diff?a={evil}&b=1",
        f"/tenants/acme/register?adapter={evil}&base={evil}",
        f"/tenants/acme/playground?model_a={evil}&prompt={evil}&mode={evil}",
        f"/login?next=/{evil}",
    ):
        response = await anna.get(path)
        assert response.status_code < 500, path
        assert_harmless(response.text, path)
    anna.http.cookies.set("lorry_said", "<script>alert(1)</script>")
    assert_harmless((await anna.get("/tenants/acme")).text, "the word of a redirect")


@pytest.mark.parametrize("evil", [EVIL, "'; rm -rf / #", "$(touch /tmp/x) `id` \\", 'a"""b\n\x00\u2028end'])
async def test_copied_code_is_the_same_text(here: World, evil: str) -> None:
    anna = await here.logged_in("anna")
    fields = {"side": "a", "model_a": BASE, "prompt": evil, "system": evil, "stop": "one\ntwo", "mode": "chat"}
    found = (await anna.script("/tenants/acme/playground/code", fields)).json()
    sent = evil.replace("\r\n", "\n")
    tree = ast.parse(found["python"])
    assert sent in [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    parts = shlex.split(found["grpcurl"].replace("\\\n", " "))
    request = json.loads(parts[parts.index("-d") + 1])
    assert request["chat"]["messages"][-1]["content"] == sent
    assert "lorry_" not in str(found)


async def test_outcomes_in_charts_are_text(here: World) -> None:
    owner, now = await verified(here, "acme"), datetime.now(UTC)
    row: dict[str, Any] = {
        "tenant_id": owner,
        "key_id": "k",
        "request_id": EVIL,
        "version": 1,
        "started_at": now,
        "ended_at": now,
    }
    row |= {"adapter_sha256": "a" * 64, "base_sha256": "b" * 64, "prompt_tokens": 1, "output_tokens": 1}
    row |= {"cached_prompt_tokens": 0, "ledger_id": "us_x", "adapter": EVIL[:120], "outcome": "<B>X</B>"[:60]}
    await here.registry.usage.write([Usage(**row)])
    anna = await here.logged_in("anna")
    for page in ("", "/usage?by=adapter", "/usage?by=outcome", "/usage?by=day-key"):
        response = await anna.get(f"/tenants/acme{page}")
        assert response.status_code == 200
        assert_harmless(response.text, page)
        assert "<B>" not in response.text
