"""Serves requests, one JSON object per line, so that a bench in another language can interleave its rounds with torch's."""

import json
import platform
import sys

import torch


def serve(answer, **hello):
    """Sends the versions, then answers each line of standard input until it ends."""
    say({"versions": versions(), **hello})
    for line in sys.stdin:
        say(answer(json.loads(line)))


def say(message: dict):
    print(json.dumps(message), flush=True)


def versions() -> dict:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if "transformers" in sys.modules:
        found["transformers"] = sys.modules["transformers"].__version__
    return found
