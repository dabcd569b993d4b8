"""Measures which way each operation takes best here, and writes a table for IVY_TUNING_FILE.

    ivyrun -n 8 python3 -m ivycomm.tune --out my.table
    IVY_TUNING_FILE=$PWD/my.table ivyrun -n 8 train.py

Start it as the program itself will be started: with as many ranks on as many hosts, under any launcher.
Every way is forced for a whole world, the worlds in turn, several rounds. A call's time is the slowest
rank's; for stores one pass over the result belongs to it, which pays for what left the caches. A row is
written only where a way's slowest round was faster than the built-in way's fastest, by more than --margin
in the median, and at two sizes in a row. The table's format: docs/tuning.md.
"""

import argparse
import ctypes
import mmap
import os
import shutil
import statistics
import sys
import tempfile
import time
from ctypes import byref, c_double, c_void_p

import ivycomm

from .element_types import DTYPES, ReduceOp
from .errors import IvyError, check
from .library import IN_PLACE, load

F32, F64 = DTYPES["float32"][0], DTYPES["float64"][0]
OPERATIONS = ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "gather", "scatter", "all_to_all",
              "scan")
OF_BLOCKS = ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all")
EAGER_MOST, WHOLE_MOST = 16 << 10, 4 << 20  # Beyond, the library takes the next way by itself.
WARM = 3


class Candidate:
    """One way, forced for every operation that has it."""

    def __init__(self, over, aspect, way, operations=(), least=0, most=1 << 62):
        self.over, self.aspect, self.way = over, aspect, way
        self.operations, self.least, self.most = operations, least, most
        # How a cell is measured: it is compared with the built-in table's of the same kind.
        self.kind = {".registered": "registered", ".stores": "read"}.get(aspect, "plain")

    def text(self):
        return "".join(f"{operation}{self.aspect} any {self.over} 0 {self.way}\n" for operation in self.operations)

    def concerns(self, operation, size, ranks):
        """Can it be another way than the built-in one at this size (of a block, or of the vector)?"""
        most = self.most // ranks if self.way == "eager" and operation == "all_to_all" else self.most
        return self.least <= row_bytes(operation, self.aspect, size, ranks) <= most


CANDIDATES = (
    Candidate("shm", "", "eager", tuple(o for o in OPERATIONS if o != "scatter"), most=EAGER_MOST),
    Candidate("shm", "", "slots", tuple(o for o in OPERATIONS if o != "scatter")),
    Candidate("shm", "", "kernel", ("all_gather", "all_to_all")),
    Candidate("shm", ".stores", "cached", tuple(o for o in OPERATIONS if o not in ("reduce_scatter", "scan")),
              least=256 << 10),
    Candidate("shm", ".stores", "streaming", tuple(o for o in OPERATIONS if o not in ("reduce_scatter", "scan")),
              least=256 << 10),
    Candidate("shm", ".registered", "copied", ("all_reduce", "reduce_scatter", "broadcast", "all_gather",
                                               "all_to_all")),
    Candidate("tcp", "", "whole", ("all_reduce",), most=WHOLE_MOST),
    Candidate("tcp", "", "sliced", ("all_reduce",)),
    *(Candidate("tcp", ".piece", way, ("all_reduce", "reduce", "reduce_scatter", "broadcast"), least=256 << 10)
      for way in ("256K", "1M", "4M")),
)


def row_bytes(operation, aspect, size, ranks):
    """What the table calls the bytes of an operation whose blocks (or vector) have `size`."""
    if aspect == ".stores":
        return size * ranks if operation in ("all_gather", "gather", "all_to_all") else size
    return size * ranks if operation == "reduce_scatter" else size


