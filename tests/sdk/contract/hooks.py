"""What schemathesis may not choose: the model there is, and answers without end."""

import os

import schemathesis

MODEL = os.environ["DYNAMO_CONTRACT_MODEL"]
LONGEST = 4
# Where each route has the length of its answer.
LENGTHS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/messages": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
}


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    # One in eight is left as it came: unknown models have an answer of their own.
    if isinstance(body.get("model"), str) and len(body["model"]) % 8:
        body["model"] = MODEL
    names = LENGTHS.get(context.operation.path, ())
    for name in names:
        if isinstance(body.get(name), (int, float)) and body[name] > LONGEST:
            body[name] = LONGEST
    if names and all(body.get(name) is None for name in names):
        body[names[0]] = LONGEST
    return body
