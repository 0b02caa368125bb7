#!/usr/bin/env python3
"""Tests `anneal serve` with the `openai` package (pip install openai).

    anneal serve -m model.gguf --chat-template chatml --listen 127.0.0.1:8080
    python3 docs/examples/openai_client.py http://127.0.0.1:8080/v1

Prints each tested part, and fails if an answer does not match the package's documentation.
"""

import json
import sys

import openai


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": parameters}}


HEAT = tool("get_heat", steel={"type": "string", "enum": ["red", "white"]}, at={"type": "integer", "minimum": 0, "maximum": 9})
STOP = tool("stop_fire")
ASK = [{"role": "user", "content": "How hot is the steel?"}]


def models(client, model):
    assert [one.id for one in client.models.list()] == [model]
    assert client.models.retrieve(model).object == "model"


def completions(client, model):
    asked = {"model": model, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "seed": 1}
    whole = client.completions.create(**asked)
    assert whole.choices[0].text and whole.usage.completion_tokens <= 12
    parts = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    parts = list(parts)
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


def chat(client, model):
    asked = {"model": model, "messages": ASK, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.role == "assistant" and whole.choices[0].finish_reason in ("stop", "length")
    parts = client.chat.completions.create(**asked, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content


def formats(client, model):
    schema = {"type": "object", "properties": {"hot": {"type": "boolean"}}, "required": ["hot"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "heat", "strict": True, "schema": schema}}
    answer = client.chat.completions.create(model=model, messages=ASK, max_tokens=100, response_format=form)
    assert list(json.loads(answer.choices[0].message.content)) == ["hot"]


def tools(client, model):
    asked = {"model": model, "messages": ASK, "tools": [HEAT, STOP], "max_tokens": 200, "temperature": 1, "seed": 3}
    for choice in ("required", {"type": "function", "function": {"name": "get_heat"}}):
        whole = client.chat.completions.create(**asked, tool_choice=choice)
        assert whole.choices[0].finish_reason == "tool_calls" and whole.choices[0].message.content is None
        (call,) = whole.choices[0].message.tool_calls
        check(call.function)
        if choice != "required":
            assert call.function.name == "get_heat"
        # The package joins a stream's deltas.
        with client.chat.completions.stream(**asked, tool_choice=choice) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls"
        check(final.message.tool_calls[0].function)
        # The next turn contains the tool's result.
        said = [whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "9"}]
        assert client.chat.completions.create(**{**asked, "messages": [*ASK, *said]}, tool_choice="none").choices
    for choice in ("auto", "none"):
        assert client.chat.completions.create(**asked, tool_choice=choice).choices


def check(function):
    arguments = json.loads(function.arguments)
    if function.name == "get_heat":
        assert arguments["steel"] in ("red", "white") and arguments["at"] in range(10)
    else:
        assert (function.name, arguments) == ("stop_fire", {})


def errors(client, model):
    cases = [
        (openai.BadRequestError, lambda: client.completions.create(model=model, prompt="a", temperature=-1), "temperature"),
        (openai.NotFoundError, lambda: client.completions.create(model="another", prompt="a"), "model"),
        (openai.BadRequestError, lambda: client.completions.create(model=model, prompt="word " * 100_000), "prompt"),
        (openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=[]), "messages"),
    ]
    for expected, ask, param in cases:
        try:
            ask()
        except expected as error:
            assert error.param == param and error.code and str(error), error
        else:
            raise AssertionError(f"{param} was taken")


def main():
    base = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
    client = openai.OpenAI(base_url=base, api_key=sys.argv[2] if len(sys.argv) > 2 else "none", max_retries=0)
    model = next(iter(client.models.list())).id
    for part in (models, completions, chat, formats, tools, errors):
        part(client, model)
        print(f"{part.__name__}: passed")


if __name__ == "__main__":
    main()
