"""Processes of one host that train together, connected with gloo, and serve requests as one."""

import os
import socket


def launch(run, options):
    """Calls run(rank, options) in `options.ranks` processes of `options.threads` threads each. This process is rank 0."""
    # torch reads these once, when it is imported.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)

    import torch.multiprocessing as mp

    port = free_port()
    spawn = mp.get_context("spawn").Process
    others = [spawn(target=join, args=(run, rank, port, options)) for rank in range(1, options.ranks)]
    for process in others:
        process.start()
    join(run, 0, port, options)
    for process in others:
        process.join()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def join(run, rank: int, port: int, options):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(options.threads)
    if options.ranks > 1:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks)
    run(rank, options)
    if options.ranks > 1:
        dist.destroy_process_group()


def serve_turns(rank: int, ranks: int, take):
    """Serves requests {"sequences": B, "steps": N}, which rank 0 reads: all ranks call take(B, N).

    It returns the loss and the seconds of each step. Those of rank 0 are the answer.
    """
    import torch
    import torch.distributed as dist
    from serve import serve

    def answer(request):
        turn = torch.tensor([request["sequences"], request["steps"]])
        if ranks > 1:
            dist.broadcast(turn, 0)
        done = take(*turn.tolist())
        return {"loss": [loss for loss, _ in done], "seconds": [seconds for _, seconds in done]}

    if rank == 0:
        serve(answer)
        if ranks > 1:
            dist.broadcast(torch.tensor([0, 0]), 0)
        return
    turn = torch.tensor([0, 0])
    while True:
        dist.broadcast(turn, 0)
        if turn[1] == 0:
            return
        take(*turn.tolist())
