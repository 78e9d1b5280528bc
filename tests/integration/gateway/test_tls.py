"""TLS and mTLS of both ports, over real sockets: who gets in, who does not, and renewals on disk."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx2 as httpx
import pytest

from lorry import guest
from lorry.client import AsyncClient, Retry, Tls
from lorry.config import TlsConfig
from lorry.errors import LorryError, Unavailable
from tests.integration.gateway.web import CHAT, address, chat, chunks, headers
from tests.integration.gateway.world import PIRATE, World, until, world
from tests.support.certificates import Certificates, make_certificates

NOW_S = 10.0
"""Bounds the wait for a renewal that is looked for once a second."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Certificates, Certificates]:
    """Those that are served, and those that renew them: of other authorities."""
    return make_certificates(tmp_path_factory.mktemp("first")), make_certificates(tmp_path_factory.mktemp("second"))


@pytest.fixture
def files(made: tuple[Certificates, Certificates], tmp_path: Path) -> TlsConfig:
    """Copies of the first, to be written over; mTLS."""
    config = TlsConfig(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    put(config, made[0])
    return config


def put(config: TlsConfig, found: Certificates) -> None:
    """Each file in one step, as certbot and Kubernetes do it."""
    assert config.client_ca is not None
    for source, target in zip((*found.server, found.ca), (config.cert, config.key, config.client_ca), strict=True):
        shutil.copy(source, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)


@asynccontextmanager
async def secured(config: TlsConfig) -> AsyncIterator[World]:
    async with world(tls=config, http_port=0) as here:
        yield here


async def over_grpc(here: World, tls: Tls | None) -> str:
    """ "" is served; else why not."""
    own_pool = [("grpc.use_local_subchannel_pool", 1)]
    try:
        channel = grpc.aio.secure_channel(here.gateway.address, tls.credentials(), own_pool) if tls else None
        async with channel or grpc.aio.insecure_channel(here.gateway.address, own_pool) as opened:
            call = opened.unary_unary("/lorry.api.v1.GenerateService/ListModels", None, None)
            await call(b"", metadata=here.metadata(), timeout=5)
    except grpc.aio.AioRpcError as error:
        return f"{error.code()} {error.details()}"
    return ""


async def over_http(here: World, tls: Tls | None, most: ssl.TLSVersion | None = None) -> str:
    """As ``over_grpc``."""
    url = address(here)
    trusted: Any = True
    if tls is None:
        url = url.replace("https:", "http:")
    else:
        trusted = ssl.create_default_context(cafile=str(tls.ca))
        if tls.cert is not None:
            trusted.load_cert_chain(tls.cert, tls.key)
        if most is not None:
            only(trusted, most)
    try:
        async with httpx.AsyncClient(verify=trusted, timeout=5) as client:
            answer = await client.get(f"{url}/v1/models", headers=headers(here))
    except httpx.TransportError as error:
        return f"{type(error).__name__} {error}"
    assert answer.status_code == 200, answer.text
    return ""


def only(context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that it is old is the point
        context.minimum_version = context.maximum_version = version


PORTS = pytest.mark.parametrize("over", [over_grpc, over_http])


@PORTS
async def test_tls_alone_asks_for_no_certificate_and_serves_no_plaintext(
    over: Any, made: tuple[Certificates, Certificates]
) -> None:
    first, _ = made
    async with secured(TlsConfig(*first.server)) as here:
        assert address(here).startswith("https://127.0.0.1:")
        assert here.gateway.url == f"https://{here.gateway.address}"
        assert here.gateway.state()["tls"]["client_certificates"] is False
        assert await over(here, Tls(first.ca)) == ""
        assert await over(here, None)
        assert await over(here, Tls(first.other_ca)), "the client takes no other authority's"
        assert not here.gateway.counters.outcomes


@PORTS
async def test_mtls_decides_who_may_connect(
    over: Any, files: TlsConfig, made: tuple[Certificates, Certificates]
) -> None:
    first, second = made
    async with secured(files) as here:
        assert await over(here, Tls(first.ca, *first.client)) == ""
        assert await over(here, Tls(first.ca)), "none"
        assert await over(here, Tls(first.ca, *second.client)), "of an authority that is not trusted"
        assert await over(here, None), "plaintext"
        assert await over(here, Tls(first.ca, *first.client)) == "", "others did no harm"


async def test_a_certificate_is_no_key(files: TlsConfig, made: tuple[Certificates, Certificates]) -> None:
    first, _ = made
    async with secured(files) as here:
        for key in ("idle", "revoked", "nonsense"):
            client = AsyncClient(
                here.gateway.address,
                here.keys.get(key, key),
                tls=Tls(first.ca, *first.client),
                retry=Retry(max_retries=0),
            )
            async with client:
                with pytest.raises(LorryError) as caught:
                    await client.generate(PIRATE, "the lorry", max_tokens=2)
            assert not isinstance(caught.value, Unavailable), key


async def test_streams_go_over_tls(files: TlsConfig, made: tuple[Certificates, Certificates]) -> None:
    first, _ = made
    trusted = ssl.create_default_context(cafile=str(first.ca))
    trusted.load_cert_chain(*first.client)
    async with secured(files) as here:
        async with httpx.AsyncClient(verify=trusted, timeout=10) as client:
            answer = await client.post(address(here) + CHAT, headers=headers(here), json=chat(stream=True))
        assert chunks(answer.text), "a stream's end too"
        tls = Tls(first.ca, *first.client)
        async with AsyncClient(here.gateway.address, here.keys["acme"], tls=tls) as client:
            whole = await client.generate(PIRATE, "the lorry", max_tokens=8)
        assert whole.text


async def test_nothing_below_tls_1_2(made: tuple[Certificates, Certificates]) -> None:
    first, _ = made
    async with secured(TlsConfig(*first.server)) as here:
        assert await over_http(here, Tls(first.ca), ssl.TLSVersion.TLSv1_2) == ""
        assert await over_http(here, Tls(first.ca), ssl.TLSVersion.TLSv1_1)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        only(old, ssl.TLSVersion.TLSv1_1)
        with pytest.raises(OSError, match=r".*"):  # an SSLError, or the connection is reset
            await asyncio.open_connection("127.0.0.1", here.gateway.port, ssl=old)


@PORTS
async def test_a_renewal_is_taken_up_and_what_was_trusted_before_is_not(
    over: Any, files: TlsConfig, made: tuple[Certificates, Certificates]
) -> None:
    """Certificate, key and the clients' authority, without a restart."""
    first, second = made
    before, after = Tls(first.ca, *first.client), Tls(second.ca, *second.client)
    async with secured(files) as here:
        assert await over(here, before) == ""
        assert await over(here, after)
        put(files, second)
        async with asyncio.timeout(NOW_S):
            while await over(here, after):
                await asyncio.sleep(0.05)
        assert await over(here, before)
        assert await over(here, Tls(second.ca, *first.client)), "the authority of before is trusted no more"
        assert here.gateway.state()["tls"]["renewals"] == 1


@PORTS
async def test_half_a_renewal_keeps_what_was_there(
    over: Any,
    files: TlsConfig,
    made: tuple[Certificates, Certificates],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = made
    before, after = Tls(first.ca, *first.client), Tls(second.ca, *second.client)

    async def refused() -> str:
        """A renewal was seen and not taken; before and after that the old ones serve."""
        async with asyncio.timeout(NOW_S):
            while not (why := here.gateway.state()["tls"]["refused_renewal"]):
                assert await over(here, before) == ""
                await asyncio.sleep(0.05)
        assert await over(here, before) == ""
        return str(why)

    async with secured(files) as here:
        shutil.copy(second.server[0], files.cert)
        assert "--tls-key" in await refused(), "the certificate is new, the key is not"
        files.key.write_bytes(second.server[1].read_bytes()[:100])
        assert here.gateway.state()["tls"]["renewals"] == 0
        async with asyncio.timeout(NOW_S):
            while "PEM" not in await refused():
                await asyncio.sleep(0.05)
        put(files, second)
        async with asyncio.timeout(NOW_S):
            while await over(here, after):
                await asyncio.sleep(0.05)
        assert here.gateway.state()["tls"]["refused_renewal"] is None
    kept = first.server[1].read_text() + second.server[1].read_text()
    assert "not taken up" in caplog.text
    assert not [line for line in kept.splitlines() if len(line) > 40 and line in caplog.text], "of a key"


async def test_files_that_are_renewed_all_the_time_never_break_a_handshake(
    files: TlsConfig, made: tuple[Certificates, Certificates]
) -> None:
    """Certificate and key by turns, one after the other: there is always a pair to serve, if an older one."""
    first, second = made
    both = files.client_ca
    assert both is not None
    both.write_bytes(first.ca.read_bytes() + second.ca.read_bytes())
    trusted = both.with_name("trusted.pem")
    shutil.copy(both, trusted)
    async with world(tls=files, http_port=0) as here:
        assert here.gateway._tls is not None
        here.gateway._tls._look_seconds = 0.0
        until_then = time.monotonic() + 2.0
        turns = 0
        while time.monotonic() < until_then:
            found = (first, second)[turns % 2]
            for source, target in zip(found.server, (files.cert, files.key), strict=True):
                target.write_bytes(source.read_bytes()[:200])
                assert await over_http(here, Tls(trusted, *first.client)) == ""
                target.write_bytes(source.read_bytes())
                assert await over_grpc(here, Tls(trusted, *first.client)) == ""
            turns += 1
        assert here.gateway.state()["tls"]["renewals"] >= turns - 1


async def test_who_says_nothing_is_not_waited_for(
    made: tuple[Certificates, Certificates], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest, "HANDSHAKE_S", 0.3)
    monkeypatch.setattr("lorry.gateway.transport.HANDSHAKE_S", 0.3)
    async with secured(TlsConfig(*made[0].server)) as here:
        assert here.gateway.http is not None
        for port in (here.gateway.http.port, here.gateway.port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(NOW_S):
                assert await reader.read() == b""
            writer.close()


async def test_a_stop_does_not_wait_for_a_goodbye(made: tuple[Certificates, Certificates]) -> None:
    """An idle connection over TLS, whose client does not answer, holds up nothing."""
    first, _ = made
    async with secured(TlsConfig(*first.server)) as here:
        assert here.gateway.http is not None
        served = here.gateway.http._server.server_state
        trusted = ssl.create_default_context(cafile=str(first.ca))
        reader, writer = await asyncio.open_connection("127.0.0.1", here.gateway.http.port, ssl=trusted)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" in await reader.readline()
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # nobody answers the goodbye
        async with asyncio.timeout(NOW_S):
            await here.gateway.stop(grace=30.0)
        await until(lambda: not served.connections)
        writer.transport.abort()
