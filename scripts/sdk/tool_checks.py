"""Tools with OpenAI's SDK."""

import json

import openai
from checks import MESSAGES, TOKENS, check, check_usage, equal, raises
from tools import DESCRIPTION, NAME, PARAMETERS, check_arguments, check_untouched

OTHER = {"type": "function", "function": {"name": "drop_baton", "parameters": {}}}
TOOL = {
    "type": "function",
    "function": {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS},
}
NAMED = {"type": "function", "function": {"name": NAME}}


def asked(client, model, marker, **parameters):
    messages = MESSAGES + [{"role": "user", "content": marker}]
    return client.chat.completions.create(model=model, messages=messages, **parameters)


def check_call(call):
    equal((call.type, call.function.name), ("function", NAME), "type and name")
    assert call.id, f"no id: {call}"
    check_arguments(json.loads(call.function.arguments))


@check
def tool_named(client, model):
    tools = [OTHER, TOOL]
    answer = asked(client, model, "tool_named", tools=tools, tool_choice=NAMED)
    [choice] = answer.choices
    [call] = choice.message.tool_calls
    check_call(call)
    # As vLLM has it, whose reason for a named call is the engine's.
    equal(choice.finish_reason, "stop", "finish reason")
    check_usage(answer.usage, tokens=200)
    check_untouched("tool_named", tools=tools, tool_choice=NAMED)


@check
def tool_required(client, model):
    answer = asked(client, model, "tool_required", tools=[TOOL, OTHER], tool_choice="required")
    [choice] = answer.choices
    [call] = choice.message.tool_calls
    check_call(call)
    equal(choice.finish_reason, "tool_calls", "finish reason")
    check_untouched("tool_required", tools=[TOOL, OTHER], tool_choice="required")


def check_streamed(client, model, marker, finish_reason, **parameters):
    """Checks that a streamed call is, put together, the one that comes at once."""
    whole = asked(client, model, marker, **parameters).choices[0].message.tool_calls[0].function
    stream = asked(
        client, model, marker, stream=True, stream_options={"include_usage": True}, **parameters
    )
    chunks = list(stream)
    calls = [t for c in chunks if c.choices for t in c.choices[0].delta.tool_calls or []]
    equal({t.index for t in calls}, {0}, "indices")
    assert calls[0].id, f"no id: {calls[0]}"
    equal([t.id for t in calls[1:] if t.id], [], "further ids")
    equal([t.function.name for t in calls if t.function.name], [NAME], "names")
    parts = [t.function.arguments for t in calls if t.function.arguments]
    assert len(parts) > 2, f"parts: {parts}"
    equal("".join(parts), whole.arguments, "arguments")
    check_arguments(json.loads("".join(parts)))
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    equal([r for r in reasons if r], [finish_reason], "finish reasons")
    check_usage(chunks[-1].usage, tokens=200)
    check_untouched(marker, tools=parameters["tools"])


@check
def tool_named_streamed(client, model):
    check_streamed(
        client, model, "tool_named_streamed", "stop", tools=[OTHER, TOOL], tool_choice=NAMED
    )


@check
def tool_required_streamed(client, model):
    check_streamed(
        client, model, "tool_required_streamed", "tool_calls", tools=[TOOL], tool_choice="required"
    )


@check
def tool_result_is_answered(client, model):
    call = asked(client, model, "first", tools=[TOOL], tool_choice="required").choices[0].message
    messages = MESSAGES + [
        call.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "It was passed."},
    ]
    answer = client.chat.completions.create(
        model=model, messages=messages, max_tokens=TOKENS, tools=[TOOL]
    )
    assert answer.choices[0].message.content, f"no content: {answer}"
    equal(answer.choices[0].message.tool_calls, None, "calls")


@check
def tool_not_wanted(client, model):
    answer = asked(
        client, model, "tool_not_wanted", max_tokens=TOKENS, tools=[TOOL], tool_choice="none"
    )
    assert answer.choices[0].message.content, f"no content: {answer}"
    check_untouched("tool_not_wanted", tools=[TOOL], tool_choice="none")


@check
def tool_that_is_not_offered_is_a_bad_request(client, model):
    for parameters in (
        {"tools": [OTHER], "tool_choice": NAMED},
        {"tool_choice": "required"},
    ):
        error = raises(
            openai.BadRequestError,
            client.chat.completions.create,
            model=model,
            messages=MESSAGES,
            **parameters,
        )
        assert "tool" in error.body["message"], f"message: {error.body}"
