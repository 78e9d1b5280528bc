"""Guards of connections: TLS on both ports, renewals, keepalive, and secrets that belong to a registry."""

from __future__ import annotations

from tests.mutants.guard import Guard

GATEWAY = "platform/lorry/gateway"
TLS = "tests/integration/gateway/test_tls.py"
CONNECTIONS = "tests/integration/gateway/test_connections.py"
FAULTS = "tests/integration/gateway/test_faults.py"
FEED = "tests/unit/edges/test_engine_feed.py"
MTLS = f"{TLS}::test_mtls_decides_who_may_connect"

GUARDS = (
    Guard("mtls_on_http", f"{GATEWAY}/tls.py", "context.verify_mode = ssl.CERT_REQUIRED", "pass", (MTLS,)),
    Guard(
        "mtls_on_grpc",
        f"{GATEWAY}/tls.py",
        "self._renewed_for_grpc, self._config.mutual",
        "self._renewed_for_grpc, False",
        (MTLS,),
    ),
    Guard(
        "renewals_on_http",
        f"{GATEWAY}/tls.py",
        "connection.context = self._newest().context",
        "self._newest()",
        (f"{TLS}::test_a_renewal_is_taken_up_and_what_was_trusted_before_is_not",),
    ),
    Guard(
        "files_are_of_one_moment",
        f"{GATEWAY}/tls.py",
        "if _read_all(config) == files:",
        "if True:",
        ("tests/unit/gateway/test_tls_files.py::test_files_that_change_while_they_are_read_are_read_again",),
    ),
    Guard(
        "no_plaintext_beside_tls",
        f"{GATEWAY}/server.py",
        "server.add_secure_port(address, tls.grpc_credentials())",
        "server.add_insecure_port(address)",
        (f"{TLS}::test_tls_alone_asks_for_no_certificate_and_serves_no_plaintext",),
    ),
    Guard(
        "own_pings_are_rare",
        "platform/lorry/client/channels.py",
        "KEEPALIVE_S = 60.0",
        "KEEPALIVE_S = 15.0",
        (f"{CONNECTIONS}::test_the_clients_own_pings_are_rare_enough_by_far",),
    ),
    Guard(
        "a_pepper_belongs_to_its_registry",
        "platform/lorry/registry/external.py",
        "if made_with and not made_with & ours:",
        "if False:",
        ("tests/unit/cli/test_elsewhere.py::test_another_pepper_is_found_out_and_a_rotated_one_is_not",),
    ),
    Guard(
        "calls_that_nobody_took_yet_are_kept",
        f"{GATEWAY}/transport.py",
        '        ("grpc.server.max_pending_requests", PENDING),\n'
        '        ("grpc.server.max_pending_requests_hard_limit", PENDING),\n',
        "",
        (f"{CONNECTIONS}::test_calls_that_nobody_takes_for_a_while_are_all_answered",),
    ),
    Guard(
        "who_is_cut_hears_why",
        f"{GATEWAY}/service.py",
        "if error is not None and self._told is None:",
        "if False:",
        (f"{FAULTS}::test_a_client_that_does_not_read_is_cut_and_bills_what_it_was_handed",),
    ),
    Guard(
        "nothing_comes_after_a_stop",
        "platform/lorry/engine/transport_link.py",
        "            if self.open:\n                self._sink.event(event)",
        "            if True:\n                self._sink.event(event)",
        (f"{FEED}::test_nothing_comes_after_a_stop_from_within",),
    ),
)

__all__ = ["GUARDS"]
