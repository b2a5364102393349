"""The description of the API against the running binary: schemathesis asks what /openapi.json allows and forbids.

It finds no 500, no status, content type or header that is not documented, and no answer outside its schema. What it asks
depends on the seed, which is printed; DYNAMO_CONTRACT_SEED sets another.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "contract"
SEED = os.environ.get("DYNAMO_CONTRACT_SEED", "20261130")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
# Of the fuzzing phase; the phase before it asks a fixed list, in about 15 s.
MAX_TIME_S = 60
LEAST_CASES = 400
# Runs until one is not ended by the tool's own fault.
TRIES = 3


def is_own_fault(run):
    """On a busy machine its generator gives up on a case that it cannot make twice alike, before anything was asked."""
    return run.returncode != 0 and "FAILURES" not in run.stdout and "Inconsistent results" in run.stdout


@pytest.mark.timeout(500)
def test_answers_are_what_the_document_says(start_server):
    server = start_server("--engine", "mock", "--workers", "1", "--set", "worker.mock_speedup_ratio=1000")
    model = server.get("/v1/models").json["data"][0]["id"]
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "hooks",
        "PYTHONPATH": str(HERE),
        "DYNAMO_CONTRACT_MODEL": model,
    }
    command = [
        Path(sys.executable).parent / "schemathesis",
        *("--config-file", HERE / "schemathesis.toml"),
        *("run", server.url + "/openapi.json", "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"),
        *("--seed", SEED, "--max-time", str(MAX_TIME_S), "--max-examples", "60", "--request-timeout", "20"),
        *("--generation-database", "none", "--no-color", "--continue-on-failure", "--workers", "2"),
    ]
    for _ in range(TRIES):
        run = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True)
        print(run.stdout)
        if not is_own_fault(run):
            break
    assert run.returncode == 0, f"seed {SEED}\n{run.stdout}\n{run.stderr}"
    generated = int(re.search(r"(\d+) generated", run.stdout).group(1))
    assert generated >= LEAST_CASES, f"only {generated} cases"
    assert f"Seed: {SEED}" in run.stdout
    assert server.stop() == 0, server.output
