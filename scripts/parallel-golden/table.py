"""Writes golden tables with one row per line, for readable diffs."""

import argparse
import importlib.metadata
import json
import pathlib

import torch
import xxhash

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "dist" / "tests" / "golden"


def compact(value) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def xxh3(lists) -> str:
    return xxhash.xxh3_64_hexdigest(compact(lists).encode())


def versions(*packages: str) -> dict:
    named = {package: importlib.metadata.version(package) for package in packages}
    return named | {"torch": torch.__version__.split("+")[0]}


def error(call) -> dict:
    """The exception that `call` raises, if any."""
    try:
        call()
    except Exception as raised:
        return {"raises": type(raised).__name__, "message": str(raised)}
    return {"raises": None}


def rows(value) -> str:
    """The JSON text of a list or object, with one line per entry."""
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return "[\n  " + ",\n  ".join(compact(row) for row in value) + "\n ]"
    if isinstance(value, dict) and len(compact(value)) > 200:
        lines = (f"{compact(name)}:{compact(entry)}" for name, entry in value.items())
        return "{\n  " + ",\n  ".join(lines) + "\n }"
    return compact(value)


def write(name: str, about: str, table: dict):
    """Parses the command line of a generator (`--folder`) and writes the table to `name` there."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)

    parts = (f" {compact(key)}:{rows(value)}" for key, value in table.items())
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    json.loads(text)
    (folder / name).write_text(text, encoding="utf-8")
    print(f"{folder / name}: {len(text):,} bytes")
