#!/usr/bin/env python3
"""Crash-tests checkpoint libraries the way meshgrad tests its own: kills and power cuts during saves.

  kills       Real processes save in a loop and are killed (SIGKILL) at random moments. Then the remaining files are loaded.
              The page cache survives a kill, so this does not test power cuts.
  power cuts  One save is traced by strace. Every prefix of its system calls, with many sets of unsynced changes, is a state
              that a power cut may leave (disk.py has the rules). Each state is written to a folder and loaded.

Needs torch and safetensors; power cuts also need strace, and the comparison a built meshgrad. --seed determines all choices
except the exact moment of a kill and the names of temporary files.
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
from outcome import MEANINGS, OUTCOMES, Tally, classify, table
from trace import Replay, lines, record

# Saves per process before it waits to be killed.
SAVES = 3
# The parts of the report.
KILLS, DURING, AFTER = "kills", "power cuts while it saves", "power cuts after it has returned"
# A load that exceeds these limits has failed.
LOAD_SECONDS, LOAD_BYTES = 60, 16 << 30


def fork(work):
    """Runs `work(report_line)` in a child process with its own process group; returns its id and the lines it reports."""
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
    """Loads some folders in child processes, which may crash; returns what each load found."""
    found, roots = [], list(roots)
    while len(found) < len(roots):
        left = roots[len(found) :]

        def work(report_line):
            resource.setrlimit(resource.RLIMIT_AS, (LOAD_BYTES, LOAD_BYTES))
            for root in left:
                signal.alarm(LOAD_SECONDS)
                report_line(json.dumps(system.load(root)))

        pid, output = fork(work)
        found += [json.loads(line) for line in output if line.startswith("{")]
        _, status = os.waitpid(pid, 0)
        if status != 0:
            found.append({"error": f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "failed"})
    return found


def save_undisturbed(system, root, step):
    """Saves a step without a kill."""

    def work(report_line):
        system.prepare(root, range(step, step + 1))
        system.save(root, step)

    pid, output = fork(work)
    failure = output.read()
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit(f"{system.name} cannot save: {failure}")


def kill_once(system, root, last, rng, save_times):
    """Kills a process that saves the steps after `last`; returns the last step saved and the last step begun."""

    def work(report_line):
        steps = range(last + 1, last + 1 + SAVES)
        system.prepare(root, steps)
        for step in steps:
            report_line(f"begun {step} {time.monotonic()}")
            system.save(root, step)
            report_line(f"saved {step} {time.monotonic()}")
        signal.pause()

    pid, output = fork(work)
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
        take(output.readline())
    save_times.append(times[1] - times[0])
    median = sorted(save_times)[len(save_times) // 2]
    time.sleep(rng.uniform(0, 1.5 * median))
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for line in output:
        take(line)
    return returned, begun


def kills(system, folder, count, seed):
    """Kills a system's saves `count` times."""
    root = os.path.join(folder, "killed")
    os.mkdir(root)
    save_undisturbed(system, root, 1)
    rng, save_times, last, tally = random.Random(seed), [], 1, Tally()
    for done in range(count):
        show_progress(f"{system.name}: kill {done + 1} of {count}")
        returned, begun = kill_once(system, root, last, rng, save_times)
        [found] = load(system, [root])
        tally.count(found, classify(found, returned, begun))
        last = begun
        system.prune(root, last - 1)
    shutil.rmtree(root)
    return tally


def read_tree(root):
    """The contents of a folder as a tree for `Disk`."""
    tree = {}
    for path, folders, files in os.walk(root):
        for name in folders:
            tree[os.path.relpath(os.path.join(path, name), root)] = None
        for name in files:
            with open(os.path.join(path, name), "rb") as file:
                tree[os.path.relpath(os.path.join(path, name), root)] = file.read()
    return tree


