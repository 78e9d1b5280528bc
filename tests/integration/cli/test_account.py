"""login, logout, whoami: where the key goes, and where it does not."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import grpc
import pytest

from lorry.api.about import About, about_metadata
from lorry.cli.profile import Profile, load_profile, profile_path
from lorry.errors import Unauthenticated
from tests.integration.cli.conftest import KEY, Terminal
from tests.support.certificates import make_certificates
from tests.support.recorder import Recorder

ABOUT = About("acme", "ann", "owner", "0.1.0", 1e9)


@pytest.fixture(autouse=True)
def about(server: Recorder) -> None:
    server.trailing["ListModels"] = about_metadata(ABOUT)


def test_a_key_from_standard_input_is_checked_kept_and_used(nowhere: Terminal, server: Recorder) -> None:
    said = nowhere("login", "--address", server.address, typed=f"{KEY}\n")
    assert said.status == 0, said.err
    assert "as acme owner" in said.out
    assert KEY not in said.out + said.err
    assert load_profile() == Profile(server.address, KEY, "acme")
    assert stat.S_IMODE(profile_path().stat().st_mode) == 0o600
    assert nowhere("adapters", "list").status == 0
    assert server.calls[-1].request.parent == "tenants/acme"
    assert server.calls[-1].metadata["authorization"] == f"Bearer {KEY}"


def test_a_person_types_it_unseen(nowhere: Terminal, server: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def type_it(prompt: str) -> str:
        asked.append(prompt)
        return f" {KEY} "

    monkeypatch.setattr("getpass.getpass", type_it)
    said = nowhere("login", "--address", server.address, "--key", person=True)
    assert said.status == 0, said.err
    assert asked == ["API key: "]
    profile = load_profile()
    assert profile is not None
    assert profile.api_key == KEY


def test_a_key_in_the_arguments_is_taken_with_a_word(nowhere: Terminal, server: Recorder) -> None:
    said = nowhere("login", "--address", server.address, "--key", KEY, "--json")
    assert said.status == 0
    assert "history" in said.err
    assert said.json == {
        "profile": str(profile_path()),
        "address": server.address,
        "tenant": "acme",
        "role": "owner",
    }


def test_a_bad_key_is_not_kept(nowhere: Terminal, server: Recorder) -> None:
    server.script("ListModels", Unauthenticated("authorization: unknown key"))
    said = nowhere("login", "--address", server.address, typed=KEY)
    assert said.status == 1
    assert said.err.startswith("lorry: UNAUTHENTICATED UNAUTHENTICATED: authorization: unknown key; lorry login")
    assert load_profile() is None
    assert nowhere("login", "--address", server.address, typed="\n").status == 1
    assert nowhere("login", "--address", "127.0.0.1:1", "--no-check", typed=KEY).status == 0
    assert load_profile() == Profile("127.0.0.1:1", KEY)


def test_another_tenant_than_the_keys_is_for_administrators(nowhere: Terminal, server: Recorder) -> None:
    line = ("login", "--address", server.address, "--tenant", "tenants/beta")
    said = nowhere(*line, typed=KEY)
    assert said.status == 1
    assert "the key is of tenant acme" in said.err
    server.trailing["ListModels"] = about_metadata(About("platform", "root", "platform_admin"))
    assert nowhere(*line, typed=KEY).status == 0
    assert load_profile() == Profile(server.address, KEY, "beta")


def test_files_of_tls_are_kept_by_their_whole_path(
    nowhere: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said = nowhere("login", "--address", "h:1", "--ca", "ca.pem", "--no-check", typed=KEY)
    assert said.status == 0, said.err
    assert load_profile() == Profile("h:1", KEY, ca=str(tmp_path / "ca.pem"))


def test_a_clients_certificate_is_kept_and_an_address_with_https(
    nowhere: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    files = ("--tls-ca", "ca.pem", "--client-cert", "cert.pem", "--client-key", "key.pem")
    assert nowhere("login", "--address", "https://h:1", *files, "--no-check", typed=KEY).status == 0
    paths = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    assert load_profile() == Profile("h:1", KEY, ca=paths["ca"], cert=paths["cert"], cert_key=paths["key"])
    assert nowhere("login", "--address", "https://h:1", "--no-check", typed=KEY).status == 0
    assert load_profile() == Profile("h:1", KEY, tls=True)


def test_login_presents_the_certificate(nowhere: Terminal, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    cert, key = (path.read_bytes() for path in made.server)
    with Recorder(grpc.ssl_server_credentials([(key, cert)], made.ca.read_bytes(), True)) as server:
        server.trailing["ListModels"] = about_metadata(About("acme", "ann", "owner"))
        ca = ("--address", server.address, "--tls-ca", str(made.ca))
        assert nowhere("login", *ca, typed=KEY).status == 1
        own = ("--client-cert", str(made.client[0]), "--client-key", str(made.client[1]))
        said = nowhere("login", *ca, *own, typed=KEY)
        assert said.status == 0, said.err
        assert nowhere("whoami").status == 0


def test_logout_forgets(nowhere: Terminal, server: Recorder) -> None:
    nowhere("login", "--address", server.address, typed=KEY)
    assert "is removed" in nowhere("logout").out
    assert load_profile() is None
    assert nowhere("logout", "--json").json["removed"] is False
    said = nowhere("models")
    assert said.status == 1
    assert "lorry login" in said.err


def test_whoami_in_words_and_in_json(lorry: Terminal, server: Recorder) -> None:
    said = lorry("whoami")
    for word in (server.address, "acme", "ann", "owner", "0.1.0"):
        assert word in said.out
    assert lorry("whoami", "--json").json == {
        "address": server.address,
        "tenant": "acme",
        "principal": "ann",
        "role": "owner",
        "serverVersion": "0.1.0",
    }
    server.trailing.clear()
    found = json.loads(lorry("whoami", "--json").out)
    assert (found["tenant"], found["role"], found["serverVersion"]) == ("acme", "", "")
    assert "does not say" in lorry("whoami").out
