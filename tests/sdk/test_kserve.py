"""KServe's v2 gRPC service, as Triton's official client speaks it."""

import queue
import re

import grpc
import numpy
import pytest
import tritonclient.grpc as triton
import trustme
from system import eventually, settled

ADDRESS = re.compile(r"gRPC \(KServe v2\) on (\S+)")


def address_of(server):
    return ADDRESS.search(server.output).group(1)


@pytest.fixture(scope="module")
def serving():
    from system import Server

    server = Server.start("--grpc-port", "0")
    yield server
    assert server.stop() == 0, server.output


@pytest.fixture
def client(serving):
    start = serving.ledger()
    with triton.InferenceServerClient(address_of(serving)) as client:
        yield client
    settled(serving, start)


@pytest.fixture
def model(serving):
    return serving.get("/v1/models").json["data"][0]["id"]


def text_input(text):
    tensor = triton.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(numpy.array([text.encode()], dtype=object))
    return tensor


def streaming(yes):
    tensor = triton.InferInput("streaming", [1], "BOOL")
    tensor.set_data_from_numpy(numpy.array([yes]))
    return tensor


def said(result):
    """Text and finish reason of a response."""
    return tuple(result.as_numpy(name)[0].decode() for name in ("text_output", "finish_reason"))


def is_final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


GREEDY = {"max_tokens": 12, "temperature": 0.0}
PROMPT = "The capital of France is"


def completion(serving, model, **fields):
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **fields}
    choice = serving.post("/v1/completions", body).json["choices"][0]
    return choice["text"], choice["finish_reason"]


def test_what_is_there(client, model):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(model)
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata().name == "dynamo"
    metadata = client.get_model_metadata(model)
    assert [tensor.name for tensor in metadata.inputs] == ["text_input", "streaming"]
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in metadata.outputs] == [
        ("text_output", "BYTES", [1]),
        ("finish_reason", "BYTES", [1]),
    ]
    config = client.get_model_config(model, as_json=True)["config"]
    assert config["name"] == model
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert [(tensor["name"], tensor["data_type"]) for tensor in config["input"]] == [
        ("text_input", "TYPE_STRING"),
        ("streaming", "TYPE_BOOL"),
    ]
    assert config["input"][1]["optional"]


def test_health_is_told_as_grpc_clients_ask(serving):
    """`grpc.health.v1.Health` by its wire: field 1 of the question is the service, of the answer the status."""
    asked = [b"", b"\n\x1e" + b"inference.GRPCInferenceService"]
    with grpc.insecure_channel(address_of(serving)) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        for question in asked:
            assert check(question, timeout=60) == b"\x08\x01"
            stream = watch(question, timeout=60)
            assert next(stream) == b"\x08\x01"
            stream.cancel()
        with pytest.raises(grpc.RpcError) as unknown:
            check(b"\n\x01x", timeout=60)
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        stream = watch(b"\n\x01x", timeout=60)
        assert next(stream) == b"\x08\x03"
        stream.cancel()


def test_infer_is_the_completion(client, serving, model):
    result = client.infer(model, [text_input(PROMPT)], request_id="7", parameters=GREEDY)
    assert said(result) == completion(serving, model)
    assert result.get_response().id == "7"
    assert result.get_response().parameters["completion_tokens"].int64_param == 12
    text = said(result)[0]
    stop = text[len(text) // 2 :][:3]
    stopped = client.infer(model, [text_input(PROMPT)], parameters=GREEDY | {"stop": stop})
    assert said(stopped) == (text[: text.index(stop)], "stop")
    only = client.infer(
        model, [text_input(PROMPT)], outputs=[triton.InferRequestedOutput("finish_reason")], parameters=GREEDY
    )
    assert only.as_numpy("text_output") is None
    assert only.as_numpy("finish_reason")[0] == b"length"


def test_inline_contents(serving, model):
    """The other form of tensors, which Triton's client never sends."""
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(PROMPT.encode())
    request.parameters["max_tokens"].int64_param = 12
    request.parameters["temperature"].double_param = 0
    with grpc.insecure_channel(address_of(serving)) as channel:
        response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)
    assert not response.raw_output_contents
    outputs = {output.name: output.contents.bytes_contents[0].decode() for output in response.outputs}
    assert (outputs["text_output"], outputs["finish_reason"]) == completion(serving, model)


