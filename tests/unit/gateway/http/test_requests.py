"""Every field of OpenAI's requests: served, refused by name as not served, known to be harmless, or unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import InvalidRequest, NotServedYet
from lorry.gateway.http.requests import Wanted, read_chat, read_completion
from lorry.gateway.http.served import CHAT, COMPLETIONS

HELLO = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Wanted:
    return read_chat({"model": "m", "messages": HELLO, **fields}, "r")


def completion(**fields: Any) -> Wanted:
    return read_completion({"model": "m", "prompt": "hi", **fields}, "r")


def fields_of(error: InvalidRequest) -> list[str]:
    return [one.field for one in error.violations]


def test_every_served_field_of_a_chat() -> None:
    wanted = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None},
        ],
        temperature=0.5,
        top_p=1,
        n=3,
        seed=-1,
        stop="x",
        presence_penalty=0.25,
        frequency_penalty=-0.25,
        logit_bias={"5": -100, "7": 1.5},
        max_completion_tokens=9,
        logprobs=True,
        top_logprobs=2,
        user="u-1",
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        top_k=4,
        min_p=0.125,
        repetition_penalty=2,
        min_tokens=3,
        ignore_eos=True,
        include_stop=True,
        stop_token_ids=[1, 2],
        return_token_ids=True,
        expected_sha256="a" * 64,
        cache_scope="s",
        labels={"team": "red"},
        cold_load="reject",
        queue_timeout=1.5,
        ttft_timeout=2,
    )
    sampling = pb.SamplingParams(
        temperature=0.5,
        top_p=1,
        n=3,
        seed=2**64 - 1,
        presence_penalty=0.25,
        frequency_penalty=-0.25,
        logit_bias={5: -100, 7: 1.5},
        top_k=4,
        min_p=0.125,
        repetition_penalty=2,
    )
    stopping = pb.StoppingParams(
        max_tokens=9, stop=["x"], min_tokens=3, ignore_eos=True, include_stop=True, stop_token_ids=[1, 2]
    )
    messages = [("system", "be brief"), ("user", "ab"), ("assistant", "c")]
    expected = pb.GenerateRequest(
        request_id="r",
        model="m",
        chat=pb.Chat(messages=[pb.ChatMessage(role=role, content=content) for role, content in messages]),
        sampling=sampling,
        stopping=stopping,
        output=pb.OutputParams(top_logprobs=2, token_ids=True),
        expected_sha256="a" * 64,
        cache_scope="s",
        cold_load=pb.COLD_LOAD_REJECT,
        sticky_key="u-1",
        labels={"team": "red", "user": "u-1"},
    )
    expected.queue_timeout.FromMilliseconds(1500)
    expected.ttft_timeout.FromMilliseconds(2000)
    assert wanted.message == expected
    assert (wanted.stream, wanted.include_usage, wanted.logprobs) == (True, True, True)


def test_null_is_absent_and_nothing_is_set_that_was_not_sent() -> None:
    nulls = dict.fromkeys(["temperature", "top_p", "n", "stop", "seed", "logit_bias", "tools", "user", "stream"])
    assert chat(**nulls).message == chat().message
    message = chat().message
    assert {field.name for field, _ in message.ListFields()} == {"request_id", "model", "chat"}
    assert not message.HasField("sampling")


PROMPTS: list[tuple[Any, pb.GenerateRequest]] = [
    ("hi", pb.GenerateRequest(prompt="hi")),
    (["hi"], pb.GenerateRequest(prompt="hi")),
    ([5, 6], pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6]))),
    ([[5, 6]], pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6]))),
    ([], pb.GenerateRequest(token_ids=pb.TokenIds())),
    ("", pb.GenerateRequest(prompt="")),
]


@pytest.mark.parametrize(("prompt", "message"), PROMPTS)
def test_prompts(prompt: Any, message: pb.GenerateRequest) -> None:
    found = completion(prompt=prompt).message
    assert found.WhichOneof("input") == message.WhichOneof("input")
    assert (found.prompt, found.token_ids) == (message.prompt, message.token_ids)


def test_the_user_keeps_a_target_unless_a_key_says_otherwise() -> None:
    message = completion(user="u", sticky_key="k", labels={"user": "own"}).message
    assert (message.sticky_key, dict(message.labels)) == ("k", {"user": "own"})


BAD_CHAT: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": None}),
    ("messages", {"messages": "hi"}),
    ("messages", {"messages": [HELLO[0]] * 1025}),
    ("messages[0]", {"messages": ["hi"]}),
    ("messages[0].role", {"messages": [{"content": "hi"}]}),
    ("messages[0].role", {"messages": [{"role": 5, "content": "hi"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
    ("messages[0].content[0]", {"messages": [{"role": "user", "content": ["a"]}]}),
    ("messages[0].content[1]", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {}]}]}),
    ("messages[0].weight", {"messages": [{"role": "user", "content": "a", "weight": 1}]}),
    ("top_logprobs", {"top_logprobs": 1}),
    ("max_tokens", {"max_tokens": 1, "max_completion_tokens": 2}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_completion_tokens", {"max_completion_tokens": "5"}),
    ("prompt", {"prompt": "hi"}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("model", {"model": 5}),
    ("temperature", {"temperature": "hot"}),
    ("temperature", {"temperature": True}),
    ("top_p", {"top_p": []}),
    ("n", {"n": 1.5}),
    ("n", {"n": -1}),
    ("n", {"n": 2**32}),
    ("seed", {"seed": 2**64}),
    ("seed", {"seed": 0.5}),
    ("stop", {"stop": 5}),
    ("stop", {"stop": ["a", 5]}),
    ("logit_bias", {"logit_bias": [1]}),
    ("logit_bias.a", {"logit_bias": {"a": 1}}),
    ("logit_bias.-1", {"logit_bias": {"-1": 1}}),
    ("logit_bias.٣", {"logit_bias": {"٣": 1}}),
    ("logit_bias.5", {"logit_bias": {"5": "x"}}),
    ("stream", {"stream": 1}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("stream_options.x", {"stream": True, "stream_options": {"x": 1}}),
    ("stream_options.include_usage", {"stream": True, "stream_options": {"include_usage": "yes"}}),
    ("user", {"user": 5}),
    ("labels", {"labels": "a"}),
    ("labels[a]", {"labels": {"a": 5}}),
    ("cold_load", {"cold_load": "never"}),
    ("queue_timeout", {"queue_timeout": "5s"}),
    ("queue_timeout", {"queue_timeout": 10**400}),
    ("ttft_timeout", {"ttft_timeout": 1e300}),
    ("stop_token_ids[1]", {"stop_token_ids": [1, -1]}),
    ("priority", {"priority": 2**31}),
    ("expected_sha256", {"expected_sha256": 5}),
    ("tempreature", {"tempreature": 0.5}),
    ("best_of_all", {"best_of_all": 0}),
]
BAD_COMPLETION: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": 5}),
    ("prompt", {"prompt": {"a": 1}}),
    ("prompt", {"prompt": ["a", "b"]}),
    ("prompt", {"prompt": [[1], [2]]}),
    ("prompt[1]", {"prompt": [1, True]}),
    ("prompt[0]", {"prompt": [-1, "a"]}),
    ("logprobs", {"logprobs": True}),
    ("top_logprobs", {"top_logprobs": 1}),
    ("messages", {"messages": HELLO}),
    ("max_completion_tokens", {"max_completion_tokens": 5}),
]
CASES = [
    *((chat, *one) for one in (*BAD, *BAD_CHAT)),
    *((completion, *one) for one in (*BAD, *BAD_COMPLETION)),
]


@pytest.mark.parametrize(("read", "field", "fields"), CASES)
def test_what_is_wrong_is_named(read: Callable[..., Wanted], field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert fields_of(caught.value) == [field]


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(temperature="x", unknown=1, stop=5, labels={"a": 1})
    assert set(fields_of(caught.value)) == {"temperature", "unknown", "stop", "labels[a]"}


NOT_SERVED: list[tuple[Callable[..., Wanted], str, dict[str, Any]]] = [
    (chat, "tools", {"tools": [{"type": "function"}]}),
    (chat, "tool_choice", {"tool_choice": "required"}),
    (chat, "response_format", {"response_format": {"type": "json_object"}}),
    (chat, "audio", {"audio": {}}),
    (chat, "modalities", {"modalities": ["text", "audio"]}),
    (chat, "store", {"store": True}),
    (chat, "metadata", {"metadata": {"a": "b"}}),
    (chat, "audio, tools", {"tools": [1], "audio": {}}),
    (chat, "messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
    (chat, "messages[0].name", {"messages": [{"role": "user", "content": "x", "name": "me"}]}),
    (chat, "messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    (chat, "stream_options.include_obfuscation", {"stream": True, "stream_options": {"include_obfuscation": True}}),
    (completion, "echo", {"echo": True}),
    (completion, "suffix", {"suffix": "end"}),
    (completion, "best_of", {"best_of": 2}),
    (completion, "store", {"store": True}),
]


@pytest.mark.parametrize(("read", "names", "fields"), NOT_SERVED)
def test_what_is_not_served_is_named(read: Callable[..., Wanted], names: str, fields: dict[str, Any]) -> None:
    if names == "store" and read is completion:  # it is none of that API's
        with pytest.raises(InvalidRequest):
            read(**fields)
        return
    with pytest.raises(NotServedYet) as caught:
        read(**fields)
    assert caught.value.metadata == {"fields": names}


def test_what_asks_for_nothing_is_let_pass() -> None:
    harmless: dict[str, Any] = {
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "store": False,
        "metadata": {},
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "h",
    }
    assert chat(**harmless).message == chat().message
    assert completion(echo=False, suffix="", best_of=1).message == completion().message


SERVED = {
    *("messages", "model", "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "n"),
    *("presence_penalty", "seed", "stop", "stream", "stream_options", "temperature", "top_logprobs", "top_p", "user"),
}


@pytest.mark.parametrize(
    ("module", "base", "table", "served"),
    [
        (chat_params, "CompletionCreateParamsBase", CHAT, SERVED),
        (
            completion_params,
            "CompletionCreateParamsBase",
            COMPLETIONS,
            (SERVED | {"prompt"}) - {"messages", "max_completion_tokens", "top_logprobs"},
        ),
    ],
    ids=["chat", "completions"],
)
def test_every_field_that_the_openai_client_knows_is_decided_on(
    module: Any, base: str, table: dict[str, Any], served: set[str]
) -> None:
    known = set(get_type_hints(getattr(module, base))) | {"stream"}
    assert known - set(table) == served
    assert not served & set(table)
