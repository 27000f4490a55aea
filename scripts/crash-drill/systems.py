"""The systems under test: how users of each save and load.

A checkpoint is a few float32 tensors whose elements are all the number of the step. Every system saves it in `root` and
loads from there what a user would load: the checkpoint with the fixed name, or the newest that looks complete.
"""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from importlib.metadata import version

TENSORS = 4


class System:
    """One way to save. `bytes` is the size of all tensors together."""

    name = ""
    promises = ""
    packages = ["torch"]

    def __init__(self, bytes: int):
        self.elements = bytes // TENSORS // 4

    def state(self, step: float) -> dict:
        import torch

        return {f"layers.{at}.weight": torch.full([self.elements], float(step)) for at in range(TENSORS)}

    def prepare(self, root: str, steps: range):
        """Prepares the saves of these steps in another folder."""

    def save(self, root: str, step: int):
        raise NotImplementedError

    def command(self, root: str, step: int) -> list[str]:
        """The command that saves in a separate process."""
        drill = os.path.join(os.path.dirname(__file__), "drill.py")
        return [sys.executable, drill, "--save-one", self.name, root, str(step), str(self.elements * TENSORS * 4)]

    def load(self, root: str) -> dict:
        """Loads what a user would load; returns the argument `found` of `classify`."""
        path = self.newest(root)
        if path is None or not os.path.exists(path):
            return {"nothing": True}
        try:
            return {"steps": self.steps(self.read(path))}
        except BaseException as error:  # any error that a user would see; some are not an `Exception`
            return {"error": kind_of(error)}

    def newest(self, root: str) -> str | None:
        return os.path.join(root, "checkpoint")

    def read(self, path: str) -> dict:
        raise NotImplementedError

    def steps(self, state: dict) -> list[float]:
        """The least and greatest element of every tensor: two or more values reveal a mixture."""
        if sorted(state) != sorted(f"layers.{at}.weight" for at in range(TENSORS)):
            raise KeyError("unexpected tensor names")
        values = set()
        for tensor in state.values():
            if tensor.numel() != self.elements:
                raise ValueError("unexpected shape")
            # Compared by `repr`, so that all NaNs are one value.
            values.update(repr(value.item()) for value in (tensor.min(), tensor.max()))
        return [float(value) if value != "nan" else -1.0 for value in sorted(values)]

    def prune(self, root: str, keep: int):
        """Removes checkpoints older than step `keep`."""
        for name in os.listdir(root):
            if step_of(name) is not None and step_of(name) < keep:
                shutil.rmtree(os.path.join(root, name))

    def versions(self) -> str:
        return ", ".join(f"{package} {version(package)}" for package in self.packages)


def kind_of(error: BaseException) -> str:
    """The type of an error. DCP gathers the errors of all ranks; then it is the type of the first."""
    for first, _ in getattr(error, "failures", {}).values():
        return type(first).__name__
    return type(error).__name__


def step_of(name: str) -> int | None:
    match = re.fullmatch(r"step-(\d+)", name)
    return int(match[1]) if match else None


class DcpSamePath(System):
    name = "torch DCP, one path"
    promises = "syncs each file; makes no promise about saving over a checkpoint"

    def save(self, root, step):
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state(step), checkpoint_id=self.path(root, step), no_dist=True)

    def path(self, root, step):
        return os.path.join(root, "checkpoint")

    def read(self, path):
        import torch.distributed.checkpoint as dcp

        state = self.state(-1)
        dcp.load(state, checkpoint_id=path, no_dist=True)
        return state


class DcpNewPath(DcpSamePath):
    name = "torch DCP, new path"
    promises = "syncs each file, renames the metadata into place last; the user picks the newest folder with metadata"

    def path(self, root, step):
        return os.path.join(root, f"step-{step:06}")

    def newest(self, root):
        complete = [name for name in os.listdir(root) if os.path.exists(os.path.join(root, name, ".metadata"))]
        steps = [name for name in complete if step_of(name) is not None]
        return os.path.join(root, max(steps)) if steps else None


