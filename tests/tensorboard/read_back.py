"""Compares what TensorBoard reads from a run folder with its metrics.jsonl: every scalar of every step, once, in order.

    read_back.py RUN
"""

import json
import math
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TAGS = {"val_loss": "validation/loss", "val_bits_per_byte": "validation/bits_per_byte"}


def expected(run):
    """The scalars of metrics.jsonl by tag, as (step, value)."""
    scalars = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        step = record.pop("step")
        for name, value in record.items():
            tag = TAGS.get(name, f"train/{name}")
            f32 = struct.unpack("f", struct.pack("f", float(value)))[0]
            scalars.setdefault(tag, []).append((step, f32))
    return scalars


def main():
    run = Path(sys.argv[1])
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    found = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    wanted = expected(run)
    if found != wanted:
        sys.exit(f"TensorBoard reads\n{found}\nbut metrics.jsonl has\n{wanted}")
    times = [event.wall_time for event in events.Scalars("train/loss")]
    if times != sorted(times) or not all(map(math.isfinite, times)):
        sys.exit(f"the times are not in order: {times}")
    steps = [step for step, _ in found["train/loss"]]
    print(f"TensorBoard reads {len(found)} scalars of steps {steps[0]} to {steps[-1]}")


main()
