"""Loads and saves checkpoints in the usual ways, for benches/checkpoint.

glibc keeps freed memory, so no page is new after the first round. Lazily loaded tensors are copied, so that every load ends
with all bytes in its own memory.
"""

import ctypes
import json
import os
import resource
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from serve import serve
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

PACKAGES = ["safetensors", "numpy", "ml_dtypes", "fastsafetensors", "d9d"]
GIB = 1 << 30


def keep_freed_memory():
    """Stops malloc from mapping large blocks and from returning memory to the system."""
    trim_threshold, mmap_max = -1, -4
    libc = ctypes.CDLL(None)
    assert libc.mallopt(mmap_max, 0) == 1 and libc.mallopt(trim_threshold, -1) == 1
    resource.setrlimit(resource.RLIMIT_DATA, (12 * GIB, 12 * GIB))


class Files:
    """The files of one model, in every format."""

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self.safetensors = self.folder / "model.safetensors"
        self.torch = self.folder / "model.pt"
        self.dcp = self.folder / "dcp"
        self.indexed = self.folder / "indexed"
        with safe_open(self.safetensors, "pt") as file:
            self.names = list(file.keys())
        self.blocks = {}
        for name in self.names:
            self.blocks.setdefault(name.split(".")[1], []).append(name)
        self.reused = None

    def prepare(self):
        tensors = clone(self)
        torch.save(tensors, self.torch)
        dcp.save(tensors, checkpoint_id=self.dcp, no_dist=True)
        self.indexed.mkdir()
        os.link(self.safetensors, self.indexed / "model.safetensors")
        weight_map = {name: "model.safetensors" for name in self.names}
        index = {"metadata": {"total_size": self.safetensors.stat().st_size}, "weight_map": weight_map}
        (self.indexed / "model.safetensors.index.json").write_text(json.dumps(index))

    def in_place(self):
        """The tensors to load into, reused by every load."""
        if self.reused is None:
            self.reused = clone(self)
        return self.reused


def clone(files):
    with safe_open(files.safetensors, "pt") as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}


def pread(files):
    with safe_open(files.safetensors, "pt", backend="pread") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def stack(files):
    with safe_open(files.safetensors, "pt") as file:
        parts = {block: [file.get_tensor(name) for name in names] for block, names in files.blocks.items()}
        return {block: torch.stack(tensors) for block, tensors in parts.items()}


def numpy_load_file(files):
    import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
    from safetensors.numpy import load_file

    return load_file(files.safetensors)


def torch_load(files):
    return torch.load(files.torch)


def torch_load_mmap(files):
    return {name: tensor.clone() for name, tensor in torch.load(files.torch, mmap=True).items()}


def dcp_load(files):
    dcp.load(files.in_place(), checkpoint_id=files.dcp, no_dist=True)


def fastsafetensors(files):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: [str(files.safetensors)]})
    buffers = loader.copy_files_to_device()
    tensors = {name: buffers.get_tensor(name) for name in loader.get_keys()}
    assert len(tensors) == len(files.names)
    del tensors
    buffers.close()
    loader.close()


def d9d_stack(files):
    from d9d.model_state.io import read_model_state
    from d9d.model_state.mapper.compose import ModelStateMapperParallel
    from d9d.model_state.mapper.leaf import ModelStateMapperStackTensors

    stacks = [ModelStateMapperStackTensors(names, block, 0) for block, names in files.blocks.items()]
    mapper = ModelStateMapperParallel(stacks)
    return dict(read_model_state(files.indexed, mapper, "cpu", show_progress=False))


def save_safetensors(files):
    save_file(files.in_place(), files.folder / "saved" / "model.safetensors")


def save_torch(files):
    torch.save(files.in_place(), files.folder / "saved" / "model.pt")


def save_dcp(files):
    dcp.save(files.in_place(), checkpoint_id=files.folder / "saved" / "dcp", no_dist=True)


def parse_json(header):
    return json.loads(header["json"])


def open_header(header):
    with safe_open(header["path"], "pt") as file:
        return file.keys()


LOADS = [clone, pread, stack, numpy_load_file, torch_load, torch_load_mmap, dcp_load, fastsafetensors, d9d_stack]
SAVES = [save_safetensors, save_torch, save_dcp]
HEADERS = [parse_json, open_header]
ACTIONS = {action.__name__: action for action in [*LOADS, *SAVES, *HEADERS]}


def rchar() -> int:
    """Bytes that this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def bytes_read(path: str, name: str, dim: int, ranks: int, dcp_folder: str) -> list[int]:
    """Bytes read for rank 0's shard of a tensor: by DCP into a DTensor, and by safetensors' get_slice."""
    if not dist.is_initialized():
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with safe_open(path, "pt") as file:
        whole = file.get_tensor(name).clone()
    if not Path(dcp_folder).exists():
        dcp.save({name: whole}, checkpoint_id=dcp_folder, no_dist=True)

    share = whole.chunk(ranks, dim)[0]
    mesh = init_device_mesh("cpu", (ranks,))
    into = DTensor.from_local(torch.empty_like(share).contiguous(), mesh, [Shard(dim)], run_check=False)
    before = rchar()
    dcp.load({name: into}, checkpoint_id=dcp_folder, no_dist=True)
    by_dcp = rchar() - before
    assert into.to_local().equal(share)

    before = rchar()
    with safe_open(path, "pt", backend="pread") as file:
        part = file.get_slice(name)
        part = part[: share.shape[0]] if dim == 0 else part[:, : share.shape[1]]
    by_pread = rchar() - before
    assert part.equal(share)
    return [by_dcp, by_pread]


def main():
    keep_freed_memory()
    opened = {}

    def answer(request):
        try:
            return {"ok": act(request)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def act(request):
        what, folder = request["do"], request.get("folder")
        if what == "bytes_read":
            return bytes_read(*request["arguments"])
        if folder not in opened:
            opened[folder] = header_of(folder) if ACTIONS.get(what) in HEADERS else Files(folder)
        if what == "prepare":
            return opened[folder].prepare()
        start = time.perf_counter()
        loaded = ACTIONS[what](opened[folder])
        seconds = time.perf_counter() - start
        del loaded
        return seconds

    serve(answer, pid=os.getpid(), packages={name: version_of(name) for name in PACKAGES})


def header_of(folder):
    path = Path(folder) / "model.safetensors"
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return {"path": path, "json": file.read(length)}


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


main()
