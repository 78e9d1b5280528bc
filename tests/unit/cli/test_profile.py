"""The profile's file, and whom a command talks to: flags, environment, profile, in this order."""

from __future__ import annotations

import argparse
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lorry.cli.profile import Profile, load_profile, profile_path, remove_profile, save_profile
from lorry.cli.session import default_address, session
from lorry.client import Tls
from lorry.errors import FailedPrecondition, InvalidRequest, Unauthenticated

KEY = "lorry_0123456789abcdef_" + "cd" * 32


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("LORRY_PROFILE", "LORRY_ADDRESS", "LORRY_API_KEY", "LORRY_TENANT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def options(**given: Any) -> argparse.Namespace:
    plain = {"address": "", "tenant": "", "tls": False, "ca": None, "cert": None, "cert_key": None, "retries": None}
    return argparse.Namespace(**{**plain, **given})


def test_it_comes_back_as_it_was_and_only_its_owner_reads_it(home: Path) -> None:
    made = Profile("10.0.0.1:50061", KEY, "acme", True, "/ca.pem", "/c.pem", "/k.pem")
    path = save_profile(made)
    assert path == profile_path() == home / "lorry" / "profile.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_profile() == made
    assert made.transport() == Tls(Path("/ca.pem"), Path("/c.pem"), Path("/k.pem"))
    save_profile(Profile("other:1", KEY))
    assert load_profile() == Profile("other:1", KEY)
    assert Profile("other:1", KEY).transport() is None
    assert [one.name for one in path.parent.iterdir()] == ["profile.toml"]
    assert remove_profile() == path
    assert load_profile() is None
    assert remove_profile() is None


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(address=text, key=text, tenant=text)
def test_whatever_is_in_it_comes_back(address: str, key: str, tenant: str) -> None:
    save_profile(Profile(address, key, tenant))
    assert load_profile() == Profile(address, key, tenant)


def test_it_is_no_secret_of_its_repr() -> None:
    assert KEY not in repr(Profile("a:1", KEY))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_one_that_others_can_read_is_refused(mode: int) -> None:
    save_profile(Profile("a:1", KEY)).chmod(mode)
    with pytest.raises(FailedPrecondition, match="chmod 600") as caught:
        load_profile()
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["address", 'address = "a"', f'address = "a"\napi_key = "{KEY}"\nmore = 1', 'address = 1\napi_key = "k"']
)
def test_one_that_is_none_is_refused_without_its_secret(text: str) -> None:
    path = save_profile(Profile("a:1", KEY))
    path.write_text(text)
    with pytest.raises(FailedPrecondition, match="lorry login") as caught:
        load_profile()
    assert KEY not in str(caught.value)


def test_the_profile_serves_where_nothing_else_is_said() -> None:
    save_profile(Profile("10.0.0.1:1", KEY, "acme", ca="/ca.pem"))
    here = session(options())
    assert (here.address, here.api_key, here.tenant) == ("10.0.0.1:1", KEY, "acme")
    assert here.tls == Tls(Path("/ca.pem"))
    assert KEY not in repr(here)


