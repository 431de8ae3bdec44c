"""libzmq peers for the interop test of internal/zmtp. One subcommand is one process.

Lines on stdin are orders, lines on stdout are reports; the process ends with its stdin.
"""

import argparse
import sys
import threading
import time

import msgpack
import zmq
from zmq.utils.monitor import recv_monitor_message

P2P = {
    "type": "P",
    "http_address": "10.0.0.2:20001",
    "zmq_address": "10.0.0.2:21001",
}
MORI = {
    "type": "D",
    "http_address": "10.0.0.3:8200",
    "zmq_address": "host:10.0.0.3,handshake:7301,notify:62005",
    "dp_size": 1,
    "tp_size": 8,
    "transfer_mode": "WRITE",
}

TYPES = {
    "dealer": zmq.DEALER,
    "req": zmq.REQ,
    "router": zmq.ROUTER,
    "push": zmq.PUSH,
    "sub": zmq.SUB,
}

EVENTS = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "handshaken",
    zmq.EVENT_DISCONNECTED: "disconnected",
}


def report(*words):
    print(*words, flush=True)


def orders():
    for line in sys.stdin:
        yield line.split()


def watch(sock):
    """Reports handshakes and lost connections."""
    mon = sock.get_monitor_socket(sum(EVENTS))

    def run():
        while True:
            event = recv_monitor_message(mon)["event"]
            if event in EVENTS:
                report(EVENTS[event])

    threading.Thread(target=run, daemon=True).start()


def open_socket(ctx, args):
    sock = ctx.socket(TYPES[args.type])
    sock.linger = 0
    if args.identity:
        sock.setsockopt(zmq.IDENTITY, args.identity.encode())
    if args.heartbeat:
        sock.heartbeat_ivl = args.heartbeat
        sock.heartbeat_timeout = 5 * args.heartbeat
        sock.heartbeat_ttl = 10 * args.heartbeat
    if args.plain:
        sock.plain_username = b"user"
        sock.plain_password = b"secret"
    return sock


def ping(args):
    """Registers every period, as an engine does; 'payload' is p2p, mori or a text."""
    sock = open_socket(zmq.Context(), args)
    watch(sock)
    sock.connect(args.addr)
    payload = {"p2p": P2P, "mori": MORI}.get(args.payload)
    payload = msgpack.dumps(payload) if payload else args.payload.encode()

    def run():
        while True:
            sock.send(payload, zmq.NOBLOCK)
            time.sleep(args.period)

    threading.Thread(target=run, daemon=True).start()
    for _ in orders():
        pass


def client(args):
    """'send N' sends N numbered messages; 'fill' as many as there is room for; 'big N' one of N bytes; 'ask' a question, and reports the answer."""
    sock = open_socket(zmq.Context(), args)
    watch(sock)
    sock.connect(args.addr)
    n = 0
    for order in orders():
        if order[0] == "send":
            for _ in range(int(order[1])):
                sock.send(str(n).encode(), zmq.NOBLOCK)
                n += 1
            report("sent", n)
        elif order[0] == "fill":
            try:
                while True:
                    sock.send(str(n).encode(), zmq.NOBLOCK)
                    n += 1
            except zmq.Again:
                report("full")
        elif order[0] == "big":
            sock.send(b"x" * int(order[1]))
        elif order[0] == "ask":
            sock.send(b"question")
            if not sock.poll(5000):
                report("no answer")
                continue
            report(b"|".join(sock.recv_multipart()).decode())


def many(args):
    """Many sockets in one process, each registering every period until stdin ends."""
    ctx = zmq.Context(4)
    ctx.set(zmq.MAX_SOCKETS, args.count + 10)
    socks = []
    for i in range(args.count):
        sock = ctx.socket(zmq.DEALER)
        sock.linger = 0
        if i % 2:
            sock.setsockopt(zmq.IDENTITY, b"engine-%d" % i)
        sock.connect(args.addr)
        socks.append(sock)
    report("connected")
    stop = threading.Event()

    def run():
        while not stop.is_set():
            start = time.monotonic()
            for i, sock in enumerate(socks):
                sock.send(str(i).encode(), zmq.NOBLOCK)
            stop.wait(args.period - (time.monotonic() - start))

    t = threading.Thread(target=run)
    t.start()
    for _ in orders():
        pass
    stop.set()
    t.join()


def replay(args):
    """A ROUTER that answers [empty, start] as an engine replays its KV events: 'count' batches and an end mark."""
    args.type = "router"
    sock = open_socket(zmq.Context(), args)
    sock.bind(args.addr)
    report("bound")

    def run():
        while True:
            peer, *frames = sock.recv_multipart()
            report("asked", peer.hex(), *[f.hex() or "-" for f in frames])
            if len(frames) != 2 or frames[0]:
                continue
            for seq in range(int.from_bytes(frames[1], "big"), args.count):
                sock.send_multipart([peer, b"", b"kv@topic", seq.to_bytes(8, "big"), b"payload %d" % seq])
            sock.send_multipart([peer, b"", b"", b"\xff" * 8, b""])

    threading.Thread(target=run, daemon=True).start()
    for _ in orders():
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=[ping.__name__, client.__name__, many.__name__, replay.__name__])
    parser.add_argument("addr")
    parser.add_argument("--type", choices=TYPES, default="dealer")
    parser.add_argument("--identity")
    parser.add_argument("--payload", default="x")
    parser.add_argument("--period", type=float, default=3)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--heartbeat", type=int, help="milliseconds")
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    globals()[args.role](args)


if __name__ == "__main__":
    main()
