"""An adapter out of a bucket of a real S3 server, by the register page: with its script and without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry.adapters.importing import ImportLimits, S3Importer
from lorry.adapters.local_s3 import LocalS3
from lorry.adapters.s3 import s3_client
from tests.integration.web.test_live import AT, events
from tests.integration.web.world import BASE, World, world
from tests.support.s3_server import s3_server
from tests.unit.adapters import craft

BUCKET, FOLDER = "team-models", "s3://team-models/acme/pirate"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalS3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
async def here(tmp_path: Path, s3: LocalS3) -> AsyncIterator[World]:
    """acme may import from its folder of a bucket, in which there is a good adapter and a bad one."""
    config = replace(s3.config(), attempts=1)
    client: Any = s3_client(config)
    if BUCKET not in {one["Name"] for one in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=BUCKET)
        craft.write_adapter(tmp_path / "pirate")
        craft.write_adapter(tmp_path / "bad", craft.CONFIG | {"r": 0})
        for path in (*(tmp_path / "pirate").iterdir(), *(tmp_path / "bad").iterdir()):
            client.put_object(Bucket=BUCKET, Key=f"acme/{path.parent.name}/{path.name}", Body=path.read_bytes())
            client.put_object(Bucket=BUCKET, Key=f"beta/{path.parent.name}/{path.name}", Body=path.read_bytes())
    importer = S3Importer(config, ImportLimits(8, 1 << 20, 4 << 20))
    async with world(tmp_path / "platform", importer=importer) as made:
        await made.tenant("acme")
        await made.admin.update_tenant("acme", import_prefixes=[f"s3://{BUCKET}/acme/"])
        await made.user("anna", "acme", "owner")
        yield made
    importer.close()
    client.close()


async def test_from_a_bucket_to_ready_and_served(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/register")
    found = events((await anna.script(f"{AT}/import", {"base": BASE, "s3_uri": f"{FOLDER}/"})).text)
    assert [(name, data["state"], data["url"]) for name, data in found] == [("version", "ready", f"{AT}/versions/1")]
    page = (await anna.get(f"{AT}/versions/1")).text
    assert found[0][1]["sha256"] in page
    assert FOLDER in page, "it says where it is from"
    await here.seen()
    fields = {"side": "a", "model_a": AT[1:], "prompt": "the lorry", "max_tokens": "4"}
    answer = events((await anna.script("/tenants/acme/playground/stream", fields)).text)
    assert answer[0][1]["sha256"] == found[0][1]["sha256"]
    assert answer[-1][0] == "end"


async def test_without_a_script(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/register")
    made = await anna.post("/tenants/acme/register", {"adapter": "pirate", "base": BASE, "s3_uri": FOLDER})
    assert made.headers["location"] == f"{AT}/versions/1"
    assert 'class="state good">ready' in (await anna.get(f"{AT}/versions/1")).text
    bad = f"s3://{BUCKET}/acme/bad"
    refused = await anna.post("/tenants/acme/register", {"adapter": "pirate", "base": BASE, "s3_uri": bad})
    assert refused.headers["location"] == f"{AT}/versions/2"
    report = (await anna.get(f"{AT}/versions/2")).text
    assert "rejected" in report
    assert bad in report


async def test_what_is_not_its_own_is_refused_in_equal_words(here: World) -> None:
    anna = await here.logged_in("anna")
    await anna.get("/tenants/acme/register")
    said = set()
    for uri in (f"s3://{BUCKET}/beta/pirate", f"s3://{BUCKET}/beta/nothing", f"s3://{BUCKET}/acmeother/pirate"):
        found = events((await anna.script(f"{AT}/import", {"base": BASE, "s3_uri": uri})).text)
        assert [name for name, _ in found] == ["error"]
        said.add(found[0][1]["message"].replace(uri, ""))
    assert len(said) == 1
    assert "import prefix" in said.pop()
    assert [one async for one in here.admin.list_versions(AT[1:])] == []