def test_the_environment_is_before_the_profile_and_flags_before_both(monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile(Profile("10.0.0.1:1", KEY, "acme"))
    monkeypatch.setenv("LORRY_ADDRESS", "10.0.0.2:2")
    monkeypatch.setenv("LORRY_API_KEY", "other")
    monkeypatch.setenv("LORRY_TENANT", "beta")
    here = session(options())
    assert (here.address, here.api_key, here.tenant) == ("10.0.0.2:2", "other", "beta")
    here = session(options(address="10.0.0.3:3", tenant="tenants/gamma", retries=5, ca=Path("/x")))
    assert (here.address, here.api_key, here.tenant) == ("10.0.0.3:3", "other", "gamma")
    assert here.retry.max_retries == 5
    assert here.tls == Tls(Path("/x"))


def test_a_profiles_key_goes_to_its_own_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile(Profile("10.0.0.1:1", KEY, "acme", tls=True))
    with pytest.raises(Unauthenticated, match=r"for 10\.0\.0\.1:1, not for evil:1"):
        session(options(address="evil:1"))
    monkeypatch.setenv("LORRY_ADDRESS", "evil:1")
    with pytest.raises(Unauthenticated):
        session(options())
    here = session(options(address="10.0.0.1:1"))
    assert (here.api_key, here.tls) == (KEY, Tls())
    monkeypatch.setenv("LORRY_API_KEY", "other")
    here = session(options())
    assert (here.address, here.api_key, here.tenant, here.tls) == ("evil:1", "other", "", None)


def test_tls_by_flags_then_the_environment_then_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile(Profile("10.0.0.1:1", KEY, ca="/p/ca", cert="/p/cert", cert_key="/p/key"))
    assert session(options()).tls == Tls(Path("/p/ca"), Path("/p/cert"), Path("/p/key"))
    monkeypatch.setenv("LORRY_TLS_CA", "/e/ca")
    assert session(options()).tls == Tls(Path("/e/ca"))
    monkeypatch.setenv("LORRY_CLIENT_CERT", "/e/cert")
    monkeypatch.setenv("LORRY_CLIENT_KEY", "/e/key")
    assert session(options()).tls == Tls(Path("/e/ca"), Path("/e/cert"), Path("/e/key"))
    assert session(options(ca=Path("/f/ca"))).tls == Tls(Path("/f/ca"))
    assert session(options(tls=True)).tls == Tls()


def test_an_address_with_https_means_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORRY_API_KEY", "k")
    here = session(options(address="https://10.0.0.1:1/"))
    assert (here.address, here.tls) == ("10.0.0.1:1", Tls())
    assert session(options(address="http://10.0.0.1:1")).tls is None
    monkeypatch.setenv("LORRY_ADDRESS", "https://10.0.0.2:2")
    here = session(options())
    assert (here.address, here.tls) == ("10.0.0.2:2", Tls())
    assert default_address() == "10.0.0.2:2"
    save_profile(Profile("10.0.0.2:2", KEY, ca="/ca.pem"))
    assert session(options()).tls == Tls(Path("/ca.pem")), "the profile knows by which authorities"
    assert session(options(address="10.0.0.3:3")).tls is None


def test_without_anything_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unauthenticated, match="lorry login"):
        session(options())
    monkeypatch.setenv("LORRY_API_KEY", "k")
    here = session(options())
    assert here.address == default_address()
    with pytest.raises(InvalidRequest, match="--tenant"):
        here.own_tenant()
    with pytest.raises(InvalidRequest, match="--tenant"):
        here.name("pirate")


def test_names_are_short_or_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORRY_API_KEY", "k")
    here = session(options(tenant="acme"))
    assert here.name("pirate") == "tenants/acme/adapters/pirate"
    assert here.name("pirate@prod") == "tenants/acme/adapters/pirate@prod"
    assert here.name("pirate/versions/3") == "tenants/acme/adapters/pirate/versions/3"
    for full in ("models/smol", "tenants/beta/adapters/x@y"):
        assert here.name(full) == full
    for bad in ("", "a b", "pirate/3", "pirate@", "a/b/c", "pirate/versions/x", "@prod"):
        with pytest.raises(InvalidRequest):
            here.name(bad)
    assert here.child("12", "apiKeys") == "tenants/acme/apiKeys/12"
    assert here.child("tenants/b/apiKeys/1", "apiKeys") == "tenants/b/apiKeys/1"


def test_the_file_is_toml_that_people_can_read() -> None:
    path = save_profile(Profile("a:1", KEY, "acme"))
    assert path.read_text() == f'address = "a:1"\napi_key = {json.dumps(KEY)}\ntenant = "acme"\n'
