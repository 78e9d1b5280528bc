"""What needs no database: rules of guessing, passwords, cookies and tokens."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.errors import InvalidRequest, Overloaded
from lorry.registry import Peppers
from lorry.registry.accounts.cookies import csrf_of, new_cookie, session_id_of
from lorry.registry.accounts.passwords import PasswordParams, Passwords, check_password, new_password
from lorry.registry.accounts.throttle import (
    ADDRESS,
    USERNAME,
    Count,
    address_subject,
    network_of,
    username_subject,
)
from lorry.registry.usertokens import SKEW_S, TOKEN_S, Claims, is_token, make_token, read_token
from tests.unit.registry.conftest import CHEAP, NOW, PEPPERS

CLAIMS = Claims("ws_1", "lg_1", "tn_1", "anna", "owner", NOW + TOKEN_S, NOW + 3600)


def test_guesses_lock_and_the_lock_grows() -> None:
    count, waits = Count(), []
    now = NOW
    for _ in range(12):
        count = count.attempted(USERNAME, now)
        waits.append(count.wait_s(now))
        now += count.wait_s(now)
    assert waits == [0, 0, 0, 0, 60, 120, 240, 480, 900, 900, 900, 900]
    assert count.attempted(USERNAME, count.forget_at - 1).failures == 13
    assert count.attempted(USERNAME, count.forget_at).failures == 1


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 2000)), max_size=60))
def test_an_address_never_guesses_faster_than_its_rule(steps: list[tuple[bool, float]]) -> None:
    """However successes of others are mixed in: between two failures beyond the free ones a lock's time passes."""
    count, now, failed = Count(), NOW, list[float]()
    for good, pause in steps:
        now += pause
        if count.wait_s(now):
            continue
        count = count.attempted(ADDRESS, now)
        if good:
            count = count.succeeded(ADDRESS)
        else:
            failed.append(now)
        assert count.failures >= 0
        assert count.wait_s(now) <= ADDRESS.longest_s
    for at in range(ADDRESS.free, len(failed)):
        recent = [when for when in failed[:at] if when > failed[at] - ADDRESS.forget_s]
        if len(recent) >= ADDRESS.free:
            assert failed[at] - failed[at - 1] >= ADDRESS.lock_s


def test_a_customers_ipv6_network_is_one_address() -> None:
    assert network_of("2001:db8:1:2:3:4:5:6") == network_of("2001:db8:1:2::1") == "2001:db8:1:2::"
    assert network_of("2001:db8:1:3::1") != network_of("2001:db8:1:2::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") == "10.0.0.1"
    assert network_of(" Unix ") == "unix"
    assert address_subject(PEPPERS, "10.0.0.1") != username_subject(PEPPERS, "10.0.0.1")
    assert username_subject(PEPPERS, " Anna@ACME ") == username_subject(PEPPERS, "anna@acme")
    assert "anna" not in username_subject(PEPPERS, "anna@acme")


