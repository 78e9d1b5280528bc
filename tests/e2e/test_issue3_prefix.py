"""The prefix cache on a model whose answers show every page they were computed from: who hits, who does not, and that
an answer is the same to the last digit of its logprobs' tolerance whether it hit or not."""

from __future__ import annotations

import asyncio

import pytest

from lorry.api.v1 import generate_pb2 as pb
from tests.e2e.calls import Answer
from tests.e2e.random_base import BASE, PAGE, Lab, Oracle, ask_ids, close, ids_of
from tests.e2e.world import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="package")

OUTPUT = 24


async def right(lab: Lab, tenant: Tenant, model: str, oracle: Oracle, ids: list[int], scope: str = "") -> Answer:
    """A greedy answer with logprobs, judged by transformers, its bill included."""
    output = pb.OutputParams(top_logprobs=1)
    answer = await lab.run(ask_ids(model, ids, OUTPUT, output=output, cache_scope=scope), tenant)
    rows = oracle.logprobs([*ids, *answer.ids])[len(ids) - 1 : -1]
    assert answer.ids == rows.argmax(-1).tolist()
    for one, row in zip(answer.choices[0].logprobs, rows, strict=True):
        assert close(one.logprob, float(row[one.token_id]))
    bill = await lab.usage(answer.usage.ledger_id)
    assert bill["cached_prompt_tokens"] == answer.usage.cached_prompt_tokens
    assert bill["prompt_tokens"] == answer.usage.prompt_tokens == len(ids), "what was cached is counted all the same"
    return answer


async def cached(lab: Lab, tenant: Tenant, model: str, oracle: Oracle, ids: list[int], scope: str = "") -> int:
    return (await right(lab, tenant, model, oracle, ids, scope)).usage.cached_prompt_tokens


async def test_the_same_tenant_hits_and_one_changed_id_does_not(lab: Lab) -> None:
    for model, oracle in ((BASE, lab.base), (lab.shared, lab.tuned)):
        ids = ids_of("hit", model)
        assert await cached(lab, lab.acme, model, oracle, ids) == 0
        assert await cached(lab, lab.acme, model, oracle, ids) == 4 * PAGE
        for at in range(0, len(ids), 9):
            changed = [*ids[:at], (ids[at] + 1) % 250, *ids[at + 1 :]]
            assert await cached(lab, lab.acme, model, oracle, changed) == at // PAGE * PAGE, at


async def test_a_prompt_of_whole_pages_computes_its_last_token(lab: Lab) -> None:
    for length in (PAGE, PAGE + 1, 4 * PAGE):
        ids = ids_of("whole", length, length=length)
        assert await cached(lab, lab.acme, BASE, lab.base, ids) == 0
        hit = await cached(lab, lab.acme, BASE, lab.base, ids)
        assert (length - 1) // PAGE * PAGE <= hit < length
    assert await cached(lab, lab.acme, BASE, lab.base, [3]) == 0
    assert await cached(lab, lab.acme, BASE, lab.base, [3]) == 0


async def test_another_tenant_with_the_same_adapter_by_grant_does_not(lab: Lab) -> None:
    """Nor on the base; and each then finds its own."""
    for model, oracle in ((BASE, lab.base), (lab.shared, lab.tuned)):
        ids = ids_of("tenants", model)
        assert await cached(lab, lab.acme, model, oracle, ids) == 0
        assert await cached(lab, lab.guest, model, oracle, ids) == 0
        assert await cached(lab, lab.guest, model, oracle, ids) == 4 * PAGE
        assert await cached(lab, lab.acme, model, oracle, ids) == 4 * PAGE


async def test_base_and_versions_and_adapters_do_not_meet(lab: Lab) -> None:
    """One version's pages are no other's, under whatever name; the name that moves on finds its own version's."""
    ids = ids_of("versions")
    mine = await lab.world.adapter(lab.acme, "mine")
    first = await lab.push(mine, 0)
    await lab.world.settle()
    assert await cached(lab, lab.acme, BASE, lab.base, ids) == 0
    assert await cached(lab, lab.acme, mine, lab.tuned, ids) == 0
    assert await cached(lab, lab.acme, mine, lab.tuned, ids) == 4 * PAGE
    second = await lab.push(mine, 1)
    await lab.world.settle()
    assert await cached(lab, lab.acme, mine, lab.tuned_again, ids) == 0
    assert await cached(lab, lab.acme, second, lab.tuned_again, ids) == 4 * PAGE
    assert await cached(lab, lab.acme, first, lab.tuned, ids) == 4 * PAGE
    assert await cached(lab, lab.acme, BASE, lab.base, ids) == 4 * PAGE


async def test_another_scope_does_not(lab: Lab) -> None:
    ids = ids_of("scopes")
    scopes = ["", "user-1", "user-2", "user-1 ", "USER-1"]
    assert [await cached(lab, lab.acme, BASE, lab.base, ids, scope) for scope in scopes] == [0] * len(scopes)
    assert [await cached(lab, lab.acme, BASE, lab.base, ids, scope) for scope in scopes] == [4 * PAGE] * len(scopes)


async def test_what_was_generated_is_no_trap_for_the_next_turn(lab: Lab) -> None:
    """The next turn's prompt holds the last one's answer: however much of it is found, the answer is right. One whose
    answer was drawn and penalised, in several choices, leaves nothing wrong behind."""
    ids = ids_of("turns")
    for turn in range(3):
        answer = await right(lab, lab.acme, lab.shared, lab.tuned, ids)
        assert answer.usage.cached_prompt_tokens >= (turn > 0) * 4 * PAGE
        drawn = pb.SamplingParams(temperature=1.5, n=3, presence_penalty=1, seed=turn)
        await lab.run(ask_ids(lab.shared, [*ids, *answer.ids], OUTPUT, sampling=drawn))
        ids = [*ids, *answer.ids, *ids_of("turn", turn, length=5)]


async def test_requests_at_once_share_one_prompt(lab: Lab) -> None:
    """Twelve with one new prompt, of two tenants, in one batch, some of several choices: each gets its own answer."""
    ids = ids_of("at once", length=10 * PAGE)
    asks = [[*ids[: len(ids) - i], *ids_of("tail", i, length=i)] for i in range(6)]
    output = pb.OutputParams(top_logprobs=0)

    async def one(tenant: Tenant, own: list[int], n: int) -> None:
        sampling = pb.SamplingParams(temperature=0, n=n)
        answer = await lab.run(ask_ids(lab.shared, own, OUTPUT, output=output, sampling=sampling), tenant)
        assert answer.usage.cached_prompt_tokens < len(own)
        rows = lab.tuned.logprobs([*own, *answer.ids])[len(own) - 1 : -1]
        assert [choice.ids for choice in answer.choices] == [rows.argmax(-1).tolist()] * n

    await asyncio.gather(*(one(who, own, 1 + i % 3) for who in (lab.acme, lab.guest) for i, own in enumerate(asks)))


async def test_prompts_in_words_and_chats_hit_too(lab: Lab) -> None:
    words = "It is a truth universally acknowledged, that a single man in possession of a good fortune"
    for fields in ({"prompt": words}, {"chat": pb.Chat(messages=[pb.ChatMessage(role="user", content=words)])}):
        request = ask_ids(BASE, [], OUTPUT)
        request.MergeFrom(pb.GenerateRequest(**fields))
        first, second = [await lab.run(request) for _ in range(2)]
        assert first.usage.cached_prompt_tokens == 0
        assert second.usage.cached_prompt_tokens == (second.usage.prompt_tokens - 1) // PAGE * PAGE > 0
        assert second.ids == first.ids
        assert second.text == first.text
