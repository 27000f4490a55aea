"""Writes the .parquet files of this folder and the same records as JSON Lines.

    python3 -m venv venv && venv/bin/pip install pyarrow==26.0.1
    venv/bin/python make_fixtures.py

Each codec that files on the Hub have is used once, with the options that change the encoding of strings and lists.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent

TEXTS = ["The first document.\n", "", None, "Ein zweites: äöü ≠ \U0001f980", "a" * 300 + "\n", "last"] * 5

MESSAGES = [
    [("user", "Why?"), ("assistant", "Because.")],
    [("system", "Be brief."), ("user", "And?"), ("assistant", "So."), ("user", "Ok"), ("assistant", "")],
    [],
    [("assistant", "Grüße \U0001f980")],
] * 5


def texts(name, strings=pa.string(), **options):
    ids = pa.array(range(len(TEXTS)), pa.int64())
    scores = pa.array([0.5] * len(TEXTS), pa.float64())
    table = pa.table({"id": ids, "text": pa.array(TEXTS, strings), "score": scores})
    pq.write_table(table, HERE / f"{name}.parquet", **options)


def messages(name, **options):
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.float32())])
    rows = [[{"role": role, "content": content, "weight": 1} for role, content in row] for row in MESSAGES]
    table = pa.table({"prompt": pa.array(["unused"] * len(rows)), "messages": pa.array(rows, pa.list_(message))})
    pq.write_table(table, HERE / f"{name}.parquet", **options)


def lines(name, records):
    with open(HERE / f"{name}.jsonl", "w") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


texts("text-snappy", compression="snappy")
texts("text-gzip", compression="gzip", use_dictionary=False, data_page_version="2.0")
texts("text-none", pa.large_string(), compression="none", row_group_size=7)
texts("text-binary-zstd", pa.binary(), compression="zstd", use_dictionary=False)
messages("messages-zstd", compression="zstd")
messages("messages-snappy", compression="snappy", row_group_size=3, data_page_version="2.0")
pq.write_table(pa.table({"body": ["x"], "label": [1]}), HERE / "no-text.parquet", compression="snappy")
lines("text", [{"text": text} for text in TEXTS])
lines("messages", [{"messages": [{"role": role, "content": text} for role, text in row]} for row in MESSAGES])
