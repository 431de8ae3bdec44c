"""Checks Baton with the SDKs of OpenAI and Anthropic and with LangChain's chat
model, as applications would use it.

usage: sdk_test.py URL

The fleet behind the URL must serve at least one chat model and answer as vLLM
does. Nothing is retried, so that every failure shows.
"""

import asyncio
import sys
import time
import traceback

import anthropic
import langchain_openai
import openai

TIMEOUT = 60
PROMPT = "Tell me how a relay race is run, from the first leg to the last."
MESSAGES = [
    {"role": "system", "content": "You answer at some length."},
    {"role": "user", "content": PROMPT},
]
TOKENS = 24

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def equal(got, want, what):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def check_usage(usage, tokens=TOKENS):
    assert usage is not None, "no usage"
    assert usage.prompt_tokens > 0, f"prompt tokens: {usage.prompt_tokens}"
    # The prefill leg asks for one token; that must not show.
    assert 1 < usage.completion_tokens <= tokens, f"completion tokens: {usage.completion_tokens}"
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total tokens")


def check_reason(reason):
    assert reason in ("stop", "length"), f"finish reason: {reason!r}"


def check_chunks(chunks, usage_wanted):
    """Checks what is common to the chunks of all streams."""
    equal(len({c.id for c in chunks}), 1, "number of ids in the stream")
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    equal([r is None for r in reasons[:-1]], [True] * (len(reasons) - 1), "early finish reasons")
    check_reason(reasons[-1])
    usages = [c.usage for c in chunks if c.usage]
    if usage_wanted:
        equal(chunks[-1].choices, [], "choices of the usage chunk")
        check_usage(chunks[-1].usage)
    else:
        equal(usages, [], "usage that nobody asked for")


@check
def models_list(client, model):
    models = client.models.list().data
    assert model in [m.id for m in models], f"models: {models}"
    assert all(m.object == "model" for m in models), f"models: {models}"


@check
def chat(client, model):
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=TOKENS)
    equal(answer.object, "chat.completion", "object")
    equal(answer.model, model, "model")
    equal(len(answer.choices), 1, "number of choices")
    equal(answer.choices[0].message.role, "assistant", "role")
    assert answer.choices[0].message.content, "no content"
    check_reason(answer.choices[0].finish_reason)
    check_usage(answer.usage)


@check
def chat_stops_at_the_limit(client, model):
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=5, extra_body={"ignore_eos": True}
    )
    equal(answer.usage.completion_tokens, 5, "completion tokens")
    equal(answer.choices[0].finish_reason, "length", "finish reason")


@check
def chat_streamed(client, model):
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=TOKENS, stream=True
    )
    chunks, arrivals = [], []
    for chunk in stream:
        chunks.append(chunk)
        arrivals.append(time.monotonic())
    texts = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert len(texts) > 1, f"chunks with text: {texts}"
    assert arrivals[-1] > arrivals[0], "all chunks came at the same time"
    check_chunks(chunks, usage_wanted=False)


@check
def chat_streamed_with_usage(client, model):
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    check_chunks(list(stream), usage_wanted=True)


@check
def completion(client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=TOKENS)
    equal(answer.object, "text_completion", "object")
    equal(answer.model, model, "model")
    assert answer.choices[0].text, "no text"
    check_reason(answer.choices[0].finish_reason)
    check_usage(answer.usage)


@check
def completion_streamed(client, model):
    stream = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=TOKENS, stream=True
    )
    chunks = list(stream)
    texts = [c.choices[0].text for c in chunks if c.choices and c.choices[0].text]
    assert len(texts) > 1, f"chunks with text: {texts}"
    check_chunks(chunks, usage_wanted=False)


@check
def completion_streamed_with_usage(client, model):
    stream = client.completions.create(
        model=model,
        prompt=PROMPT,
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    check_chunks(list(stream), usage_wanted=True)


@check
def tools_are_passed_through(client, model):
    tool = {
        "type": "function",
        "function": {"name": "pass_baton", "parameters": {"type": "object", "properties": {}}},
    }
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=TOKENS, tools=[tool], tool_choice="none"
    )
    check_usage(answer.usage)


@check
def responses(client, model):
    answer = client.responses.create(model=model, input=PROMPT, max_output_tokens=TOKENS)
    equal(answer.object, "response", "object")
    assert answer.output_text, f"no text: {answer}"
    assert 1 < answer.usage.output_tokens <= TOKENS, f"usage: {answer.usage}"


