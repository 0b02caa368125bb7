"""Hooks that fuzz_openapi.sh loads into schemathesis: rules that the JSON schemas of /openapi.json cannot express.

Grammars and schemas must be valid, `tool_choice` must name a function in `tools`, and a request cannot both force a
call and set another constraint on the answer. The answers to all prompts of a request must fit into the queue. With
`suffix`, the prompt must be a text. Without these hooks, schemathesis would report the server's refusals as faults. The
hooks also keep the answers short.
"""

import schemathesis

DEMANDS = ("grammar", "json_schema", "response_format")
GENERATE = ("/v1/completions", "/infill")


@schemathesis.hook
def before_call(context, case, kwargs):
    # Deliberately invalid requests are sent unchanged.
    if case.meta is not None and case.meta.generation.mode.is_positive and isinstance(case.body, dict):
        mend(case.operation.path, case.body)


def mend(path, body):
    # Random grammars and schemas are rarely valid; engine/anneal/tests covers grammars and schemas separately.
    if isinstance(body.get("grammar"), str):
        body["grammar"] = 'root ::= "a" | "b"'
    if isinstance(body.get("json_schema"), (dict, bool)):
        body["json_schema"] = {"type": "boolean"}
    form = body.get("response_format")
    if isinstance(form, dict) and isinstance(form.get("json_schema"), dict):
        if isinstance(form["json_schema"].get("schema"), (dict, bool)):
            form["json_schema"]["schema"] = {"type": "boolean"}
    if isinstance(form, dict) and isinstance(form.get("schema"), (dict, bool)):
        form["schema"] = {"type": "boolean"}
    for tool in body["tools"] if isinstance(body.get("tools"), list) else []:
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("parameters"), dict):
            function["parameters"] = {"type": "object"}
    given = [name for name in DEMANDS if body.get(name) is not None]
    choice = body.get("tool_choice")
    if len(given) > 1 or (given and choice not in (None, "auto", "none")):
        for name in given:
            del body[name]
    names = [name for name in map(name_of, body.get("tools") or []) if isinstance(name, str)]
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict) and names:
        if isinstance(choice["function"].get("name"), str):
            choice["function"]["name"] = names[0]
    # Random arguments could override the template's own variables.
    if isinstance(body.get("chat_template_kwargs"), dict):
        body["chat_template_kwargs"] = {}
    if isinstance(body.get("logit_bias"), dict):
        body["logit_bias"] = {key: bias for key, bias in body["logit_bias"].items() if not key.isdigit() or int(key) < 100}
    if "timeout_s" in body or "input" in body:
        # With a random limit, such as a millisecond, the request could time out.
        body.update(timeout_s=None)
    if path in GENERATE or "messages" in body:
        body.update(max_tokens=4, max_completion_tokens=None, timeout_s=None)
        if "n_predict" in body:
            body.update(n_predict=4)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        body["prompt"] = prompt[:4]
    if body.get("suffix"):
        body.update(prompt="a", echo=None)


def name_of(tool):
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
