"""Disk and host tiers against a real directory store: one download each, nothing damaged served, nothing stale."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lorry.adapters.disk import DiskTier
from lorry.adapters.image import DeviceImage, image_builder
from lorry.adapters.manifest import AdapterFile, AdapterRef, files_digest, scan_directory
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.store import DirectoryStore
from lorry.adapters.tiers import HostTierStore, open_host_tier
from lorry.config import TierConfig
from lorry.errors import (
    AdapterDigestMismatch,
    AdapterLoadFailed,
    AdapterObjectMissing,
    Draining,
    ObjectStoreUnavailable,
)
from lorry.ids import AdapterDigest
from lorry.residency.host import Failed, Fetching, HostState, HostTier, Ready

from . import craft

FILES = 2
WAIT_S = 30


class CountingStore(DirectoryStore):
    """A real store that counts fetches by key and can hold them at a gate."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetched: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def fetch_to_sync(self, key: str, path: Path, expected_size: int, expected_sha256: str) -> None:
        self.fetched.append(key)
        assert self.gate.wait(WAIT_S)
        super().fetch_to_sync(key, path, expected_size, expected_sha256)


@dataclass(frozen=True)
class World:
    root: Path
    store: CountingStore

    def upload(self, seed: int, rank: int = 4, change: Callable[[Path], object] = lambda folder: None) -> AdapterRef:
        folder = craft.write_adapter(
            self.root / f"made-{seed}-{rank}", {**craft.CONFIG, "r": rank}, craft.tensors(rank, seed=seed)
        )
        change(folder)
        files = scan_directory(folder)
        ref = AdapterRef(files_digest(files), f"adapters/{seed}-{rank}", files)
        for file in files:
            self.store.put_file_sync(f"{ref.prefix}/{file.path}", folder / file.path)
        return ref

    def object(self, ref: AdapterRef, name: str = "adapter_model.safetensors") -> Path:
        return self.root / "store" / ref.prefix / name

    def cached(self, ref: AdapterRef, name: str = "adapter_model.safetensors") -> Path:
        return self.root / "cache" / ref.digest / name

    def disk(self, quota: int = 1 << 30) -> DiskTier:
        return DiskTier(self.root / "cache", quota, self.store)


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "store").mkdir()
    return World(tmp_path, CountingStore(tmp_path / "store"))


class Tier(HostTierStore[DeviceImage]):
    """Tells the test when a fetch ended, so that nothing sleeps."""

    def __init__(self, world: World, budget: int = 1 << 30, threads: int = 2, quota: int = 1 << 30) -> None:
        self.ended = threading.Semaphore(0)
        self.built: list[AdapterDigest] = []
        build = image_builder(craft.SPEC, torch.float32)

        def counted(folder: Path, plan: AdapterPlan, digest: AdapterDigest) -> DeviceImage:
            self.built.append(digest)
            return build(folder, plan, digest)

        super().__init__(
            world.disk(quota),
            craft.SPEC,
            counted,
            budget,
            threads=threads,
            on_change=self.ended.release,
        )

    def settle(self, ref: AdapterRef) -> HostState:
        """The first answer that is not Fetching."""
        while isinstance(state := self.ensure(ref), Fetching):
            assert self.ended.acquire(timeout=WAIT_S)
        return state

    def failure(self, ref: AdapterRef) -> Exception:
        state = self.settle(ref)
        assert isinstance(state, Failed)
        return state.error


@pytest.fixture
def tier(world: World) -> Iterator[Tier]:
    found = Tier(world)
    yield found
    world.store.gate.set()
    found.close()
    found.check_integrity()


def image_bytes(world: World, ref: AdapterRef) -> int:
    tier = Tier(world)
    tier.settle(ref)
    tier.close()
    return tier.image(ref.digest).nbytes


def test_it_is_what_residency_asks_for(tier: Tier, world: World) -> None:
    host: HostTier[AdapterRef] = tier
    ref = world.upload(1)
    assert host.tier_of(ref.digest) == "object_store"
    assert host.ensure(ref) == Fetching()
    assert tier.settle(ref) == Ready(4)
    assert host.tier_of(ref.digest) == "host"
    image = tier.image(ref.digest)
    assert (image.digest, image.rank) == (ref.digest, 4)
    assert image.intact()


def test_from_disk_after_a_restart(world: World) -> None:
    ref = world.upload(1)
    first = Tier(world)
    first.settle(ref)
    first.close()
    second = Tier(world)
    assert second.tier_of(ref.digest) == "disk"
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
    assert not disk.has(ref.digest)
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
    assert tier.tier_of(ref.digest) == "object_store"
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
    assert tier.image(old.digest).checksum != tier.image(new.digest).checksum
    assert tier.image(new.digest).digest == new.digest


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
        world.disk().open(AdapterRef(files_digest(files), "p", files)),
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


def test_disk_quota_drops_the_least_recently_opened(world: World) -> None:
    refs = [world.upload(seed) for seed in range(3)]
    size = sum(file.size for file in refs[0].files)
    disk = world.disk(quota=2 * size + 64)
    for ref in (refs[0], refs[1], refs[0], refs[2]):
        with disk.open(ref):
            pass
    assert [disk.has(ref.digest) for ref in refs] == [True, False, True]
    assert not world.cached(refs[1]).exists()
    assert disk.used_bytes <= 2 * size + 64
    again = world.disk(quota=2 * size + 64)
    assert [again.has(ref.digest) for ref in refs] == [True, False, True]


