"""doctor: each step fails by itself, with a remedy, and the steps after it that would mean nothing are left out."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import lorry as package
from lorry.api.about import About, about_metadata
from lorry.api.v1 import generate_pb2 as pb
from lorry.cli.doctor import examine
from lorry.errors import Unauthenticated
from tests.integration.cli.conftest import Terminal
from tests.support.certificates import Certificates, make_certificates
from tests.support.recorder import Raw, Recorder

ALL = ["profile", "address", "tls", "health", "key", "clock", "version", "models"]


def about(
    server: Recorder,
    skew_s: float = 0.0,
    version: str = package.__version__,
    tenant: str = "acme",
    now: float | None = None,
) -> None:
    found = About(tenant, "ann", "owner", version, (time.time() if now is None else now) + skew_s)
    server.trailing["ListModels"] = about_metadata(found)


@pytest.fixture(autouse=True)
def models(server: Recorder) -> None:
    server.script("ListModels", pb.ListModelsResponse(models=[pb.Model(name=f"models/{name}") for name in "abcde"]))
    about(server)


def checks(said: Any) -> dict[str, dict[str, str]]:
    found = said.json
    rows = {row["check"]: row for row in found["checks"]}
    assert found["ok"] == all(row["outcome"] != "fail" for row in found["checks"]) == (said.status == 0)
    return rows


def test_all_is_well(lorry: Terminal, server: Recorder) -> None:
    said = lorry("doctor")
    assert said.status == 0, said.out
    assert [line.split()[:2] for line in said.out.splitlines()] == [["pass", check] for check in ALL]
    for word in (server.address, "acme ann owner", package.__version__, "models/a, models/b, models/c and 2 more"):
        assert word in said.out
    assert list(checks(lorry("doctor", "--json"))) == ALL


def test_no_profile_and_no_address(nowhere: Terminal) -> None:
    found = checks(nowhere("doctor", "--json"))
    assert list(found) == ["profile"]
    assert "lorry login" in found["profile"]["message"]


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", "127.0.0.1:1"])
def test_nobody_answers(lorry: Terminal, address: str) -> None:
    found = checks(lorry("doctor", "--json", "--address", address))
    assert list(found) == ["profile", "address"]
    assert found["address"]["remedy"]


def test_somebody_else_answers(lorry: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lorry.cli.doctor._WAIT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = checks(lorry("doctor", "--json", "--address", f"127.0.0.1:{silent.getsockname()[1]}"))
    assert list(found) == ["profile", "address", "tls"]
    assert "--ca" in found["tls"]["remedy"]


def test_not_serving_and_not_a_gateway(lorry: Terminal, server: Recorder) -> None:
    server.health = b"\x08\x02"
    found = checks(lorry("doctor", "--json"))
    assert list(found) == ALL
    assert found["health"]["outcome"] == "fail"


def test_a_bad_key_ends_it(lorry: Terminal, server: Recorder) -> None:
    server.script("ListModels", Unauthenticated("authorization: expired"))
    said = lorry("doctor")
    assert said.status == 1
    assert "fail  key      UNAUTHENTICATED: authorization: expired; run lorry login" in said.out
    assert "models" not in said.out.splitlines()[-1]
    server.script("ListModels", Raw(grpc.StatusCode.UNIMPLEMENTED))
    assert "key" in checks(lorry("doctor", "--json"))


@pytest.mark.parametrize(("skew_s", "outcome"), [(3.0, "pass"), (-3.0, "pass"), (60.0, "fail"), (-60.0, "fail")])
def test_clocks(
    lorry: Terminal, server: Recorder, monkeypatch: pytest.MonkeyPatch, skew_s: float, outcome: str
) -> None:
    now = time.time()
    monkeypatch.setattr(examine, "__defaults__", (lambda: now,))  # however long a busy machine takes
    about(server, skew_s, now=now)
    found = checks(lorry("doctor", "--json"))["clock"]
    assert found["outcome"] == outcome
    assert ("ahead of" if skew_s > 0 else "behind") in found["message"]
    assert bool(found["remedy"]) == (outcome == "fail")


def test_versions_tenants_and_silence_are_warnings(lorry: Terminal, server: Recorder) -> None:
    about(server, version="9.9.9", tenant="beta")
    found = checks(lorry("doctor", "--json"))
    assert (found["version"]["outcome"], found["key"]["outcome"]) == ("warn", "warn")
    server.trailing.clear()
    found = checks(lorry("doctor", "--json"))
    assert (found["version"]["outcome"], found["clock"]["outcome"]) == ("warn", "warn")


def test_no_model(lorry: Terminal, server: Recorder) -> None:
    server.script("ListModels", pb.ListModelsResponse())
    found = checks(lorry("doctor", "--json"))
    assert found["models"]["outcome"] == "fail"
    assert "grants create" in found["models"]["remedy"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secured(files: Certificates) -> Iterator[Recorder]:
    cert, key = (path.read_bytes() for path in files.server)
    with Recorder(grpc.ssl_server_credentials([(key, cert)], files.ca.read_bytes(), True)) as made:
        made.script("ListModels", pb.ListModelsResponse(models=[pb.Model(name="models/a")]))
        about(made)
        yield made


def test_tls_is_looked_into(
    lorry: Terminal, secured: Recorder, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lorry.cli.doctor._WAIT_S", 1.0)
    own = ("--cert", str(files.client[0]), "--cert-key", str(files.client[1]))

    def ask(*tls: str) -> dict[str, dict[str, str]]:
        return checks(lorry("doctor", "--json", "--address", secured.address, *tls))

    found = ask("--ca", str(files.ca), *own)
    assert list(found) == ALL
    assert found["tls"]["message"].startswith("certificates are good: the server's until 20")
    assert "the client's until 20" in found["tls"]["message"]
    assert {row["outcome"] for row in found.values()} == {"pass"}
    for tls, words, remedy in (
        ((), "speaks TLS alone", "--ca"),
        (("--ca", str(files.other_ca), *own), "CERTIFICATE_VERIFY_FAILED", "the authority that signed"),
        (("--ca", str(files.ca)), "certificate of the client", "--client-cert"),
        (("--ca", str(Path("/none/ca.pem"))), "/none/ca.pem", ""),
    ):
        found = ask(*tls)
        assert list(found) == ALL[:3]
        assert words.lower() in found["tls"]["message"].lower(), found
        assert remedy in found["tls"]["remedy"], found


@contextmanager
def speaking(files: Certificates, mutual: bool = False) -> Iterator[Recorder]:
    cert, key = (path.read_bytes() for path in files.server)
    with Recorder(grpc.ssl_server_credentials([(key, cert)], files.ca.read_bytes() if mutual else None, mutual)) as it:
        it.script("ListModels", pb.ListModelsResponse(models=[pb.Model(name="models/a")]))
        about(it)
        yield it


@pytest.mark.parametrize(("days", "outcome"), [(3, "warn"), (60, "pass"), (-1, "fail")])
def test_a_servers_certificate_that_ends(
    lorry: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, outcome: str
) -> None:
    monkeypatch.setattr("lorry.cli.doctor._WAIT_S", 1.0)
    made = make_certificates(tmp_path, days)
    with speaking(made) as server:
        found = checks(lorry("doctor", "--json", "--address", server.address, "--ca", str(made.ca)))
    assert found["tls"]["outcome"] == outcome, found
    if outcome != "pass":
        assert "renewed" in found["tls"]["remedy"] or "renew " in found["tls"]["remedy"], found
    assert ("expired" in found["tls"]["message"]) == (outcome == "fail")


@pytest.mark.parametrize(("days", "words"), [(60, "trust the client's certificate"), (-1, "has expired")])
def test_a_clients_certificate_of_another_authority_or_that_ended(
    lorry: Terminal, files: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, words: str
) -> None:
    monkeypatch.setattr("lorry.cli.doctor._WAIT_S", 1.0)
    other = make_certificates(tmp_path, days)
    own = ("--client-cert", str(other.client[0]), "--client-key", str(other.client[1]))
    with speaking(files, mutual=True) as server:
        found = checks(lorry("doctor", "--json", "--address", server.address, "--ca", str(files.ca), *own))
    assert found["tls"]["outcome"] == "fail"
    assert words in found["tls"]["message"], found


def test_a_plain_server_and_a_client_that_wants_tls(
    lorry: Terminal, server: Recorder, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lorry.cli.doctor._WAIT_S", 1.0)
    found = checks(lorry("doctor", "--json", "--ca", str(files.ca)))
    assert list(found) == ALL[:3]
    assert "speaks no TLS" in found["tls"]["message"], found


def test_a_certificate_for_another_name(lorry: Terminal, files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lorry.cli.doctor._WAIT_S", 1.0)
    with speaking(files) as server:
        address = server.address.replace("127.0.0.1", "localhost")
        found = checks(lorry("doctor", "--json", "--address", address, "--ca", str(files.ca)))
    assert found["tls"]["outcome"] == "fail"
    assert "another name" in found["tls"]["remedy"], found
