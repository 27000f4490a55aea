"""Traces the system calls of a save with strace and replays them on a simulated disk."""

import os
import re
import subprocess

from disk import Disk, File, Folder

CALLS = (
    "openat,open,creat,close,dup,dup2,dup3,lseek,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,"
    "rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,symlinkat,fsync,fdatasync,syncfs,"
    "sync,copy_file_range,sendfile,splice,mmap"
)

LINE = re.compile(r"^(?:(\d+) +)?(\w+)\((.*)\) += (-?\d+|\?)")
UNFINISHED = re.compile(r"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
ARGUMENT = re.compile(r'"(?:\\x[0-9a-f]{2})*"(?:@)?|\[[^\]]*\]|\{[^}]*\}|[^,"\[{]+')
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def record(command: list[str], log: str):
    """Runs a command and logs its file system calls with all data."""
    strace = ["strace", "-f", "-qq", "-y", "-xx", "-s", str(1 << 28), "-e", f"trace={CALLS}", "-o", log]
    subprocess.run([*strace, *command], check=True, stdout=subprocess.DEVNULL)


def lines(log: str):
    """All calls as (name, text of the arguments, result), in the order in which they returned."""
    begun = {}
    with open(log) as file:
        for line in file:
            line = line.rstrip("\n")
            if match := UNFINISHED.match(line):
                begun[match[1]] = match[3]
                continue
            if match := RESUMED.match(line):
                line = f"{match[1]} {match[2]}({begun.pop(match[1], '')}{match[3]}"
            if match := LINE.match(line):
                yield match[2], match[3], -1 if match[4] == "?" else int(match[4])


def text(argument: str) -> bytes:
    """The concatenated bytes of all strings in an argument."""
    return b"".join(bytes.fromhex(found.replace("\\x", "")) for found in STRING.findall(argument))


def number(argument: str) -> int:
    """Parses a number or a file descriptor. strace may append the path of a descriptor."""
    return int(re.match(r"-?\d+", argument.strip())[0])


class Replay:
    """Applies calls to a disk. Files outside `root` are ignored.

    The traced save is one process, so one table of open files suffices.
    """

    def __init__(self, root: str, disk: Disk):
        self.root = os.path.realpath(root)
        self.disk = disk
        self.open = {}

    def path(self, folder: str | None, argument: str) -> str | None:
        """A path below the root, or None."""
        path = os.fsdecode(text(argument))
        if not path.startswith("/") and folder is not None:
            folder_path = re.search(r"<(.*)>", folder)
            base = folder_path[1] if folder_path else "/"
            base = os.fsdecode(bytes.fromhex(base.replace("\\x", ""))) if base.startswith("\\x") else base
            path = os.path.join(base, path)
        path = os.path.normpath(path)
        if path == self.root:
            return ""
        return path[len(self.root) + 1 :] if path.startswith(self.root + "/") else None

    def apply(self, name: str, arguments: str, result: int) -> str | None:
        """Applies a call; returns a description if it changed or synced something."""
        if result < 0 and name != "close":
            return None
        parts = [part.strip() for part in ARGUMENT.findall(arguments) if part.strip()]
        act = getattr(self, f"on_{name}", None)
        done = act(parts, result) if act else None
        return f"{name} {done}" if done is not None else None

    def node(self, argument: str):
        return self.open.get(number(argument))

    def on_openat(self, parts, fd):
        path = self.path(parts[0], parts[1])
        if path is None:
            self.open.pop(fd, None)
            return None
        node, flags, done = self.disk.find(path), parts[2], None
        if "O_TMPFILE" in flags:
            raise NotImplementedError("O_TMPFILE")
        if node is None:
            node, done = File(), path
            self.disk.add(path, node)
        elif "O_TRUNC" in flags and node.length() > 0:
            node.pending.append(("length", 0))
            done = f"{path}, truncated"
        self.open[fd] = [node, 0, "O_APPEND" in flags, path]
        return done

    def on_open(self, parts, fd):
        return self.on_openat(["AT_FDCWD", *parts], fd)

    def on_creat(self, parts, fd):
        return self.on_openat(["AT_FDCWD", parts[0], "O_CREAT|O_TRUNC"], fd)

    def on_close(self, parts, _):
        self.open.pop(number(parts[0]), None)

    def on_dup(self, parts, fd):
        if self.node(parts[0]):
            self.open[fd] = self.node(parts[0])
        else:
            self.open.pop(fd, None)

    on_dup2 = on_dup3 = on_dup

    def on_lseek(self, parts, result):
        if handle := self.node(parts[0]):
            handle[1] = result

    def put(self, handle, offset: int, data: bytes):
        handle[0].pending.append(("write", offset, data))
        return f"{len(data)} bytes at {offset} of {handle[3]}"

    def on_write(self, parts, result):
        handle = self.node(parts[0])
        if handle is None or result == 0:
            return None
        if handle[2]:
            handle[1] = handle[0].length()
        offset, handle[1] = handle[1], handle[1] + result
        return self.put(handle, offset, text(parts[1])[:result])

    on_writev = on_write

    def on_pwrite64(self, parts, result):
        handle = self.node(parts[0])
        return handle and self.put(handle, number(parts[3]), text(parts[1])[:result])

    on_pwritev = on_pwritev2 = on_pwrite64

    def on_ftruncate(self, parts, _):
        handle = self.node(parts[0])
        return handle and self.set_length(handle[0], number(parts[1]), handle[3])

    def on_truncate(self, parts, _):
        path = self.path(None, parts[0])
        return path and self.set_length(self.disk.find(path), number(parts[1]), path)

    def set_length(self, file, length: int, path: str):
        file.pending.append(("length", length))
        return f"{path} to {length} bytes"

    def on_fallocate(self, parts, _):
        handle = self.node(parts[0])
        if handle is None or "KEEP_SIZE" in parts[1]:
            return None
        end = number(parts[2]) + number(parts[3])
        return self.set_length(handle[0], max(end, handle[0].length()), handle[3])

    def on_renameat2(self, parts, _):
        old, new = self.path(parts[0], parts[1]), self.path(parts[2], parts[3])
        if old is None and new is None:
            return None
        if old is None or new is None:
            raise NotImplementedError("a rename into or out of the folder")
        self.disk.rename(old, new)
        return f"{old} to {new}"

    on_renameat = on_renameat2

    def on_rename(self, parts, result):
        return self.on_renameat2(["AT_FDCWD", parts[0], "AT_FDCWD", parts[1]], result)

    def on_unlinkat(self, parts, _):
        path = self.path(parts[0], parts[1])
        if path is not None:
            self.disk.remove(path)
        return path

    def on_unlink(self, parts, result):
        return self.on_unlinkat(["AT_FDCWD", parts[0]], result)

    on_rmdir = on_unlink

    def on_mkdirat(self, parts, _):
        path = self.path(parts[0], parts[1])
        if path is not None:
            self.disk.add(path, Folder())
        return path

    def on_mkdir(self, parts, result):
        return self.on_mkdirat(["AT_FDCWD", parts[0]], result)

    def on_fsync(self, parts, _):
        handle = self.node(parts[0])
        if handle is None:
            return None
        handle[0].sync()
        return handle[3] or "the folder"

    on_fdatasync = on_fsync

    def on_mmap(self, parts, _):
        if "MAP_SHARED" in parts[3] and "PROT_WRITE" in parts[2] and number(parts[4]) in self.open:
            raise NotImplementedError("a write through a memory map")

    def refuse(self, name: str, parts):
        if any(self.open.get(number(part)) for part in parts if re.match(r"\d", part)):
            raise NotImplementedError(name)

    def on_copy_file_range(self, parts, _):
        self.refuse("copy_file_range", [parts[2]])

    def on_sendfile(self, parts, _):
        self.refuse("sendfile", [parts[0]])

    def on_splice(self, parts, _):
        self.refuse("splice", [parts[2]])

    def on_linkat(self, parts, _):
        if self.path(parts[2], parts[3]) is not None:
            raise NotImplementedError("a hard link")

    def on_link(self, parts, result):
        self.on_linkat(["AT_FDCWD", parts[0], "AT_FDCWD", parts[1]], result)

    def on_sync(self, _parts, _result):
        for node in self.disk.nodes():
            node.sync()
        return "everything"

    on_syncfs = on_sync
