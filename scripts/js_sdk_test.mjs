// Checks Baton with OpenAI's JavaScript SDK, as applications would use it.
//
// usage: js_sdk_test.mjs URL ADMIN ENGINE...
//
// URL is the router's, ADMIN that of its admin listener, and ENGINE are those of
// the simulated engines behind it, which serve a chat model as prefill and decode.
// Nothing is retried, so that every failure shows.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import OpenAI, { APIUserAbortError, BadRequestError, NotFoundError } from "openai";

const [url, admin, ...engines] = process.argv.slice(2).map((arg) => arg.replace(/\/+$/, ""));
if (engines.length === 0) {
  console.error("usage: js_sdk_test.mjs URL ADMIN ENGINE...");
  process.exit(2);
}

const timeout = 60_000;
const prompt = "Tell me how a relay race is run, from the first leg to the last.";
const messages = [
  { role: "system", content: "You answer at some length." },
  { role: "user", content: prompt },
];
const tokens = 24;
const client = new OpenAI({ baseURL: url + "/v1", apiKey: "unused", maxRetries: 0, timeout });
const model = (await client.models.list()).data[0].id;

const get = async (from) => (await fetch(from)).json();

// collect reads a stream to its end.
async function collect(stream) {
  const list = [];
  for await (const item of stream) list.push(item);
  return list;
}

function checkUsage(usage, most = tokens) {
  assert.ok(usage.prompt_tokens > 0, "prompt tokens");
  // The prefill leg asks for one token; that must not show.
  assert.ok(usage.completion_tokens > 1 && usage.completion_tokens <= most, "completion tokens");
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
}

function checkReason(reason) {
  assert.ok(["stop", "length"].includes(reason), `finish reason ${reason}`);
}

// waitForLoad waits until the sum of the workers' loads is as wanted.
async function waitForLoad(wanted, what) {
  const end = Date.now() + timeout;
  for (;;) {
    const { workers } = await get(admin + "/workers");
    assert.ok(workers.length > 0, "no workers");
    const load = workers.reduce((sum, w) => sum + w.load + w.holds, 0);
    if (wanted(load)) return;
    assert.ok(Date.now() < end, `${what}: ${load}`);
    await sleep(20);
  }
}

const busy = () => waitForLoad((load) => load > 0, "no load");
const idle = () => waitForLoad((load) => load === 0, "load");

// legs returns the bodies that hold the marker as a string, by leg.
async function legs(marker) {
  const found = {};
  for (const engine of engines) {
    for (const record of await get(engine + "/sim/requests")) {
      if (record.leg && record.body?.includes(JSON.stringify(marker))) {
        found[record.leg] = record.body;
      }
    }
  }
  return found;
}

const parameters = {
  type: "object",
  properties: {
    runner: { type: "string" },
    leg: { type: "integer", minimum: 2 },
    hand: { enum: ["left", "right"] },
    shout: { type: "string" },
  },
  required: ["runner", "leg", "hand"],
};
const description = "Gives the baton to the next runner – Übergabe, 交接.";
const tool = { type: "function", function: { name: "pass_baton", description, parameters } };
const named = { type: "function", function: { name: "pass_baton" } };

function checkArguments(text) {
  const { runner, ...rest } = JSON.parse(text);
  assert.ok(typeof runner === "string" && runner.length > 0, text);
  assert.deepEqual(rest, { leg: 2, hand: "left" });
}

// ask forces a call of the tool. The marker tells the request from others.
function ask(marker, more) {
  const asked = [...messages, { role: "user", content: marker }];
  return client.chat.completions.create({ model, messages: asked, tools: [tool], ...more });
}

// checkUntouched checks that both legs had the tools as the SDK wrote them, to the
// byte, and that prefill was to make one token.
async function checkUntouched(marker) {
  const bodies = await legs(marker);
  assert.deepEqual(Object.keys(bodies).sort(), ["decode", "prefill"]);
  for (const body of Object.values(bodies)) {
    assert.ok(body.includes(`"tools":${JSON.stringify([tool])}`), body);
  }
  assert.ok(/"max_(completion_)?tokens":1[,}]/.test(bodies.prefill), bodies.prefill);
}

