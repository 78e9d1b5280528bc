"""Guards of logins, sessions and user tokens: what is told, what is counted, what ends."""

from __future__ import annotations

from tests.mutants.guard import Guard

REGISTRY = "platform/lorry/registry"
SERVICE = f"{REGISTRY}/accounts/service.py"
USERS = f"{REGISTRY}/accounts/users.py"
TOKENS = f"{REGISTRY}/usertokens.py"
SNAPSHOT = f"{REGISTRY}/snapshot.py"
LIVE = "platform/lorry/gateway/live.py"
ADMISSION = "platform/lorry/gateway/admission.py"

UNIT = "tests/unit/registry/accounts"
OF_LOGINS, OF_SESSIONS, OF_USERS = (f"{UNIT}/test_{name}.py" for name in ("logins", "sessions", "users"))
RULES = f"{UNIT}/test_rules.py"
GATEWAY = "tests/integration/gateway/test_user_tokens.py"

GUARDS = (
    Guard(
        "an_attempt_is_counted_before_its_password_is_looked_at",
        SERVICE,
        "                await repository.put_counts(session, counts)\n                found =",
        "                found =",
        (f"{OF_LOGINS}::test_guesses_at_once_in_two_processes_are_all_counted[sqlite]",),
    ),
    Guard(
        "counts_are_locked_while_they_are_counted",
        f"{REGISTRY}/accounts/repository.py",
        "query.with_for_update().execution_options(populate_existing=True)",
        "query.execution_options(populate_existing=True)",
        (f"{OF_LOGINS}::test_guesses_at_once_in_two_processes_are_all_counted[postgresql]",),
    ),
    Guard(
        "a_locked_user_is_not_let_in_by_its_password",
        SERVICE,
        "                _refuse_locked(counts, now)\n                counts =",
        "                counts =",
        (f"{OF_LOGINS}::test_guesses_lock_users_that_are_there_and_that_are_not_alike[sqlite]",),
    ),
    Guard(
        "a_login_that_races_a_change_does_not_slip_through",
        SERVICE,
        "found is None or found.login.revision != shown.login.revision or found.tenant.suspended",
        "found is None or found.tenant.suspended",
        (f"{OF_LOGINS}::test_a_login_that_races_a_change_does_not_slip_through[sqlite]",),
    ),
    Guard(
        "a_disabled_user_does_not_log_in",
        SERVICE,
        "found is None or not known or found.login.disabled or found.tenant.suspended",
        "found is None or not known or found.tenant.suspended",
        (f"{OF_LOGINS}::test_refusals_say_the_same_whoever_it_is[sqlite]",),
    ),
    Guard(
        "who_is_disabled_is_logged_out_for_good",
        USERS,
        "                done = [*done, *await self._log_out(session, row.id, now)]\n",
        "",
        (f"{OF_USERS}::test_who_is_disabled_is_out_and_stays_out_of_old_sessions[sqlite]",),
    ),
    Guard(
        "a_role_holds_for_the_principals_keys",
        USERS,
        "                done = [Change(Kind.API_KEY, key) for key in keys]\n",
        "",
        (f"{OF_USERS}::test_a_role_holds_at_once_for_sessions_tokens_and_keys[sqlite]",),
    ),
    Guard(
        "a_stranger_ends_no_session",
        USERS,
        "            tenant = verify_tenant(caller, TenantId(whose.tenant.id))\n",
        "            tenant = verify_tenant(_Own(TenantId(whose.tenant.id)), TenantId(whose.tenant.id))\n",
        (f"{OF_SESSIONS}::test_sessions_are_seen_and_ended_by_who_may[sqlite]",),
    ),
    Guard(
        "an_idle_session_has_ended",
        SERVICE,
        "live = row.ended_at is None and time < row.expires_at and time - row.seen_at < IDLE",
        "live = row.ended_at is None and time < row.expires_at",
        (f"{OF_SESSIONS}::test_a_session_ends_when_idle_and_when_old[sqlite]",),
    ),
    Guard(
        "a_token_is_compared_with_its_mac",
        TOKENS,
        "    if not hmac.compare_digest(_mac(pepper, payload), given) or found is None:\n",
        "    if found is None:\n",
        (f"{RULES}::test_no_claims_without_the_key",),
    ),
    Guard(
        "a_token_is_for_a_minute",
        TOKENS,
        "    return claims if begun or claims.expires_at > now else None\n",
        "    return claims\n",
        (
            f"{OF_SESSIONS}::test_tokens_live_for_a_minute[sqlite]",
            f"{RULES}::test_a_token_says_what_it_was_made_of_for_a_minute",
        ),
    ),
    Guard(
        "no_token_of_a_clock_that_is_far_ahead",
        TOKENS,
        " or claims.expires_at > now + TOKEN_S + SKEW_S:\n",
        ":\n",
        (f"{RULES}::test_a_token_says_what_it_was_made_of_for_a_minute",),
    ),
    Guard(
        "a_token_of_an_ended_session_is_refused",
        SNAPSHOT,
        "        if claims is None or claims.session in self.tables.sessions:\n",
        "        if claims is None:\n",
        (
            f"{OF_SESSIONS}::test_a_session_from_login_to_logout[sqlite]",
            f"{GATEWAY}::test_what_is_taken_back_cuts_live_streams",
        ),
    ),
    Guard(
        "a_token_has_the_role_that_its_user_has_now",
        SNAPSHOT,
        "role = claims.role if changed is None else changed.role",
        "role = claims.role",
        (f"{OF_USERS}::test_a_role_holds_at_once_for_sessions_tokens_and_keys[sqlite]",),
    ),
    Guard(
        "a_viewer_does_not_generate",
        ADMISSION,
        '        require(caller, "generate")\n',
        "",
        (f"{GATEWAY}::test_a_viewer_reads_and_does_not_generate",),
    ),
    Guard(
        "who_becomes_a_viewer_is_cut",
        LIVE,
        '    require(caller, "generate")\n',
        "",
        (f"{GATEWAY}::test_what_is_taken_back_cuts_live_streams",),
    ),
    Guard(
        "a_stream_outlives_its_token",
        LIVE,
        "snapshot.authenticate(call.api_key, now, begun=True)",
        "snapshot.authenticate(call.api_key, now)",
        (f"{GATEWAY}::test_a_stream_outlives_its_token_but_not_its_session",),
    ),
)

__all__ = ["GUARDS"]
