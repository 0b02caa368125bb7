"""Asks a server with the libraries that people use, and prints one JSON object per task.

Arguments: the address of the server, and the name of its model. `cargo xtask test --clients` runs this script with the
packages of clients.txt. The model may have random weights, so answers are checked by their form.
"""

import asyncio
import contextlib
import json
import sys
from importlib.metadata import version
from typing import Literal

from pydantic import BaseModel
from perform_tasks import perform

ADDRESS, MODEL = sys.argv[1], sys.argv[2]
OPENAI = {"base_url": f"{ADDRESS}/v1", "api_key": "none"}
USER = [{"role": "user", "content": "Is steel harder than iron?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"metal": {"enum": ["steel", "iron"]}},
    "required": ["metal"],
    "additionalProperties": False,
}


class Verdict(BaseModel):
    """Verdict on two metals."""

    metal: Literal["steel", "iron"]
    is_harder: bool


def check(condition, found):
    if not condition:
        raise AssertionError(repr(found)[:300])


@contextlib.contextmanager
def busy_server():
    """Keeps the only slot of the server busy, so that other requests wait."""
    import openai

    ask = {"model": MODEL, "prompt": "a", "max_tokens": 60000, "stream": True}
    with openai.OpenAI(**OPENAI).completions.create(extra_body={"ignore_eos": True}, **ask) as stream:
        next(iter(stream))
        yield


# Time limit of a request that must time out in the queue after its stream has begun.
SHORT = {"timeout_s": 0.3}


def openai_models():
    import openai

    names = [model.id for model in openai.OpenAI(**OPENAI).models.list()]
    check(MODEL in names, names)


def openai_chat_stream():
    import openai

    stream = openai.OpenAI(**OPENAI).chat.completions.create(
        model=MODEL, messages=USER, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    check(chunks[-1].usage.completion_tokens > 0, chunks[-1])


def openai_tool():
    import openai

    tool = {"type": "function", "function": {"name": "choose", "description": "Choose.", "parameters": PARAMETERS}}
    answer = openai.OpenAI(**OPENAI).chat.completions.create(
        model=MODEL, messages=USER, max_tokens=1500, tools=[tool], tool_choice="required"
    )
    call = answer.choices[0].message.tool_calls[0].function
    check(json.loads(call.arguments)["metal"] in ("steel", "iron"), call)


def openai_schema():
    import openai

    answer = openai.OpenAI(**OPENAI).chat.completions.parse(
        model=MODEL, messages=USER, max_tokens=1500, response_format=Verdict
    )
    check(isinstance(answer.choices[0].message.parsed, Verdict), answer)


def openai_responses():
    import openai

    client = openai.OpenAI(**OPENAI)
    answer = client.responses.parse(model=MODEL, input="Which?", text_format=Verdict, max_output_tokens=1500)
    check(isinstance(answer.output_parsed, Verdict), answer)
    tool = {"type": "function", "name": "choose", "description": "Choose.", "parameters": PARAMETERS, "strict": True}
    with client.responses.stream(
        model=MODEL, input="Which?", tools=[tool], tool_choice="required", max_output_tokens=1500
    ) as stream:
        kinds = [event.type for event in stream]
        call = stream.get_final_response().output[0]
    check("response.function_call_arguments.delta" in kinds and call.name == "choose", kinds)


def openai_error():
    import openai

    try:
        openai.OpenAI(**OPENAI).chat.completions.create(model="none", messages=USER)
    except openai.NotFoundError as error:
        check(error.param == "model", error)
    else:
        raise AssertionError("no error")


def openai_stream_errors():
    import openai

    client = openai.OpenAI(**OPENAI)
    ask = {"model": MODEL, "stream": True, "extra_body": SHORT}
    with busy_server():
        for start in (
            lambda: client.chat.completions.create(messages=USER, **ask),
            lambda: client.completions.create(prompt="a", **ask),
            lambda: client.responses.create(input="a", **ask),
        ):
            try:
                list(start())
            except openai.APIError as error:
                check(error.code == "deadline" and "before its first token" in error.message, error)
            else:
                raise AssertionError("no error")


def anthropic_stream_error():
    import anthropic

    client = anthropic.Anthropic(base_url=ADDRESS, api_key="none", max_retries=0)
    with busy_server():
        try:
            with client.messages.stream(model=MODEL, max_tokens=8, messages=USER, extra_body=SHORT) as stream:
                stream.get_final_message()
        except anthropic.APIStatusError as error:
            check(error.body["error"]["type"] == "timeout_error" and "before its first token" in str(error), error)
        else:
            raise AssertionError("no error")


def anthropic_stream():
    import anthropic

    client = anthropic.Anthropic(base_url=ADDRESS, api_key="none")
    with client.messages.stream(model=MODEL, max_tokens=8, messages=USER) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    check(last.usage.output_tokens > 0 and last.content[0].text == text, last)
    check(client.messages.count_tokens(model=MODEL, messages=USER).input_tokens > 0, "count")


def anthropic_tool():
    import anthropic

    client = anthropic.Anthropic(base_url=ADDRESS, api_key="none")
    tool = {"name": "choose", "description": "Choose.", "input_schema": PARAMETERS}
    ask = {"model": MODEL, "max_tokens": 1500, "tools": [tool]}
    first = client.messages.create(messages=USER, tool_choice={"type": "tool", "name": "choose"}, **ask)
    call = first.content[0]
    check(first.stop_reason == "tool_use" and call.input["metal"] in ("steel", "iron"), first)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
    messages = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    check(client.messages.create(messages=messages, **ask).role == "assistant", "the result")


def langchain_openai():
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, max_tokens=1500, **OPENAI)
    check(isinstance(model.with_structured_output(Verdict).invoke("Which?"), Verdict), "a verdict")
    parts = [part.content for part in model.stream("Hello")]
    check(len(parts) > 1, parts)
    call = model.bind_tools([Verdict], tool_choice="any").invoke("Which?").tool_calls[0]
    check(call["name"] == "Verdict", call)


def litellm():
    import litellm as library

    ask = {"messages": USER, "max_tokens": 8, "api_key": "none"}
    answer = library.completion(model=f"openai/{MODEL}", api_base=f"{ADDRESS}/v1", **ask)
    check(answer.usage.completion_tokens > 0, answer)
    answer = library.completion(model=f"anthropic/{MODEL}", api_base=ADDRESS, **ask)
    check(answer.usage.completion_tokens > 0, answer)


def llama_index():
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model=MODEL, api_base=f"{ADDRESS}/v1", api_key="none", is_chat_model=True, max_tokens=8, context_window=2048
    )
    check(len(list(model.stream_chat([ChatMessage(role="user", content="Hello")]))) > 0, "a stream")


