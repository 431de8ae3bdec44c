"""Anthropic's SDK on /v1/messages."""

import json

import anthropic
from checks import MESSAGES, TIMEOUT, TOKENS, UNKNOWN, check, equal, raises
from tools import DESCRIPTION, NAME, PARAMETERS, check_arguments, check_untouched


def anthropic_of(client):
    base = str(client.base_url).removesuffix("/").removesuffix("/v1")
    return anthropic.Anthropic(base_url=base, api_key="unused", max_retries=0, timeout=TIMEOUT)


@check
def anthropic_message(client, model):
    with anthropic_of(client) as claude:
        answer = claude.messages.create(model=model, max_tokens=TOKENS, messages=MESSAGES[1:])
    equal((answer.type, answer.role), ("message", "assistant"), "type and role")
    assert answer.content[0].text, "no text"
    assert answer.stop_reason in ("end_turn", "max_tokens"), answer.stop_reason
    assert 1 < answer.usage.output_tokens <= TOKENS, f"usage: {answer.usage}"


@check
def anthropic_message_streamed(client, model):
    with anthropic_of(client) as claude:
        with claude.messages.stream(
            model=model, max_tokens=TOKENS, messages=MESSAGES[1:], system="You answer at length."
        ) as stream:
            texts = list(stream.text_stream)
            answer = stream.get_final_message()
    assert len(texts) > 1, f"texts: {texts}"
    equal("".join(texts), answer.content[0].text, "text of the message")


@check
def anthropic_unknown_model_is_not_found(client, model):
    with anthropic_of(client) as claude:
        error = raises(
            anthropic.NotFoundError,
            claude.messages.create,
            model=model + UNKNOWN,
            max_tokens=TOKENS,
            messages=MESSAGES[1:],
        )
    equal(error.body["type"], "error", "type of the body")
    equal(error.body["error"]["type"], "not_found_error", "type of the error")


TOOL = {"name": NAME, "description": DESCRIPTION, "input_schema": PARAMETERS}


def forced(model, marker, **parameters):
    return {
        "model": model,
        "max_tokens": 300,
        "messages": [{"role": "user", "content": marker}],
        "tools": [TOOL],
        "tool_choice": {"type": "any"},
        **parameters,
    }


def check_tool_use(answer):
    equal(answer.stop_reason, "tool_use", "stop reason")
    [block] = answer.content
    equal((block.type, block.name), ("tool_use", NAME), "type and name")
    assert block.id, f"no id: {block}"
    check_arguments(block.input)


@check
def anthropic_tool_use(client, model):
    with anthropic_of(client) as claude:
        answer = claude.messages.create(**forced(model, "anthropic_tool_use"))
    check_tool_use(answer)
    assert answer.usage.output_tokens > 1, f"usage: {answer.usage}"
    check_untouched("anthropic_tool_use", tools=[TOOL], tool_choice={"type": "any"})


@check
def anthropic_tool_use_streamed(client, model):
    with anthropic_of(client) as claude:
        with claude.messages.stream(**forced(model, "anthropic_tool_use_streamed")) as stream:
            parts = [e.partial_json for e in stream if e.type == "input_json"]
            answer = stream.get_final_message()
    check_tool_use(answer)
    assert len(parts) > 2, f"parts: {parts}"
    equal(json.loads("".join(parts)), answer.content[0].input, "input")


@check
def anthropic_tool_named(client, model):
    choice = {"type": "tool", "name": NAME}
    for stream in (False, True):
        with anthropic_of(client) as claude:
            request = forced(model, f"anthropic_tool_named stream {stream}", tool_choice=choice)
            if stream:
                with claude.messages.stream(**request) as events:
                    answer = events.get_final_message()
            else:
                answer = claude.messages.create(**request)
        [block] = answer.content
        equal((block.type, block.name), ("tool_use", NAME), "type and name")
        check_arguments(block.input)


@check
def anthropic_tool_result_is_answered(client, model):
    with anthropic_of(client) as claude:
        first = forced(model, "anthropic_tool_result")
        call = claude.messages.create(**first).content[0]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "It was passed."}
        messages = first["messages"] + [
            {"role": "assistant", "content": [call.model_dump()]},
            {"role": "user", "content": [result]},
        ]
        answer = claude.messages.create(
            **forced(model, "", messages=messages, tool_choice={"type": "auto"})
        )
    equal([b.type for b in answer.content], ["text"], "blocks")
    assert answer.content[0].text, "no text"
