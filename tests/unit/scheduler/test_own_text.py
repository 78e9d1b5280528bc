"""A version's own end ids and tokenizer, as the scheduler sees them."""

from __future__ import annotations

from typing import Any

from lorry.request import StoppingParams
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import EOS, Rig
from tests.unit.scheduler.test_prefix_cache import ending, served

A = version("a")


def test_its_own_ids_end_it_in_place_of_the_bases() -> None:
    rig = Rig(token=lambda _new, _adapter, index: (EOS, 30, 31, 32)[index])
    cases: list[tuple[str, dict[str, Any], int | None]] = [
        ("base", {}, EOS),
        ("own", {"end_ids": (30, 31)}, 30),
        ("none", {"end_ids": ()}, None),
        ("asked", {"end_ids": (), "stopping": StoppingParams(4, stop_token_ids=(31,))}, 31),
        ("ignored", {"end_ids": (30,), "stopping": StoppingParams(4, ignore_eos=True)}, None),
        ("later", {"end_ids": (30, 31), "stopping": StoppingParams(4, min_tokens=2)}, 31),
    ]
    for name, asked, want in cases:
        rig.add(name, asked.pop("ref", A), out=4, **asked)
        rig.run_out()
        assert ending(rig, name).matched_stop_id == want, name


def test_a_prefix_is_of_one_tokenizer() -> None:
    rig = Rig()
    assert served(rig, "base", ref=A) == (0, 16)
    assert served(rig, "own", ref=A, tokenizer_sha256="d" * 64) == (0, 16)
    assert served(rig, "other", ref=A, tokenizer_sha256="e" * 64) == (0, 16)
    assert served(rig, "own again", ref=A, tokenizer_sha256="d" * 64) == (15, 1)
    assert served(rig, "as the base", ref=A, tokenizer_sha256="c" * 64) == (15, 1)
