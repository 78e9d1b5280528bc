"""OWASP API1, API2, API8 and API9 on the HTTP port: every route with another tenant's names and without a good key."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from tests.security.conftest import Street
from tests.security.world import NOBODYS_KEY, World

pytestmark = pytest.mark.asyncio(loop_scope="session")
OPEN = {"/healthz", "/readyz"}
"""Answer everybody, and say nothing but whether this process lives and may be sent requests."""
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the lorry"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "the lorry", "max_tokens": 2},
}
SHOW = "/v1/models/{name}"
HARMLESS = {"date", "content-type", "content-length", "x-should-retry", "x-request-id", "www-authenticate", "allow"}
HARMLESS |= {
    "x-lorry-model",
    "x-lorry-sha256",
    "cache-control",
    "x-accel-buffering",
    "transfer-encoding",
    "retry-after",
}


async def asked(here: World, path: str, model: str, headers: list[tuple[str, str]], **more: Any) -> httpx.Response:
    if path in BODIES:
        return await here.web.post(path, json={"model": model, **BODIES[path], **more}, headers=headers)
    return await here.web.get(path.replace("{name}", model), headers=headers)


def bearer(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


def told(answer: httpx.Response) -> tuple[Any, ...]:
    """Everything that an answer says, but the request's own id, its time and its length."""
    return answer.status_code, answer.text, sorted(set(answer.headers) - {"x-request-id", "date"})


async def test_these_are_all_routes(street: Street) -> None:
    assert street.world.gateway.http is not None
    assert set(street.world.gateway.http._app._routes) == {*OPEN, *BODIES, "/v1/models"}


@pytest.mark.parametrize("path", [*BODIES, SHOW])
async def test_another_tenants_models_are_as_if_they_were_not_there(street: Street, path: str) -> None:
    here, anna = street.world, street.anna
    before = await here.dump()
    for role in ("owner", "member"):
        key = bearer(here.keys[f"bert {role}"])
        for more in ({}, {"stream": True}) if path in BODIES else ({},):
            first = told(await asked(here, path, anna.adapter, key, **more))
            assert first[0] == 404
            assert "anna" not in first[1]
            for model in (
                anna.version,
                anna.alias,
                f"{anna.adapter}/versions/999",
                "tenants/no/adapters/no",
                "models/no",
            ):
                assert told(await asked(here, path, model, key, **more)) == first
        assert (await asked(here, path, street.bert.adapter, key)).status_code == 200
    after = await here.dump()
    assert after["usage_event"] == before["usage_event"]


async def test_a_list_is_the_callers_own(street: Street) -> None:
    for role in ("owner", "member"):
        text = (await asked(street.world, "/v1/models", "", bearer(street.world.keys[f"bert {role}"]))).text
        assert "tenants/bert/adapters/json" in text
        assert "anna" not in text


@pytest.mark.parametrize("path", [*BODIES, SHOW, "/v1/models"])
async def test_no_route_answers_without_a_good_key(street: Street, path: str) -> None:
    here = street.world
    good = here.keys["anna owner"]
    before = await here.dump()
    said = set()
    for key in (NOBODYS_KEY, good[:-1] + ("0" if good[-1] != "0" else "1"), "x", good.upper()):
        answer = await asked(here, path, street.anna.adapter, bearer(key))
        said.add(answer.text)
        assert answer.status_code == 401
    assert len(said) == 1
    for headers in (
        [],
        [("authorization", f"Basic {good}")],
        [*bearer(good), *bearer(good)],
        [("x-api-key", good)],
        [("api-key", good)],
        [("cookie", f"authorization=Bearer {good}")],
    ):
        assert (await asked(here, path, street.anna.adapter, headers)).status_code == 401
    # Nor does a key in the address.
    assert (await here.web.get(f"/v1/models?api_key={good}")).status_code == 401
    assert await here.dump() == before


async def test_answers_give_nothing_away_in_their_headers(street: Street) -> None:
    """No name or version of the server, no permission for other origins, whatever is asked."""
    here = street.world
    origin = ("origin", "https://evil.example")
    key = [*bearer(here.keys["anna member"]), origin]
    for path in (*BODIES, SHOW, "/v1/models", *OPEN, "/nowhere"):
        for headers in (key, [origin]):
            answer = await asked(here, path, street.anna.adapter, headers)
            assert set(answer.headers) <= HARMLESS, path
    asking = [origin, ("access-control-request-method", "POST"), ("access-control-request-headers", "x")]
    for path in (*BODIES, "/v1/models"):
        preflight = await here.web.request("OPTIONS", path, headers=asking)
        assert (preflight.status_code, set(preflight.headers) <= HARMLESS) == (405, True)