def write_tree(tree, root):
    """Writes a tree to a new folder."""
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
    """Cuts the power after every system call of the save of step 2, with step 1 on the disk."""
    root, log = os.path.join(folder, "traced"), os.path.join(folder, "calls")
    os.mkdir(root)
    save_undisturbed(system, root, 1)
    before = read_tree(root)
    system.prepare(root, range(2, 3))
    show_progress(f"{system.name}: tracing a save")
    record(system.command(root, 2), log)
    [found] = load(system, [root])
    if found != {"steps": [2.0]}:
        sys.exit(f"{system.name}: expected step 2 after the traced save, found {found}")
    after = read_tree(root)

    def moments():
        disk = Disk(before)
        replay = Replay(root, disk)
        for call in lines(log):
            if done := replay.apply(*call):
                yield disk, done
        if disk.after_power_cut("all") != after:
            sys.exit(f"{system.name}: replaying the trace does not reproduce the saved files")

    calls = sum(1 for _ in moments())
    during, after_return, seen = Tally(), Tally(), {}
    for at, (disk, done) in enumerate(moments(), 1):
        show_progress(f"{system.name}: {during.total()} power cuts of {states}, after {done}")
        is_last = at == calls
        tally, returned, budget = (after_return, 2, states // 4) if is_last else (during, 1, max(4, states // calls))
        cut(system, folder, disk, choose(disk.pending(), budget, seed + at), returned, tally, seen)
    shutil.rmtree(root)
    os.remove(log)
    return {DURING: during, AFTER: after_return, "calls": calls, "distinct states": len(seen)}


def cut(system, folder, disk, sets, returned, tally, seen):
    """Classifies the state that each set of surviving changes leaves."""
    prints, new = [], {}
    for survivors in sets:
        tree = disk.after_power_cut(survivors)
        prints.append(fingerprint(tree))
        if prints[-1] not in seen:
            new[prints[-1]] = os.path.join(folder, f"state-{len(new)}")
            seen[prints[-1]] = None
            write_tree(tree, new[prints[-1]])
    for key, found in zip(new, load(system, new.values())):
        seen[key] = found
        shutil.rmtree(new[key])
    for key in prints:
        tally.count(seen[key], classify(seen[key], returned, 2))


def crash_test(program, states, count, seed, folder):
    """meshgrad's own crash test, on the library's simulated disk and with four writers."""
    show_progress("meshgrad ckpt crash-test")
    command = [program, "ckpt", "crash-test", "--json", "--states", str(states), "--kills", str(count)]
    done = subprocess.run([*command, "--seed", str(seed), "--folder", folder], capture_output=True, text=True)
    if done.returncode == 2:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def show_progress(line):
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line[:100]}")
        sys.stderr.flush()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshgrad", metavar="PROGRAM", help="a built meshgrad; without it meshgrad is skipped")
    parser.add_argument("--kills", type=int, default=200, help="kills per system [200]; 0 for none")
    parser.add_argument("--states", type=int, default=2000, help="approximate power-cut states per system [2000]; 0 for none")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices [1]")
    parser.add_argument("--bytes", type=int, default=4 << 20, help="size of a checkpoint for kills [4 MiB]")
    parser.add_argument("--traced-bytes", type=int, default=256 << 10, help="size of a checkpoint for power cuts [256 KiB]")
    parser.add_argument("--only", metavar="WORD", help="test only systems whose name contains WORD")
    parser.add_argument("--folder", help="where to work, on the disk to test; cleaned up at the end [the temporary folder]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save-one", nargs=4, metavar=("SYSTEM", "ROOT", "STEP", "BYTES"), help=argparse.SUPPRESS)
    return parser.parse_args()


def save_one(name, root, step, size):
    """Saves once. Runs in the process that is traced."""
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
        counts = {part: entry[part].json() for part in [KILLS, DURING, AFTER] if part in entry}
        show_progress("")
        print(f"{kind.name}: {json.dumps(counts)}", file=sys.stderr, flush=True)
    if options.meshgrad and (options.only or "") in "meshgrad":
        limits = options.states * 10, options.kills
        report["crash-test"] = crash_test(options.meshgrad, *limits, options.seed, folder)
    show_progress("")
    return report


def print_report(report):
    for part in [KILLS, DURING, AFTER]:
        rows = {name: entry[part] for name, entry in report["systems"].items() if part in entry}
        if rows:
            print(table(part, rows))
    for word in OUTCOMES:
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
        sys.exit("crash-drill: power cuts need strace; install it or pass --states 0")
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
