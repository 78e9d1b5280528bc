"""Secrets are in no error and no ``repr`` of databases, stores, secret files and the command line."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from lorry import errors
from lorry.adapters.s3 import S3Store
from lorry.api.v1 import adapter_admin_pb2 as a
from lorry.api.v1 import tenant_admin_pb2 as t
from lorry.cli.app import main
from lorry.cli.homes import Home
from lorry.cli.platform import Settings
from lorry.cli.profile import Profile, load_profile
from lorry.cli.session import Session
from lorry.client import Client, Tls
from lorry.config import EngineConfig, StoreConfig, TierConfig
from lorry.registry import Registry
from lorry.registry.bootstrap import Bootstrap
from lorry.registry.db.engine import async_url
from lorry.registry.keys import Peppers
from lorry.registry.secretfiles import SecretError, load_secrets
from tests.security.places import PASSWORD, PROMPT, S3_SECRET, UNUSED_PORT, Place
from tests.security.world import CHUNK_BYTES


async def test_what_a_lost_database_makes_it_say(place: Place) -> None:
    """Down from the start, and down under way; the password is in the address."""
    url = f"postgresql://lorry:{PASSWORD}@127.0.0.1:{UNUSED_PORT}/lorry"
    registry = Registry(url, Peppers((b"p" * 32,)))
    try:
        source = registry.snapshots()
        running = asyncio.create_task(source.run())
        with pytest.raises(errors.Unavailable) as caught:
            await source.refresh()
        await asyncio.sleep(0.3)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        place.said.hear("unavailable", f"{caught.value} {caught.value.__cause__}")
        for thing in (registry, registry.database, registry.database.engine, source, registry.tenants):
            place.said.hear("repr", repr(thing))
    finally:
        await registry.close()
    for broken in (f"postgresql://lorry:{PASSWORD}", f"mysql://lorry:{PASSWORD}@h/d", PASSWORD):
        with pytest.raises(ValueError, match="registry url") as wrong:
            async_url(broken)
        place.said.hear("bad url", "".join([str(wrong.value), repr(wrong.value.__context__ and "")]))
    place.said.hear("url", repr(async_url(url)))
    await place.here.registry.database.engine.dispose()
    (place.here.folder / "registry.db").rename(place.here.folder / "gone.db")
    (place.here.folder / "registry.db").write_bytes(b"not a database" * 100)
    for path, request in (
        ("TenantAdminService/GetTenant", t.GetTenantRequest(name="tenants/anna")),
        ("AdapterAdminService/CreateAdapter", a.CreateAdapterRequest(parent="tenants/anna", adapter_id="x")),
    ):
        found = await place.here.call(f"lorry.api.v1.{path}", request, place.here.keys["anna owner"])
        assert found.code in ("UNAVAILABLE", "INTERNAL")
        place.hear("lost", found)


async def test_what_a_constraint_makes_it_say(place: Place) -> None:
    """Values that a statement carries are in no message of the database's: its parameters are hidden."""
    from sqlalchemy import exc, text

    value = place.said.secrets["a statement's value"] = "row-value-5512aa"
    database = place.here.registry.database
    for statement in ("INSERT INTO tenant (id, name) VALUES (:v, :v)", "SELECT :v FROM nowhere"):
        with pytest.raises((errors.LorryError, exc.SQLAlchemyError)) as caught:
            async with database.write() as session:
                await session.execute(text(statement), {"v": value})
        place.said.hear("raised", f"{caught.value} {caught.value.__cause__}")
    from lorry.registry.db.engine import _constraint_of

    class Diagnosis:
        table_name, constraint_name = "tenant", "uq_tenant_name"

    class OfPostgres(Exception):
        diag = Diagnosis()

    told = _constraint_of(exc.IntegrityError("INSERT", {}, OfPostgres(f"Failing row contains ({value})")))
    assert told == "tenant, uq_tenant_name"


