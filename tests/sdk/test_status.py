"""`dynamo status`: what serves and what does not, and why."""

import json
import signal
import socket
import subprocess

from system import BIN, MODEL, Process, eventually

LIMIT_S = 60
MOCK = ("--engine", "mock", "--workers", "1", "--served-model-name", "mock")


def status(url, *flags):
    return subprocess.run([BIN, "status", "--url", url, *flags], capture_output=True, text=True, timeout=LIMIT_S)


def test_a_fleet_from_empty_to_whole_and_back(tmp_path):
    frontend = Process("frontend", tmp_path, "--port", "0")
    processes = [frontend]
    try:
        assert eventually(lambda: frontend.url, LIMIT_S), frontend.output
        empty = status(frontend.url)
        assert empty.returncode == 1 and "No model is served" in empty.stdout, empty

        processes += [Process("worker", tmp_path, MODEL, *MOCK) for _ in range(2)]
        # All is well with the first of them already.
        assert eventually(lambda: status(frontend.url).stdout.count("  serving  ") == 2, LIMIT_S), status(frontend.url)
        assert eventually(lambda: status(frontend.url).returncode == 0, LIMIT_S), status(frontend.url)
        whole = status(frontend.url)
        assert whole.stdout.count("127.0.0.1:") == 3 and whole.stdout.count("  serving  ") == 2, whole.stdout
        fleet = json.loads(status(frontend.url, "--json").stdout)
        assert [model["name"] for model in fleet["models"]] == ["mock"]
        for worker in fleet["workers"]:
            assert worker["id"] in whole.stdout and worker["endpoint"] in whole.stdout

        for process in processes[1:]:
            process.signal(signal.SIGTERM)
        assert eventually(lambda: "no worker takes requests" in status(frontend.url).stdout, LIMIT_S)
        assert status(frontend.url).returncode == 1
    finally:
        for process in processes:
            process.end()


def test_it_says_when_nobody_answers():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = status(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert (done.returncode, done.stdout) == (2, "") and "cannot reach" in done.stderr, done
