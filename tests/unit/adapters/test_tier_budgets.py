"""Disk and host tiers within their budgets, and at their end."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from lorry.adapters.image.build import DeviceImage, image_builder
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.tiers import HostTierStore, open_host_tier
from lorry.config import TierConfig
from lorry.errors import (
    AdapterLoadFailed,
    Draining,
)
from lorry.ids import AdapterDigest
from lorry.residency.host import Failed, Fetching, Ready
from tests.unit.adapters.tier_world import WAIT_S, Tier, World, image_bytes

from . import craft


def test_disk_quota_drops_the_least_recently_opened(world: World) -> None:
    refs = [world.upload(seed) for seed in range(3)]
    size = sum(file.size for file in refs[0].files)
    disk = world.disk(quota=2 * size + 64)
    for ref in (refs[0], refs[1], refs[0], refs[2]):
        with disk.open(ref):
            pass
    assert [disk.has(ref.key) for ref in refs] == [True, False, True]
    assert not world.cached(refs[1]).exists()
    assert disk.used_bytes <= 2 * size + 64
    again = world.disk(quota=2 * size + 64)
    assert [again.has(ref.key) for ref in refs] == [True, False, True]


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
    assert [tier.tier_of(ref.key) for ref in refs] == ["host", "disk", "host"]
    with pytest.raises(AdapterLoadFailed, match="not in host memory"):
        tier.image(refs[1].key)
    tier.close()
    tier.check_integrity()


def test_a_retained_image_stays_and_the_next_waits_for_its_release(world: World) -> None:
    one, two = world.upload(1), world.upload(2)
    tier = Tier(world, budget=image_bytes(world, one))
    tier.retain(one.key)
    tier.settle(one)
    tier.retain(two.key)
    assert tier.ensure(two) == Fetching()
    assert tier.ended.acquire(timeout=WAIT_S)
    assert tier.ensure(two) == Fetching()
    assert tier.ensure(one) == Ready(4)
    assert tier.state()["waiting_for_room"] == [two.key]
    tier.release(one.key)
    assert tier.settle(two) == Ready(4)
    assert tier.tier_of(one.key) == "disk"
    tier.close()
    tier.check_integrity()


def test_a_request_that_gives_up_waiting_for_room_leaves_the_line(world: World) -> None:
    one, two = world.upload(1), world.upload(2)
    tier = Tier(world, budget=image_bytes(world, one))
    tier.retain(one.key)
    tier.settle(one)
    tier.retain(two.key)
    tier.ensure(two)
    assert tier.ended.acquire(timeout=WAIT_S)
    tier.release(two.key)
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
    assert (world.root / "home" / "adapters" / f"{ref.digest}.{ref.scope}" / "adapter_config.json").exists()


def test_many_threads_and_versions_under_a_short_budget(world: World) -> None:
    """Whoever retains a Ready version gets its image, and it is that version's, whatever else comes and goes."""
    refs = [world.upload(seed, rank=1 + seed % 3) for seed in range(8)]
    sums: dict[AdapterDigest, str] = {}
    for ref in refs:
        alone = Tier(world)
        alone.settle(ref)
        sums[ref.digest] = alone.image(ref.key).checksum
        alone.close()
    largest = max(image_bytes(world, ref) for ref in refs)
    tier = Tier(world, budget=3 * largest, threads=3, quota=4 * sum(f.size for f in refs[2].files))
    changed = threading.Condition()

    def wake() -> None:
        with changed:
            changed.notify_all()

    tier._on_change = wake
    free = {ref.key: threading.Lock() for ref in refs}

    def user(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(15):
            ref = refs[int(draw.integers(len(refs)))]
            with free[ref.key]:  # residency retains a version at most once
                tier.retain(ref.key)
                with changed:
                    while isinstance(state := tier.ensure(ref), Fetching):
                        assert changed.wait(WAIT_S)
                assert isinstance(state, Ready)
                assert tier.image(ref.key).checksum == sums[ref.digest]
                tier.release(ref.key)

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(user, seed) for seed in range(3)]:
            future.result()
    tier.close()
    tier.check_integrity()
