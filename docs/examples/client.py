#!/usr/bin/env python3
"""Requests text from `anneal serve` over its Unix socket and prints the text as it arrives.

    python3 docs/examples/client.py "Once upon a time" [SOCKET]

Needs only Python's standard library.
"""

import json
import os
import socket
import sys


def generate(path, prompt, **fields):
    """Yields the lines of the answer; the last line has "done"."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        request = {"prompt": prompt, "stream": True, **fields}
        connection.sendall(json.dumps(request).encode() + b"\n")
        for line in connection.makefile("r", encoding="utf-8"):
            answer = json.loads(line)
            if "error" in answer:
                raise RuntimeError(answer["error"]["message"])
            yield answer
            if answer.get("done"):
                return


def main():
    prompt = sys.argv[1] if len(sys.argv) > 1 else "Once upon a time"
    default = os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "anneal", "anneal.sock")
    path = sys.argv[2] if len(sys.argv) > 2 else default
    for answer in generate(path, prompt, max_tokens=64):
        print(answer["text"], end="", flush=True)
    print()
    speed = answer["timings"]["decode_tokens_per_second"]
    print(f"{answer['usage']['completion_tokens']} tokens, {speed or 0:.1f} t/s, stopped: {answer['stop']}", file=sys.stderr)


if __name__ == "__main__":
    main()
