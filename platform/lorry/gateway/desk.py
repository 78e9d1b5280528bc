"""What operators and tenants may see of this gateway's requests."""

from __future__ import annotations

from collections.abc import Mapping

from lorry.gateway.calls import Calls
from lorry.gateway.limits import Limits
from lorry.gateway.live import LiveCalls
from lorry.ids import RequestId
from lorry.registry.fleet.desk import CalledAs, HeldRequest, RecentRequests


class GatewayDesk:
    """Made before the server, which binds it: until then there is nothing to see. Belongs to the server's loop."""

    def __init__(self) -> None:
        self.recent = RecentRequests()
        self._parts: tuple[Calls, LiveCalls, Limits] | None = None

    def bind(self, calls: Calls, live: LiveCalls, limits: Limits) -> None:
        self._parts = calls, live, limits

    def held(self) -> list[HeldRequest]:
        """What waits for its quota, the longest first."""
        if self._parts is None:
            return []
        calls, _, limits = self._parts
        found = []
        for request_id, wait in limits.waits().items():
            admitted = calls.entering.get(request_id)
            if admitted is not None:
                ref = admitted.resolution.ref
                found.append(
                    HeldRequest(
                        admitted.answer.request_id,
                        admitted.caller.tenant,
                        admitted.resolution.version_name,
                        None if ref is None else ref.digest,
                        wait.reason,
                        wait.seconds,
                        admitted.answer.prompt_tokens,
                    )
                )
        return found

    def called(self) -> Mapping[RequestId, CalledAs]:
        if self._parts is None:
            return {}
        return {
            call.relay.request_id: CalledAs(call.request_id, call.resolution.version_name) for call in self._parts[1]
        }


__all__ = ["GatewayDesk"]
