"""Writes ckpt/tests/all/torch/fixtures: models that PyTorch wrote, and the same tensors as safetensors.

    python3 ckpt/tests/all/torch/make_fixtures.py      # torch 2.15.0, safetensors 0.8.0

The tests need neither Python nor torch.
"""

import json
import os
import pathlib
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as processes
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.serialization import set_crc32_options

FIXTURES = pathlib.Path(__file__).parent / "fixtures"

NUMBERS = [
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
    "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]


def numbers(*shape, start=1):
    count = torch.Size(shape).numel()
    return torch.arange(start, start + count, dtype=torch.float32).reshape(shape)


def dtypes():
    made = {f"dtype.{name}": numbers(2, 3).to(getattr(torch, name)) for name in NUMBERS}
    made["dtype.bool"] = torch.tensor([True, False, True])
    made["dtype.complex64"] = torch.complex(numbers(2), -numbers(2))
    return made


def views():
    matrix, cube = numbers(5, 7), numbers(3, 4, 5)
    return {
        "matrix": matrix,
        "tied": matrix,
        "parameter": torch.nn.Parameter(numbers(4, start=100)),
        "transposed": matrix.t(),
        "rows": matrix[1:4],
        "columns": matrix[:, 2:5],
        "steps": matrix[1::2, ::3],
        "one_column": matrix[:, 6],
        "permuted": cube.permute(2, 0, 1),
        "inner": cube[1:, 1:3, 2],
        "element": matrix[2, 3],
        "scalar": torch.tensor(7, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
        "empty_view": matrix[2:2, 1:],
        "half_steps": numbers(6, 4).to(torch.bfloat16)[::2, 1::2],
    }


def expanded():
    return {
        "rows": numbers(1, 3).expand(4, 3),
        "columns": numbers(4, 1).expand(4, 3),
        "both": numbers(1, 2, 1, 3).expand(2, 2, 4, 3),
        "all": torch.tensor(2.5).expand(5),
        "steps": numbers(6)[::2].unsqueeze(1).expand(3, 2),
    }


def nested():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(numbers(4, 3)).sum().backward()
    optimizer.step()
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "extra": [numbers(2), 7]}
    state = optimizer.state_dict()["state"]
    expected = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    expected |= {f"optimizer.state.{at}.{name}": tensor for at in state for name, tensor in state[at].items()}
    return whole, {**expected, "extra.0": whole["extra"][0]}


def save(folder, name, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / name)


def expect(folder, tensors):
    """The tensors without sharing and views, which safetensors does not store."""
    plain = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    save_file(plain, folder / "expected.safetensors")


def sharded():
    folder = FIXTURES / "sharded"
    first = {"a.weight": numbers(3, 4), "b.weight": numbers(2, 2).to(torch.bfloat16)}
    second = {"c.weight": numbers(4, 3, start=50).t(), "d.bias": numbers(3)}
    files = {"pytorch_model-00001-of-00002.bin": first, "pytorch_model-00002-of-00002.bin": second}
    for name, tensors in files.items():
        save(folder, name, tensors)
    both = {**first, **second}
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in both.values())},
        "weight_map": {tensor: name for name, tensors in files.items() for tensor in tensors},
    }
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n")
    expect(folder, both)


def chunked(rank, world):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29713")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
    whole = {
        "rows": (numbers(7, 3), [Replicate(), Shard(0)]),
        "both": (numbers(5, 8).to(torch.bfloat16), [Shard(0), Shard(1)]),
        "cube": (numbers(4, 3, 7), [Shard(0), Shard(2)]),
        "replicated": (numbers(3, 2), [Replicate(), Replicate()]),
        "short": (numbers(2, 2), [Replicate(), Shard(0)]),
    }
    model = {name: distribute_tensor(tensor, mesh, placements) for name, (tensor, placements) in whole.items()}
    model["plain"] = numbers(3).to(torch.float16)
    state = {"model": model, "step": 7, "names": ["a", "b"]}
    os.chdir(FIXTURES)  # the metadata contains the path
    dcp.save(state, checkpoint_id=pathlib.Path("dcp"))
    if rank == 0:
        expected = {f"model.{name}": tensor for name, (tensor, _) in whole.items()}
        expect(FIXTURES / "dcp", {**expected, "model.plain": model["plain"]})
    dist.barrier()
    dist.destroy_process_group()


def chunked_float4(rank, world):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29714")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    part = numbers(3, 8).to(torch.uint8).chunk(world, dim=1)[rank].contiguous()
    part = DTensor.from_local(part.view(torch.float4_e2m1fn_x2), mesh, [Shard(1)], run_check=False)
    os.chdir(FIXTURES)
    dcp.save({"w": part}, checkpoint_id=pathlib.Path("float4-dcp"))
    dist.destroy_process_group()


def later():
    """The fixtures that were added after the others, which change with each save."""
    save(FIXTURES / "expanded", "pytorch_model.bin", expanded())
    expect(FIXTURES / "expanded", expanded())
    whole, expected = nested()
    save(FIXTURES / "nested", "pytorch_model.bin", whole)
    expect(FIXTURES / "nested", expected)
    set_crc32_options(False)
    save(FIXTURES / "without-crc", "pytorch_model.bin", {"w": numbers(2)})
    set_crc32_options(True)
    processes.spawn(chunked_float4, args=(2,), nprocs=2)

    wrong = FIXTURES / "wrong"
    save(wrong, "no-tensors.bin", {"epoch": 3, "names": ["a", "b"]})
    save(wrong, "much-expanded.bin", {"w": numbers(1, 3).expand(5000, 3)})
    save(wrong, "overlapping.bin", {"w": numbers(6).as_strided((3, 3), (1, 1))})


def main():
    shutil.rmtree(FIXTURES, ignore_errors=True)
    for name, tensors in [("dtypes", dtypes()), ("views", views())]:
        save(FIXTURES / name, "pytorch_model.bin", tensors)
        expect(FIXTURES / name, tensors)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    save(FIXTURES / "module", "pytorch_model.bin", module.state_dict())
    expect(FIXTURES / "module", module.state_dict())
    float4 = torch.tensor([[0x12, 0x34], [0x56, 0x78]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save(FIXTURES / "float4", "pytorch_model.bin", {"w": float4})
    sharded()
    processes.spawn(chunked, args=(6,), nprocs=6)

    wrong = FIXTURES / "wrong"
    save(wrong, "whole-module.bin", module)
    save(wrong, "conjugate.bin", {"w": torch.complex(numbers(2), numbers(2)).conj()})
    save(wrong, "sparse.bin", {"w": torch.eye(2).to_sparse()})
    save(wrong, "quantized.bin", {"w": torch.quantize_per_tensor(numbers(2), 0.1, 0, torch.qint8)})
    save(wrong, "complex128.bin", {"w": torch.zeros(2, dtype=torch.complex128)})
    torch.save({"w": numbers(2)}, wrong / "legacy.bin", _use_new_zipfile_serialization=False)
    later()


if __name__ == "__main__":
    torch.manual_seed(1)
    main()
