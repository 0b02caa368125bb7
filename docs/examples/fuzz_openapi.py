"""What fuzz_openapi.sh has schemathesis know beyond the file: rules that no JSON schema can say.

A grammar must be one, a schema too, the function of `tool_choice` must be among `tools`, and a call cannot be demanded
beside another demand on the answer. Without this it would call the refusals wrong. Answers are kept short, too.
"""

import schemathesis

DEMANDS = ("grammar", "json_schema", "response_format")
FORMATS = ("text", "json_object")


@schemathesis.hook
def before_call(context, case, kwargs):
    # What the file forbids goes out as it is.
    if case.meta is not None and case.meta.generation.mode.is_positive and isinstance(case.body, dict):
        mend(case.body)


def mend(body):
    # Texts that happen to be grammars, and schemas that somebody can fit, are tests of their own: anneal/tests.
    if isinstance(body.get("grammar"), str):
        body["grammar"] = 'root ::= "a" | "b"'
    if isinstance(body.get("json_schema"), (dict, bool)):
        body["json_schema"] = {"type": "boolean"}
    form = body.get("response_format")
    if isinstance(form, dict) and isinstance(form.get("json_schema"), dict):
        if isinstance(form["json_schema"].get("schema"), (dict, bool)):
            form["json_schema"]["schema"] = {"type": "boolean"}
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
    # They would be variables of the template in place of its own.
    if isinstance(body.get("chat_template_kwargs"), dict):
        body["chat_template_kwargs"] = {}
    if isinstance(body.get("logit_bias"), dict):
        body["logit_bias"] = {key: bias for key, bias in body["logit_bias"].items() if not key.isdigit() or int(key) < 100}
    if "input" in body:
        # A thousandth of a second may be too little, which is an answer, too.
        body.update(timeout_s=None)
    if "prompt" in body or "messages" in body:
        body.update(max_tokens=4, max_completion_tokens=None, timeout_s=None)


def name_of(tool):
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