class SafetensorsFile(System):
    name = "safetensors, one file"
    promises = "replaces a file by a rename; makes no promise about durability and syncs nothing"
    packages = ["safetensors"]

    def save(self, root, step):
        from safetensors.torch import save_file

        save_file(self.state(step), os.path.join(root, "checkpoint"))

    def read(self, path):
        from safetensors.torch import load_file

        return load_file(path)


class SafetensorsFolder(System):
    name = "safetensors, shards and index"
    promises = "each file as above; makes no promise about several files"
    packages = ["safetensors"]
    index = "model.safetensors.index.json"

    def save(self, root, step):
        from safetensors.torch import save_file

        weight_map, folder = {}, os.path.join(root, "checkpoint")
        os.makedirs(folder, exist_ok=True)
        for at, (name, tensor) in enumerate(self.state(step).items()):
            weight_map[name] = f"model-{at + 1:05}-of-{TENSORS:05}.safetensors"
            save_file({name: tensor}, os.path.join(folder, weight_map[name]))
        index = {"metadata": {"total_size": 4 * self.elements * TENSORS}, "weight_map": weight_map}
        with open(os.path.join(folder, self.index), "w") as file:
            file.write(json.dumps(index, indent=2) + "\n")

    def read(self, path):
        from safetensors import safe_open

        with open(os.path.join(path, self.index)) as file:
            weight_map = json.load(file)["weight_map"]
        state = {}
        for name, shard in weight_map.items():
            with safe_open(os.path.join(path, shard), "pt") as file:
                state[name] = file.get_tensor(name)
        return state


class TorchSave(System):
    name = "torch.save"
    promises = "makes no promise; writes the file in place"

    def save(self, root, step):
        import torch

        torch.save(self.state(step), os.path.join(root, "checkpoint"))

    def read(self, path):
        import torch

        return torch.load(path, weights_only=True)


class Meshgrad(System):
    """`meshgrad ckpt convert` of a folder: staged, sealed and committed like every meshgrad checkpoint."""

    name = "meshgrad"
    promises = "a save that has returned is durable; any other is complete or absent"
    packages = ["safetensors"]
    program = ""

    def sources(self, root: str) -> str:
        return f"{root}-sources"

    def prepare(self, root, steps):
        from safetensors.torch import save_file

        os.makedirs(self.sources(root), exist_ok=True)
        with open(os.path.join(self.sources(root), "same.map"), "w") as file:
            file.write("{r:path} = {r:path}\n")
        for step in steps:
            folder = os.path.join(self.sources(root), str(step))
            os.makedirs(folder, exist_ok=True)
            save_file(self.state(step), os.path.join(folder, "model.safetensors"), {"format": "pt"})

    def command(self, root, step):
        source, made = os.path.join(self.sources(root), str(step)), os.path.join(root, f"step-{step:06}")
        map = os.path.join(self.sources(root), "same.map")
        return [self.program, "--threads", "1", "ckpt", "convert", source, made, "--map", map]

    def save(self, root, step):
        subprocess.run(self.command(root, step), check=True, stdout=subprocess.DEVNULL)

    def load(self, root):
        if not os.listdir(root):
            return {"nothing": True}
        inspect = [self.program, "ckpt", "inspect", root, "--json"]
        done = subprocess.run(inspect, capture_output=True, text=True)
        if done.returncode != 0:
            return {"nothing": True} if "contains no safetensors" in done.stderr else {"error": "refused"}
        try:
            return {"steps": self.steps(self.read(json.loads(done.stdout)["path"]))}
        except BaseException as error:  # any error that a user would see
            return {"error": kind_of(error)}

    def read(self, path):
        from safetensors.torch import load_file

        return load_file(os.path.join(path, "model.safetensors"))

    def prune(self, root, keep):
        super().prune(root, keep)
        for name in os.listdir(self.sources(root)):
            if name.isdigit() and int(name) < keep:
                shutil.rmtree(os.path.join(self.sources(root), name))

    def versions(self):
        done = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True)
        return done.stdout.strip()


SYSTEMS = [DcpSamePath, DcpNewPath, SafetensorsFile, SafetensorsFolder, TorchSave, Meshgrad]


def start():
    """Imports the libraries once, for all forked processes. None of them starts threads."""
    import torch
    import torch.distributed.checkpoint  # noqa: F401
    from safetensors.torch import load_file  # noqa: F401

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