def size_text(size):
    for letter, unit in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def size_of(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    digits, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not digits.isascii() or not digits.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes; write it as 65536, 64K or 8M")
    return int(digits) * unit


class Buffers:
    """Two buffers of every kind; the registered ones are the world's."""

    def __init__(self, size, world=None):
        self._library, self._registered, self._maps = load(), [], []
        self.places = []
        for _ in range(2):
            if world is None:
                self._maps.append(mmap.mmap(-1, size))
                self.places.append(ctypes.addressof(ctypes.c_char.from_buffer(self._maps[-1])))
            else:
                memory = c_void_p()
                check(self._library.ivy_mem_alloc(world.handle, size, byref(memory)))
                self._registered.append(memory)
                self.places.append(memory.value)

    def free(self):
        for memory in self._registered:
            check(self._library.ivy_mem_free(memory))


class Timer:
    """Times operations of one group; collective."""

    def __init__(self, group, seconds):
        self.group, self.seconds, self.library = group, seconds, load()

    def call(self, operation, buffers, size):
        comm, count, library = self.group.handle, size // 4, self.library
        send, receive = buffers.places
        add = int(ReduceOp.SUM)
        if operation in ("all_reduce", "reduce_scatter", "scan"):
            return lambda: getattr(library, f"ivy_{operation}")(comm, send, receive, count, F32, add, None)
        if operation == "reduce":
            return lambda: library.ivy_reduce(comm, send, receive, count, F32, add, 0, None)
        if operation == "broadcast":
            return lambda: library.ivy_broadcast(comm, send, count, F32, 0, None)
        if operation in ("gather", "scatter"):
            return lambda: getattr(library, f"ivy_{operation}")(comm, send, receive, count, F32, 0, None)
        return lambda: getattr(library, f"ivy_{operation}")(comm, send, receive, count, F32, None)

    def slowest(self, group, values):
        """Each value's greatest of all ranks."""
        array = (c_double * len(values))(*values)
        check(self.library.ivy_all_reduce(group.handle, IN_PLACE, array, len(values), F64, int(ReduceOp.MAX), None))
        return list(array)

    def samples(self, call, send, changed, count, read):
        """Seconds of each call; the input changes before, so that no cache knows it."""
        comm, barrier, taken = self.group.handle, self.library.ivy_barrier, []
        for index in range(count):
            ctypes.memset(send, index & 0x1f, changed)
            barrier(comm, None)
            began = time.perf_counter()
            code = call()
            read()
            taken.append(time.perf_counter() - began)
            check(code)
        return taken

    def median(self, world, operation, kind, buffers, size):
        call = self.call(operation, buffers, size)
        send, receive = buffers.places
        changed = size * (self.group.size if operation in OF_BLOCKS else 1)
        result = row_bytes(operation, ".stores", size, self.group.size)
        # As a program would: to somewhere else.
        of, to = (send, receive) if operation == "broadcast" else (receive, send)
        read = (lambda: ctypes.memmove(to, of, result)) if kind == "read" else (lambda: None)
        warm = self.slowest(world, self.samples(call, send, changed, WARM, read))[-1]
        count = min(1000, max(5, int(self.seconds / max(warm, 1e-7))))
        return statistics.median(self.slowest(world, self.samples(call, send, changed, count, read)))


class Run:
    """The worlds that are made one after the other, what was measured in them, and the table."""

    def __init__(self, options):
        self.options = options
        self.directory = tempfile.mkdtemp(prefix="ivycomm-tune-")
        self.plain = None
        self.transports = {}  # Name: (ranks of a group that is measured, members as the table counts them)
        self.times = {}  # (candidate or None, operation, over, kind, size): one of each round

    def init(self, text):
        """A world that has this table. Every rank writes its own file: hosts need not share a directory."""
        path = os.path.join(self.directory, "table")
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        os.environ["IVY_TUNING_FILE"] = path
        chosen = self.options
        return ivycomm.init(chosen.init_method, rank=chosen.rank, world_size=chosen.world_size,
                            timeout=chosen.timeout)

    def groups(self, world):
        """{transport: the group over which it is measured}; the same transports on all ranks."""
        found = {}
        local = ivycomm.all_gather_object(world.local_size)
        if min(local) == max(local) > 1:
            found["shm"] = ivycomm.split(world.node_rank, world.rank) if world.node_count > 1 else world
        if world.node_count > 1:
            found["tcp"] = world
        self.transports = {over: (group.size, world.node_count if over == "tcp" else group.size)
                           for over, group in found.items()}
        return found

    def cells(self, candidate, ranks):
        """(operation, size of a block or of the vector) that the candidate is measured with."""
        found = []
        for operation in candidate.operations:
            if operation not in self.options.operations:
                continue
            size = self.options.least  # Of the larger side of the call.
            while size <= self.options.most:
                each = max(4, size // ranks // 4 * 4) if operation in OF_BLOCKS else size
                if candidate.concerns(operation, each, ranks):
                    found.append((operation, each))
                size *= 2
        return found

    def measure(self, forced):
        """One round of one world: the cells of the forced candidate, or (None) all by the built-in table."""
        world = self.init(forced.text() if forced is not None else "")
        size = self.options.most + 64 * world.size
        if self.plain is None:
            self.plain = Buffers(size)
        registered = None
        done = set()
        for over, group in self.groups(world).items():
            timer = Timer(group, self.options.seconds)
            for candidate in CANDIDATES:
                if candidate.over != over or forced not in (None, candidate):
                    continue
                if candidate.kind == "registered" and registered is None:
                    registered = Buffers(size, world)
                for operation, each in self.cells(candidate, group.size):
                    key = (forced, operation, over, candidate.kind, each)
                    if key in done:
                        continue  # Several candidates are compared with one cell of the built-in table.
                    done.add(key)
                    buffers = registered if candidate.kind == "registered" else self.plain
                    took = timer.median(world, operation, candidate.kind, buffers, each)
                    self.times.setdefault(key, []).append(took)
        if registered is not None:
            registered.free()
        ivycomm.finalize()

    def ratio(self, candidate, operation, size):
        """Its median time divided by the built-in way's; 1 where the two cannot be told apart."""
        own, built_in = (self.times.get((forced, operation, candidate.over, candidate.kind, size))
                         for forced in (candidate, None))
        if own is None or max(own) >= min(built_in):
            return 1
        return statistics.median(own) / statistics.median(built_in)

    def bests(self, candidates, operation, sizes):
        """(way, ratio) of each size: the fastest beyond noise, or the built-in one."""
        found = []
        for size in sizes:
            ratio, way = min((self.ratio(one, operation, size), one.way) for one in candidates)
            found.append((way, ratio) if ratio < 1 - self.options.margin / 100 else ("built-in", 1))
        # A win at one size between others that are none is chance, whatever the rounds say.
        ways = ["built-in", *(way for way, _ in found), "built-in"]
        return [best if best[0] in (before, behind) else ("built-in", 1)
                for best, before, behind in zip(found, ways, ways[2:])]

    def rows(self):
        """The table's lines: one wherever the best way changes with the size."""
        lines = []
        for over, aspect in dict.fromkeys((one.over, one.aspect) for one in CANDIDATES):
            if over not in self.transports:
                continue
            candidates = [one for one in CANDIDATES if (one.over, one.aspect) == (over, aspect)]
            for operation in self.options.operations:
                sizes = sorted({key[4] for key in self.times if key[0] in candidates and key[1] == operation})
                before = "built-in"
                bests = self.bests(candidates, operation, sizes)
                # What is larger than all that was measured is left as it is.
                for size, (way, ratio) in zip([*sizes, 2 * max(sizes, default=0)], [*bests, ("built-in", 1)]):
                    if way != before:
                        lines.append(self.line(operation, aspect, over, size, way, ratio))
                    before = way
        return lines

    def line(self, operation, aspect, over, size, way, ratio):
        ranks, members = self.transports[over]
        start = size_text(row_bytes(operation, aspect, size, ranks))
        told = f"  # {ratio:.2f} of the built-in way's time" if way != "built-in" else ""
        return f"{operation + aspect:<24} {members:<3} {over} {start:>8} {way}{told}"

    def text(self, ranks, hosts):
        shown = "".join(line + "\n" for line in self.rows())
        nothing = "# No way was faster than the built-in one beyond noise.\n"
        where = f"{ranks} ranks on {hosts} host{'s' if hosts > 1 else ''}"
        return (f"# Written by python3 -m ivycomm.tune: {where}, ivycomm {ivycomm.__version__}.\n"
                f"# operation              members over from   way\n{shown or nothing}")


def write_table(path, text):
    """The whole file or none of it."""
    beside = f"{path}.{os.getpid()}.new"
    try:
        with open(beside, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(beside, path)
    except OSError:
        if os.path.exists(beside):
            os.unlink(beside)
        raise


def run(options, told):
    """0, or 1 and a line why. The same on all ranks."""
    tuning = Run(options)
    try:
        world = tuning.init("")
        rank, ranks, hosts = world.rank, world.size, world.node_count
        trouble = None
        if ranks == 1:
            trouble = "a world of one rank has nothing to tune; start it with ivyrun -n 2, say"
        elif rank == 0 and not os.access(os.path.dirname(os.path.abspath(options.out)), os.W_OK):
            trouble = f"{options.out} cannot be written: make its directory, or name another"
        trouble = ivycomm.broadcast_object(trouble, 0)
        ivycomm.finalize()
        say = told if rank == 0 else lambda _: None
        if trouble:
            say(trouble)
            return 1
        for number in range(options.rounds):
            # The built-in table between the others, so that whatever slows the machine slows both.
            for forced in (None, *CANDIDATES):
                over = forced.over if forced is not None else None
                if over is None or over in tuning.transports:
                    tuning.measure(forced)
            say(f"round {number + 1} of {options.rounds} is done")
        text = tuning.text(ranks, hosts)
        # All ranks have the same figures, but rank 0's are what is written; nothing is written that no world takes.
        tuning.init("")
        text = ivycomm.broadcast_object(text, 0)
        ivycomm.finalize()
        tuning.init(text)
        ivycomm.finalize()
        if rank == 0:
            write_table(options.out, text)
            say(text + f"use it with IVY_TUNING_FILE={os.path.abspath(options.out)}")
        return 0
    finally:
        shutil.rmtree(tuning.directory, ignore_errors=True)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python3 -m ivycomm.tune", description=__doc__.split("\n")[0],
                                     epilog="Start it with the launcher, ranks and hosts of the program it is for.")
    parser.add_argument("--out", required=True, metavar="FILE", help="the table that rank 0 writes")
    parser.add_argument("--operations", default=",".join(OPERATIONS), metavar="A,B", help="default: all")
    parser.add_argument("--least", type=size_of, default=1 << 10, metavar="BYTES", help="default: 1K")
    parser.add_argument("--most", type=size_of, default=32 << 20, metavar="BYTES",
                        help="of the larger side of a call; default: 32M")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--seconds", type=float, default=0.02, metavar="S",
                        help="of each cell and round; default: 0.02")
    parser.add_argument("--margin", type=float, default=5, metavar="PERCENT",
                        help="what a way must be faster by; default: 5")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="of every call; default: 60")
    parser.add_argument("--init-method", metavar="URL", help="tcp://HOST:PORT or file:///PATH, without a launcher")
    parser.add_argument("--rank", type=int, metavar="N", help="beside --init-method")
    parser.add_argument("--world-size", type=int, metavar="N", help="beside --init-method")
    options = parser.parse_args(arguments)
    options.operations = tuple(options.operations.split(","))
    for operation in options.operations:
        if operation not in OPERATIONS:
            parser.error(f"--operations: there is no {operation!r}; choose from {', '.join(OPERATIONS)}")
    if not 4 <= options.least <= options.most:
        parser.error("--least: 4 bytes to --most")
    if options.rounds < 3:
        parser.error("--rounds: at least 3, or noise would be written down")
    return options


def main():
    options = parse(sys.argv[1:])
    try:
        return run(options, lambda text: print(text, flush=True))
    except IvyError as error:
        print(f"ivycomm.tune: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
