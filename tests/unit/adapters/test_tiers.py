"""Disk and host tiers against a real directory store: one download each, nothing damaged served, nothing stale."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lorry.adapters.disk import DiskTier
from lorry.adapters.manifest import AdapterFile, AdapterRef, files_digest
from lorry.errors import (
    AdapterDigestMismatch,
    AdapterLoadFailed,
    AdapterObjectMissing,
    ObjectStoreUnavailable,
)
from lorry.ids import AdapterScope
from lorry.residency.host import Fetching, HostState, HostTier, Ready
from tests.unit.adapters.tier_world import FILES, WAIT_S, CountingStore, Tier, World, image_bytes

from . import craft


def test_it_is_what_residency_asks_for(tier: Tier, world: World) -> None:
    host: HostTier[AdapterRef] = tier
    ref = world.upload(1)
    assert host.tier_of(ref.key) == "object_store"
    assert host.ensure(ref) == Fetching()
    assert tier.settle(ref) == Ready(4)
    assert host.tier_of(ref.key) == "host"
    image = tier.image(ref.key)
    assert (image.digest, image.rank) == (ref.digest, 4)
    assert image.intact()


def test_from_disk_after_a_restart(world: World) -> None:
    ref = world.upload(1)
    first = Tier(world)
    first.settle(ref)
    first.close()
    second = Tier(world)
    assert second.tier_of(ref.key) == "disk"
    assert second.settle(ref) == Ready(4)
    second.close()
    assert len(world.store.fetched) == FILES


def test_fifty_threads_make_one_download(tier: Tier, world: World) -> None:
    """Field fault 13."""
    ref = world.upload(1)
    world.store.gate.clear()
    barrier = threading.Barrier(50)

    def ask() -> HostState:
        barrier.wait(WAIT_S)
        return tier.ensure(ref)

    with ThreadPoolExecutor(50) as pool:
        answers = [future.result() for future in [pool.submit(ask) for _ in range(50)]]
    assert answers == [Fetching()] * 50
    world.store.gate.set()
    assert tier.settle(ref) == Ready(4)
    tier.close()
    assert len(world.store.fetched) == FILES
    assert tier.built == [ref.digest], "single flight at the host tier too"


def test_fifty_threads_at_the_disk_tier_make_one_download(world: World) -> None:
    ref = world.upload(1)
    disk = world.disk()
    barrier = threading.Barrier(50)

    def read() -> set[str]:
        barrier.wait(WAIT_S)
        with disk.open(ref) as folder:
            return set(os.listdir(folder))

    with ThreadPoolExecutor(50) as pool:
        answers = [future.result() for future in [pool.submit(read) for _ in range(50)]]
    assert answers == [{file.path for file in ref.files}] * 50
    assert len(world.store.fetched) == FILES


def test_a_folder_is_published_whole_or_not_at_all(world: World) -> None:
    """Field fault 13: a download cut off in the middle leaves nothing under the digest."""
    ref = world.upload(1)
    world.object(ref).unlink()
    disk = world.disk()
    with pytest.raises(AdapterObjectMissing), disk.open(ref):
        pass
    assert list((world.root / "cache").iterdir()) == []
    assert not disk.has(ref.key)
    assert disk.used_bytes == 0


def test_what_a_crash_left_is_swept_away(world: World) -> None:
    left = world.root / "cache" / ".tmp-123"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    world.disk()
    assert not left.exists()


@pytest.mark.parametrize("damage", ["truncated", "bit flipped", "file gone", "file added", "folder gone", "link"])
def test_a_damaged_cache_folder_is_fetched_once_more(world: World, damage: str) -> None:
    """Field fault 13: a truncated file is not cached for ever, and never served."""
    ref = world.upload(1)
    disk = world.disk()
    with disk.open(ref):
        pass
    path = world.cached(ref)
    good = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(good[:-1])
    elif damage == "bit flipped":
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "file gone":
        path.unlink()
    elif damage == "file added":
        path.with_name("extra.json").write_text("{}")
    elif damage == "folder gone":
        path.parent.rename(world.root / "moved")
    else:
        path.rename(world.root / "elsewhere")
        path.symlink_to(world.root / "elsewhere")
    with disk.open(ref) as folder:
        assert (folder / path.name).read_bytes() == good
        assert len(os.listdir(folder)) == FILES
    assert (disk.downloads, disk.damaged) == (2, 1)


def test_a_cache_that_damages_everything_is_refused_after_the_second_try(world: World) -> None:
    ref = world.upload(1)

    class Damaging(CountingStore):
        def fetch_to_sync(self, key: str, path: Path, expected_size: int, expected_sha256: str) -> None:
            super().fetch_to_sync(key, path, expected_size, expected_sha256)
            path.write_bytes(b"x" * expected_size)

    disk = DiskTier(world.root / "cache", 1 << 30, Damaging(world.root / "store"))
    with pytest.raises(AdapterDigestMismatch, match="damaged twice"), disk.open(ref):
        pass
    assert disk.downloads == 2
    assert list((world.root / "cache").iterdir()) == []


def test_an_overwritten_object_is_refused_and_the_next_call_tries_again(tier: Tier, world: World) -> None:
    """Field fault 13, and failures are told to those who waited, not kept."""
    ref = world.upload(1)
    good = world.object(ref).read_bytes()
    world.object(ref).write_bytes(good[:-1] + b"?")
    assert isinstance(tier.failure(ref), AdapterDigestMismatch)
    assert tier.tier_of(ref.key) == "object_store"
    world.object(ref).write_bytes(good)
    assert tier.ensure(ref) == Fetching()
    assert tier.settle(ref) == Ready(4)


def test_a_new_version_of_the_same_name_is_never_the_old_one(tier: Tier, world: World) -> None:
    """Field faults 2 and 13: the cache goes by digest, so overwriting in place serves nobody stale bytes."""
    old = world.upload(1)
    tier.settle(old)
    new = replace(world.upload(2), prefix=old.prefix)
    for file in new.files:
        (world.root / "store" / old.prefix / file.path).write_bytes((world.root / "made-2-4" / file.path).read_bytes())
    tier.settle(new)
    assert tier.image(old.key).checksum != tier.image(new.key).checksum
    assert tier.image(new.key).digest == new.digest


def test_store_down_then_up(tier: Tier, world: World) -> None:
    ref = world.upload(1)
    (world.root / "store").rename(world.root / "away")
    assert isinstance(tier.failure(ref), ObjectStoreUnavailable)
    (world.root / "away").rename(world.root / "store")
    assert tier.settle(ref) == Ready(4)


def test_bytes_that_hash_right_but_cannot_be_applied_are_refused(tier: Tier, world: World) -> None:
    """Field faults 6 and 7: a version that got past registration is still never applied in part."""
    ref = world.upload(1, change=lambda folder: craft.write_adapter(folder, {**craft.CONFIG, "use_dora": True}))
    error = tier.failure(ref)
    assert isinstance(error, AdapterLoadFailed)
    assert "use_dora" in str(error)
    assert error.violations


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda arrays: {name.replace("self_attn", "attention"): array for name, array in arrays.items()},
        lambda arrays: {name: array * np.nan for name, array in arrays.items()},
    ],
    ids=["matches nothing", "NaN"],
)
def test_one_bad_adapter_fails_alone(
    tier: Tier, world: World, corrupt: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
) -> None:
    bad = world.upload(1, change=lambda folder: craft.write_adapter(folder, weights=corrupt(craft.tensors())))
    good = world.upload(2)
    tier.ensure(bad)
    tier.ensure(good)
    assert tier.settle(good) == Ready(4)
    assert isinstance(tier.failure(bad), AdapterLoadFailed)


@pytest.mark.parametrize("name", ["../escape", "a/b", "", "..", "/etc/passwd", "a\nb"])
def test_paths_of_a_listing_are_plain_names(world: World, name: str) -> None:
    """Field fault 4."""
    files = (AdapterFile(name, 1, "0" * 64),)
    with (
        pytest.raises(AdapterLoadFailed, match="plain"),
        world.disk().open(AdapterRef(files_digest(files), "p", files, AdapterScope("a_own"))),
    ):
        pass
    assert world.store.fetched == []


def test_a_listing_that_is_not_the_digest_is_refused(tier: Tier, world: World) -> None:
    one, other = world.upload(1), world.upload(2)
    assert isinstance(tier.failure(replace(one, files=other.files)), AdapterDigestMismatch)
    assert world.store.fetched == []


def test_a_failure_is_told_to_exactly_one_call(tier: Tier, world: World) -> None:
    ref = world.upload(1)
    saved = world.object(ref).read_bytes()
    world.object(ref).unlink()
    assert isinstance(tier.failure(ref), AdapterObjectMissing)
    world.object(ref).write_bytes(saved)
    assert tier.ensure(ref) == Fetching()


def test_loads_evictions_and_failures_are_counted(world: World) -> None:
    size = image_bytes(world, world.upload(1))
    first, second = world.upload(2), world.upload(3)
    tier = Tier(world, budget=size, quota=1 << 30)
    assert isinstance(tier.settle(first), Ready)
    assert isinstance(tier.settle(second), Ready)
    tier.discard(second.key)
    assert isinstance(tier.settle(second), Ready)
    gone = world.upload(4)
    world.object(gone).unlink()
    tier.failure(gone)
    found = tier.counts()
    assert {name: spread.count for name, spread in found.loads.items()} == {"object_store": 2, "disk": 1}
    assert all(spread.total > 0 for spread in found.loads.values())
    assert (found.host_evictions, found.failed_loads, found.fetching, found.damaged_folders) == (1, 1, 0, 0)
    assert (found.host_bytes, found.disk_bytes) == (size, tier.state()["disk_bytes"])
    tier.close()
    small = Tier(world, quota=sum(file.size for file in first.files))
    assert isinstance(small.settle(world.upload(5)), Ready)
    assert small.counts().disk_evictions >= 1
    small.close()