async def test_what_a_failing_store_makes_it_say(place: Place) -> None:
    config = StoreConfig(
        url="s3://bucket/prefix",
        endpoint_url=f"http://127.0.0.1:{UNUSED_PORT}",
        access_key="AKIAEXAMPLE",
        secret_key=S3_SECRET,
        attempts=1,
    )
    store = S3Store(config, "bucket", "prefix")
    for step in (store.prepare_sync, lambda: store.exists_sync("a/b")):
        with pytest.raises(errors.ObjectStoreUnavailable) as caught:
            step()
        place.said.hear("store", f"{caught.value} {caught.value.__cause__} {caught.value.metadata}")
    store.close()
    home = Home(place.home)
    for thing in (
        store,
        config,
        EngineConfig(place.home, config, TierConfig(place.home)),
        Settings(home, place.home, store=config),
    ):
        place.said.hear("repr", repr(thing) + str(thing))
    place.here.store.now = store  # as far as registration needs one
    owner = place.here.client("anna owner")
    await owner.call("CreateAdapter", a.CreateAdapterRequest(parent="tenants/anna", adapter_id="json"))
    upload = await owner.upload("tenants/anna/adapters/json", place.here.files, CHUNK_BYTES)
    request = a.CreateAdapterVersionRequest(parent="tenants/anna/adapters/json", upload=upload, base="models/tiny")
    found = await place.here.call("lorry.api.v1.AdapterAdminService/CreateAdapterVersion", request, owner.key)
    assert found.code in ("UNAVAILABLE", "INTERNAL")
    place.hear("registration", found)


async def test_what_the_command_line_says(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With its own key, a wrong one, none, a server that is away and a broken profile; with and without --json."""
    here, key = place.here, place.here.keys["anna owner"]
    monkeypatch.setenv("LORRY_PROFILE", str(tmp_path / "profile.toml"))
    monkeypatch.delenv("LORRY_TENANT", raising=False)
    wrong = "lorry_0123456789abcdef_" + "feedc0de" * 8
    place.said.secrets["a wrong key"] = "feedc0de" * 8
    monkeypatch.setenv("LORRY_ADDRESS", here.gateway.address)
    commands = (
        ["whoami"],
        ["keys", "list", "--tenant", "anna"],
        ["adapters", "show", "tenants/anna/adapters/none"],
        ["generate", "tenants/anna/adapters/none", PROMPT],
        ["tenants", "list"],
        ["doctor"],
    )
    for env in (key, wrong):
        monkeypatch.setenv("LORRY_API_KEY", env)
        for command in commands:
            for json_too in ([], ["--json"]):
                with contextlib.suppress(SystemExit):
                    await asyncio.to_thread(main, [*command, *json_too])
    monkeypatch.setenv("LORRY_ADDRESS", f"127.0.0.1:{UNUSED_PORT}")
    await asyncio.to_thread(main, ["whoami", "--json", "--retries", "0"])
    monkeypatch.delenv("LORRY_ADDRESS")
    monkeypatch.delenv("LORRY_API_KEY")
    await asyncio.to_thread(main, ["whoami", "--json"])
    assert await asyncio.to_thread(main, ["login", "--address", here.gateway.address, "--key", key, "--json"]) == 0
    profile = load_profile()
    assert profile is not None
    assert profile.api_key == key
    place.said.hear("repr", repr(profile))
    path = tmp_path / "profile.toml"
    path.write_text(path.read_text() + "\nnonsense")
    assert await asyncio.to_thread(main, ["whoami", "--json"]) == 1
    path.chmod(0o644)
    assert await asyncio.to_thread(main, ["whoami"]) == 1
    for where, text in zip(("stdout", "stderr"), capfd.readouterr(), strict=True):
        place.said.hear(where, text)
        assert where == "stdout" or "UNAUTHENTICATED" in text


async def test_what_secret_files_make_it_say(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "own" / "secrets"
    folder.mkdir(parents=True)
    text = place.said.secrets["a damaged secret"] = "deadbeefdeadbeef" * 3
    for damage in (text, f"{text}zz", f"{text},{text}"):
        for name in ("key_pepper", "kv_salt"):
            (folder / name).write_text(damage)
            (folder / name).chmod(0o600)
        with pytest.raises(SecretError) as caught:
            load_secrets(tmp_path / "own", {})
        place.said.hear("damaged", f"{caught.value} {caught.value.__context__ and caught.value.__suppress_context__}")
    with pytest.raises(SecretError) as caught:
        load_secrets(tmp_path / "own", {"LORRY_KEY_PEPPER": text, "LORRY_KV_SALT": text})
    place.said.hear("by environment", str(caught.value))
    secrets = load_secrets(place.home, {})
    start = Bootstrap(f"postgresql://u:{PASSWORD}@h/d", secrets, place.here.keys["admin"])
    session = Session("h:1", place.here.keys["admin"], Tls(), "anna", "here")
    for thing in (
        secrets,
        secrets.peppers,
        secrets.peppers.new_key(),
        start,
        session,
        Profile("h:1", place.here.keys["admin"]),
        place.here.source.current(),
        place.here.registry,
        place.here.gateway,
        place.here.gateway._generations.admission,
    ):
        place.said.hear(f"repr of {type(thing).__name__}", repr(thing) + str(thing))
    with Client("127.0.0.1:1", place.here.keys["admin"]) as client:
        place.said.hear("repr of a client", repr(client))
