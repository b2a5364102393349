"""HTTPS and mutual TLS, as OpenAI's SDK speaks them, and what it makes of errors that no second try can mend."""

import ssl

import openai
import pytest
import trustme


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def identity(authority, tmp_path):
    """Flags for a server with a certificate of the authority."""
    issued = authority.issue_cert("127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    return ["--tls-cert-path", str(tmp_path / "cert.pem"), "--tls-key-path", str(tmp_path / "key.pem")]


def client_of(server, context, **options):
    http_client = openai.DefaultHttpxClient(verify=context)
    return openai.OpenAI(
        base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60, http_client=http_client, **options
    )


def trusting(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def chat(client, stream):
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=4,
        stream=stream,
    )
    if not stream:
        return answer.choices[0].finish_reason
    return [chunk.choices[0].finish_reason for chunk in answer if chunk.choices][-1]


def test_the_sdk_speaks_https(start_server, authority, identity):
    server = start_server("--engine", "mock", *identity)
    assert server.url.startswith("https://")
    with client_of(server, trusting(authority)) as client:
        assert chat(client, stream=False) == "length"
        assert chat(client, stream=True) == "length"
    with client_of(server, ssl.create_default_context()) as client:
        with pytest.raises(openai.APIConnectionError):
            client.models.list()


def test_mutual_tls(start_server, authority, identity, tmp_path):
    clients = trustme.CA()
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    server = start_server("--engine", "mock", *identity, "--tls-client-ca-cert-path", str(tmp_path / "clients.pem"))
    known = trusting(authority)
    clients.issue_cert("somebody").configure_cert(known)
    with client_of(server, known) as client:
        assert chat(client, stream=False) == "length"
        assert chat(client, stream=True) == "length"
    stranger = trusting(authority)
    authority.issue_cert("somebody").configure_cert(stranger)
    for context in (trusting(authority), stranger):
        with client_of(server, context) as client:
            with pytest.raises(openai.APIConnectionError):
                client.models.list()


def test_the_sdk_does_not_repeat_what_cannot_succeed(server):
    """It repeats every status from 500 on, unless told otherwise."""
    seen = []
    hooks = {"response": [lambda response: seen.append(response.status_code)]}
    http_client = openai.DefaultHttpxClient(event_hooks=hooks)
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", http_client=http_client) as client:
        with pytest.raises(openai.InternalServerError):
            client.images.generate(model="any", prompt="a cat")
        assert seen == [501]
