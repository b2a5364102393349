import openai
import pytest
from system import Server, settled


@pytest.fixture(scope="session")
def shared_server():
    """The server as `make serve` starts it: two workers, KV routing, the default model."""
    server = Server.start()
    yield server
    assert server.stop() == 0, server.output


@pytest.fixture
def server(shared_server):
    """The shared server, whose ledger must balance after each test."""
    start = shared_server.ledger()
    yield shared_server
    settled(shared_server, start)


@pytest.fixture
def start_server():
    """Starts servers of a test's own; they are stopped after it."""
    servers = []

    def start(*flags, **options):
        servers.append(Server.start(*flags, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def client_of(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=120)


@pytest.fixture
def client(server):
    with client_of(server) as client:
        yield client


@pytest.fixture
def model(client):
    return client.models.list().data[0].id
