"""A tool that the checks of all SDKs offer, and what must become of it."""

import json

from checks import equal, fleet

NAME = "pass_baton"
DESCRIPTION = "Gives the baton to the next runner – Übergabe, 交接."
PARAMETERS = {
    "type": "object",
    "properties": {
        "runner": {"type": "string", "description": "who runs next"},
        "leg": {"type": "integer", "minimum": 2},
        "hand": {"enum": ["left", "right"]},
        "shout": {"type": "string"},
    },
    "required": ["runner", "leg", "hand"],
    "additionalProperties": False,
    "x-order": 1.50,
}


def check_arguments(arguments):
    equal(sorted(arguments), sorted(PARAMETERS["required"]), "arguments")
    assert arguments["runner"] and isinstance(arguments["runner"], str), arguments
    equal((arguments["leg"], arguments["hand"]), (2, "left"), "arguments")


def check_untouched(marker, **members):
    """Checks that both legs of the request with the marker in it had the members as
    the SDK wrote them, to the byte, and that prefill was to make one token."""
    legs = fleet.legs(marker)
    equal(sorted(legs), ["decode", "prefill"], "legs")
    for leg, body in legs.items():
        for name, value in members.items():
            text = json.dumps({name: value}, ensure_ascii=False, separators=(",", ":"))[1:-1]
            assert text in body, f"{leg} leg: {text} is not in {body}"
    limits = {n: v for n, v in json.loads(legs["prefill"]).items() if n.startswith("max_")}
    assert limits and set(limits.values()) == {1}, f"prefill leg: {limits}"
