"""A version is dropped from host memory and disk, whatever is under way, and can be brought anew."""

import threading
from pathlib import Path

from lorry.adapters.manifest import AdapterRef
from lorry.residency.host import Fetching, Ready
from tests.unit.adapters.tier_world import FILES, WAIT_S, Tier, World


def _size(world: World, ref: AdapterRef) -> int:
    return sum(file.stat().st_size for file in world.cached(ref).parent.iterdir())


def test_both_copies_go_and_nothing_else(tier: Tier, world: World) -> None:
    doomed, kept = world.upload(1), world.upload(2)
    for ref in (doomed, kept):
        tier.settle(ref)
    image, disk = tier.image(doomed.key).nbytes, _size(world, doomed)
    assert tier.sizes(doomed.key) == (image, disk)
    assert tier.forget(doomed.key) == (image, disk)
    assert tier.sizes(doomed.key) == tier.forget(doomed.key) == (0, 0)
    assert not world.cached(doomed).parent.exists()
    assert tier.tier_of(doomed.key) == "object_store"
    assert tier.tier_of(kept.key) == "host"
    assert tier.settle(doomed) == Ready(4)
    assert len(world.store.fetched) == 3 * FILES


def test_what_is_being_fetched_is_gone_when_it_has_come(tier: Tier, world: World) -> None:
    ref = world.upload(1)
    world.store.gate.clear()
    assert tier.ensure(ref) == Fetching()
    found: list[tuple[int, int]] = []
    forgetting = threading.Thread(target=lambda: found.append(tier.forget(ref.key)))
    forgetting.start()
    world.store.gate.set()
    forgetting.join(WAIT_S)
    assert len(found) == 1
    assert found[0][0] > 0
    assert tier.sizes(ref.key) == (0, 0)
    assert not world.cached(ref).parent.exists()


def test_a_reader_is_waited_for(world: World, tmp_path: Path) -> None:
    ref, disk = world.upload(1), world.disk()
    done = threading.Event()

    def forget() -> None:
        disk.forget(ref.key)
        done.set()

    with disk.open(ref) as folder:
        threading.Thread(target=forget).start()
        assert not done.wait(0.05)
        assert {file.path for file in ref.files} == {entry.name for entry in folder.iterdir()}
    assert done.wait(WAIT_S)
    assert disk.used_bytes == 0
