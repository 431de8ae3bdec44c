"""LangChain's chat model."""

from functools import reduce
from operator import add

import langchain_openai
from checks import PROMPT, TIMEOUT, TOKENS, check, equal
from tools import NAME, PARAMETERS, check_arguments


TOOL = {"title": NAME, "description": "Gives the baton on.", **PARAMETERS}


def chat_model(client, model, tokens=TOKENS):
    return langchain_openai.ChatOpenAI(
        model=model,
        base_url=str(client.base_url),
        api_key="unused",
        max_retries=0,
        timeout=TIMEOUT,
        max_tokens=tokens,
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


def with_tool(client, model, choice):
    return chat_model(client, model, tokens=300).bind_tools([TOOL], tool_choice=choice)


def check_call(answer):
    [call] = answer.tool_calls
    equal(call["name"], NAME, "name")
    assert call["id"], f"no id: {call}"
    check_arguments(call["args"])
    equal(answer.invalid_tool_calls, [], "invalid calls")


@check
def langchain_tools(client, model):
    for choice in (NAME, "any"):
        check_call(with_tool(client, model, choice).invoke(PROMPT))


@check
def langchain_tools_streamed(client, model):
    for choice in (NAME, "any"):
        chunks = list(with_tool(client, model, choice).stream(PROMPT))
        parts = [p["args"] for c in chunks for p in c.tool_call_chunks if p["args"]]
        assert len(parts) > 2, f"parts: {parts}"
        check_call(reduce(add, chunks))


@check
def langchain_structured_output(client, model):
    structured = chat_model(client, model, tokens=300).with_structured_output(
        TOOL, method="function_calling"
    )
    check_arguments(structured.invoke(PROMPT))
