"""Puts load on Baton with GuideLLM and checks that every request was answered whole,
by a prefill and a decode engine, and that nothing is left of it.

usage: load_test.py DIRECTORY URL ADMIN ENGINE...

DIRECTORY is for files. URL is the router's, ADMIN that of its admin listener, and
ENGINE are those of the simulated engines behind it. They are slow on purpose, so
that the figures say how the router keeps up and not how fast it is.
"""

import json
import os
import subprocess
import sys
import time
import traceback
import urllib.request
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TIMEOUT = 60
REQUESTS = 160
CLIENTS = 32
PROMPT_TOKENS = 256
OUTPUT_TOKENS = 32


def make_tokenizer(directory):
    """Writes a tokenizer of bytes. GuideLLM wants one for its prompts, and none can
    be downloaded everywhere."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
    return directory


def run(directory, url, route):
    """Runs one benchmark over a route and returns what GuideLLM says of it."""
    output = directory / f"{route}.json"
    shape = f"prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS},samples={REQUESTS}"
    command = [
        Path(sys.executable).parent / "guidellm",
        *("benchmark", "run", "--target", url, "--rate-type", "concurrent"),
        *("--rate", CLIENTS, "--max-requests", REQUESTS, "--max-seconds", TIMEOUT),
        *("--data", shape, "--processor", make_tokenizer(directory / "tokenizer")),
        *("--output-path", output, "--disable-progress", "--disable-console-outputs"),
    ]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "GUIDELLM__LOGGING__CONSOLE_LOG_LEVEL": "ERROR",
        "GUIDELLM__MAX_WORKER_PROCESSES": "2",
        "GUIDELLM__PREFERRED_ROUTE": route,
    }
    subprocess.run(list(map(str, command)), env=environment, check=True, timeout=3 * TIMEOUT)
    [benchmark] = json.loads(output.read_text())["benchmarks"]
    return benchmark


def get(url):
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        return json.load(answer)


def equal(got, want, what):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def figures(route, benchmark):
    def of(name):
        return benchmark["metrics"][name]["successful"]

    first, between = of("time_to_first_token_ms"), of("inter_token_latency_ms")
    return (
        f"{route}, {CLIENTS} clients: {of('requests_per_second')['mean']:.1f} requests/s, "
        f"{of('output_tokens_per_second')['mean']:.0f} tokens/s out; "
        f"first token after {first['median']:.0f} ms (p99 {first['percentiles']['p99']:.0f}), "
        f"further ones {between['median']:.1f} ms apart (p99 {between['percentiles']['p99']:.1f})"
    )


def check_answers(benchmark):
    totals = benchmark["request_totals"]
    wanted = {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    equal(totals, wanted, "requests")
    answers = benchmark["requests"]["successful"]
    equal({a["output_tokens"] for a in answers}, {OUTPUT_TOKENS}, "tokens of an answer")
    for a in answers:
        assert a["output"], f"no text: {a}"
        assert a["first_token_time"] < a["last_token_time"], f"not streamed: {a}"


def check_legs(engines, path):
    """Checks that as many requests reached the prefill as the decode engines, all of
    them some, and that no hand-off was lost. GuideLLM sends a request of its own to
    see that the server is there."""
    stats = [get(engine + "/sim/stats") for engine in engines]
    seen = {"prefill": 0, "decode": 0}
    for engine, s in zip(engines, stats):
        count = s["paths"].get(path, 0)
        assert count > REQUESTS // 8, f"requests at {engine}: {count}"
        seen[s["role"]] += count
        equal(s["violations"], [], f"violations at {engine}")
        equal((s["running"], s["pinned_handoffs"]), (0, 0), f"left at {engine}")
    equal(seen["prefill"], seen["decode"], "legs")
    assert seen["decode"] >= REQUESTS, f"legs: {seen}"
    made = sum(s["handoffs_produced"] for s in stats)
    equal(sum(s["handoffs_collected"] for s in stats), made, "hand-offs collected")


def check_idle(admin):
    end = time.monotonic() + TIMEOUT
    while True:
        loads = {w["url"]: w["load"] + w["holds"] for w in get(admin + "/workers")["workers"]}
        assert loads, "no workers"
        if not any(loads.values()):
            return
        assert time.monotonic() < end, f"load after {TIMEOUT} s: {loads}"
        time.sleep(0.02)


def main():
    if len(sys.argv) < 5:
        sys.exit("usage: load_test.py DIRECTORY URL ADMIN ENGINE...")
    directory, url, admin, *engines = sys.argv[1:]
    failed = passed = 0

    def check(name, function, *arguments):
        nonlocal failed, passed
        try:
            function(*arguments)
        except Exception:
            failed += 1
            print("FAIL", name, flush=True)
            traceback.print_exc(file=sys.stdout)
        else:
            passed += 1
            print("ok  ", name, flush=True)

    for route, path in (
        ("chat_completions", "/v1/chat/completions"),
        ("text_completions", "/v1/completions"),
    ):
        benchmark = run(Path(directory), url, route)
        print(figures(route, benchmark), flush=True)
        check(f"load_{route}_answers", check_answers, benchmark)
        check(f"load_{route}_legs", check_legs, engines, path)
        check(f"load_{route}_all_workers_are_idle", check_idle, admin)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
