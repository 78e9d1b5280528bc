"""Uploads, validation as it goes, the playground's streams, and a file of the ledger."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lorry.engine.fake import Fault, FaultKind
from tests.integration.web.filled import used
from tests.integration.web.world import BASE, Browser, World
from tests.unit.adapters import craft

PIRATE = "tenants/acme/adapters/pirate"
AT = f"/{PIRATE}"


def events(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def send(anna: Browser, folder: Path, chunk: int = 1000) -> str:
    upload = (await anna.script(f"{AT}/uploads", {"display_name": "Arr"})).json()
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for offset in range(0, len(data), chunk):
            at = f"{upload['url']}/chunk?file=pirate/{path.name}&offset={offset}"
            answer = await anna.script(at, method="PUT", content=data[offset : offset + chunk])
            assert answer.json()["received_bytes"] == min(offset + chunk, len(data))
    return str(upload["url"])


async def test_an_upload_by_script_and_its_validation(here: World) -> None:
    anna = await here.logged_in("anna")
    url = await send(anna, craft.write_adapter(here.folder / "good"))
    arrived = (await anna.get(url)).json()["files"]
    assert set(arrived) == {"adapter_config.json", "adapter_model.safetensors"}
    gap = await anna.script(f"{url}/chunk?file=adapter_config.json&offset=99999", method="PUT", content=b"x")
    assert gap.status_code == 409
    assert gap.json()["error"]["metadata"] == {"received_bytes": str(arrived["adapter_config.json"])}
    found = events((await anna.script(f"{url}/create", {"base": BASE})).text)
    assert [name for name, _ in found[-1:]] == ["version"]
    checks = [data["id"] for name, data in found if name == "check"]
    assert len(checks) > 5
    version = found[-1][1]
    assert (version["number"], version["state"], version["url"]) == (1, "ready", f"{AT}/versions/1")
    page = (await anna.get(version["url"])).text
    assert version["sha256"] in page
    assert all(check in page for check in checks)


@pytest.mark.parametrize(
    ("config", "check"),
    [(craft.CONFIG | {"r": 0}, "config"), (craft.CONFIG | {"lora_alpha": float("nan")}, "config"), (b"{", "config")],
)
async def test_a_refusal_says_what_to_do(here: World, config: Any, check: str) -> None:
    anna = await here.logged_in("anna")
    url = await send(anna, craft.write_adapter(here.folder / "bad", config))
    found = events((await anna.script(f"{url}/create", {"base": BASE})).text)
    name, error = found[-1]
    assert name == "error"
    assert error["reason"] == "ADAPTER_REFUSED"
    assert any(one["field"].startswith(check) and one["description"] for one in error["violations"])
    report = (await anna.get(error["url"])).text
    assert "rejected" in report
    assert 'class="state bad">fail' in report


async def test_hostile_files(here: World) -> None:
    anna = await here.logged_in("anna")
    upload = (await anna.script(f"{AT}/uploads", {})).json()["url"]
    for name in ("..%2f..%2fetc%2f.x", "a%00b", "", "%2e%2e", ".hidden", "x" * 300):
        response = await anna.script(f"{upload}/chunk?file={name}&offset=0", method="PUT", content=b"x")
        assert response.status_code == 400, name
    for offset in ("-1", "x", "", "9" * 30):
        response = await anna.script(f"{upload}/chunk?file=a&offset={offset}", method="PUT", content=b"x")
        assert response.status_code == 400, offset
    foreign = f"/tenants/acme/adapters/other/uploads/{upload.rsplit('/', 1)[-1]}"
    assert (await anna.script(f"{foreign}/chunk?file=a&offset=0", method="PUT", content=b"x")).status_code == 404


async def test_a_form_with_files(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/register")
    fields = {"adapter": "pirate", "base": BASE}
    none = await anna.post("/tenants/acme/register", fields)
    assert none.status_code == 400
    assert "choose the files" in none.text
    folder = craft.write_adapter(here.folder / "good")
    files = [("files", (f"good/{path.name}", path.read_bytes(), "x/y")) for path in sorted(folder.iterdir())]
    made = await anna.post("/tenants/acme/register", fields, files=files)
    assert made.headers["location"] == f"{AT}/versions/1"
    both = await anna.post("/tenants/acme/register", fields | {"s3_uri": "s3://bucket/x"}, files=files)
    assert both.status_code == 400
    bad = craft.write_adapter(here.folder / "bad", craft.CONFIG | {"r": 0})
    files = [("files", (path.name, path.read_bytes(), "x/y")) for path in sorted(bad.iterdir())]
    refused = await anna.post("/tenants/acme/register", fields, files=files)
    assert refused.headers["location"] == f"{AT}/versions/2"
    assert "rejected" in (await anna.get(f"{AT}/versions/2")).text
    bucket = await anna.script(f"{AT}/import", {"base": BASE, "s3_uri": "s3://elsewhere/x"})
    assert events(bucket.text)[-1][0] == "error"


async def test_the_playground_streams_with_the_proof(here: World) -> None:
    await here.adapter("acme", "pirate")
    anna = await here.logged_in("anna")
    fields = {"side": "b", "model_b": PIRATE, "prompt": "the lorry", "max_tokens": "9", "temperature": "0"}
    response = await anna.script("/tenants/acme/playground/stream", fields)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = events(response.text)
    assert (found[0][0], found[-1][0]) == ("start", "end")
    version = await here.admin.get_version(f"{PIRATE}/versions/1")
    assert (found[0][1]["sha256"], found[0][1]["version"]) == (version.sha256, 1)
    text = "".join(data["text"] for name, data in found if name == "delta")
    whole = await anna.post("/tenants/acme/playground", {"model_a": PIRATE, **fields})
    assert whole.status_code == 200
    assert version.sha256 in whole.text
    assert text
    assert found[-1][1]["output_tokens"] == 9
    await here.settled()
    usage = await anna.get("/tenants/acme/usage")
    assert ">3<" in usage.text, "one streamed, two on the page"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_a": "tenants/acme/adapters/none"}, "MODEL_NOT_FOUND"),
        ({"model_a": "tenants/beta/adapters/secret"}, "MODEL_NOT_FOUND"),
        ({"max_tokens": "0"}, "INVALID_REQUEST"),
        ({"temperature": "hot"}, "INVALID_REQUEST"),
        ({"prompt": " "}, "INVALID_REQUEST"),
        ({"side": "c"}, "INVALID_REQUEST"),
        ({"model_a": ""}, "INVALID_REQUEST"),
    ],
)
async def test_what_the_playground_refuses(here: World, fields: dict[str, str], reason: str) -> None:
    await here.adapter("beta", "secret")
    anna = await here.logged_in("anna")
    given = {"side": "a", "model_a": BASE, "prompt": "the lorry"} | fields
    response = await anna.script("/tenants/acme/playground/stream", given)
    told = response.json()["error"] if response.status_code == 400 else events(response.text)[-1][1]
    assert told["reason"] == reason


async def test_an_engine_that_fails_in_the_middle_ends_with_an_error(here: World) -> None:
    anna = await here.logged_in("anna")
    here.engine.fault = lambda request: Fault(FaultKind.END, 2)
    fields = {"side": "a", "model_a": BASE, "prompt": "the lorry", "max_tokens": "30"}
    found = events((await anna.script("/tenants/acme/playground/stream", fields)).text)
    assert found[-1][0] == "error"
    assert "end" not in [name for name, _ in found]
    assert "Traceback" not in str(found)


async def test_the_file_adds_up_to_the_ledger_and_to_the_page(here: World) -> None:
    await used(here, "acme", "k1", ["pirate", "caps"], 400)
    anna = await here.logged_in("anna")
    today = datetime.now(UTC)
    first, last = f"{today - timedelta(days=31):%Y-%m-%d}", f"{today:%Y-%m-%d}"
    response = await anna.get(f"/tenants/acme/usage.csv?from={first}&to={last}")
    assert response.headers["content-disposition"].startswith('attachment; filename="usage-acme-')
    rows = list(csv.DictReader(io.StringIO(response.text, newline="")))
    sums = [
        one
        async for one in here.admin.query_usage(
            "acme", today - timedelta(days=32), today + timedelta(hours=1), group_by=[]
        )
    ]
    assert len(rows) == sums[0].requests == 400
    for column in ("prompt_tokens", "cached_prompt_tokens", "output_tokens"):
        total = sum(int(row[column]) for row in rows)
        assert total == getattr(sums[0], column)
        page = (await anna.get(f"/tenants/acme/usage?from={first}&to={last}")).text
        assert column == "cached_prompt_tokens" or f"<dd>{total:,}</dd>" in page
    for by in ("day", "adapter", "version", "key", "outcome", "day-adapter", "day-key"):
        assert (await anna.get(f"/tenants/acme/usage?from={first}&to={last}&by={by}")).status_code == 200
    assert (await anna.get("/tenants/acme/usage.csv?from=2026-01-02&to=2026-01-01")).status_code == 400


async def test_figures_of_the_overview(here: World) -> None:
    await used(here, "acme", "k1", ["pirate"], 300)
    await here.admin.set_price("acme", "EUR", prompt="1", output="2", effective_time=datetime(2020, 1, 1, tzinfo=UTC))
    anna, vera = await here.logged_in("anna"), await here.logged_in("vera")
    page = (await anna.get("/tenants/acme?period=30d")).text
    now = datetime.now(UTC)
    start = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=29)
    (total,) = [one async for one in here.admin.query_usage("acme", start, now + timedelta(hours=1))]
    assert f"<dd>{total.requests:,}</dd>" in page
    assert f"<dd>{total.output_tokens:,}</dd>" in page
    cost = (total.prompt_tokens + 2 * total.output_tokens) / 1e6
    assert f"<dd>{cost:.2f}</dd>" in page
    assert page.count('<svg class="chart"') == 4
    assert "QUOTA_EXCEEDED" in page
    told = (await vera.get("/tenants/acme?period=30d")).text
    assert f"<dd>{cost:.2f}</dd>" in told, "who sees what was used sees what it costs, and why"
    assert '<td class="num">2.00</td>' in (await vera.get("/tenants/acme/prices")).text