async function checkStreamedCall(marker, choice, reason) {
  const whole = await ask(marker, { tool_choice: choice });
  const chunks = await collect(
    await ask(marker, { tool_choice: choice, stream: true, stream_options: { include_usage: true } }),
  );
  const deltas = chunks.flatMap((c) => c.choices[0]?.delta.tool_calls ?? []);
  assert.deepEqual(new Set(deltas.map((d) => d.index)), new Set([0]));
  assert.equal(deltas.filter((d) => d.id).length, 1, "ids");
  assert.deepEqual(deltas.map((d) => d.function.name).filter(Boolean), ["pass_baton"]);
  const parts = deltas.map((d) => d.function.arguments).filter(Boolean);
  assert.ok(parts.length > 2, `parts ${parts}`);
  assert.equal(parts.join(""), whole.choices[0].message.tool_calls[0].function.arguments);
  checkArguments(parts.join(""));
  const reasons = chunks.map((c) => c.choices[0]?.finish_reason).filter(Boolean);
  assert.deepEqual(reasons, [reason]);
  checkUsage(chunks.at(-1).usage, 300);
  await checkUntouched(marker);
}

const embed = async (input, more) => {
  const answer = await client.embeddings.create({ model, input, ...more });
  answer.data.forEach((item, index) => assert.equal(item.index, index));
  assert.ok(answer.usage.prompt_tokens > 0, "usage");
  return answer.data.map((item) => item.embedding);
};

