"""Equal bytes of two adapters: two copies, from the disk up, and none of them tells of the other."""

import shutil
from dataclasses import replace

import pytest

from lorry.adapters.manifest import AdapterRef
from lorry.errors import AdapterDigestMismatch, AdapterLoadFailed
from lorry.ids import AdapterScope
from lorry.residency.host import Failed, Fetching, Ready
from tests.unit.adapters.tier_world import FILES, WAIT_S, Tier, World


def two(world: World) -> tuple[AdapterRef, AdapterRef]:
    ours = world.upload(1)
    theirs = replace(ours, scope=AdapterScope("a_theirs"))
    assert (ours.digest, ours.prefix, ours.files) == (theirs.digest, theirs.prefix, theirs.files)
    return ours, theirs


def test_each_is_fetched_for_itself_and_dropped_for_itself(tier: Tier, world: World) -> None:
    ours, theirs = two(world)
    assert tier.settle(theirs) == Ready(4)
    assert (tier.tier_of(theirs.key), tier.tier_of(ours.key)) == ("host", "object_store")
    assert tier.sizes(ours.key) == tier.forget(ours.key) == (0, 0)
    assert tier.ensure(ours) == Fetching()
    assert tier.settle(ours) == Ready(4)
    assert len(world.store.fetched) == 2 * FILES
    assert tier.built == [ours.digest] * 2
    assert tier.image(ours.key) is not tier.image(theirs.key)
    tier.discard(theirs.key)
    assert (tier.tier_of(theirs.key), tier.tier_of(ours.key)) == ("disk", "host")
    sizes = tier.sizes(ours.key)
    assert tier.forget(ours.key) == sizes
    assert min(sizes) > 0
    assert (tier.tier_of(theirs.key), tier.tier_of(ours.key)) == ("disk", "object_store")
    tier.check_integrity()


def test_a_copy_that_is_retained_keeps_no_other(world: World) -> None:
    ours, theirs = two(world)
    image = Tier(world)
    image.settle(ours)
    size = image.image(ours.key).nbytes
    image.close()
    tier = Tier(world, budget=size)
    tier.settle(ours)
    tier.retain(theirs.key)
    tier.settle(theirs)
    assert tier.tier_of(ours.key) == "disk", "nobody retains it"
    assert tier.state()["host"] == tier.state()["retained"] == [theirs.key]
    tier.close()


def test_a_fetch_under_way_is_one_adapters(tier: Tier, world: World) -> None:
    ours, theirs = two(world)
    world.store.gate.clear()
    assert tier.ensure(theirs) == Fetching()
    assert tier.forget(ours.key) == (0, 0), "it does not wait for theirs"
    assert tier.ensure(ours) == Fetching()
    world.store.gate.set()
    assert tier.settle(theirs) == tier.settle(ours) == Ready(4)
    assert len(world.store.fetched) == 2 * FILES


def test_a_failure_is_told_to_whose_it_is(tier: Tier, world: World) -> None:
    ours, theirs = two(world)
    path = world.object(theirs)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert tier.ensure(theirs) == Fetching()
    assert tier.ended.acquire(timeout=WAIT_S)
    path.write_bytes(good)
    assert tier.settle(ours) == Ready(4)
    state = tier.ensure(theirs)
    assert isinstance(state, Failed)
    assert isinstance(state.error, AdapterDigestMismatch)


def test_a_damaged_folder_is_one_adapters(world: World) -> None:
    ours, theirs = two(world)
    disk = world.disk()
    for ref in (ours, theirs):
        with disk.open(ref):
            pass
    world.cached(theirs).write_bytes(b"damaged")
    with disk.open(ours) as folder:
        assert folder == world.cached(ours).parent
    assert (disk.damaged, len(world.store.fetched)) == (0, 2 * FILES)
    with disk.open(theirs):
        pass
    assert (disk.damaged, len(world.store.fetched)) == (1, 3 * FILES)


def test_both_are_known_after_a_restart(world: World) -> None:
    ours, theirs = two(world)
    for ref in (ours, theirs):
        with world.disk().open(ref):
            pass
    again = world.disk()
    assert again.bytes_of(ours.key) == again.bytes_of(theirs.key) > 0
    assert again.forget(theirs.key) > 0
    assert (world.disk().has(ours.key), world.disk().has(theirs.key)) == (True, False)


def test_a_folder_of_a_release_without_scopes_is_swept_away(world: World) -> None:
    """It is nobody's: served, it would tell that somebody had the bytes."""
    ours, _ = two(world)
    with world.disk().open(ours) as folder:
        older = folder.with_name(ours.digest)
        shutil.copytree(folder, older)
    shutil.rmtree(folder)
    disk = world.disk()
    assert not older.exists()
    assert (disk.used_bytes, disk.has(ours.key)) == (0, False)


@pytest.mark.parametrize("scope", ["", ".", "..", "../../elsewhere", "a/b", "A_1", "a_1\n", "a" * 65, "a.b"])
def test_a_scope_that_is_no_id_is_refused(world: World, scope: str) -> None:
    ours, _ = two(world)
    with (
        pytest.raises(AdapterLoadFailed, match="scope"),
        world.disk().open(replace(ours, scope=AdapterScope(scope))),
    ):
        pass
    assert list((world.root / "cache").iterdir()) == []
