#!/usr/bin/env python3
"""What clients see when one of two workers is killed (SIGKILL) or stopped (SIGSTOP) in the middle of their streams: ours and
Dynamo 1.6.1, each with a frontend and two mock workers as processes of their own, found through files, defaults as shipped.

A run opens `--streams` streams, sends the signal when each has some tokens, and goes on asking for one token at a time. It
says, for the streams together:
  lost        streams that did not get all of their tokens, and how many tokens those lack
  gap         the longest time between two events of any stream after the signal
  traffic     when the last question was asked that was not answered within a second, counted from the signal
  health      when /health listed one instance less, counted from the signal

Environment: MODEL_DIR (tokenizer folder, made as the README of ../shared/bench says), DYN_PY for the peer, DYNAMO_BIN
(default target/release/dynamo). The mocks take about 6 ms a token.

usage: faults.py [--systems ours,dynamo-1.6.1] [--signals KILL,STOP] [--rounds 2] [--streams 8] [--watch-s 60]
"""
import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time

TOKENS = 1500
# Before the signal, so that every stream is in the middle.
BEGUN = 100
PATIENCE_S = 60
ANSWERED_S = 1.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class System:
    def __init__(self, stack, name):
        self.work = stack.enter_context(tempfile.TemporaryDirectory())
        self.stack, self.port = stack, free_port()
        found = os.path.join(self.work, "found")
        model = os.environ["MODEL_DIR"]
        if name == "ours":
            binary = os.environ.get("DYNAMO_BIN", "target/release/dynamo")
            os.mkdir(found, 0o700)
            env = {"DYN_LOG": "warn"}
            place = ["--discovery-path", found]
            frontend = [binary, "frontend", "--port", str(self.port), *place]
            worker = [binary, "worker", model, "--engine", "mock", "--served-model-name", "tiny", "--workers", "1", *place]
        else:
            python, host = os.environ["DYN_PY"], "127.0.0.1"
            env = {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": found, "DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq",
                   "HF_HUB_OFFLINE": "1", "DYN_LOG": "warn", "DYN_TCP_RPC_HOST": host,
                   "DYN_TCP_RESPONSE_STREAM_HOST": host, "DYN_EVENT_PLANE_HOST": host, "DYN_SYSTEM_HOST": host}
            frontend = [python, "-m", "dynamo.frontend", "--http-host", host, "--http-port", str(self.port)]
            worker = [python, "-m", "dynamo.mocker", "--model-path", model, "--model-name", "tiny"]
        self.workers = [self.spawn(worker, env) for _ in range(2)]
        self.frontend = self.spawn(frontend, env)
        self.wait("two workers", lambda: self.instances() >= 2 and b'"tiny"' in self.ask("GET", "/v1/models")[1])
        time.sleep(2)

    def spawn(self, command, env):
        log = self.stack.enter_context(open(os.path.join(self.work, f"{len(os.listdir(self.work))}.log"), "w"))
        # A peer's worker has helpers: its session is signalled as a whole.
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env}, start_new_session=True)
        self.stack.callback(end, process)
        return process

    def wait(self, what, condition):
        deadline = time.monotonic() + 90
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"{what}: not within 90 s; logs are gone with {self.work}")
            time.sleep(0.05)

    def ask(self, method, path, body=None, timeout_s=PATIENCE_S):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            head = {"content-type": "application/json"}
            connection.request(method, path, body and json.dumps(body), head)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def instances(self):
        """Workers that /health lists; a worker of the peer has several endpoints."""
        try:
            status, body = self.ask("GET", "/health", timeout_s=5)
            listed = json.loads(body).get("instances") or []
        except (OSError, ValueError):
            return 0
        return len({instance.get("instance_id") for instance in listed if isinstance(instance, dict)})


def end(process):
    for name in (signal.SIGCONT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, name)
    process.wait()


def question(number, tokens):
    text = f"Tell me story {number} of a river and a stone."
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "min_tokens": tokens,
            "ignore_eos": True, "temperature": 0, "seed": 7, "stream": True,
            "stream_options": {"include_usage": True}}


