"""The systems that the drill is held on: how each saves and loads, as its users do.

A checkpoint is a few float32 tensors all of whose elements are the number of the step. Every system saves it into `root` and
loads from there what a user would load: what has the fixed name, or the newest that looks complete.
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
    """`bytes`: of all tensors."""

    name = ""
    promises = ""
    packages = ["torch"]

    def __init__(self, bytes: int):
        self.elements = bytes // TENSORS // 4

    def state(self, step: float) -> dict:
        import torch

        return {f"layers.{at}.weight": torch.full([self.elements], float(step)) for at in range(TENSORS)}

    def prepare(self, root: str, steps: range):
        """What is done before the saves of these steps, in another folder."""

    def save(self, root: str, step: int):
        raise NotImplementedError

    def command(self, root: str, step: int) -> list[str]:
        """The same in a process of its own."""
        drill = os.path.join(os.path.dirname(__file__), "drill.py")
        return [sys.executable, drill, "--save-one", self.name, root, str(step), str(self.elements * TENSORS * 4)]

    def load(self, root: str) -> dict:
        """What is there, for `judge`."""
        path = self.newest(root)
        if path is None or not os.path.exists(path):
            return {"nothing": True}
        try:
            return {"steps": self.steps(self.read(path))}
        except BaseException as error:  # whatever a user would see; some are no `Exception`
            return {"error": kind_of(error)}

    def newest(self, root: str) -> str | None:
        return os.path.join(root, "checkpoint")

    def read(self, path: str) -> dict:
        raise NotImplementedError

    def steps(self, state: dict) -> list[float]:
        """The values of all elements: of each tensor its extremes, in which a mixture shows."""
        if sorted(state) != sorted(f"layers.{at}.weight" for at in range(TENSORS)):
            raise KeyError("other tensors")
        values = set()
        for tensor in state.values():
            if tensor.numel() != self.elements:
                raise ValueError("another shape")
            # A number that is no number is one value too.
            values.update(repr(value.item()) for value in (tensor.min(), tensor.max()))
        return [float(value) if value != "nan" else -1.0 for value in sorted(values)]

    def prune(self, root: str, keep: int):
        """Removes what is older than step `keep`."""
        for name in os.listdir(root):
            if step_of(name) is not None and step_of(name) < keep:
                shutil.rmtree(os.path.join(root, name))

    def versions(self) -> str:
        return ", ".join(f"{package} {version(package)}" for package in self.packages)


def kind_of(error: BaseException) -> str:
    """Its type; of those that DCP gathers from ranks that of the first."""
    for first, _ in getattr(error, "failures", {}).values():
        return type(first).__name__
    return type(error).__name__


def step_of(name: str) -> int | None:
    match = re.fullmatch(r"step-(\d+)", name)
    return int(match[1]) if match else None


class DcpSamePath(System):
    name = "torch DCP, one path"
    promises = "each file is synced; of saving over a checkpoint nothing is said"

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
    promises = "each file is synced, the metadata is renamed into place last; the user picks the newest that has metadata"

    def path(self, root, step):
        return os.path.join(root, f"step-{step:06}")

    def newest(self, root):
        complete = [name for name in os.listdir(root) if os.path.exists(os.path.join(root, name, ".metadata"))]
        steps = [name for name in complete if step_of(name) is not None]
        return os.path.join(root, max(steps)) if steps else None


class SafetensorsFile(System):
    name = "safetensors, one file"
    promises = "a file is replaced by a rename; nothing is said of durability, and nothing is synced"
    packages = ["safetensors"]

    def save(self, root, step):
        from safetensors.torch import save_file

        save_file(self.state(step), os.path.join(root, "checkpoint"))

    def read(self, path):
        from safetensors.torch import load_file

        return load_file(path)


class SafetensorsFolder(System):
    name = "safetensors, shards and index"
    promises = "each file as above; of several files nothing is said"
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
    promises = "nothing: the file is written in place"

    def save(self, root, step):
        import torch

        torch.save(self.state(step), os.path.join(root, "checkpoint"))

    def read(self, path):
        import torch

        return torch.load(path, weights_only=True)


class Meshgrad(System):
    """A checkpoint made of a folder by `meshgrad ckpt convert`: staged, sealed and published as all of ours are."""

    name = "meshgrad"
    promises = "a save that has returned is there, another is there whole or not at all"
    packages = ["safetensors"]
    program = ""

    def beside(self, root: str) -> str:
        return f"{root}-sources"

    def prepare(self, root, steps):
        from safetensors.torch import save_file

        os.makedirs(self.beside(root), exist_ok=True)
        with open(os.path.join(self.beside(root), "same.map"), "w") as file:
            file.write("{r:path} = {r:path}\n")
        for step in steps:
            folder = os.path.join(self.beside(root), str(step))
            os.makedirs(folder, exist_ok=True)
            save_file(self.state(step), os.path.join(folder, "model.safetensors"), {"format": "pt"})

    def command(self, root, step):
        source, made = os.path.join(self.beside(root), str(step)), os.path.join(root, f"step-{step:06}")
        map = os.path.join(self.beside(root), "same.map")
        return [self.program, "--threads", "1", "ckpt", "convert", source, made, "--map", map]

    def save(self, root, step):
        subprocess.run(self.command(root, step), check=True, stdout=subprocess.DEVNULL)

    def load(self, root):
        if not os.listdir(root):
            return {"nothing": True}
        inspect = [self.program, "ckpt", "inspect", root, "--json"]
        done = subprocess.run(inspect, capture_output=True, text=True)
        if done.returncode != 0:
            return {"nothing": True} if "holds no safetensors" in done.stderr else {"error": "refused"}
        try:
            return {"steps": self.steps(self.read(json.loads(done.stdout)["path"]))}
        except BaseException as error:  # whatever a user would see
            return {"error": kind_of(error)}

    def read(self, path):
        from safetensors.torch import load_file

        return load_file(os.path.join(path, "model.safetensors"))

    def prune(self, root, keep):
        super().prune(root, keep)
        for name in os.listdir(self.beside(root)):
            if name.isdigit() and int(name) < keep:
                shutil.rmtree(os.path.join(self.beside(root), name))

    def versions(self):
        done = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True)
        return done.stdout.strip()


SYSTEMS = [DcpSamePath, DcpNewPath, SafetensorsFile, SafetensorsFolder, TorchSave, Meshgrad]


def start():
    """Loads the libraries, once and for all processes that come of this one; none of them starts threads."""
    import torch
    import torch.distributed.checkpoint  # noqa: F401
    from safetensors.torch import load_file  # noqa: F401

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