def test_streams(client, serving, model):
    whole = completion(serving, model)
    heard = queue.Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    for request_id, stream in (("1", True), ("2", False), ("3", True)):
        client.async_stream_infer(
            model, [text_input(PROMPT), streaming(stream)], request_id=request_id, parameters=GREEDY
        )
    answers, open_requests = {}, {"1", "2", "3"}
    while open_requests:
        result, error = heard.get(timeout=60)
        assert error is None
        request_id = result.get_response().id
        answers.setdefault(request_id, []).append(said(result))
        if is_final(result):
            open_requests.remove(request_id)
    client.stop_stream()
    assert heard.empty()
    for request_id, pieces in answers.items():
        assert "".join(text for text, _ in pieces) == whole[0], request_id
        assert [finish for _, finish in pieces] == [""] * (len(pieces) - 1) + [whole[1]]
    assert len(answers["1"]) > 1
    assert len(answers["2"]) == 1


def test_faults(client, model):
    for parameters, inputs, name, code in (
        (GREEDY, [text_input(PROMPT)], "nobody", "NOT_FOUND"),
        (GREEDY | {"temperature": 9.0}, [text_input(PROMPT)], model, "INVALID_ARGUMENT"),
        (GREEDY, [streaming(False)], model, "INVALID_ARGUMENT"),
        (GREEDY, [text_input(PROMPT), streaming(True)], model, "INVALID_ARGUMENT"),
    ):
        with pytest.raises(triton.InferenceServerException) as caught:
            client.infer(name, inputs, parameters=parameters)
        assert caught.value.status() == f"StatusCode.{code}"
    with pytest.raises(triton.InferenceServerException) as caught:
        client.infer(model, [text_input(PROMPT)], parameters=GREEDY, compression_algorithm="gzip")
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    heard = queue.Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    client.async_stream_infer("nobody", [text_input(PROMPT)], parameters=GREEDY)
    result, error = heard.get(timeout=60)
    assert result is None
    assert "nobody" in error.message()
    # The stream goes on.
    client.async_stream_infer(model, [text_input(PROMPT)], parameters=GREEDY)
    result, error = heard.get(timeout=60)
    assert error is None
    assert said(result)[1] == "length"
    client.stop_stream()


def test_a_client_that_cancels_frees_the_engine(client, serving, model):
    busy = {"max_tokens": 1500, "temperature": 0.0, "ignore_eos": True}
    heard = queue.Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    client.async_stream_infer(model, [text_input(PROMPT), streaming(True)], parameters=busy)
    assert heard.get(timeout=60)[1] is None
    assert serving.total("dynamo_component_inflight_requests") == 1
    client.stop_stream(cancel_requests=True)
    assert eventually(lambda: serving.total("dynamo_component_inflight_requests") == 0, limit_s=5)
    call = client.async_infer(model, [text_input(PROMPT)], lambda result, error: None, parameters=busy)
    assert eventually(lambda: serving.total("dynamo_component_inflight_requests") == 1)
    call.cancel()
    assert eventually(lambda: serving.total("dynamo_component_inflight_requests") == 0, limit_s=5)
    with pytest.raises(triton.InferenceServerException) as caught:
        client.infer(model, [text_input(PROMPT)], parameters=busy, client_timeout=0.5)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_keys_and_tls(start_server, tmp_path):
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    (tmp_path / "keys").write_text("sk-0123456789abcdef\n")
    server = start_server(
        *("--engine", "mock", "--grpc-port", "0", "--api-keys-file", str(tmp_path / "keys")),
        *("--tls-cert-path", str(tmp_path / "cert.pem"), "--tls-key-path", str(tmp_path / "key.pem")),
    )
    assert eventually(lambda: re.search(r"serving (\S+) on", server.output)), server.output
    name = re.search(r"serving (\S+) on", server.output).group(1)
    with triton.InferenceServerClient(
        address_of(server), ssl=True, root_certificates=str(tmp_path / "authority.pem")
    ) as client:
        assert client.is_server_live()
        with pytest.raises(triton.InferenceServerException) as caught:
            client.infer(name, [text_input(PROMPT)], parameters={"max_tokens": 4})
        assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        key = {"authorization": "Bearer sk-0123456789abcdef"}
        result = client.infer(name, [text_input(PROMPT)], parameters={"max_tokens": 4}, headers=key)
        assert said(result)[1] == "length"
