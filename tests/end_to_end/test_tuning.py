"""The tuning table: written by a tuning run, given by IVY_TUNING_FILE, the same on every rank."""

import os
import shutil
import sys

import pytest

from launching import BIN, REPOSITORY

PYTHON = "/usr/bin/python3"
PACKAGE = os.path.join(REPOSITORY, "comm/python")
LIBRARY = os.path.realpath(os.path.join(BIN, "../lib/libivycomm.so.1"))
WITHOUT_IVYRUN = {"PYTHONPATH": PACKAGE, "IVY_LIBRARY": LIBRARY, "PYTHONDONTWRITEBYTECODE": "1"}
# A short run: what is looked at is that it ends and what it writes, not what it finds.
SHORT = ("--rounds", "3", "--seconds", "0.001", "--least", "8K", "--most", "64K")
LIMIT = 120

SAYS = """
import ivycomm as ic, os
try:
    ic.init()
    print("sum", ic.all_reduce(1), os.environ.get("IVY_TUNING_FILE"))
except ic.IvyError as error:
    print("error", type(error).__name__, error)
"""


def tune(*arguments):
    return (PYTHON, "-B", "-m", "ivycomm.tune", *arguments)


def check_table(path, ranks, hosts):
    with open(path) as file:
        text = file.read()
    assert f"{ranks} ranks on {hosts} host" in text.splitlines()[0], text
    # Nothing but the table is left beside it.
    assert [name for name in os.listdir(os.path.dirname(path)) if name.startswith(os.path.basename(path))] == [
        os.path.basename(path)]
    return text


@pytest.mark.parametrize("flags, ranks, hosts", [
    (("-n", "2"), 2, 1), (("--fake-hosts", "2", "--nproc_per_node", "1"), 2, 2)], ids=["one_host", "two_hosts"])
def test_a_tuning_run_writes_a_table_that_is_taken(local, flags, ranks, hosts):
    path = os.path.join(local.directory, "my.table")
    done = local.run(*flags, *tune("--out", path, *SHORT, "--operations", "all_reduce,all_gather"), limit=LIMIT)
    assert done.code == 0, done
    assert "round 3 of 3 is done" in done.out.decode(), done
    check_table(path, ranks, hosts)
    done = local.run(*flags, PYTHON, "-c", SAYS, env={"IVY_TUNING_FILE": path})
    assert done.code == 0 and len(done.labelled()) == ranks, done
    assert {text for _, _, text in done.labelled()} == {f"sum {ranks} {path}"}, done


