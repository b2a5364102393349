"""The binary as a person meets it: what it prints, how it refuses, how it stops, and what README.md promises."""

import json
import os
import re
import signal
import socket
import subprocess
import threading

import pytest
from system import BIN, LISTENING, MODEL, ROOT, STOP_LIMIT_S, eventually, http


def run(*arguments, **options):
    return subprocess.run([BIN, *arguments], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **options)


def refused(*arguments, **options):
    """A refusal is exit code 2 and one line on stderr, which is returned."""
    done = run(*arguments, **options)
    assert done.returncode == 2, (arguments, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def code_blocks(page):
    return re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


# What it refuses.


def test_a_missing_model(tmp_path):
    assert "nothing-here.gguf" in refused("serve", str(tmp_path / "nothing-here.gguf"), "--port", "0")


def test_a_cut_model(tmp_path):
    for size in (0, 3, 100, 1_000_000, 50_000_000):
        cut = tmp_path / "cut.gguf"
        with open(MODEL, "rb") as source:
            cut.write_bytes(source.read(size))
        assert "cut.gguf" in refused("serve", str(cut), "--port", "0")


def test_a_file_that_is_no_model(tmp_path):
    wrong = tmp_path / "letter.gguf"
    wrong.write_text("Dear Sir or Madam, " * 1000)
    assert "letter.gguf" in refused("serve", str(wrong), "--port", "0")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "empty" in refused("serve", str(empty), "--port", "0")


def test_a_model_that_cannot_be_served(tmp_path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"model": "m", "tool_parser": "nope", "scripts": []}))
    done = run("serve", "--engine", "scripted", "--script", script, "--port", "0")
    # Logs come before it, for by then the server listens; nothing comes after it.
    assert done.returncode == 2 and "nope" in done.stderr.strip().splitlines()[-1], done


def test_a_pool_that_no_machine_has():
    assert "kv_blocks" in refused("serve", "--engine", "mock", "--kv-blocks", "4294967295")


def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refused("serve", MODEL, "--port", str(port))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--prot", "1"], "--prot"),
        (["--port", "seventy"], "seventy"),
        (["--port", "70000"], "70000"),
        (["--workers", "0"], "workers"),
        (["--router-mode", "psychic"], "psychic"),
        (["--set", "frontend.prot=1"], "port"),
        (["--set", "nonsense"], "nonsense"),
        (["--config", "/nonexistent/dynamo.toml"], "/nonexistent/dynamo.toml"),
    ],
)
def test_a_bad_flag_or_key(arguments, named):
    assert named in refused("serve", MODEL, *arguments)


def test_an_unknown_key_in_a_file_names_the_nearest(tmp_path):
    file = tmp_path / "dynamo.toml"
    file.write_text("[frontend]\nprot = 1\n")
    line = refused("serve", MODEL, "--config", str(file))
    assert "prot" in line and "port" in line


def test_print_config_says_where_values_come_from(tmp_path):
    file = tmp_path / "dynamo.toml"
    file.write_text("workers = 3\n")
    done = run("serve", MODEL, "--config", str(file), "--port", "8123", "--print-config")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "8123" in rows["frontend.port"] and "flag" in rows["frontend.port"]
    assert "3" in rows["workers"] and "dynamo.toml" in rows["workers"]
    assert "default" in rows["frontend.host"]
    document = json.loads(run("serve", MODEL, "--print-config", "--json").stdout)
    assert document


# What it prints.


