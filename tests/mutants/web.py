"""Guards of the dashboards: whose form it is, whose page, what is kept, what is told."""

from __future__ import annotations

from tests.mutants.guard import Guard

WEB = "admin/lorry_admin/web"
GUARDS_TEST = "tests/integration/web/test_guards.py"
EXPIRED = "tests/integration/web/test_expired.py"
HOSTILE = "tests/integration/web/test_hostile.py"
KEPT = "tests/unit/web/test_kept.py"
LOGIN_LOG = "tests/integration/web/test_login_log.py"

GUARDS = (
    Guard(
        "a_form_of_another_site_is_refused",
        f"{WEB}/guard.py",
        '            if scope["method"] not in _SAFE and not same_site(headers, self._config):\n',
        "            if False:\n",
        (f"{GUARDS_TEST}::test_forms_of_other_sites_do_nothing",),
    ),
    Guard(
        "a_form_has_its_sessions_token",
        f"{WEB}/visits.py",
        "    return hmac.compare_digest(token.encode(), visit.session.csrf.encode())\n",
        "    return True\n",
        (f"{GUARDS_TEST}::test_a_form_with_another_token_does_nothing_and_is_not_lost[forged]",),
    ),
    Guard(
        "a_scripts_call_has_it_too",
        f"{WEB}/visits.py",
        '    require_token(visit, request.headers.get(CSRF_HEADER, ""))\n',
        "",
        (f"{GUARDS_TEST}::test_scripts_need_the_token_too",),
    ),
    Guard(
        "nobody_logs_a_visitor_in",
        f"{WEB}/pages/login.py",
        '    if not token or not hmac.compare_digest(token.encode(), form.values.get("csrf", "").encode()):\n',
        "    if False:\n",
        (f"{GUARDS_TEST}::test_login_needs_its_own_page",),
    ),
    Guard(
        "another_tenants_page_is_not_there",
        f"{WEB}/visits.py",
        "    if not is_part(visit.tenant) or not (visit.own or platform):\n",
        "    if False:\n",
        (f"{GUARDS_TEST}::test_another_tenants_pages_are_not_there",),
    ),
    Guard(
        "the_operators_pages_are_not_there_for_others",
        f"{WEB}/visits.py",
        '    if visit.request.url.path.startswith("/operator/") and not platform:\n',
        "    if False:\n",
        (f"{GUARDS_TEST}::test_another_tenants_pages_are_not_there",),
    ),
    Guard(
        "the_way_back_leads_nowhere_else",
        f"{WEB}/pages/login.py",
        '    return place if _LOCAL.fullmatch(place) else "/"\n',
        "    return place\n",
        (f"{GUARDS_TEST}::test_the_way_back_is_here",),
    ),
    Guard(
        "what_is_no_users_name_is_not_told",
        f"{WEB}/login_log.py",
        '    return (name, tenant) if is_part(name) and is_part(tenant) else ("", "")\n',
        "    return (name, tenant)\n",
        (f"{LOGIN_LOG}::test_what_is_no_name_is_not_told", f"{LOGIN_LOG}::test_who_is_named"),
    ),
    Guard(
        "a_password_typed_twice_is_not_told",
        f"{WEB}/pages/login.py",
        '    told = "" if username == password else username\n',
        "    told = username\n",
        (f"{LOGIN_LOG}::test_what_is_no_name_is_not_told",),
    ),
    Guard(
        "a_body_in_pieces_is_bounded",
        f"{WEB}/guard.py",
        "        if seen > most:\n",
        "        if False:\n",
        (f"{GUARDS_TEST}::test_bodies_are_bounded",),
    ),
    Guard(
        "an_unforeseen_error_tells_nothing",
        f"{WEB}/answers.py",
        "    return error_response(request, unforeseen(request.scope, error))\n",
        "    return Response(repr(error), 502)\n",
        (f"{GUARDS_TEST}::test_an_error_that_nobody_foresaw_tells_nothing",),
    ),
    Guard(
        "what_is_put_into_a_page_is_escaped",
        f"{WEB}/rendering.py",
        "        autoescape=True,\n",
        "        autoescape=False,\n",
        (f"{HOSTILE}::test_every_form",),
    ),
    Guard(
        "a_form_is_kept_when_its_session_ended",
        f"{WEB}/visits.py",
        "        raise SignedOut(keep(request.url.path, text.values.items(), is_multipart(request), most))\n",
        "        raise SignedOut\n",
        (f"{EXPIRED}::test_a_form_comes_back_filled_in_and_can_be_sent",),
    ),
    Guard(
        "no_password_is_kept",
        f"{WEB}/kept.py",
        "for name, value in fields if name not in SECRET)\n",
        "for name, value in fields)\n",
        (f"{KEPT}::test_secrets_are_not_kept", f"{EXPIRED}::test_no_password_is_kept"),
    ),
    Guard(
        "a_kept_form_goes_to_this_app",
        f"{WEB}/kept.py",
        '_ACTION = re.compile(r"/(?!/)[A-Za-z0-9/._@~-]{0,300}")\n',
        '_ACTION = re.compile(r".*")\n',
        (f"{KEPT}::test_only_this_apps_own_places",),
    ),
)

__all__ = ["GUARDS"]