@pytest.mark.parametrize(
    ("password", "said"),
    [
        ("elevenchars", "11 characters"),
        ("x" * 129, "129 characters"),
        ("x" * 100_000, "100000 characters"),
        ("aaaaaaaaaaaaaaaa", "different"),
        ("with\nanewline in it", "control"),
        ("my name is ANNA ok", "username"),
    ],
)
def test_passwords_that_are_not_good_enough(password: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        check_password("password", password, "anna")
    assert password not in caught.value.message


def test_passwords_that_are() -> None:
    for password in ("twelve chars", "é" * 5 + "öäüßx y", new_password(), "".join(map(chr, range(0x4E00, 0x4E80)))):
        assert check_password("password", password, "anna") == password
    assert len({new_password() for _ in range(50)}) == 50


async def test_a_hash_knows_its_password_in_any_spelling() -> None:
    passwords = Passwords(CHEAP)
    made = await passwords.hash("café au lait!")
    assert made.startswith("$argon2id$")
    assert await passwords.verify(made, "cafe\u0301 au lait!")
    for wrong in ("cafe au lait!", "", "x" * 10_000, "café au lait!" * 1000, "\ud800 surrogate"):
        assert not await passwords.verify(made, wrong)
    for nothing in (None, "", "x", "$argon2id$nonsense"):
        assert not await passwords.verify(nothing, "café au lait!")
        assert not await passwords.verify(nothing, "nobody has this password")
    assert not passwords.outdated(made)
    assert Passwords(replace(CHEAP, passes=2)).outdated(made)


async def test_what_production_pays_for_a_guess_is_paid_without_a_user_too() -> None:
    """By the parameters that are in the hash, not by a clock: the same work for somebody and for nobody."""
    params = PasswordParams()
    assert (params.passes, params.memory_kib, params.lanes) == (3, 65536, 1)
    passwords = Passwords(params)
    began = time.process_time()
    made = await passwords.hash("a password of somebody")
    one = time.process_time() - began
    await passwords.verify(None, "warm up: nobody's hash is made")
    began = time.process_time()
    assert not await passwords.verify(None, "a password of somebody")
    assert time.process_time() - began > one / 4
    assert "m=65536,t=3,p=1" in made
    assert passwords._nobodys is not None
    assert "m=65536,t=3,p=1" in passwords._nobodys


async def test_too_many_at_once_are_refused_before_anything_is_looked_up() -> None:
    passwords = Passwords(replace(CHEAP, at_once=1, waiting=0))
    async with passwords.turn():
        with pytest.raises(Overloaded) as caught:
            async with passwords.turn():
                raise AssertionError
    assert caught.value.retry_after_s
    async with passwords.turn():
        pass


def test_a_cookie_is_known_by_its_mac_alone() -> None:
    one, other = new_cookie(PEPPERS), new_cookie(PEPPERS)
    assert session_id_of(one.text) == one.session_id != other.session_id
    assert PEPPERS.mac(one.text, one.pepper_id) == one.mac
    assert one.text not in repr(one)
    for bad in ("", "lorrys_", one.text + "0", one.text.upper(), one.text.replace("lorrys", "lorry"), f"\n{one.text}"):
        assert session_id_of(bad) == ""
    assert csrf_of(one.text) == csrf_of(one.text) != csrf_of(other.text)
    assert csrf_of(one.text) not in (one.text, one.mac)


def test_a_token_says_what_it_was_made_of_for_a_minute() -> None:
    text = make_token(PEPPERS, CLAIMS)
    assert is_token(text)
    assert read_token(PEPPERS, text, NOW) == CLAIMS
    assert read_token(PEPPERS, text, NOW + TOKEN_S - 0.001) == CLAIMS
    assert read_token(PEPPERS, text, NOW + TOKEN_S) is None
    assert read_token(PEPPERS, text, NOW + TOKEN_S, begun=True) == CLAIMS, "what it began goes on"
    assert read_token(PEPPERS, text, NOW + 3600, begun=True) is None, "until its session ends"
    assert read_token(PEPPERS, text, NOW - SKEW_S) == CLAIMS
    assert read_token(PEPPERS, text, NOW - SKEW_S - 1) is None, "no snapshot remembers for so long"


def test_a_token_is_of_the_peppers_that_are_known() -> None:
    old, new = b"o" * 32, b"n" * 32
    text = make_token(Peppers((old,)), CLAIMS)
    assert read_token(Peppers((new, old)), text, NOW) == CLAIMS
    assert read_token(Peppers((new,)), text, NOW) is None
    assert read_token(Peppers((old, new)), make_token(Peppers((new, old)), CLAIMS), NOW) == CLAIMS


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_byte_of_a_token_can_be_changed(at: int, by: int) -> None:
    raw = bytearray(make_token(PEPPERS, CLAIMS).encode())
    raw[at % len(raw)] ^= by
    assert read_token(PEPPERS, raw.decode("latin-1"), NOW) is None


def test_no_claims_without_the_key() -> None:
    payload, mac = make_token(PEPPERS, CLAIMS).removeprefix("lorryt_").rsplit("_", 1)
    fields = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    forged = json.dumps(fields | {"role": "platform_admin"}).encode()
    for body in (base64.urlsafe_b64encode(forged).decode().rstrip("="), payload[:-1], "", "[]", "e30", "bnVsbA"):
        assert read_token(PEPPERS, f"lorryt_{body}_{mac}", NOW) is None
    key = PEPPERS.mac(payload, PEPPERS.current_id)  # the pepper itself is not a token's key
    assert read_token(PEPPERS, f"lorryt_{payload}_{key}", NOW) is None
    for text in ("lorryt_", "lorryt_x", f"lorryt_{'A' * 2000}_{mac}", f"lorryt_{payload}_{mac}\n", "lorryt_\ud800"):
        assert read_token(PEPPERS, text, NOW) is None