def test_a_folder_that_is_read_is_not_dropped(world: World) -> None:
    one, two = world.upload(1), world.upload(2)
    disk = world.disk(quota=sum(file.size for file in one.files) + 64)
    with disk.open(one) as folder:
        with pytest.raises(AdapterLoadFailed, match=r"tiers\.disk_bytes"), disk.open(two):
            pass
        assert folder.exists()
    with disk.open(two):
        assert not folder.exists()


def test_host_budget_drops_the_least_recently_asked_for(world: World) -> None:
    refs = [world.upload(seed) for seed in range(3)]
    size = image_bytes(world, refs[0])
    tier = Tier(world, budget=2 * size)
    for ref in (refs[0], refs[1], refs[0], refs[2]):
        tier.settle(ref)
    assert [tier.tier_of(ref.digest) for ref in refs] == ["host", "disk", "host"]
    with pytest.raises(AdapterLoadFailed, match="not in host memory"):
        tier.image(refs[1].digest)
    tier.close()
    tier.check_integrity()


def test_a_retained_image_stays_and_the_next_waits_for_its_release(world: World) -> None:
    one, two = world.upload(1), world.upload(2)
    tier = Tier(world, budget=image_bytes(world, one))
    tier.retain(one.digest)
    tier.settle(one)
    tier.retain(two.digest)
    assert tier.ensure(two) == Fetching()
    assert tier.ended.acquire(timeout=WAIT_S)
    assert tier.ensure(two) == Fetching()
    assert tier.ensure(one) == Ready(4)
    assert tier.state()["waiting_for_room"] == [two.digest]
    tier.release(one.digest)
    assert tier.settle(two) == Ready(4)
    assert tier.tier_of(one.digest) == "disk"
    tier.close()
    tier.check_integrity()


def test_a_request_that_gives_up_waiting_for_room_leaves_the_line(world: World) -> None:
    one, two = world.upload(1), world.upload(2)
    tier = Tier(world, budget=image_bytes(world, one))
    tier.retain(one.digest)
    tier.settle(one)
    tier.retain(two.digest)
    tier.ensure(two)
    assert tier.ended.acquire(timeout=WAIT_S)
    tier.release(two.digest)
    assert tier.state()["waiting_for_room"] == []
    assert tier.ensure(one) == Ready(4)
    tier.close()


def test_an_image_larger_than_the_whole_budget_is_refused(world: World) -> None:
    ref = world.upload(1)
    tier = Tier(world, budget=100)
    error = tier.failure(ref)
    assert isinstance(error, AdapterLoadFailed)
    assert "tiers.host_bytes" in str(error)
    tier.close()


def test_closed(world: World) -> None:
    tier = Tier(world)
    tier.close()
    tier.close()
    assert isinstance(tier.failure(world.upload(1)), Draining)


def test_an_unforeseen_error_is_one_failed_adapter(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def build(folder: Path, plan: AdapterPlan, digest: AdapterDigest) -> DeviceImage:
        raise ZeroDivisionError("planted")

    ended = threading.Semaphore(0)
    tier = HostTierStore(world.disk(), craft.SPEC, build, 1 << 30, on_change=ended.release)
    ref = world.upload(1)
    tier.ensure(ref)
    assert ended.acquire(timeout=WAIT_S)
    state = tier.ensure(ref)
    assert isinstance(state, Failed)
    assert "ZeroDivisionError" in str(state.error)
    tier.close()
    assert "loading failed" in caplog.text


def test_from_configuration(world: World) -> None:
    config = TierConfig(cache_dir=world.root / "home", fetch_threads=1)
    tier = open_host_tier(config, world.store, craft.SPEC, image_builder(craft.SPEC, torch.float32))
    ref = world.upload(1)
    tier.ensure(ref)
    tier.close()
    assert (world.root / "home" / "adapters" / ref.digest / "adapter_config.json").exists()


def test_many_threads_and_versions_under_a_short_budget(world: World) -> None:
    """Whoever retains a Ready version gets its image, and it is that version's, whatever else comes and goes."""
    refs = [world.upload(seed, rank=1 + seed % 3) for seed in range(8)]
    sums: dict[AdapterDigest, str] = {}
    for ref in refs:
        alone = Tier(world)
        alone.settle(ref)
        sums[ref.digest] = alone.image(ref.digest).checksum
        alone.close()
    largest = max(image_bytes(world, ref) for ref in refs)
    tier = Tier(world, budget=3 * largest, threads=3, quota=4 * sum(f.size for f in refs[2].files))
    changed = threading.Condition()

    def wake() -> None:
        with changed:
            changed.notify_all()

    tier._on_change = wake
    free = {ref.digest: threading.Lock() for ref in refs}

    def user(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(15):
            ref = refs[int(draw.integers(len(refs)))]
            with free[ref.digest]:  # residency retains a digest at most once
                tier.retain(ref.digest)
                with changed:
                    while isinstance(state := tier.ensure(ref), Fetching):
                        assert changed.wait(WAIT_S)
                assert isinstance(state, Ready)
                assert tier.image(ref.digest).checksum == sums[ref.digest]
                tier.release(ref.digest)

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(user, seed) for seed in range(3)]:
            future.result()
    tier.close()
    tier.check_integrity()