const checks = {
  async js_models_list() {
    const models = await collect(client.models.list());
    assert.ok(models.some((m) => m.id === model && m.object === "model"));
  },

  async js_chat() {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: tokens });
    assert.equal(answer.object, "chat.completion");
    assert.equal(answer.model, model);
    assert.equal(answer.choices.length, 1);
    assert.equal(answer.choices[0].message.role, "assistant");
    assert.ok(answer.choices[0].message.content.length > 0);
    checkReason(answer.choices[0].finish_reason);
    checkUsage(answer.usage);
  },

  async js_chat_streamed_with_usage() {
    const stream = await client.chat.completions.create({
      model,
      messages,
      max_tokens: tokens,
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks = await collect(stream);
    assert.equal(new Set(chunks.map((c) => c.id)).size, 1, "ids");
    const texts = chunks.map((c) => c.choices[0]?.delta.content).filter(Boolean);
    assert.ok(texts.length > 1, `texts ${texts}`);
    const reasons = chunks.map((c) => c.choices[0]?.finish_reason).filter(Boolean);
    assert.equal(reasons.length, 1);
    checkReason(reasons[0]);
    assert.deepEqual(chunks.at(-1).choices, []);
    checkUsage(chunks.at(-1).usage);
  },

  async js_chat_streamed_without_usage() {
    const stream = await client.chat.completions.create({
      model,
      messages,
      max_tokens: tokens,
      stream: true,
    });
    const chunks = await collect(stream);
    assert.deepEqual(chunks.filter((c) => c.usage), []);
    assert.ok(chunks.every((c) => c.choices.length === 1));
  },

  async js_completion() {
    const answer = await client.completions.create({ model, prompt, max_tokens: tokens });
    assert.equal(answer.object, "text_completion");
    assert.ok(answer.choices[0].text.length > 0);
    checkUsage(answer.usage);
  },

  async js_completion_streamed() {
    const stream = await client.completions.create({
      model,
      prompt,
      max_tokens: tokens,
      stream: true,
    });
    const whole = await client.completions.create({ model, prompt, max_tokens: tokens });
    const texts = (await collect(stream)).map((c) => c.choices[0].text).filter(Boolean);
    assert.ok(texts.length > 1, `texts ${texts}`);
    assert.equal(texts.join(""), whole.choices[0].text);
  },

  async js_responses() {
    const answer = await client.responses.create({
      model,
      input: prompt,
      max_output_tokens: tokens,
    });
    assert.equal(answer.object, "response");
    assert.ok(answer.output_text.length > 0);
    assert.ok(answer.usage.output_tokens > 1 && answer.usage.output_tokens <= tokens);
  },

  async js_responses_streamed() {
    const stream = await client.responses.create({
      model,
      input: prompt,
      max_output_tokens: tokens,
      stream: true,
    });
    const events = await collect(stream);
    const texts = events.filter((e) => e.type === "response.output_text.delta").map((e) => e.delta);
    assert.ok(texts.length > 1, `texts ${texts}`);
    const last = events.at(-1);
    assert.equal(last.type, "response.completed");
    assert.equal(last.response.output[0].content[0].text, texts.join(""));
  },

  async js_embeddings() {
    // The SDK asks for base64 and decodes it unless the format is set.
    const vectors = await embed([prompt, "Runner 2"]);
    for (const vector of vectors) {
      assert.ok(Math.abs(Math.hypot(...vector) - 1) < 1e-5, `length of ${vector}`);
    }
    assert.notDeepEqual(vectors[0], vectors[1]);
    assert.deepEqual(await embed([prompt, "Runner 2"], { encoding_format: "float" }), vectors);
    assert.equal((await embed(prompt, { dimensions: 4 }))[0].length, 4);
  },

  async js_tool_named() {
    const answer = await ask("js_tool_named", { tool_choice: named });
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(call.type, "function");
    assert.equal(call.function.name, "pass_baton");
    assert.ok(call.id.length > 0);
    checkArguments(call.function.arguments);
    await checkUntouched("js_tool_named");
  },

  // As vLLM has it, whose reason for a named call is the engine's.
  js_tool_named_streamed: () => checkStreamedCall("js_tool_named_streamed", named, "stop"),

  js_tool_required_streamed: () =>
    checkStreamedCall("js_tool_required_streamed", "required", "tool_calls"),

  async js_tool_not_offered_is_a_bad_request() {
    await assert.rejects(ask("no tools", { tools: undefined, tool_choice: named }), (error) => {
      assert.ok(error instanceof BadRequestError, error);
      assert.equal(error.status, 400);
      assert.match(error.error.message, /tools/);
      return true;
    });
  },

  async js_unknown_model_is_not_found() {
    for (const stream of [false, true]) {
      const create = client.chat.completions.create({ model: model + "-x", messages, stream });
      await assert.rejects(create, (error) => {
        assert.ok(error instanceof NotFoundError, error);
        assert.equal(error.status, 404);
        assert.equal(error.code, "model_not_found");
        assert.ok(error.error.message.length > 0);
        return true;
      });
    }
  },

  async js_bad_parameter_is_a_bad_request() {
    for (const wrong of [{ temperature: "hot" }, { max_tokens: -1 }, { messages: 7 }]) {
      const create = client.chat.completions.create({ model, messages, ...wrong });
      await assert.rejects(create, (error) => {
        assert.ok(error instanceof BadRequestError, error);
        assert.equal(error.status, 400);
        assert.ok(error.error.message.length > 0);
        return true;
      });
    }
  },
};

// These look at the whole fleet and run when the others are over.
const loneChecks = {
  async js_abort_frees_the_workers() {
    await idle();
    const control = new AbortController();
    const stream = await client.chat.completions.create(
      { model, messages, max_tokens: 5000, stream: true, ignore_eos: true },
      { signal: control.signal },
    );
    let chunks = 0;
    for await (const _ of stream) {
      if (++chunks === 3) {
        await busy();
        control.abort();
      }
    }
    assert.ok(chunks >= 3 && chunks < 5000, `${chunks} chunks`);
    await idle();
  },

  async js_abort_before_the_answer_frees_the_workers() {
    const control = new AbortController();
    const answer = client.chat.completions.create(
      { model, messages, max_tokens: 5000, ignore_eos: true },
      { signal: control.signal },
    );
    const rejected = assert.rejects(answer, APIUserAbortError);
    await busy();
    control.abort();
    await rejected;
    await idle();
  },

  async js_no_engine_saw_what_a_router_must_not_send() {
    for (const engine of engines) {
      assert.deepEqual((await get(engine + "/sim/stats")).violations, []);
    }
  },

  js_all_workers_are_idle: idle,
};

async function outcome(check) {
  try {
    await check();
  } catch (error) {
    return error;
  }
}

let passed = 0;
let failed = 0;
function report(name, problem) {
  console.log(problem ? "FAIL" : "ok  ", name);
  if (problem) {
    console.log(problem.stack ?? problem);
    failed++;
  } else {
    passed++;
  }
}

const names = Object.keys(checks);
const outcomes = await Promise.all(names.map((name) => outcome(checks[name])));
names.forEach((name, i) => report(name, outcomes[i]));
for (const [name, check] of Object.entries(loneChecks)) report(name, await outcome(check));
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
