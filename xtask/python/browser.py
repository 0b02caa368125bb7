"""Tests a server with web pages in headless Chromium, and prints one JSON object per task.

Arguments: the programs `anneal` and Chromium, and a model file. `cargo xtask test --clients` runs this script. The
pages and the servers have different ports, so every request of a page to a server is cross-origin.
"""

import contextlib
import http.server
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import urllib.request

from perform_tasks import perform

ANNEAL, CHROMIUM, MODEL = sys.argv[1:4]
KEY = "the-key-of-the-browser"
# Time limit, in seconds, for a page to load and send its result.
PATIENCE = 60

# The page sends the result of `run` to its own server.
PAGE = """<!doctype html><script type="module">
const server = SERVER, key = KEY;
const ask = { messages: [{ role: "user", content: "Hello" }], max_tokens: 8, stream: true };
const post = (headers, more) =>
  fetch(`${server}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(ask), ...more });
const json = { "content-type": "application/json" };
const withKey = (key) => post({ ...json, authorization: `Bearer ${key}` });
const refusal = async (asked) => asked.then((answer) => answer.type, (error) => error.name);
const run = async () => { RUN };
const result = await run().catch((error) => ({ error: String(error) }));
await fetch("/result", { method: "POST", body: JSON.stringify(result) });
</script>"""

STREAM = """
const answer = await withKey(key);
const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
let text = "";
for (let part; !(part = await reader.read()).done; ) text += part.value;
return { status: answer.status, text };
"""
WRONG_KEY = """
const answer = await withKey("a wrong key");
return { status: answer.status, code: (await answer.json()).error.code };
"""
REFUSED = """
return [
  await refusal(withKey(key)),
  await refusal(fetch(`${server}/v1/models`)),
  await refusal(post({ "content-type": "text/plain" }, { mode: "no-cors" })),
];
"""


def check(condition, found):
    if not condition:
        raise AssertionError(repr(found)[:300])


class Pages(http.server.BaseHTTPRequestHandler):
    """Server of one page, which puts the page's result into a queue."""

    def do_GET(self):
        body = self.server.page.encode() if self.path == "/" else b""
        self.send_response(200 if body else 404)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()
        self.server.results.put(json.loads(body))

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def page_server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        server.results = queue.Queue()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def origin(pages):
    return f"http://localhost:{pages.server_address[1]}"


@contextlib.contextmanager
def anneal(folder, name, config):
    """Runs a server with the configuration `config`, and yields its address."""
    path = os.path.join(folder, f"{name}.toml")
    with open(path, "w") as file:
        file.write(config)
    flags = ["--json", "--chat-template", "chatml", "--listen", "127.0.0.1:0", "-t", "1", "--config", path]
    command = [ANNEAL, "serve", "-m", MODEL, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield json.loads(process.stdout.readline())["listen"]
        finally:
            process.kill()


@contextlib.contextmanager
def chromium(folder, *arguments, **more):
    flags = ["--headless", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}/profile"]
    if os.geteuid() == 0:
        # Chromium refuses to run its sandbox as root.
        flags.append("--no-sandbox")
    command = [CHROMIUM, *flags, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def visit(folder, pages, server, run):
    """Opens a page that runs `run` with `server`, and returns the page's result."""
    page = PAGE.replace("SERVER", json.dumps(server)).replace("KEY", json.dumps(KEY)).replace("RUN", run)
    pages.page = page
    with chromium(folder, origin(pages)):
        return pages.results.get(timeout=PATIENCE)


def allowed_origin(context):
    found = visit(context.folder, context.pages, context.keyed, STREAM)
    check(found.get("status") == 200 and found["text"].endswith("data: [DONE]\n\n"), found)


def wrong_key(context):
    found = visit(context.folder, context.pages, context.keyed, WRONG_KEY)
    check(found == {"status": 401, "code": "invalid_api_key"}, found)


def refused_origin(context):
    for server in (context.keyed, context.open):
        found = visit(context.folder, context.others, server, REFUSED)
        # The answer to a request without CORS is opaque: the page cannot read it, not even the status.
        check(found == ["TypeError", "TypeError", "opaque"], found)
    check(totals(context.open)["requests"] == 0, "the server answered a page")


def rebound_name(context):
    port = context.open.rsplit(":", 1)[1]
    rules = "--host-resolver-rules=MAP rebound.example 127.0.0.1"
    with chromium(context.folder, rules, "--dump-dom", f"http://rebound.example:{port}/v1/models") as process:
        text = process.communicate(timeout=PATIENCE)[0]
    check("forbidden_host" in text and "tiny" not in text, text)


def totals(server):
    with urllib.request.urlopen(f"{server}/status") as answer:
        return json.load(answer)["totals"]


TASKS = [
    ("chromium", "preflight, key and streamed chat from an allowed origin", allowed_origin),
    ("chromium", "readable error for a wrong key", wrong_key),
    ("chromium", "requests from another origin refused", refused_origin),
    ("chromium", "rebound DNS name refused", rebound_name),
]


class Context:
    """Pages and servers of the tasks."""


def main():
    version = subprocess.run([CHROMIUM, "--version"], capture_output=True, text=True, check=True).stdout.split()
    version = next(word for word in version if word[0].isdigit())
    with contextlib.ExitStack() as stack:
        context = Context()
        context.folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        context.pages, context.others = (stack.enter_context(page_server()) for _ in range(2))
        keys = os.path.join(context.folder, "keys")
        with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(f"{KEY}\n")
        config = f'api_key_file = "{keys}"\nallowed_origins = "{origin(context.pages)}"\n'
        context.keyed = stack.enter_context(anneal(context.folder, "keyed", config))
        context.open = stack.enter_context(anneal(context.folder, "open", ""))
        perform(TASKS, lambda _: version, context)


main()