@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="openmpi-bin is not installed")
def test_under_open_mpi(local):
    path = os.path.join(local.directory, "my.table")
    done = local.run_program("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                             *tune("--out", path, *SHORT, "--operations", "scan"), env=WITHOUT_IVYRUN, limit=LIMIT)
    assert done.code == 0, done
    check_table(path, 2, 1)


def test_what_cannot_be_tuned_is_said_before(local):
    done = local.run("-n", "2", *tune("--out", os.path.join(local.directory, "none/my.table")))
    assert done.code == 1 and b"none/my.table cannot be written" in done.out, done
    done = local.run_program(*tune("--out", "my.table"), env=WITHOUT_IVYRUN)
    assert done.code == 1 and b"a world of one rank" in done.out, done
    done = local.run_program(*tune("--out", "my.table", "--most", "many"), env=WITHOUT_IVYRUN)
    assert done.code == 2 and "'many' is no number of bytes" in done.err_text, done


# ---- the table that every rank has -----------------------------------------------------------------

@pytest.mark.parametrize("first, second, named", [
    ("all_gather 2 shm 64K slots\n", "all_gather 2 shm 64K kernel\n",
     ("different tuning tables: rank 0 on ", "0.table", "rank 1 on ", "1.table")),
    ("all_gather 2 shm 64K slots\n", None, ("rank 1 on ", "1.table cannot be read", "No such file")),
    ("all_gather 2 shm 64K slots\n", "all_gather 2 shm many slots\n", ("rank 1 on ", '1.table:1:18: "many"', "64K")),
], ids=["different", "missing", "wrong"])
@pytest.mark.parametrize("flags", [("-n", "2"), ("--fake-hosts", "2")], ids=["one_host", "two_hosts"])
def test_ranks_that_disagree_all_hear_it(local, flags, first, second, named):
    for rank, text in enumerate((first, second)):
        if text is not None:
            local.file(f"{rank}.table", text)
    own = f'export IVY_TUNING_FILE={local.directory}/$RANK.table; exec {PYTHON} -c "$0"'
    done = local.run(*flags, "bash", "-c", own, SAYS)
    said = [text for _, _, text in done.labelled()]
    assert done.code == 0 and len(said) == 2 and said[0] == said[1], done
    assert said[0].startswith("error "), done
    for words in named:
        assert words in said[0], done


def test_without_ivyrun_too(local):
    local.file("0.table", "all_gather 2 shm 64K slots\n")
    local.file("1.table", "all_gather 2 shm 128K slots\n")
    script = SAYS.replace("ic.init()", f"ic.init('file://{local.directory}/meet', rank=RANK, world_size=2)")
    runs = [local.start_program(PYTHON, "-c", script.replace("RANK", str(rank)),
                                env={**WITHOUT_IVYRUN, "IVY_TUNING_FILE": f"{local.directory}/{rank}.table"})
            for rank in range(2)]
    said = [run.finish(LIMIT).out.decode() for run in runs]
    assert said[0] == said[1] and "0.table" in said[0] and "1.table" in said[0], said


# ---- what is written down --------------------------------------------------------------------------

def tuning_of(times):
    """A run of two ranks that has measured this: {(way or None, size): seconds of each round} of all_gather."""
    sys.path.insert(0, PACKAGE)
    try:
        from ivycomm import tune as module
    finally:
        sys.path.remove(PACKAGE)
    options = module.parse(["--out", "x", "--operations", "all_gather"])
    run = module.Run(options)
    os.rmdir(run.directory)
    run.transports = {"shm": (2, 2)}
    ways = {candidate.way: candidate for candidate in module.CANDIDATES if candidate.aspect == ""}
    for (way, size), rounds in times.items():
        run.times[(ways.get(way), "all_gather", "shm", "plain", size)] = rounds
    return [line.split("#")[0].split() for line in run.rows()]


def test_only_what_is_faster_beyond_noise_is_written():
    sizes = [1 << power for power in range(16, 22)]
    calm = {(None, size): [10.0, 10.1, 10.2] for size in sizes}

    def slots(*seconds):
        return {("slots", size): rounds for size, rounds in zip(sizes, seconds)}

    same, faster, barely = [10.0, 10.1, 10.2], [8.0, 8.1, 8.2], [9.8, 9.85, 9.9]
    scattered = [5.0, 8.0, 10.05]  # Its median wins; a round of it does not.
    assert tuning_of({**calm, **slots(*[same] * 6)}) == []
    assert tuning_of({**calm, **slots(*[barely] * 6)}) == []
    assert tuning_of({**calm, **slots(*[scattered] * 6)}) == []
    assert tuning_of({**calm, **slots(same, faster, same, same, same, same)}) == []
    assert tuning_of({**calm, **slots(same, faster, faster, same, same, same)}) == [
        ["all_gather", "2", "shm", "128K", "slots"], ["all_gather", "2", "shm", "512K", "built-in"]]
    # What is larger than all that was measured stays as it is.
    assert tuning_of({**calm, **slots(same, same, same, same, faster, faster)}) == [
        ["all_gather", "2", "shm", "1M", "slots"], ["all_gather", "2", "shm", "4M", "built-in"]]
    kernel = {("kernel", size): [7.0, 7.1, 7.2] for size in sizes[3:]}
    assert tuning_of({**calm, **slots(*[faster] * 6), **kernel}) == [
        ["all_gather", "2", "shm", "64K", "slots"], ["all_gather", "2", "shm", "512K", "kernel"],
        ["all_gather", "2", "shm", "4M", "built-in"]]
