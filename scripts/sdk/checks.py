"""What the checks share: their list, what all answers must satisfy, and the fleet
seen from behind."""

import json
import time
import urllib.request

TIMEOUT = 60
PROMPT = "Tell me how a relay race is run, from the first leg to the last."
MESSAGES = [
    {"role": "system", "content": "You answer at some length."},
    {"role": "user", "content": PROMPT},
]
TOKENS = 24
UNKNOWN = "-that-nobody-serves"

CHECKS = []
LONE_CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def lone_check(function):
    """Marks a check that looks at the whole fleet. It runs when the others are over."""
    LONE_CHECKS.append(function)
    return function


def equal(got, want, what):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def check_usage(usage, tokens=TOKENS):
    assert usage is not None, "no usage"
    assert usage.prompt_tokens > 0, f"prompt tokens: {usage.prompt_tokens}"
    # The prefill leg asks for one token; that must not show.
    assert 1 < usage.completion_tokens <= tokens, f"completion tokens: {usage.completion_tokens}"
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total tokens")


def raises(kind, function, **parameters):
    """Returns the error of the given type that function must raise."""
    try:
        function(**parameters)
    except kind as error:
        return error
    raise AssertionError(f"accepted: {parameters}")


class Fleet:
    """The router's admin listener and the engines, which tell what reached them."""

    def __init__(self):
        self.admin = None
        self.engines = []

    @staticmethod
    def get(url):
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return json.load(answer)

    def loads(self):
        workers = self.get(self.admin + "/workers")["workers"]
        assert workers, "no workers"
        return {w["url"]: w["load"] + w["holds"] for w in workers}

    def wait(self, wanted, what):
        """Waits until the sum of the loads is as wanted."""
        end = time.monotonic() + TIMEOUT
        while not wanted(sum((loads := self.loads()).values())):
            assert time.monotonic() < end, f"{what} after {TIMEOUT} s: {loads}"
            time.sleep(0.02)

    def wait_busy(self):
        self.wait(lambda load: load > 0, "no load")

    def wait_idle(self):
        self.wait(lambda load: load == 0, "load")

    def legs(self, marker):
        """Returns the bodies that hold the marker as a string, by leg."""
        text = json.dumps(marker)
        found = {}
        for engine in self.engines:
            for record in self.get(engine + "/sim/requests"):
                if record.get("leg") and text in record.get("body", ""):
                    found[record["leg"]] = record["body"]
        return found

    def violations(self):
        return [v for e in self.engines for v in self.get(e + "/sim/stats")["violations"] or []]


fleet = Fleet()
