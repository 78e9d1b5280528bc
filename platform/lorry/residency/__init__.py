"""Which adapter versions this engine holds, where their bytes are, and which device slot they run from. No torch."""

from lorry.residency.departures import Cause, Departure
from lorry.residency.host import Failed, Fetching, HostState, HostTier, Ready, VersionRef
from lorry.residency.residency import AdapterState, Arrival, Placement, Residency
from lorry.residency.slots import Shortage, Slot, SlotTable

__all__ = [
    "AdapterState",
    "Arrival",
    "Cause",
    "Departure",
    "Failed",
    "Fetching",
    "HostState",
    "HostTier",
    "Placement",
    "Ready",
    "Residency",
    "Shortage",
    "Slot",
    "SlotTable",
    "VersionRef",
]
