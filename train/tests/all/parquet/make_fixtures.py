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

# (messages, text): a row has either, both or none.
BOTH = [
    (MESSAGES[0], "not used"),
    (MESSAGES[1], None),
    (None, "A text among conversations.\n"),
    (None, None),
    ([], "a text beside an empty conversation"),
] * 3

# Two of these bytes are no UTF-8.
LATIN_1 = "Déjà vu, in Latin-1".encode("latin-1")


def texts(name, strings=pa.string(), **options):
    ids = pa.array(range(len(TEXTS)), pa.int64())
    scores = pa.array([0.5] * len(TEXTS), pa.float64())
    table = pa.table({"id": ids, "text": pa.array(TEXTS, strings), "score": scores})
    pq.write_table(table, HERE / f"{name}.parquet", **options)


def conversations(rows, **other):
    """Messages with a weight and `other` fields, each with its type and value."""
    other = {"weight": (pa.float32(), 1), **other}
    types = [("role", pa.string()), ("content", pa.string())] + [(name, kind) for name, (kind, _) in other.items()]
    more = {name: value for name, (_, value) in other.items()}
    of = lambda row: [{"role": role, "content": content, **more} for role, content in row]
    return pa.array([None if row is None else of(row) for row in rows], pa.list_(pa.struct(types)))


def messages(name, **options):
    unused = pa.array(["unused"] * len(MESSAGES))
    table = pa.table({"prompt": unused, "messages": conversations(MESSAGES)})
    pq.write_table(table, HERE / f"{name}.parquet", **options)


def both(name, **options):
    rows, texts = zip(*BOTH)
    messages = conversations(rows, image=(pa.binary(), b"\xff\xd8\xff\xe0"))
    table = pa.table({"text": pa.array(texts, pa.string()), "messages": messages})
    pq.write_table(table, HERE / f"{name}.parquet", **options)


def binary(name, values):
    pq.write_table(pa.table({"text": pa.array(values, pa.binary())}), HERE / f"{name}.parquet", compression="snappy")


def unused_bytes(name):
    """As BOTH; a text is no UTF-8 where a row has messages, and so is the field `text` of messages."""
    other = bytes(range(128, 256))
    rows, texts = zip(*BOTH)
    messages = conversations(rows, text=(pa.binary(), other))
    texts = [other if row is not None else text for row, text in BOTH]
    table = pa.table({"text": pa.array(texts, pa.binary()), "messages": messages})
    pq.write_table(table, HERE / f"{name}.parquet", compression="snappy")


def plain(row):
    return None if row is None else [{"role": role, "content": text} for role, text in row]


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
lines("messages", [{"messages": plain(row)} for row in MESSAGES])
both("both-snappy", compression="snappy")
unused_bytes("both-unused-bytes")
lines("both", [{"messages": plain(row), "text": text} for row, text in BOTH])
binary("latin-1", ["in UTF-8: ä".encode(), LATIN_1])
binary("no-text-in-bytes", [b"text", bytes(range(128, 256))])
