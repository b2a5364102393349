"""An agent framework, the OpenAI Agents SDK as it comes, drives a loop: ask, call a tool, give back its result, answer.

The model is a script that writes a call as hermes models do and reads the tool's result out of the next prompt. So this
proves the way of calls and results through the system and the framework, over both of OpenAI's APIs, streamed and not;
it proves nothing about what a model decides. That a real model can be held to a call is the last test's.
"""

import asyncio
import json

import agents
import openai
import pytest

# Cut where an engine would not care: in a marker, in a name, in a string.
CALL = ["<think>I should ", "look.</think>", "<tool", '_call>{"name": "get_wea', 'ther", "arguments": {"city": "Os', 'lo"}}', "</tool_call>"]
ANSWER = ["It rai", "ns in Oslo."]
QUESTION = "What is the weather in Oslo?"


@pytest.fixture
def scripted(start_server, tmp_path):
    script = tmp_path / "script.json"
    # The second script is followed as long as no prompt holds the tool's words.
    scripts = [
        {"when": {"contains": "Rain, 7 degrees"}, "steps": [{"pieces": ANSWER}]},
        {"steps": [{"pieces": CALL}]},
    ]
    script.write_text(json.dumps({"model": "caller", "scripts": scripts}))
    flags = ["--tool-parser", "hermes", "--reasoning-parser", "qwen3"]
    return start_server("--engine", "scripted", "--script", str(script), "--workers", "1", *flags)


def agent_of(client, api, model, asked, **options):
    kind = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}[api]

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Weather of a city."""
        asked.append(city)
        return "Rain, 7 degrees"

    return agents.Agent(
        name="forecaster",
        instructions="You know the weather.",
        model=kind(model=model, openai_client=client),
        tools=[get_weather],
        model_settings=agents.ModelSettings(**{"max_tokens": 100, **options}),
    )


def run(server, work):
    """Runs `work(client)` with a client of its own; nothing is reported to anybody."""
    agents.set_tracing_disabled(True)

    async def main():
        async with openai.AsyncOpenAI(
            base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60
        ) as client:
            return await work(client)

    return asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_agent_calls_a_tool_and_answers(scripted, api, stream):
    asked = []

    async def work(client):
        agent = agent_of(client, api, "caller", asked)
        if not stream:
            return await agents.Runner.run(agent, QUESTION), []
        running = agents.Runner.run_streamed(agent, QUESTION)
        return running, [event.type async for event in running.stream_events()]

    result, events = run(scripted, work)
    assert result.final_output == "It rains in Oslo."
    assert asked == ["Oslo"]
    kinds = [item.type for item in result.new_items if item.type != "reasoning_item"]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert len(result.raw_responses) == 2
    if stream:
        assert events.count("raw_response_event") > 4


def test_two_turns_of_one_session(scripted):
    """What was said comes back with the next question, calls and their results included."""
    asked = []

    async def work(client):
        agent = agent_of(client, "responses", "caller", asked)
        first = await agents.Runner.run(agent, QUESTION)
        turns = first.to_input_list() + [{"role": "user", "content": "And now?"}]
        return await agents.Runner.run(agent, turns)

    assert run(scripted, work).final_output == "It rains in Oslo."
    assert asked == ["Oslo"]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_real_model_held_to_a_call_calls(start_server, api):
    """The default model, which would not call by itself, has to: its tokens are masked to the form of a call."""
    server = start_server("--workers", "1", "--tool-parser", "hermes")
    asked = []

    async def work(client):
        model = (await client.models.list()).data[0].id
        agent = agent_of(client, api, model, asked, tool_choice="required", max_tokens=80, temperature=0)
        # This model's template takes no message without content, which is how a call goes back.
        agent.tool_use_behavior = "stop_on_first_tool"
        return await agents.Runner.run(agent, QUESTION, max_turns=4)

    result = run(server, work)
    assert len(asked) == 1 and isinstance(asked[0], str)
    assert "tool_call_output_item" in [item.type for item in result.new_items]