class Stream(threading.Thread):
    def __init__(self, system, number):
        super().__init__(daemon=True)
        self.system, self.number = system, number
        self.events, self.tokens, self.counted, self.end = [], 0, None, "hangs"
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.system.port, timeout=PATIENCE_S)
        try:
            body = json.dumps(question(self.number, TOKENS))
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            self.end = f"status {answer.status}" if answer.status != 200 else "broke off"
            while line := answer.readline():
                self.line(line)
        except OSError as error:
            self.end = f"{type(error).__name__}"
        finally:
            self.events.append(time.monotonic())
            connection.close()

    def line(self, line):
        if not line.startswith(b"data: "):
            return
        self.events.append(time.monotonic())
        if line.startswith(b"data: [DONE]"):
            self.end = "done" if self.end == "broke off" else self.end
            return
        event = json.loads(line[6:])
        if "error" in event:
            self.end = "error"
        if event.get("usage"):
            self.counted = event["usage"]["completion_tokens"]
        self.tokens += sum(bool((choice.get("delta") or {}).get("content")) for choice in event.get("choices") or [])

    def missing(self):
        # Events may hold several tokens, so what the end counts is asked first.
        return max(TOKENS - (self.counted or self.tokens), 0)


def run(name, signal_name, options):
    with contextlib.ExitStack() as stack:
        system = System(stack, name)
        streams = [Stream(system, number) for number in range(options.streams)]
        system.wait("streams", lambda: all(len(stream.events) > BEGUN for stream in streams))
        before = system.instances()
        at = time.monotonic()
        os.killpg(system.workers[0].pid, getattr(signal, f"SIG{signal_name}"))
        late, left, stop = [], [], threading.Event()

        def ask(number):
            begun = time.monotonic()
            try:
                status, _ = system.ask("POST", "/v1/chat/completions", question(1000 + number, 1))
            except OSError:
                status = 0
            if status != 200 or time.monotonic() - begun > ANSWERED_S:
                late.append(begun - at)

        def look():
            while not stop.wait(0.05):
                if not left and system.instances() < before:
                    left.append(time.monotonic() - at)

        looking = threading.Thread(target=look)
        looking.start()
        asking = []
        while time.monotonic() - at < options.watch_s:
            asking.append(threading.Thread(target=ask, args=(len(asking),), daemon=True))
            asking[-1].start()
            time.sleep(0.1)
            if left and time.monotonic() - at > left[0] + 10 and not any(stream.is_alive() for stream in streams):
                break
        for thread in [*asking, *streams]:
            thread.join(PATIENCE_S + 10)
        stop.set()
        looking.join()
        gaps = [b - a for stream in streams for a, b in zip(stream.events, stream.events[1:]) if b > at]
        lost = [stream for stream in streams if stream.missing()]
        ends = sorted({stream.end for stream in lost})
        return {
            "system": name, "signal": signal_name, "streams": len(streams), "lost": len(lost),
            "tokens_lost": sum(stream.missing() for stream in lost), "ends": ends,
            "gap_s": round(max(gaps, default=0), 2), "late": len(late), "asked": len(asking),
            "traffic_s": round(max(late, default=0), 1), "health_s": round(left[0], 1) if left else None,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="ours,dynamo-1.6.1")
    parser.add_argument("--signals", default="KILL,STOP")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--watch-s", type=float, default=60)
    options = parser.parse_args()
    print("| system | signal | streams lost | tokens lost | how | longest gap, s | unanswered in 1 s | last of those, s | "
          "leaves /health, s |\n|---|---|---|---|---|---|---|---|---|")
    for _ in range(options.rounds):
        for signal_name in options.signals.split(","):
            for name in options.systems.split(","):
                found = run(name, signal_name, options)
                health = found["health_s"] if found["health_s"] is not None else f"not within {options.watch_s:.0f}"
                print(f"| {name} | {signal_name} | {found['lost']} of {found['streams']} | {found['tokens_lost']} | "
                      f"{', '.join(found['ends']) or '-'} | {found['gap_s']} | {found['late']} of {found['asked']} | "
                      f"{found['traffic_s']} | {health} |", flush=True)


if __name__ == "__main__":
    main()
