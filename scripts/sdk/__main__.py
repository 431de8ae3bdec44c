"""Checks Baton with the SDKs of OpenAI and Anthropic and with LangChain's chat
model, as applications would use it.

usage: sdk URL ADMIN ENGINE...

URL is the router's, ADMIN that of its admin listener, and ENGINE are those of
the simulated engines behind it, which serve a chat model as prefill and decode.
Nothing is retried, so that every failure shows.
"""

import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import openai
from checks import CHECKS, LONE_CHECKS, TIMEOUT, fleet

# In this order. isort: off
import openai_checks  # noqa: F401
import tool_checks  # noqa: F401
import anthropic_checks  # noqa: F401
import langchain_checks  # noqa: F401
import fleet_checks  # noqa: F401


def main():
    if len(sys.argv) < 4:
        sys.exit("usage: sdk URL ADMIN ENGINE...")
    base, fleet.admin, *fleet.engines = (a.rstrip("/") for a in sys.argv[1:])
    failed = 0
    with openai.OpenAI(
        base_url=base + "/v1", api_key="unused", max_retries=0, timeout=TIMEOUT
    ) as client, ThreadPoolExecutor(8) as pool:
        model = client.models.list().data[0].id

        def outcome(function):
            try:
                function(client, model)
            except Exception:
                return traceback.format_exc()
            return ""

        def report(functions, outcomes):
            nonlocal failed
            for function, problem in zip(functions, outcomes):
                print("FAIL" if problem else "ok  ", function.__name__, flush=True)
                print(problem, end="", flush=True)
                failed += bool(problem)

        report(CHECKS, pool.map(outcome, CHECKS))
        report(LONE_CHECKS, map(outcome, LONE_CHECKS))
    print(f"{len(CHECKS) + len(LONE_CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
