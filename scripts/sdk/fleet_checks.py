"""The fleet as a whole, seen from both sides."""

from checks import MESSAGES, equal, fleet, lone_check


@lone_check
def stream_closed_early_frees_the_workers(client, model):
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=5000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    fleet.wait_busy()
    stream.close()
    fleet.wait_idle()


@lone_check
def no_engine_saw_what_a_router_must_not_send(client, model):
    equal(fleet.violations(), [], "violations")


@lone_check
def all_workers_are_idle(client, model):
    fleet.wait_idle()
