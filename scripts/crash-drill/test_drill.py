"""Tests of the drill itself: `python3 -m unittest discover scripts/crash-drill`. Needs only Python."""

import tempfile
import unittest

from disk import SECTOR, Disk, choose
from outcome import OUTCOMES, Tally, classify, table
from trace import Replay, lines


def hexadecimal(text):
    return '"' + "".join(f"\\x{byte:02x}" for byte in text.encode()) + '"'


class Outcomes(unittest.TestCase):
    def test_every_outcome(self):
        for word, found in [
            ("new", {"steps": [8.0]}),
            ("last", {"steps": [7.0]}),
            ("earlier", {"steps": [6.0]}),
            ("torn", {"steps": [7.0, 8.0]}),
            ("torn", {"steps": [9.0]}),  # its save never began
            ("torn", {"steps": [0.0]}),
            ("torn", {"steps": [7.5]}),
            ("unreadable", {"error": "EOFError"}),
            ("nothing", {"nothing": True}),
        ]:
            with self.subTest(found=found):
                self.assertEqual(classify(found, returned=7, begun=8), word)

    def test_a_table_has_all_counts(self):
        tally = Tally()
        tally.count({"steps": [1.0]}, "last", 3)
        tally.count({"error": "EOFError"}, "unreadable")
        first, second = table("kills", {"x": tally}).splitlines()
        self.assertEqual(first.split(), ["kills", "all", *OUTCOMES, "errors"])
        self.assertEqual(second.split(), ["x", "4", "0", "3", "0", "0", "1", "0", "EOFError", "1"])


class PowerCuts(unittest.TestCase):
    def states(self, disk):
        sets = choose(disk.pending(), 200, 1)
        return {tuple(sorted(disk.after_power_cut(survivors).items())) for survivors in sets}

    def test_synced_content_survives(self):
        disk = Disk({"a": b"one"})
        disk.find("a").pending.append(("write", 0, b"two"))
        self.assertEqual(self.states(disk), {(("a", b"one"),), (("a", b"two"),)})
        disk.find("a").sync()
        self.assertEqual(self.states(disk), {(("a", b"two"),)})

    def test_a_rename_is_atomic(self):
        disk = Disk({"f": None, "f/a": b"new", "f/b": b"old"})
        disk.rename("f/a", "f/b")
        before = (("f", None), ("f/a", b"new"), ("f/b", b"old"))
        self.assertEqual(self.states(disk), {before, (("f", None), ("f/b", b"new"))})
        disk.find("f").sync()
        self.assertEqual(self.states(disk), {(("f", None), ("f/b", b"new"))})

    def test_writes_tear_at_sectors(self):
        disk = Disk({"a": bytes(2 * SECTOR)})
        disk.find("a").pending.append(("write", 0, b"1" * SECTOR + b"2" * SECTOR))
        contents = {disk.after_power_cut(("random", seed))["a"] for seed in range(100)}
        none, one, two = bytes(SECTOR), b"1" * SECTOR, b"2" * SECTOR
        self.assertEqual(contents, {none + none, one + none, none + two, one + two})

    def test_a_length_may_reach_the_disk_before_the_content(self):
        disk = Disk({"a": b""})
        disk.find("a").pending.append(("write", 0, b"data"))
        contents = {dict(state)["a"] for state in self.states(disk)}
        self.assertEqual(contents, {b"", b"data", bytes(4)})


class Traces(unittest.TestCase):
    def replay(self, before, calls):
        with tempfile.NamedTemporaryFile("w") as log:
            log.write("\n".join(calls))
            log.flush()
            disk = Disk(before)
            replay = Replay("/run", disk)
            done = [replay.apply(*call) for call in lines(log.name)]
            return disk, [it for it in done if it]

    def test_replacing_a_file(self):
        old, new, other = hexadecimal("/run/a"), hexadecimal("/run/a.tmp"), hexadecimal("/elsewhere/a")
        disk, done = self.replay(
            {"a": b"old"},
            [
                f"1 openat(AT_FDCWD</x>, {new}, O_WRONLY|O_CREAT|O_CLOEXEC, 0600) = 3</run/a.tmp>",
                f"1 openat(AT_FDCWD</x>, {other}, O_WRONLY|O_CREAT|O_CLOEXEC, 0600) = 4</elsewhere/a>",
                f"1 write(4</elsewhere/a>, {hexadecimal('unseen')}, 6) = 6",
                f"1 write(3</run/a.tmp>, {hexadecimal('newer')}, 5 <unfinished ...>",
                "2 close(9) = 0",
                "1 <... write resumed>) = 3",
                f"1 pwrite64(3</run/a.tmp>, {hexadecimal('N')}, 1, 0) = 1",
                "1 fsync(3</run/a.tmp>) = 0",
                f"1 rename({new}, {old}) = 0",
                f"1 unlink({old}) = -1 ENOENT (No such file or directory)",
            ],
        )
        self.assertEqual(disk.after_power_cut("all"), {"a": b"New"})
        self.assertEqual(disk.after_power_cut("none"), {"a": b"old"})
        self.assertEqual([line.split()[0] for line in done], ["openat", "write", "pwrite64", "fsync", "rename"])

    def test_writing_a_file_in_place(self):
        a = hexadecimal("/run/a")
        disk, _ = self.replay(
            {"a": b"older"},
            [
                f"1 openat(AT_FDCWD</x>, {a}, O_WRONLY|O_CREAT|O_TRUNC, 0600) = 3</run/a>",
                f"1 write(3</run/a>, {hexadecimal('new')}, 3) = 3",
            ],
        )
        contents = {disk.after_power_cut(survivors)["a"] for survivors in ["none", "all", ("only", 0), ("only", 1)]}
        self.assertEqual(contents, {b"older", b"new", b"", b"newer"})

    def test_a_folder_needs_its_own_sync(self):
        root, made = hexadecimal("/run"), hexadecimal("/run/f")
        calls = [
            f"1 mkdir({made}, 0777) = 0",
            f"1 openat(AT_FDCWD</x>, {root}, O_RDONLY|O_DIRECTORY) = 3</run>",
        ]
        disk, _ = self.replay({}, calls)
        self.assertEqual(disk.after_power_cut("none"), {})
        disk, _ = self.replay({}, [*calls, "1 fsync(3</run>) = 0"])
        self.assertEqual(disk.after_power_cut("none"), {"f": None})

    def test_unmodelled_calls_are_refused(self):
        with self.assertRaises(NotImplementedError):
            self.replay({"a": b""}, [f"1 rename({hexadecimal('/run/a')}, {hexadecimal('/b')}) = 0"])


if __name__ == "__main__":
    unittest.main()
