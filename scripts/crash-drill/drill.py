#!/usr/bin/env python3
"""The drill that meshgrad's checkpoints go through, for others: kills and power cuts while something saves.

  kills       real processes save in a loop and are killed (SIGKILL) at random moments; then what is there is loaded. The
              page cache survives a kill, so this says nothing about power cuts.
  power cuts  one save is traced by strace; every prefix of its system calls, and many sets of what had not been synced, is
              a state that a power cut may leave (disk.py says by which rules). It is put into a folder and loaded.

Needs torch and safetensors, for the power cuts strace, and a built meshgrad to be beside them. Choices follow from --seed;
when exactly a kill hits, and the names of temporary files, do not.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import systems
from disk import Disk, choose
from judge import MEANINGS, WORDS, Tally, judge, table
from trace import Replay, lines, record

# Saves of a process that is to be killed; then it waits.
SAVES = 3
# The parts of a report.
KILLS, DURING, LATER = "kills", "power cuts while it saves", "power cuts when it has returned"
# A load that takes longer, in seconds, or more memory, is none.
LOAD_SECONDS, LOAD_BYTES = 60, 16 << 30


def fork(work):
    """Runs `work(tell)` in a process of its own group; gives its id and what it tells, line by line."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            os.close(reader)
            work(lambda line: os.write(writer, f"{line}\n".encode()))
            code = 0
        except Exception as error:
            os.write(writer, f"failed {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    return pid, os.fdopen(reader)


def load(system, roots):
    """What is in some folders, each loaded in a process that may die of it."""
    found, roots = [], list(roots)
    while len(found) < len(roots):
        left = roots[len(found) :]

        def work(tell):
            resource.setrlimit(resource.RLIMIT_AS, (LOAD_BYTES, LOAD_BYTES))
            for root in left:
                signal.alarm(LOAD_SECONDS)
                tell(json.dumps(system.load(root)))

        pid, told = fork(work)
        found += [json.loads(line) for line in told if line.startswith("{")]
        _, status = os.waitpid(pid, 0)
        if status != 0:
            found.append({"error": f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "failed"})
    return found


def save_whole(system, root, step):
    """A save that nothing disturbs."""

    def work(tell):
        system.prepare(root, range(step, step + 1))
        system.save(root, step)

    pid, told = fork(work)
    failure = told.read()
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit(f"{system.name} cannot save: {failure}")


def kill_once(system, root, last, chance, typical):
    """Kills a process that saves the steps after `last`. Gives the last step that had returned, and that had begun."""

    def work(tell):
        steps = range(last + 1, last + 1 + SAVES)
        system.prepare(root, steps)
        for step in steps:
            tell(f"begun {step} {time.monotonic()}")
            system.save(root, step)
            tell(f"saved {step} {time.monotonic()}")
        signal.pause()

    pid, told = fork(work)
    returned = begun = last
    times = []

    def take(line):
        nonlocal returned, begun
        word, step, *rest = line.split()
        if word == "failed":
            sys.exit(f"{system.name} cannot save: {line}")
        times.append(float(rest[0]))
        begun, returned = (int(step), returned) if word == "begun" else (begun, int(step))

    while returned == last:
        take(told.readline())
    typical.append(times[1] - times[0])
    usual = sorted(typical)[len(typical) // 2]
    time.sleep(chance.uniform(0, 1.5 * usual))
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for line in told:
        take(line)
    return returned, begun


def kills(system, folder, count, seed):
    """Kills a system's saves so many times."""
    root = os.path.join(folder, "killed")
    os.mkdir(root)
    save_whole(system, root, 1)
    chance, typical, last, tally = random.Random(seed), [], 1, Tally()
    for done in range(count):
        show(f"{system.name}: kill {done + 1} of {count}")
        returned, begun = kill_once(system, root, last, chance, typical)
        [found] = load(system, [root])
        tally.count(found, judge(found, returned, begun))
        last = begun
        system.prune(root, last - 1)
    shutil.rmtree(root)
    return tally


def tree_of(root):
    """All that is below a folder, as `Disk` takes it."""
    tree = {}
    for path, folders, files in os.walk(root):
        for name in folders:
            tree[os.path.relpath(os.path.join(path, name), root)] = None
        for name in files:
            with open(os.path.join(path, name), "rb") as file:
                tree[os.path.relpath(os.path.join(path, name), root)] = file.read()
    return tree


def put(tree, root):
    """Makes a tree."""
    os.mkdir(root)
    for path, content in sorted(tree.items()):
        if content is None:
            os.mkdir(os.path.join(root, path))
        else:
            with open(os.path.join(root, path), "wb") as file:
                file.write(content)


def fingerprint(tree):
    digest = hashlib.blake2b()
    for path, content in sorted(tree.items()):
        digest.update(json.dumps([path, content is None, len(content or b"")]).encode())
        digest.update(content or b"")
    return digest.digest()


def power_cuts(system, folder, states, seed):
    """Cuts the power after every call of a save of step 2, where step 1 is on the disk."""
    root, log = os.path.join(folder, "traced"), os.path.join(folder, "calls")
    os.mkdir(root)
    save_whole(system, root, 1)
    before = tree_of(root)
    system.prepare(root, range(2, 3))
    show(f"{system.name}: tracing a save")
    record(system.command(root, 2), log)
    [found] = load(system, [root])
    if found != {"steps": [2.0]}:
        sys.exit(f"{system.name}: its traced save gave {found}")
    after = tree_of(root)

    def moments():
        disk = Disk(before)
        replay = Replay(root, disk)
        for call in lines(log):
            if done := replay.carry_out(*call):
                yield disk, done
        if disk.after_power_cut("all") != after:
            sys.exit(f"{system.name}: the trace does not give what was saved")

    calls = sum(1 for _ in moments())
    during, later, seen = Tally(), Tally(), {}
    for at, (disk, done) in enumerate(moments(), 1):
        show(f"{system.name}: {during.total()} power cuts of {states}, after {done}")
        is_last = at == calls
        tally, returned, budget = (later, 2, states // 4) if is_last else (during, 1, max(4, states // calls))
        cut(system, folder, disk, choose(disk.pending(), budget, seed + at), returned, tally, seen)
    shutil.rmtree(root)
    os.remove(log)
    return {DURING: during, LATER: later, "calls": calls, "distinct states": len(seen)}


def cut(system, folder, disk, sets, returned, tally, seen):
    """Judges what each set of survivors leaves."""
    prints, new = [], {}
    for survivors in sets:
        tree = disk.after_power_cut(survivors)
        prints.append(fingerprint(tree))
        if prints[-1] not in seen:
            new[prints[-1]] = os.path.join(folder, f"state-{len(new)}")
            seen[prints[-1]] = None
            put(tree, new[prints[-1]])
    for key, found in zip(new, load(system, new.values())):
        seen[key] = found
        shutil.rmtree(new[key])
    for key in prints:
        tally.count(seen[key], judge(seen[key], returned, 2))


def crash_test(program, states, count, seed, folder):
    """Our own drill, on the simulated disk of the library and with four writers."""
    show("meshgrad ckpt crash-test")
    command = [program, "ckpt", "crash-test", "--json", "--states", str(states), "--kills", str(count)]
    done = subprocess.run([*command, "--seed", str(seed), "--folder", folder], capture_output=True, text=True)
    if done.returncode == 2:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def show(line):
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line[:100]}")
        sys.stderr.flush()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshgrad", metavar="PROGRAM", help="a built meshgrad; without it only the others are drilled")
    parser.add_argument("--kills", type=int, default=200, help="kills of each system [200]; 0 for none")
    parser.add_argument("--states", type=int, default=2000, help="states after a power cut of each, about [2000]; 0 for none")
    parser.add_argument("--seed", type=int, default=1, help="choices follow from it [1]")
    parser.add_argument("--bytes", type=int, default=4 << 20, help="of a checkpoint that is killed [4 MiB]")
    parser.add_argument("--traced-bytes", type=int, default=256 << 10, help="of one that is traced [256 KiB]")
    parser.add_argument("--only", metavar="WORD", help="systems whose name has this")
    parser.add_argument("--folder", help="where it is done, on the disk that matters; removed in the end [the system's]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save-one", nargs=4, metavar=("SYSTEM", "ROOT", "STEP", "BYTES"), help=argparse.SUPPRESS)
    return parser.parse_args()


def save_one(name, root, step, size):
    """The process that is traced."""
    [system] = [system for system in systems.SYSTEMS if system.name == name]
    system(int(size)).save(root, int(step))


def drill(options, folder):
    report = {"systems": {}, "python": platform.python_version(), "seed": options.seed, "command": " ".join(sys.argv)}
    for kind in systems.SYSTEMS:
        ours = kind is systems.Meshgrad
        if (ours and not options.meshgrad) or (options.only or "") not in kind.name:
            continue
        entry = report["systems"][kind.name] = {"promises": kind.promises, "versions": kind(0).versions()}
        if options.kills:
            entry[KILLS] = kills(kind(options.bytes), folder, options.kills, options.seed)
        if options.states:
            system = kind(options.traced_bytes)
            entry.update(power_cuts(system, folder, options.states, options.seed))
        shutil.rmtree(folder)
        os.mkdir(folder)
        counts = {part: entry[part].json() for part in [KILLS, DURING, LATER] if part in entry}
        show("")
        print(f"{kind.name}: {json.dumps(counts)}", file=sys.stderr, flush=True)
    if options.meshgrad and (options.only or "") in "meshgrad":
        limits = options.states * 10, options.kills
        report["crash-test"] = crash_test(options.meshgrad, *limits, options.seed, folder)
    show("")
    return report


def print_report(report):
    for part in [KILLS, DURING, LATER]:
        rows = {name: entry[part] for name, entry in report["systems"].items() if part in entry}
        if rows:
            print(table(part, rows))
    for word in WORDS:
        print(f"{word:<12}{MEANINGS[word]}")
    print()
    for name, entry in report["systems"].items():
        print(f"{name}: {entry['versions']}; {entry['promises']}")
        if "calls" in entry:
            print(f"  traced: {entry['calls']} calls, {entry['distinct states']} distinct states")
    if ours := report.get("crash-test"):
        print(f"\nmeshgrad ckpt crash-test: {json.dumps(ours)}")


def main():
    options = arguments()
    systems.start()
    if options.save_one:
        return save_one(*options.save_one)
    if options.states and not shutil.which("strace"):
        sys.exit("crash-drill: power cuts need strace; install it, or give --states 0")
    if options.meshgrad:
        systems.Meshgrad.program = os.path.abspath(options.meshgrad)
    with tempfile.TemporaryDirectory(prefix="crash-drill-", dir=options.folder) as parent:
        folder = os.path.join(parent, "drill")
        os.mkdir(folder)
        report = drill(options, folder)
    if options.json:
        print(json.dumps(report, default=Tally.json, indent=2))
    else:
        print_report(report)


if __name__ == "__main__":
    main()
