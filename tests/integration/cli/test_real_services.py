"""The command line against the real admin services: a tenant's life from its making to its audit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lorry.adapters.manifest import files_digest, scan_directory
from lorry.client import Retry
from lorry.client.admin import AdminClient, SyncAdminClient
from tests.integration.admin.conftest import Platform, platform, with_base
from tests.integration.cli.conftest import Said, Terminal
from tests.support.recorder import Pipe
from tests.unit.adapters import craft
from tests.unit.registry.conftest import postgres_template, postgres_url, sqlite_template, url

__all__ = ["platform", "postgres_template", "postgres_url", "sqlite_template", "url", "with_base"]
PIRATE = "tenants/acme/adapters/pirate"
Run = Callable[..., Coroutine[Any, Any, Said]]


def wide(folder: Path) -> Path:
    return craft.write_adapter(folder, {**craft.CONFIG, "r": 8}, craft.tensors(8))


@pytest.fixture
def run(with_base: Platform, nowhere: Terminal) -> Run:
    """In a thread: the services have this one's loop. The last word is what is typed."""
    nowhere.set(LORRY_ADDRESS=with_base.address, LORRY_API_KEY=with_base.admin.key, LORRY_TENANT="acme")

    async def call(line: str, *more: str, typed: str = "", status: int = 0) -> Said:
        said = await asyncio.to_thread(nowhere, *line.split(), *more, typed=typed)
        assert said.status == status, (line, said)
        return said

    return call


async def test_a_tenants_life(run: Run, nowhere: Terminal, with_base: Platform, tmp_path: Path) -> None:
    one, two = craft.write_adapter(tmp_path / "one"), wide(tmp_path / "two")
    await run("tenants create acme --display-name", "Acme Corp")
    assert "Acme Corp" in (await run("tenants list")).out
    await run("grants create models/tiny")
    key = (await run("keys create ann --role owner")).out.strip()

    nowhere.set(LORRY_ADDRESS=None, LORRY_API_KEY=None, LORRY_TENANT=None)
    await run(f"login --address {with_base.address} --tenant acme --no-check", typed=key)
    first = await run("adapters push pirate --base models/tiny --create", str(one))
    digest = files_digest(scan_directory(one))
    assert first.out == f"{PIRATE}/versions/1  ready  rank 4  sha256 {digest}\n"
    assert "pass  coverage  " in first.err
    second = (await run("adapters push pirate --base models/tiny --json", str(two))).json
    assert (second["version"], second["rank"], second["state"]) == ("2", 8, "ADAPTER_VERSION_STATE_READY")

    etag = (await run("alias set pirate@prod 1 --etag new --json")).json["etag"]
    assert "ALREADY_EXISTS" in (await run("alias set pirate@prod 1 --etag new", status=1)).err
    await run(f"alias canary pirate@prod 2 100 --etag {etag}")
    assert "STALE_ETAG" in (await run(f"alias promote pirate@prod --etag {etag}", status=1)).err
    assert "is version 2" in (await run("alias promote pirate@prod")).out
    assert "is version 1" in (await run("alias rollback pirate@prod")).out
    history = (await run("alias history pirate@prod --json")).json["revisions"]
    assert [one["version"] for one in history] == ["1", "2", "1", "1"]

    found = (await run("adapters diff pirate@prod pirate --json")).json
    assert (found["a"], found["b"], found["sameWeights"]) == (f"{PIRATE}/versions/1", f"{PIRATE}/versions/2", False)
    names = {(one["kind"], one["name"]) for one in found["differences"]}
    assert {("field", "rank"), ("field", "sha256"), ("file", "adapter_config.json")} <= names
    assert "8" in (await run("adapters show pirate")).out

    await run("pin set pirate/versions/1 --mode default")
    assert "default" in (await run("pin list")).out
    await run("pin clear pirate")
    await run("adapters deprecate pirate/versions/1 --reason", "there is a better one")
    await run("adapters quarantine pirate/versions/2 --reason", "it swears")
    assert "quarantined" in (await run("adapters versions pirate")).out
    assert "has no READY version" in (await run("adapters diff pirate pirate@prod", status=1)).err
    assert (await run("adapters delete pirate --json")).json["deleteTime"]
    assert "none" in (await run("adapters list")).out
    await run("adapters undelete pirate")
    assert PIRATE in (await run("adapters list")).out

    rotated = await run("keys list --json")
    key_name = rotated.json["apiKeys"][0]["name"]
    newer = (await run(f"keys rotate {key_name.rpartition('/')[2]} --overlap 1h")).out.strip()
    await run(f"login --address {with_base.address} --tenant acme --no-check", typed=newer)
    assert "ROLE_TOO_LOW" in (await run("tenants list", status=1)).err

    nowhere.set(LORRY_ADDRESS=with_base.address, LORRY_API_KEY=with_base.admin.key, LORRY_TENANT="acme")
    await run("quota set --concurrency 4 --tokens-per-month 1000")
    assert "1000" in (await run("quota list")).out
    await run("tenants update acme --import-prefix s3://bucket/acme/ --weight 100")
    assert (await run("tenants list --json")).json["tenants"][0]["weight"] == 100
    assert (await run("usage query --by day")).out == "none\n"
    assert len((await run("usage export")).out.splitlines()) == 1, "the header"
    actions = {one["action"] for one in (await run("audit list --json")).json["events"]}
    assert len(actions) > 8
    assert (await run("audit verify")).out.startswith("intact: ")
    assert (await run("audit list --limit 2 --json")).json["events"][1]["sequence"] != "1"
    await run("tenants update acme --suspend")
    nowhere.set(LORRY_API_KEY=newer)
    assert "TENANT_SUSPENDED" in (await run("adapters list", status=1)).err


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_push_through_a_line_that_breaks(run: Run, with_base: Platform, tmp_path: Path, way: str) -> None:
    folder = wide(tmp_path / "adapter")
    await run("tenants create acme")
    await run("grants create models/tiny")
    total = sum(file.size for file in scan_directory(folder))

    async with AdminClient(with_base.address, with_base.admin.key) as direct:
        await direct.create_adapter("acme", "pirate")
        with Pipe(with_base.address, cut_after=total // 2) as pipe:
            retry = Retry(first_s=0.01)
            if way == "async":
                async with AdminClient(pipe.address, with_base.admin.key, retry=retry) as admin:
                    made = await admin.push(PIRATE, folder, "models/tiny")
            else:

                def push() -> Any:
                    with SyncAdminClient(pipe.address, with_base.admin.key, retry=retry) as admin:
                        return admin.push(PIRATE, folder, "models/tiny")

                made = await asyncio.to_thread(push)
            assert pipe.cuts == 1
        assert made.sha256 == files_digest(scan_directory(folder))
        assert [one.version async for one in direct.list_versions(PIRATE)] == [1]