@check
def responses_streamed(client, model):
    stream = client.responses.create(
        model=model, input=PROMPT, max_output_tokens=TOKENS, stream=True
    )
    events = list(stream)
    texts = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert len(texts) > 1, f"deltas: {texts}"
    assert events[-1].type in ("response.completed", "response.incomplete"), events[-1].type


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
        try:
            claude.messages.create(
                model=model + "-that-nobody-serves", max_tokens=TOKENS, messages=MESSAGES[1:]
            )
        except anthropic.NotFoundError as error:
            equal(error.body["type"], "error", "type of the body")
            equal(error.body["error"]["type"], "not_found_error", "type of the error")
        else:
            raise AssertionError("accepted")


def chat_model(client, model):
    return langchain_openai.ChatOpenAI(
        model=model,
        base_url=str(client.base_url),
        api_key="unused",
        max_retries=0,
        timeout=TIMEOUT,
        max_tokens=TOKENS,
    )


@check
def langchain_chat(client, model):
    answer = chat_model(client, model).invoke([("system", "Be brief."), ("human", PROMPT)])
    assert answer.content, f"no content: {answer}"
    assert 1 < answer.usage_metadata["output_tokens"] <= TOKENS, answer.usage_metadata


@check
def langchain_chat_streamed(client, model):
    chunks = list(chat_model(client, model).stream(PROMPT, stream_usage=True))
    texts = [c.content for c in chunks if c.content]
    assert len(texts) > 1, f"texts: {texts}"
    usages = [c.usage_metadata for c in chunks if c.usage_metadata]
    assert usages and 1 < usages[-1]["output_tokens"] <= TOKENS, usages


@check
def unknown_model_is_not_found(client, model):
    for stream in (False, True):
        try:
            client.chat.completions.create(
                model=model + "-that-nobody-serves", messages=MESSAGES, stream=stream
            )
        except openai.NotFoundError as error:
            equal(error.status_code, 404, "status")
            assert error.code, f"no code: {error.body}"
            assert error.body["message"], f"no message: {error.body}"
        else:
            raise AssertionError("accepted")


def refused(client, **parameters):
    try:
        client.chat.completions.create(**parameters)
    except openai.BadRequestError as error:
        equal(error.status_code, 400, "status")
        assert error.body["message"], f"no message: {error.body}"
        return
    raise AssertionError(f"accepted: {parameters}")


@check
def parameter_of_wrong_type_is_a_bad_request(client, model):
    refused(client, model=model, messages=MESSAGES, extra_body={"temperature": "hot"})


@check
def parameter_out_of_range_is_a_bad_request(client, model):
    refused(client, model=model, messages=MESSAGES, max_tokens=-1)


@check
def messages_of_wrong_type_are_a_bad_request(client, model):
    refused(client, model=model, messages=MESSAGES, extra_body={"messages": 7})


@check
def stream_closed_early(client, model):
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=TOKENS, stream=True
    )
    next(iter(stream))
    stream.close()
    chat(client, model)


@check
def many_at_once(client, model):
    async def one(many, number):
        messages = [{"role": "user", "content": f"Runner {number}: {PROMPT}"}]
        stream = await many.chat.completions.create(
            model=model, messages=messages, max_tokens=TOKENS, stream=True
        )
        return [chunk async for chunk in stream]

    async def run():
        async with openai.AsyncOpenAI(
            base_url=client.base_url, api_key="unused", max_retries=0, timeout=TIMEOUT
        ) as many:
            return await asyncio.gather(*(one(many, number) for number in range(16)))

    streams = asyncio.run(run())
    for chunks in streams:
        check_chunks(chunks, usage_wanted=False)
    equal(len({chunks[0].id for chunks in streams}), len(streams), "number of ids")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: sdk_test.py URL")
    base = sys.argv[1].rstrip("/") + "/v1"
    failed = 0
    with openai.OpenAI(
        base_url=base, api_key="unused", max_retries=0, timeout=TIMEOUT
    ) as client:
        model = client.models.list().data[0].id
        for function in CHECKS:
            name = function.__name__
            try:
                function(client, model)
            except Exception:
                failed += 1
                print("FAIL", name, flush=True)
                traceback.print_exc(file=sys.stdout)
            else:
                print("ok  ", name, flush=True)
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
