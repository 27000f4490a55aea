#!/usr/bin/env python3
"""Checks that transformers reads written/NAME.json, config.json as meshgrad writes it, as the model of fixtures/NAME.

The written file replaces the fixture's config.json; the logits must be equal bit for bit.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from cases import CASES
from make_fixtures import FIXTURES, load
from safetensors.torch import load_file

WRITTEN = Path(__file__).parent / "written"


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)

    for case in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / case.name
            shutil.copytree(FIXTURES / case.name, folder)
            shutil.copyfile(WRITTEN / f"{case.name}.json", folder / "config.json")
            model, original = load(folder), load(FIXTURES / case.name)

        input_ids = load_file(FIXTURES / case.name / "input.safetensors")["input_ids"]
        with torch.no_grad():
            ours, theirs = model(input_ids=input_ids), original(input_ids=input_ids)

        if not torch.equal(ours.logits, theirs.logits):
            sys.exit(f"{case.name}: other logits with the written config.json")
        if case.claims.get("aux") and not torch.equal(ours.aux_loss, theirs.aux_loss):
            sys.exit(f"{case.name}: another auxiliary loss with the written config.json")
        same_settings(model.config, original.config, case.name)
    print(f"{len(CASES)} written configurations give the same models")


def same_settings(ours, theirs, name: str):
    """What the logits of a short text do not show: the rest of the keys that transformers keeps."""
    spelt_otherwise = {"rope_parameters", "dtype", "transformers_version", "layer_types", "max_window_layers"}
    for key in type(theirs).default_config_fields().keys() - spelt_otherwise:
        if getattr(ours, key) != getattr(theirs, key):
            sys.exit(f"{name}: {key} is {getattr(ours, key)} and was {getattr(theirs, key)}")


if __name__ == "__main__":
    main()
