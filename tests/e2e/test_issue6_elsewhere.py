"""A registry in PostgreSQL and adapters in an S3 that others run: several platforms on both, restarts, TLS, and what is
refused before anything is begun."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from lorry.adapters.local_s3 import LocalS3
from lorry.cli import upkeep
from lorry.cli.platform import Platform, Settings
from lorry.client import Tls
from lorry.client.admin import AdminClient
from lorry.config import StoreConfig, TlsConfig
from lorry.errors import FailedPrecondition, InvalidRequest, LorryError, Unavailable
from lorry.registry.external import open_registry
from tests.e2e.random_base import Files
from tests.e2e.test_issue3_serve import lorry, serving
from tests.e2e.world import Tracer, World, fill, running, settings
from tests.support.certificates import make_certificates
from tests.support.cluster import Cluster
from tests.support.processes import descendants, still_alive
from tests.unit.registry.postgres import binaries

PASSWORD = "hunter2-of-the-registry"
"""The cluster trusts everybody; what matters is where it shows."""


@dataclass
class Outside:
    """What a deployment brings: a database server and an S3."""

    cluster: Cluster
    s3: LocalS3

    def database(self, name: str) -> str:
        """The URL of a new one, with a password in it."""
        with psycopg.connect(self.cluster.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.cluster.url(name).replace("lorry@", f"lorry:{PASSWORD}@")

    def store(self, name: str) -> StoreConfig:
        return self.s3.config(f"bucket-{name}", "some/prefix")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Outside]:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    cluster = Cluster()
    s3 = LocalS3(tmp_path_factory.mktemp("s3"))
    try:
        await asyncio.gather(cluster.start(), asyncio.to_thread(s3.start))
        yield Outside(cluster, s3)
    finally:
        await asyncio.to_thread(s3.stop)
        await cluster.remove()


def on(outside: Outside, name: str, url: str, home: Path, base_dir: Path) -> Settings:
    return replace(settings(home, base_dir), registry_url=url, store=outside.store(name))


def share_secrets(home: Path, other: Path) -> None:
    other.mkdir(mode=0o700)
    shutil.copytree(home / "secrets", other / "secrets")


def files_that_hold(folder: Path, word: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


@asynccontextmanager
async def beside(first: World, root: Path, options: Settings) -> AsyncIterator[World]:
    """Another platform on what the first one filled."""
    async with running(root, options, first.admin_key) as made:
        made.canary, made.canary_tracer = first.canary, first.canary_tracer
        yield made


async def seen_from(here: World, there: World, version: Tracer) -> None:
    """Where the version is, on an engine that only ``there`` reaches."""
    async with asyncio.timeout(20):
        while True:
            found = (await here.admin.get_residency(version.name)).replicas
            told = {one.replica: (one.device, one.HasField("seen_time")) for one in found}
            assert not told[here.platform.info.replica][1]
            if told.get(there.platform.info.replica) == (True, True):
                return
            await asyncio.sleep(0.1)


async def purged_from(here: World, there: World, version: Tracer) -> None:
    """By ``here``: what the engine of ``there`` has of it is gone as well, from its disk too, and on the receipt."""
    await there.settle()
    await there.right(there.canary.key, version.adapter, version)
    cached = there.root / "one" / "cache"
    assert [path for path in cached.rglob("*") if version.sha256 in str(path)]
    await here.admin.delete_adapter(version.adapter)
    await here.admin.purge_adapter(version.adapter)
    async with asyncio.timeout(20):
        while True:
            receipt = (await here.admin.get_adapter(version.adapter)).purge_receipt
            dropped = {one.replica: one.disk_bytes > 0 for one in receipt.replicas}
            if dropped.get(there.platform.info.replica):
                break
            await asyncio.sleep(0.1)
    assert not [path for path in cached.rglob("*") if version.sha256 in str(path)]


async def test_platforms_share_a_registry_and_a_store_and_find_all_again(
    outside: Outside,
    tracer_base: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "COPIES_S", 0.0)
    monkeypatch.setattr(upkeep, "FOLLOW_S", 0.5)
    before = descendants()
    url = outside.database("shared")
    homes = tmp_path / "one", tmp_path / "two"
    options = [on(outside, "shared", url, home, tracer_base) for home in homes]
    assert PASSWORD not in repr(options)
    async with running(tmp_path, options[0]) as one:
        assert one.platform.s3 is None
        await fill(one)
        with pytest.raises(FailedPrecondition, match=r"--registry-url.*pepper"):
            async with Platform(options[1]):
                pass
        assert not (homes[1] / "secrets" / "key_pepper").exists()
        shutil.rmtree(homes[1])
        share_secrets(*homes)
        async with beside(one, tmp_path, options[1]) as two:
            assert two.platform.admin_key is None, "the database is not new"
            assert one.platform.info.replica != two.platform.info.replica
            await two.serves_on()
            later = await two.push(await two.adapter(one.canary), 7)
            await one.settle()
            await one.right(one.canary.key, later.adapter, later)
            await seen_from(two, one, later)
            await purged_from(two, one, await two.push(await two.adapter(one.canary), 8))
            assert PASSWORD not in json.dumps([await made.platform.state() for made in (one, two)])
    async with beside(one, tmp_path, options[0]) as again:
        assert again.platform.admin_key is None
        await again.serves_on()
        await again.right(again.canary.key, later.adapter, later)
    for home in homes:
        assert not (home / "registry.sqlite3").exists()
        assert not (home / "s3").exists()
        assert not files_that_hold(home, PASSWORD)
    assert PASSWORD not in "".join(capfd.readouterr())
    assert still_alive(descendants() - before, within_s=10) == []


async def test_a_home_with_another_pepper_is_refused(outside: Outside, tracer_base: Path, tmp_path: Path) -> None:
    """It would refuse every key, as if all of them were wrong."""
    before = descendants()
    url = outside.database("peppers")
    assert (await open_registry(tmp_path / "one", url, "--registry-url")).admin_key is not None
    (tmp_path / "two" / "secrets").mkdir(parents=True, mode=0o700)
    for name in ("key_pepper", "kv_salt"):
        path = tmp_path / "two" / "secrets" / name
        path.touch(0o600)
        path.write_text("ab" * 32)
    with pytest.raises(FailedPrecondition, match=r"--registry-url: .*another pepper.*LORRY_KEY_PEPPER"):
        async with Platform(on(outside, "peppers", url, tmp_path / "two", tracer_base)):
            pass
    assert still_alive(descendants() - before, within_s=10) == []


def nowhere() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_what_does_not_answer_is_named_and_nothing_is_left(
    outside: Outside, tracer_base: Path, tmp_path: Path
) -> None:
    before = descendants()
    url = outside.database("refused")
    options = on(outside, "refused", url, tmp_path / "home", tracer_base)
    gone = f"postgresql://lorry:{PASSWORD}@127.0.0.1:{nowhere()}/lorry"
    assert options.store is not None
    store = options.store
    cases: list[tuple[Settings, type[LorryError], tuple[str, ...]]] = [
        (replace(options, registry_url=gone), Unavailable, ("--registry-url", "does not answer")),
        (replace(options, registry_url=url.replace("/refused?", "/none?")), Unavailable, ("--registry-url", "none")),
        (
            replace(options, store=replace(store, endpoint_url=f"http://127.0.0.1:{nowhere()}")),
            Unavailable,
            ("--store", "--s3-endpoint"),
        ),
        (
            replace(options, store=replace(store, secret_key="wrong-" + "x" * 34)),
            Unavailable,
            ("--store", "AWS_SECRET_ACCESS_KEY"),
        ),
    ]
    for wrong, kind, words in cases:
        said: list[str] = []
        with pytest.raises(kind) as caught:
            async with Platform(wrong, said.append):
                pass
        assert not [word for word in words if word not in caught.value.message], caught.value.message
        assert "\n" not in caught.value.message
        whole = caught.value.message + "".join(said)
        assert PASSWORD not in whole
        assert (store.secret_key or PASSWORD) not in whole
        assert not [line for line in said if "engine" in line], "the engine comes after"
        assert still_alive(descendants() - before, within_s=10) == []
    shown: list[str] = []
    unbound = replace(options, gateway=replace(options.gateway, host="192.0.2.1"))
    with pytest.raises(Unavailable, match="cannot be bound"):
        async with Platform(unbound, show_key=shown.append):
            pass
    assert len(shown) == 1, "the registry has it, so it is shown, whatever comes after"
    assert still_alive(descendants() - before, within_s=10) == []
    async with Platform(options, show_key=shown.append) as made:  # nor does anything of it stand in the way
        assert made.admin_key is None
    assert len(shown) == 1


async def test_bad_tls_files_are_refused_before_anything(tracer_base: Path, tmp_path: Path) -> None:
    base = settings(tmp_path / "home", tracer_base)
    options = replace(base, gateway=replace(base.gateway, tls=TlsConfig(tmp_path / "none.pem", tmp_path / "key.pem")))
    said: list[str] = []
    with pytest.raises(InvalidRequest, match=r"--tls-cert.*none\.pem"):
        async with Platform(options, said.append):
            pass
    assert said == []
    assert not (tmp_path / "home").exists()


async def test_serve_with_mtls_on_a_registry_and_a_store(
    outside: Outside, random_files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an operator runs it: URL and credentials by environment, files by flags; and as its clients see it."""
    before = descendants()
    files = make_certificates(tmp_path)
    store = outside.store("served")
    monkeypatch.setenv("LORRY_REGISTRY_URL", outside.database("served"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.access_key or "")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret_key or "")
    files.server[1].chmod(0o644)
    named = {"--tls-cert": files.server[0], "--tls-key": files.server[1], "--tls-client-ca": files.ca}
    flags = [str(word) for pair in named.items() for word in pair]
    flags += ["--store", store.url, "--s3-endpoint", store.endpoint_url or "", "--connection-age", "60"]
    flags += ["--keepalive", "30", "--max-message", "8MiB", "--memory-budget", "8MiB", "--context-tokens", "256"]
    flags += ["--http-host", "0.0.0.0"]
    profile = {"LORRY_PROFILE": str(tmp_path / "profile.toml"), "LORRY_API_KEY": ""}
    own = ["--tls-ca", str(files.ca), "--client-cert", str(files.client[0]), "--client-key", str(files.client[1])]
    async with serving(random_files, tmp_path / "home", *flags) as served:
        whole = "\n".join(served.said)
        assert "registry: migrating postgresql://lorry@" in whole
        assert f"gateway and admin API: https://{served.address} (TLS, client certificates required)" in whole
        assert "OpenAI's API: https://0.0.0.0:" in whole
        assert "warning: --tls-key" in whole
        assert "in the clear" not in whole
        assert PASSWORD not in whole
        tls = Tls(files.ca, *files.client)
        async with AdminClient(served.address, served.admin_key, tls=tls) as admin:
            await admin.create_tenant("acme", "Acme")
        login = ("login", "--address", f"https://{served.address}", *own, "--key", served.admin_key)
        status, _, error = await lorry(*login, **profile)
        assert status == 0, error
        status, out, error = await lorry("tenants", "list", **profile)
        assert status == 0, error
        assert "acme" in out
        status, out, _ = await lorry("doctor", "--json", **profile)
        checks = {row["check"]: row for row in json.loads(out)["checks"]}
        assert checks["tls"]["outcome"] == "pass", checks
        assert "until" in checks["tls"]["message"]
        known = profile | {"LORRY_API_KEY": served.admin_key, "LORRY_PROFILE": str(tmp_path / "none.toml")}
        address = ("--address", served.address)
        for flags_of_client in ((), ("--tls-ca", str(files.ca)), ("--tls-ca", str(files.other_ca), *own[2:])):
            words = ("tenants", "list", *address, *flags_of_client, "--retries", "0")
            assert (await lorry(*words, **known))[0] == 1, flags_of_client
        state = json.loads((await served.look("/internal/state"))[1])
        assert state["gateway"]["tls"]["client_certificates"] is True
        served.child.send_signal(signal.SIGTERM)
        assert await served.end() == 0
    assert not files_that_hold(tmp_path / "home", PASSWORD)
    assert still_alive(descendants() - before, within_s=10) == []


async def test_a_registry_that_does_not_answer_is_one_line(random_files: Files, tmp_path: Path) -> None:
    flags = ("--base", str(random_files.base_dir), "--home", str(tmp_path / "home"), "--ops-port", "0")
    url = f"postgresql://u:{PASSWORD}@127.0.0.1:{nowhere()}/d"
    status, _, error = await lorry("serve", *flags, LORRY_REGISTRY_URL=url)
    assert status == 1
    assert len(error.splitlines()) == 1, error
    assert error.startswith("lorry: UNAVAILABLE"), error
    assert "--registry-url" in error
    assert PASSWORD not in error
