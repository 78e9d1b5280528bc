"""TLS out of files, with and without a certificate of the client's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from lorry.client import AsyncClient, Client, Retry, Tls
from lorry.client.admin import AdminClient, SyncAdminClient
from lorry.errors import InvalidRequest, Unavailable
from tests.support.certificates import Certificates, make_certificates
from tests.support.recorder import Recorder

ONCE = Retry(max_retries=0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module", params=[False, True], ids=["tls", "mtls"])
def mutual(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def server(files: Certificates, mutual: bool) -> Iterator[Recorder]:
    cert, key = (path.read_bytes() for path in files.server)
    credentials = grpc.ssl_server_credentials([(key, cert)], files.ca.read_bytes() if mutual else None, mutual)
    with Recorder(credentials) as made:
        yield made


async def test_all_four_clients_connect_with_files(server: Recorder, files: Certificates, mutual: bool) -> None:
    tls = Tls(files.ca, *files.client) if mutual else Tls(files.ca)
    with Client(server.address, "key", tls=tls, retry=ONCE) as client:
        assert client.list_models() == []
    with SyncAdminClient(server.address, "key", tls=tls, retry=ONCE) as admin:
        assert list(admin.list_tenants()) == []
    async with AsyncClient(server.address, "key", tls=tls, retry=ONCE) as aclient:
        assert await aclient.list_models() == []
    async with AdminClient(server.address, "key", tls=tls, retry=ONCE) as aadmin:
        assert [one async for one in aadmin.list_tenants()] == []


def test_credentials_of_grpc_do_too(server: Recorder, files: Certificates, mutual: bool) -> None:
    tls = Tls(files.ca, *files.client) if mutual else Tls(files.ca)
    with Client(server.address, "key", tls.credentials(), retry=ONCE) as client:
        assert client.list_models() == []
    with pytest.raises(InvalidRequest, match="one of the two"):
        Client(server.address, "key", tls.credentials(), tls=tls)


def test_another_name_is_taken_where_it_is_given(server: Recorder, files: Certificates, mutual: bool) -> None:
    cert, key = files.client if mutual else (None, None)
    for name, good in (("gateway.test", True), ("elsewhere.test", False)):
        with Client(server.address, "key", tls=Tls(files.ca, cert, key, name), retry=ONCE) as client:
            if good:
                assert client.list_models() == []
            else:
                with pytest.raises(Unavailable):
                    client.list_models()


def test_a_server_of_another_authority_gets_no_key(server: Recorder, files: Certificates) -> None:
    before = len(server.calls)
    for tls in (Tls(files.other_ca, *files.client), Tls(), None):
        with Client(server.address, "key", tls=tls, retry=ONCE) as client, pytest.raises(Unavailable):
            client.generate("models/m", "hi", timeout_s=5)
    assert len(server.calls) == before


def test_a_server_that_wants_a_certificate_gets_one_or_says_so(
    server: Recorder, files: Certificates, mutual: bool
) -> None:
    with Client(server.address, "key", tls=Tls(files.ca), retry=ONCE) as client:
        if mutual:
            with pytest.raises(Unavailable):
                client.list_models()
        else:
            assert client.list_models() == []


def test_files_that_are_not_there_are_named(files: Certificates, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"tls\.ca.*missing\.pem"):
        Client("127.0.0.1:1", "key", tls=Tls(tmp_path / "missing.pem"))
    with pytest.raises(InvalidRequest, match="belong together"):
        Client("127.0.0.1:1", "key", tls=Tls(files.ca, cert=files.client[0]))
