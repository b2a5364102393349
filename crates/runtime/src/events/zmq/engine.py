"""An engine's sockets of KV events, as libzmq makes them: told what to send by lines on the standard input. See tests.rs.

XPUB stands for the engines' PUB: it says who has subscribed, so that nothing is sent before."""

import json
import sys
import threading
import time

import msgpack
import zmq

context = zmq.Context()


def bind(socket, endpoint):
    """A socket that was closed leaves its port a little later."""
    limit = time.monotonic() + 30
    while True:
        try:
            return socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > limit:
                raise
            time.sleep(0.01)


class Engine:
    def __init__(self):
        self.ring, self.lock, self.time = {}, threading.Lock(), 0.0
        self.topic_in_replay = True
        self.publisher = self.router = None

    def open(self, events, binds, replay):
        """Opens the sockets; a port of 0 takes a free one. Returns the endpoints."""
        self.publisher = context.socket(zmq.XPUB)
        self.publisher.setsockopt(zmq.LINGER, 0)
        if binds:
            bind(self.publisher, events)
            events = self.publisher.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        else:
            self.publisher.connect(events)
        self.router = context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        bind(self.router, replay)
        self.stopping = threading.Event()
        self.answering = threading.Thread(target=self.answer, args=(self.router, self.stopping))
        self.answering.start()
        return [events, self.router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")]

    def close(self):
        self.stopping.set()
        self.answering.join()
        self.publisher.close()

    def subscribed(self):
        """Waits for a subscription; returns its topic."""
        while True:
            said = self.publisher.recv()
            if said[:1] == b"\1":
                return said[1:].decode()

    def store(self, sequence, events, dp_rank=None, live=True, kept=True):
        """One message, with a time of its own as engines have."""
        self.time += 0.25
        payload = msgpack.packb([self.time, events, dp_rank])
        if kept:
            with self.lock:
                self.ring[sequence] = payload
        if live:
            self.resend(sequence, payload)

    def resend(self, sequence, payload=None):
        payload = payload or self.ring[sequence]
        self.publisher.send_multipart([b"kv-events", sequence.to_bytes(8, "big"), payload])

    def forget(self):
        with self.lock:
            self.ring.clear()

    def without_topic(self):
        self.topic_in_replay = False

    def answer(self, router, stopping):
        while not stopping.is_set():
            if not router.poll(20):
                continue
            client, empty, start = router.recv_multipart()
            with self.lock:
                found = sorted(item for item in self.ring.items() if item[0] >= int.from_bytes(start, "big"))
            topic = [b"kv-events"] if self.topic_in_replay else []
            for sequence, payload in found:
                router.send_multipart([client, empty, *topic, sequence.to_bytes(8, "big"), payload])
            router.send_multipart([client, empty, *([b""] if topic else []), b"\xff" * 8, b""])
        router.close()


engine = Engine()
print("ready", flush=True)
for line in sys.stdin:
    command, *arguments = json.loads(line)
    print(json.dumps(getattr(engine, command)(*arguments)), flush=True)
engine.close()