def test_the_printed_curl_line_works(server):
    commands = [line.strip() for line in server.lines if line.strip().startswith("curl ")]
    assert commands, server.output
    done = subprocess.run(["bash", "-c", commands[0]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "choices" in done.stdout, done.stdout


def test_served_model_name_and_one_worker(start_server):
    server = start_server("--served-model-name", "house/model", "--workers", "1")
    assert [entry["id"] for entry in server.get("/v1/models").json["data"]] == ["house/model"]
    assert server.get("/v1/models/house/model").json["id"] == "house/model"
    body = {"model": "house/model", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    assert "Paris" in server.post("/v1/completions", body).json["choices"][0]["text"]


def test_json_logs_are_json():
    process = subprocess.Popen(
        [BIN, "serve", MODEL, "--port", "0", "--log-format", "json", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    facts = json.loads(process.stdout.readline())
    assert any("http://127.0.0.1:" in str(value) for value in facts.values()), facts
    process.send_signal(signal.SIGINT)
    _, logs = process.communicate(timeout=STOP_LIMIT_S)
    assert process.returncode == 0
    assert logs.strip()
    for line in logs.splitlines():
        assert {"level", "message"} <= set(json.loads(line)), line


def test_r28_a_listed_model_is_routable(start_server):
    for _ in range(3):
        server = start_server("--workers", "1")
        name = server.get("/v1/models").json["data"][0]["id"]
        answer = server.post("/v1/completions", {"model": name, "prompt": "Hello", "max_tokens": 1})
        assert answer.status == 200, answer.body


# How it stops.


def long_stream(server):
    """A stream that has begun: the thread that reads it, and what it has read."""
    import urllib.request

    name = server.get("/v1/models").json["data"][0]["id"]
    body = {"model": name, "prompt": "Once", "max_tokens": 500, "stream": True, "ignore_eos": True}
    request = urllib.request.Request(
        server.url + "/v1/completions", data=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    answer = urllib.request.urlopen(request, timeout=120)
    lines = [answer.readline()]

    def read():
        try:
            lines.extend(answer)
        except OSError:
            lines.append(b"cut")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader, lines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_r29_the_first_signal_drains(start_server, number):
    server = start_server()
    reader, lines = long_stream(server)
    server.signal(number)
    assert server.wait() == 0, server.output
    reader.join(STOP_LIMIT_S)
    text = b"".join(lines)
    assert text.rstrip().endswith(b"data: [DONE]")
    assert b'"finish_reason":"length"' in text


def test_the_second_signal_stops_at_once(start_server):
    server = start_server()
    reader, lines = long_stream(server)
    server.signal(signal.SIGINT)
    assert eventually(lambda: "draining" in server.output or server.process.poll() is not None), server.output
    server.signal(signal.SIGINT)
    assert server.wait() == 70
    reader.join(STOP_LIMIT_S)
    assert not reader.is_alive(), "the client must not hang"


# `dynamo chat`.


# With the template's own system text the model answers this question in French; llama.cpp gets the same from it.
CHAT = ["--system", "You are a helpful assistant.", "--max-tokens", "24", "--temperature", "0"]


def test_chat_answers_one_message(server):
    done = run("chat", "--url", server.url, *CHAT, "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_chat_reads_a_message_from_a_pipe(server):
    done = subprocess.run(
        [BIN, "chat", "--url", server.url, *CHAT],
        input="What is the capital\nof France?\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_chat_keeps_the_conversation(server):
    """In a terminal: two turns, /clear, /exit."""
    import os
    import pty

    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [BIN, "chat", "--url", server.url, *CHAT],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    seen = bytearray()

    def read():
        while True:
            try:
                piece = os.read(main, 4096)
            except OSError:
                return
            if not piece:
                return
            seen.extend(piece)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for turn, line in enumerate([b"What is the capital of France?\n", b"And of Italy?\n", b"/clear\n", b"/exit\n"]):
        assert eventually(lambda: seen.count(b"> ") > turn), bytes(seen)
        os.write(main, line)
    assert process.wait(60) == 0, bytes(seen)
    reader.join(10)
    os.close(main)
    assert b"Paris" in seen


def test_chat_says_how_to_start_a_server():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = refused("chat", "--url", f"http://127.0.0.1:{port}", "Hello")
    assert f"127.0.0.1:{port}" in line and "dynamo serve" in line


def test_chat_names_an_unknown_model(server):
    line = refused("chat", "--url", server.url, "--model", "no-such-model", "Hello")
    assert "no-such-model" in line


# README.md.


def test_the_readme_opens_with_the_two_commands():
    blocks = "\n".join(code_blocks("README.md"))
    assert blocks.index("make serve") < blocks.index("make test")


@pytest.mark.parametrize(("command", "expected"), [("curl", "Paris"), ("target/release/dynamo chat", "gravity")])
def test_the_readme_commands_work(server, command, expected):
    block = next(block for block in code_blocks("README.md") if block.startswith(command))
    block = block.replace("http://127.0.0.1:8000", server.url)
    block = block.replace("target/release/dynamo chat", f"{BIN} chat --url {server.url}")
    done = subprocess.run(["bash", "-euc", block], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (block, done.stderr)
    assert expected in done.stdout.replace("Gravity", "gravity"), (block, done.stdout)


def test_the_readme_processes_find_each_other(tmp_path):
    block = next(block for block in code_blocks("README.md") if block.startswith("target/release/dynamo frontend"))
    places = {"DYN_FILE_KV": str(tmp_path / "store"), "DYN_HTTP_PORT": "0", "DYNAMO_MODEL": MODEL}
    running = []
    try:
        for number, line in enumerate(block.strip().splitlines()):
            command = line.replace("target/release/dynamo", BIN, 1).split()
            with open(tmp_path / f"{number}.log", "w") as log:
                running.append(subprocess.Popen(command, env={**os.environ, **places}, stdout=log, stderr=log))
        log = tmp_path / "0.log"
        assert eventually(lambda: LISTENING.search(log.read_text()))
        url = LISTENING.search(log.read_text()).group(1)
        assert eventually(lambda: http(url + "/v1/models").json["data"])
        model = http(url + "/v1/models").json["data"][0]["id"]
        asked = {"model": model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        assert "Paris" in http(url + "/v1/completions", asked).json["choices"][0]["text"]
        for process in reversed(running):
            process.terminate()
            assert process.wait(30) == 0
    finally:
        for process in running:
            process.kill()
            process.wait()
