"""Guards of what docs/security.md promises."""

from __future__ import annotations

from tests.mutants.guard import Guard

ACCESS = "admin/lorry_admin/access.py"
GATEWAY = "platform/lorry/gateway"
REGISTRY = "platform/lorry/registry"
RESOURCES = "tests/security/test_resources.py"
SECRETS = "tests/security/test_secrets.py"
SECRETS_OF_PARTS = "tests/security/test_secrets_of_parts.py"
TRAVERSAL = "tests/security/test_traversal.py"
FLOOD = f"{RESOURCES}::test_a_flood_without_a_key_does_not_reach_the_database"

GUARDS = (
    Guard(
        "strangers_share_a_poll",
        ACCESS,
        "await (self._source.refresh() if self._known(key) else self._polled())",
        "await self._source.refresh()",
        (FLOOD,),
    ),
    Guard(
        "a_body_has_one_length",
        f"{GATEWAY}/http/exchange.py",
        'if self._header(b"transfer-encoding") is not None and self._header(b"content-length") is not None:',
        "if False:",
        (f"{RESOURCES}::test_what_two_servers_could_read_differently_is_refused",),
    ),
    Guard(
        "a_path_writes_one_line",
        f"{GATEWAY}/http/app.py",
        '_log.error("%a failed',
        '_log.error("%s failed',
        (f"{SECRETS}::test_what_a_path_can_write_into_the_log",),
    ),
    Guard(
        "counting_tokens_counts",
        f"{GATEWAY}/admission.py",
        "self.limits.take(caller.tenant, resolution.adapter_id)",
        "pass",
        (f"{RESOURCES}::test_counting_tokens_is_a_request_of_the_minutes",),
    ),
    Guard(
        "statements_hide_their_parameters",
        f"{REGISTRY}/db/engine.py",
        '== "postgresql", hide_parameters=True)',
        '== "postgresql")',
        (f"{SECRETS_OF_PARTS}::test_what_a_constraint_makes_it_say",),
    ),
    Guard(
        "a_prefix_is_a_path",
        f"{REGISTRY}/s3uris.py",
        "startswith(self.prefix)",
        "startswith(self.prefix[:-1])",
        (f"{TRAVERSAL}::test_only_the_tenants_own_prefixes_are_imported_from",),
    ),
    Guard(
        "a_link_in_the_spool_leads_nowhere",
        f"{REGISTRY}/adapters/uploads.py",
        "| os.O_NOFOLLOW",
        "",
        (f"{TRAVERSAL}::test_a_link_in_the_spool_leads_nowhere",),
    ),
)

__all__ = ["GUARDS"]
