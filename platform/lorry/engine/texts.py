"""The text sides of the adapters on the device."""

from __future__ import annotations

from lorry.engine.choices import TextOf
from lorry.errors import LorryError
from lorry.ids import AdapterKey, SlotId
from lorry.scheduler.plan import StepPlan, StepResult
from lorry.text import Tokenizer


class LoadedTexts:
    """Kept from the load of a slot until it is emptied or filled anew: a slot may outlast its version's copy in host
    memory, which nobody retains while nobody holds the version, and then the next request runs without a fetch.

    Belongs to the step loop's thread.
    """

    def __init__(self, host: TextOf) -> None:
        """``host`` raises AdapterLoadFailed for a version that is not in host memory."""
        self._host = host
        self._slots: dict[SlotId, tuple[AdapterKey, Tokenizer | None]] = {}

    def note(self, plan: StepPlan, result: StepResult) -> None:
        """After each step, while those that its loads were for still hold their versions."""
        for slot in plan.unloads:
            self._slots.pop(slot, None)
        failed = {slot for slot, _ in result.failed_loads}
        for load in plan.loads:
            self._slots.pop(load.slot, None)
            if load.slot in failed:
                continue
            try:
                self._slots[load.slot] = load.adapter, self._host(load.adapter)
            except LorryError:
                continue  # whose call needs it asks again, and hears of it

    def __call__(self, adapter: AdapterKey) -> Tokenizer | None:
        """None where it is the base's. Raises AdapterLoadFailed where the version is neither loaded nor on the host."""
        for loaded, text in self._slots.values():
            if loaded == adapter:
                return text
        return self._host(adapter)


__all__ = ["LoadedTexts"]
