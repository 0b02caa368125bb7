#!/usr/bin/env python3
"""Compares chat templates rendered by Anneal with the same templates rendered by jinja2, set up as in transformers.

    compare.py FOLDER    render every *.jinja file in FOLDER with both; exit code 1 if any result differs
    compare.py --write   write the reference for the templates in families/ to expected.json

Needs jinja2 (`pip install jinja2`) and, for FOLDER, the example: `cargo build -p chat --example render_template`.
FOLDER can be `models/templates` in llama.cpp's sources, which `cargo xtask vendor --origin sdist` fetches.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = pathlib.Path(__file__).parent


class Generation(jinja2.ext.Extension):
    """The tag `generation`, with which transformers marks text for training; here it only renders its content."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.If(jinja2.nodes.Const(True), body, [], [], lineno=line)


def environment():
    """Returns the environment of `_compile_jinja_template` in transformers' chat_template_utils.py."""

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def reference(source, conversations):
    try:
        template = environment().from_string(source)
    except jinja2.exceptions.TemplateError as error:
        return {c["name"]: {"error": str(error)} for c in conversations}
    results = {}
    for c in conversations:
        try:
            text = template.render(
                messages=c["messages"],
                tools=c.get("tools"),
                documents=None,
                add_generation_prompt=c.get("add_generation_prompt", False),
                bos_token="<BOS>",
                eos_token="<EOS>",
                **c.get("more", {}),
            )
            results[c["name"]] = {"text": text}
        except Exception as error:  # a template can raise any exception
            results[c["name"]] = {"error": f"{type(error).__name__}: {error}"}
    return results


def write(conversations):
    expected = {
        path.name: {name: result.get("text") for name, result in reference(path.read_text(), conversations).items()}
        for path in sorted((HERE / "families").glob("*.jinja"))
    }
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


def compare(folder, conversations):
    program = os.environ.get("RENDER_TEMPLATE", "target/debug/examples/render_template")
    different = 0
    paths = sorted(pathlib.Path(folder).glob("*.jinja"))
    for path in paths:
        output = subprocess.run(
            [program, path, HERE / "conversations.json"], capture_output=True, text=True, check=False
        )
        if output.returncode != 0:
            sys.exit(f"{program} {path}: {output.stderr}")
        ours = json.loads(output.stdout)
        wrong, texts, errors, lenient = [], 0, 0, 0
        for name, theirs in reference(path.read_text(), conversations).items():
            if "text" in theirs and ours[name] == theirs:
                texts += 1
            elif "error" in theirs and "error" in ours[name]:
                errors += 1
            elif "TypeError" in theirs.get("error", ""):
                lenient += 1  # a loop over none or JSON of a generator, which Anneal accepts
            else:
                wrong.append((name, theirs, ours[name]))
        print(f"{path.name}: {texts} equal, {errors} refused by both, {lenient} refused only by jinja2, {len(wrong)} different")
        for name, theirs, found in wrong:
            print(f"  {name}\n    jinja2 {theirs}\n    anneal {found}")
        different += bool(wrong)
    print(f"{len(paths)} templates, {different} with differences")
    return 1 if different or not paths else 0


def main():
    conversations = json.loads((HERE / "conversations.json").read_text())
    match sys.argv[1:]:
        case ["--write"]:
            write(conversations)
        case [folder] if not folder.startswith("-"):
            sys.exit(compare(folder, conversations))
        case _:
            sys.exit(__doc__)


main()
