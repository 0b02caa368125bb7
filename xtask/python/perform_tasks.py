"""Performs tasks and prints one JSON object for each, which `cargo xtask test --clients` reads."""

import json
import sys


def perform(tasks, version, *arguments):
    """Performs `tasks`, a list of clients, descriptions and functions, and ends the program: with code 1 if one failed.

    `version` returns the version of a client. The functions get `arguments`.
    """
    failed = False
    for client, task, run in tasks:
        error = None
        try:
            run(*arguments)
        except Exception as caught:  # Report every failure as a result.
            error, failed = f"{type(caught).__name__}: {caught}"[:500], True
        print(json.dumps({"client": client, "version": version(client), "task": task, "error": error}), flush=True)
    sys.exit(1 if failed else 0)