def instructor():
    import instructor as library
    import openai

    for mode in (library.Mode.TOOLS, library.Mode.JSON_SCHEMA):
        client = library.from_openai(openai.OpenAI(**OPENAI), mode=mode)
        found = client.chat.completions.create(model=MODEL, messages=USER, response_model=Verdict, max_tokens=1500)
        check(isinstance(found, Verdict), found)


def pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(**OPENAI))
    agent = Agent(model, output_type=Verdict, model_settings={"max_tokens": 1500})
    found = asyncio.run(agent.run("Which?")).output
    check(isinstance(found, Verdict), found)


TASKS = [
    ("openai", "list of models", openai_models),
    ("openai", "chat, streamed with usage", openai_chat_stream),
    ("openai", "required tool call", openai_tool),
    ("openai", "answer parsed by a pydantic model", openai_schema),
    ("openai", "responses: schema, and a streamed tool call", openai_responses),
    ("openai", "error for an unknown model", openai_error),
    ("openai", "errors inside streams", openai_stream_errors),
    ("anthropic", "streamed message, token count", anthropic_stream),
    ("anthropic", "tool call and its result", anthropic_tool),
    ("anthropic", "error inside a stream", anthropic_stream_error),
    ("langchain-openai", "structured output, stream, tool call", langchain_openai),
    ("litellm", "completion through OpenAI's and Anthropic's APIs", litellm),
    ("llama-index-llms-openai-like", "streamed chat", llama_index),
    ("instructor", "model from a tool call and from a JSON schema", instructor),
    ("pydantic-ai-slim", "agent with a typed output", pydantic_ai),
]

perform(TASKS, version)
