"""OpenAI's SDK: chat, completions, responses, embeddings, and errors as its types."""

import asyncio
import math
import time

import httpx
import openai
from checks import (
    MESSAGES,
    PROMPT,
    TIMEOUT,
    TOKENS,
    UNKNOWN,
    check,
    check_usage,
    equal,
    raises,
)


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


def embedded(client, model, texts, **parameters):
    answer = client.embeddings.create(model=model, input=texts, **parameters)
    equal(answer.object, "list", "object")
    equal([d.index for d in answer.data], list(range(len(answer.data))), "indices")
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens, "total tokens")
    assert answer.usage.prompt_tokens > 0, f"usage: {answer.usage}"
    return [d.embedding for d in answer.data]


@check
def embedding(client, model):
    # The SDK asks for base64 and decodes it unless the format is set.
    [vector] = embedded(client, model, PROMPT)
    assert len(vector) > 4 and all(isinstance(f, float) for f in vector), vector
    assert abs(math.hypot(*vector) - 1) < 1e-5, f"length {math.hypot(*vector)}"
    equal(embedded(client, model, PROMPT, encoding_format="float"), [vector], "as floats")


@check
def embeddings_of_several_inputs(client, model):
    texts = [f"Runner {number}" for number in range(5)]
    vectors = embedded(client, model, texts)
    equal(len(set(map(tuple, vectors))), len(texts), "number of vectors")
    equal(vectors[3:], embedded(client, model, texts[3:]), "the last ones alone")


@check
def embedding_of_token_ids(client, model):
    base = client.base_url.copy_with(path="/tokenize")
    answer = client.post(
        str(base), cast_to=httpx.Response, body={"model": model, "prompt": PROMPT}
    )
    ids = answer.json()["tokens"]
    wanted = embedded(client, model, PROMPT)
    equal(embedded(client, model, ids), wanted, "of ids")
    equal(embedded(client, model, [ids, ids]), wanted * 2, "of lists of ids")


@check
def embedding_with_fewer_dimensions(client, model):
    [whole] = embedded(client, model, PROMPT)
    [short] = embedded(client, model, PROMPT, dimensions=4)
    scale = math.hypot(*whole[:4])
    assert len(short) == 4, short
    assert all(abs(s - w / scale) < 1e-5 for s, w in zip(short, whole)), (short, whole)


@check
def embedding_errors(client, model):
    create = client.embeddings.create
    raises(openai.NotFoundError, create, model=model + UNKNOWN, input=PROMPT)
    for parameters in ({"input": ""}, {"input": PROMPT, "dimensions": 0}, {"input": [[-1]]}):
        error = raises(openai.BadRequestError, create, model=model, **parameters)
        assert error.body["message"], f"no message: {error.body}"


@check
def unknown_model_is_not_found(client, model):
    for stream in (False, True):
        error = raises(
            openai.NotFoundError,
            client.chat.completions.create,
            model=model + UNKNOWN,
            messages=MESSAGES,
            stream=stream,
        )
        equal(error.status_code, 404, "status")
        assert error.code, f"no code: {error.body}"
        assert error.body["message"], f"no message: {error.body}"


def refused(client, **parameters):
    error = raises(openai.BadRequestError, client.chat.completions.create, **parameters)
    equal(error.status_code, 400, "status")
    assert error.body["message"], f"no message: {error.body}"


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
