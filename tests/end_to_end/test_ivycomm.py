# SPDX-License-Identifier: Apache-2.0
"""The Python package ivycomm in workers: found without installation, with correct results and clear errors."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import zipfile

import pytest

from launching import BIN, REPOSITORY, SLOW, seconds
from test_torch_backend import TORCH
from test_torch_backend import has_torch as needs_newest_torch

has_numpy = os.path.isdir("/usr/lib/python3/dist-packages/numpy")
has_torch = os.path.isdir("/usr/lib/python3/dist-packages/torch")
needs_numpy = pytest.mark.skipif(not has_numpy, reason="python3-numpy is not installed")
needs_torch = pytest.mark.skipif(not (has_torch and has_numpy), reason="python3-torch is not installed")

ONE_HOST = {"alone": ("-n", "1"), "two": ("-n", "2"), "four": ("-n", "4")}
TWO_HOSTS = {"hosts": ("--fake-hosts", "2", "--nproc_per_node", "2")}
CALM = ("-x", "OMP_NUM_THREADS=1")
# Importing NumPy and torch takes seconds if many workers share few cores.
LIMIT = 90

places = pytest.mark.parametrize("flags", [*ONE_HOST.values(), *TWO_HOSTS.values()],
                                 ids=[*ONE_HOST, *TWO_HOSTS])


def ranks_of(flags):
    return 4 if "--fake-hosts" in flags else int(flags[1])


def check_all_equal(done, ranks):
    assert done.code == 0, done
    said = done.texts_by_rank() if ranks > 1 else {0: done.out_lines}
    assert sorted(said) == list(range(ranks)), done
    for lines in said.values():
        assert lines[-1].endswith("all equal"), done


def test_element_types_and_reductions_match_the_table():
    spec = importlib.util.spec_from_file_location(
        "element_types", os.path.join(REPOSITORY, "comm", "python", "ivycomm", "element_types.py"))
    ours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ours)
    with open(os.path.join(REPOSITORY, "proto", "wire", "operations.def"), encoding="utf-8") as file:
        table = file.read()
    elements = re.findall(r'^IVY_ELEMENT\(\w+, (\d+), \w+, "\w+", (\d+), \w+, \w+, "(\w+)"\)', table, re.MULTILINE)
    reductions = re.findall(r'^IVY_REDUCTION\((\w+), (\d+), \w+, "(\w+)"', table, re.MULTILINE)
    assert ours.DTYPES == {name: (int(number), int(size)) for number, size, name in elements}
    assert {op.name: int(op) for op in ours.ReduceOp} == {name: int(number) for name, number, _ in reductions}
    assert all(ours.op_number(text) == int(number) for _, number, text in reductions)


def stress(local, ranks, seconds_each, *flags):
    done = local.run("-n", str(ranks), *CALM, *flags, "/usr/bin/python3", local.script("comm_stress.py"), str(seconds_each),
                     limit=LIMIT)
    check_all_equal(done, ranks)


@needs_numpy
@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_stress_of_shared_memory(local, ranks):
    """Random operations: ranks that spin, that yield, and more ranks than processors. test_arm_hosts.py runs them for a
    minute."""
    stress(local, ranks, 3)


@needs_numpy
def test_pages_of_64_kib(local):
    """As on many Arm systems; see large_pages.c."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler (cc)")
    library = os.path.join(local.directory, "large_pages.so")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "large_pages.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    stress(local, 4, 2, "-x", f"LD_PRELOAD={library}", "-x", "EXPECTED_PAGE=65536")


@places
def test_ranks_objects_and_store(local, flags):
    check_all_equal(local.run(*flags, local.script("comm_world.py"), limit=LIMIT), ranks_of(flags))


@needs_numpy
@places
def test_collectives_on_numpy_arrays(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_collectives.py"), limit=LIMIT), ranks_of(flags))


@needs_numpy
@places
def test_names_of_the_originals(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_i_dist.py"), limit=LIMIT), ranks_of(flags))


@needs_torch
@pytest.mark.parametrize("flags", [ONE_HOST["two"], TWO_HOSTS["hosts"], pytest.param(("-n", "2", "--python", TORCH), marks=needs_newest_torch)],
                         ids=["two", "hosts", "newest"])
def test_torch_tensors(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_torch.py"), limit=LIMIT), ranks_of(flags))


@needs_numpy
@pytest.mark.parametrize("flags", [ONE_HOST["two"], TWO_HOSTS["hosts"]], ids=["two", "hosts"])
def test_messages(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_messages.py"), limit=LIMIT), ranks_of(flags))


def test_a_world_of_one_without_a_launcher(local):
    package = os.path.join(REPOSITORY, "comm/python")
    done = local.run_program("/usr/bin/python3", "-B", local.script("comm_world.py"),
                             env={"PYTHONPATH": package}, limit=LIMIT)
    assert done.code == 0 and done.out_lines == ["left", "all equal"], done


@needs_numpy
@pytest.mark.parametrize("flags", [("-n", "3"), ("--fake-hosts", "2", "-n", "3")], ids=["one", "hosts"])
def test_only_the_members_create_a_group(local, flags):
    done = local.run(*flags, *CALM, local.script("comm_members.py"), limit=LIMIT)
    assert {rank: lines[-1] for rank, lines in done.texts_by_rank().items()} == dict.fromkeys(range(3), "all equal"), done


def test_a_death_during_group_creation_is_reported(local):
    done = local.run("--fake-hosts", "2", "-n", "3", local.script("comm_members_death.py"), limit=LIMIT)
    for rank in (0, 2):
        said = json.loads(done.texts_by_rank()[rank][-1])
        assert (said["kind"], said["rank"], said["signal"]) == ("RankDied", 1, 9), done
        assert "pair of three" in said["text"] and said["after"] < 0.5 + seconds(1), done


@needs_numpy
def test_gelu_example(local):
    script = os.path.join(REPOSITORY, "scripts/examples/ivy_gelu.py")
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", *CALM, script, limit=LIMIT)
    assert done.code == 0 and b"on 4 ranks: gather and pmap agree" in done.out, done


# ---- finding the package ---------------------------------------------------------------------------

WHERE = "import ivycomm, sys; from ivycomm import library; print(ivycomm.__file__, library.path())"


def test_the_users_package_takes_precedence(local):
    os.mkdir(os.path.join(local.directory, "ivycomm"))
    local.file("ivycomm/__init__.py", "mine = True")
    done = local.run("-n", "1", "-x", f"PYTHONPATH={local.directory}", "/usr/bin/python3", "-B", "-c",
                     "import ivycomm; print(ivycomm.mine)")
    assert done.code == 0 and b"True" in done.out, done


IMPORT = """
import sys, time
try:
    import numpy
except ImportError:
    pass
compiled = []
sys.addaudithook(lambda event, given: compiled.append(given[1]) if event == "compile" else None)
began = time.process_time()
import ivycomm
spent = time.process_time() - began
print(spent, ivycomm.__file__, [file for file in compiled if "ivycomm" in str(file)])
try:
    ivycomm.all_reduce([1.0])
except ivycomm.NotInitialized:
    import traceback
    traceback.print_exc()
"""


@pytest.mark.parametrize("place", ["python", "ivycomm.zip"], ids=["folder", "archive"])
def test_the_import_takes_30_ms(local, place):
    """This includes the archive on other hosts, for which Python does not cache compiled files."""
    path = os.path.join(os.path.dirname(BIN), "lib", "ivyrun", place)
    if not os.path.exists(path):
        pytest.skip(f"not built: {path}")
    if place.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            if archive.read("ivycomm/__init__.pyc")[:4] != importlib.util.MAGIC_NUMBER:
                pytest.skip("ivyrun was built with another version of Python")
    runs = [local.run_program("/usr/bin/python3", "-c", IMPORT, env={"PYTHONPATH": path}) for _ in range(5)]
    least = min(float(run.out.decode().split()[0]) for run in runs)
    _, file, compiled = runs[-1].out.decode().split(maxsplit=2)
    assert least < 0.03 * SLOW and file.startswith(path) and compiled.strip() == "[]", runs[-1]
    assert "raise NotInitialized(" in runs[-1].err_text, "the traceback does not show the source"


def test_a_library_that_cannot_be_loaded_is_named(local):
    done = local.run("-n", "1", "-x", "IVY_LIBRARY=/nonexistent/libivycomm.so", "/usr/bin/python3", "-B", "-c",
                     "import ivycomm; ivycomm.init()")
    assert done.code == 1 and "IVY_LIBRARY=/nonexistent/libivycomm.so" in done.err_text, done


@needs_numpy
def test_on_hosts_without_this_build(hosts):
    """The package and its library are sent with ivy-node; node2 to node4 do not see the checkout."""
    done = hosts.run("-H", "node2,node3,node4", "--nproc_per_node", "1", "/usr/bin/python3", "-c", WHERE,
                     limit=LIMIT)
    assert done.code == 0, done
    for _, _, text in done.labelled():
        package, library = text.split()
        assert "ivycomm.zip" in package and os.path.dirname(library) in package, done
    assert len(done.labelled()) == 3, done
    user = hosts.as_user("ivyuser")
    check_all_equal(user.run("-H", "node2,node3", "--nproc_per_node", "2", *CALM,
                             user.script("comm_collectives.py"), limit=LIMIT), 4)


# ---- failures ---------------------------------------------------------------------------------------

def told(done, ranks):
    """Returns {rank: its last error}."""
    said = {rank: [json.loads(text) for text in lines if text.startswith("{")]
            for rank, lines in done.texts_by_rank().items()}
    assert {rank for rank, errors in said.items() if errors} >= set(ranks), done
    return {rank: said[rank][-1] for rank in ranks}


def test_an_incomplete_launcher_is_not_a_missing_init(local):
    program = ("import ivycomm\ntry:\n    ivycomm.init()\nexcept ivycomm.IvyError as error:\n"
               "    print(type(error).__name__, error.code)")
    sources = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "OMPI_COMM_WORLD_RANK": "1",
               "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    done = local.run_program("/usr/bin/python3", "-B", "-c", program,
                             env={"PYTHONPATH": os.path.join(REPOSITORY, "comm/python"), **sources}, limit=LIMIT)
    assert done.code == 0 and done.out_lines == ["FailedPrecondition FailedPrecondition"], done


def fail(local, scenario, *flags):
    return local.run(*(flags or ("-n", "3")), local.script("comm_errors.py"), scenario, limit=LIMIT)


@pytest.mark.parametrize("flags", [("-n", "3"), TWO_HOSTS["hosts"]], ids=["one", "hosts"])
def test_a_mismatch_shows_both_sides_to_all(local, flags):
    done = fail(local, "mismatch", *flags)
    for error in told(done, range(ranks_of(flags))).values():
        assert error["kind"] == "Mismatch" and error["code"] == "Aborted", done
        assert "barrier" in error["text"] and "all_gather" in error["text"], done


def told_of_mismatches(local, how, rounds, flags, limit=LIMIT):
    done = local.run(*flags, *CALM, local.script("comm_mismatches.py"), how, rounds, limit=limit)
    assert done.code == 0, done
    ranks = int(flags[-1])
    assert {rank: lines[-1] for rank, lines in done.texts_by_rank().items()} == dict.fromkeys(range(ranks), "all told"), done


@needs_numpy
@pytest.mark.parametrize("how", ["groups", "worlds"])
@pytest.mark.parametrize("flags", [("-n", "3"), ("--fake-hosts", "2", "-n", "4")], ids=["one", "hosts"])
def test_a_mismatch_is_reported_on_every_rank(local, how, flags):
    told_of_mismatches(local, how, "1", flags)


@pytest.mark.long
@needs_numpy
@pytest.mark.parametrize("how", ["groups", "worlds"])
@pytest.mark.parametrize("flags", [("-n", "2"), ("--fake-hosts", "2", "-n", "4"), ("--fake-hosts", "3", "-n", "3")],
                         ids=["two", "hosts", "each"])
def test_a_mismatch_is_reported_on_every_rank_in_a_long_run(local, how, flags):
    told_of_mismatches(local, how, "40", flags, 20 * LIMIT)


@needs_numpy
def test_a_killed_rank_is_named(local):
    done = fail(local, "killed")
    assert done.code == 128 + 9, done
    for error in told(done, [0, 1]).values():
        assert error["kind"] == "RankDied" and error["rank"] == 2 and error["pid"] > 0, done
        assert error["operation"] == "all_reduce" and error["sequence"] >= 1, done
        assert error["signal"] in (None, 9), done


@needs_numpy
def test_a_killed_rank_whose_memory_is_read_is_named(local):
    done = fail(local, "killed_while_read", "-n", "2")
    assert done.code == 128 + 9, done
    error = told(done, [0])[0]
    assert error["kind"] == "RankDied" and error["rank"] == 1 and error["signal"] in (None, 9), done
    assert error["operation"] == "all_reduce", done


def test_a_rank_that_exits_is_named(local):
    done = fail(local, "exited")
    assert done.code == 7, done
    for error in told(done, [0, 1]).values():
        assert error["kind"] == "RankDied" and error["rank"] == 2, done


@pytest.mark.parametrize("scenario", ["uncaught", "uncaught_group"])
@pytest.mark.parametrize("flags", [("-n", "3"), ("--fake-hosts", "3", "--nproc_per_node", "1")], ids=["one", "hosts"])
def test_an_uncaught_exception_is_read_by_its_peers(local, flags, scenario):
    done = fail(local, scenario, *flags)
    assert done.code == 1 and "from rank 2" in done.err_text, done
    for error in told(done, [0, 1]).values():
        assert error["kind"] == "Aborted" and error["rank"] == 2, done
        assert "ValueError: the data of epoch 3 are missing" in error["text"], done


@pytest.mark.parametrize("scenario", ["interrupted", "interrupted_before_the_work", "interrupted_group"])
def test_ctrl_c_wakes_a_waiting_call(local, scenario):
    done = fail(local, scenario)
    assert done.code == 0, done
    assert done.texts_by_rank()[0][0] == "interrupted", done
    for error in told(done, range(3)).values():
        assert error["kind"] == "Aborted" and error["rank"] == 0, done


def test_finalize_waits_for_a_thread_that_frees_a_group(local):
    done = fail(local, "freed_during_finalize")
    assert done.code == 0, done
    assert done.texts_by_rank() == {rank: ["went on"] for rank in range(3)}, done


def test_the_world_can_end_after_ctrl_c_at_the_end_of_a_call(local):
    done = fail(local, "interrupted_at_the_end")
    assert done.code == 0, done
    assert done.texts_by_rank() == {rank: ["interrupted", "went on"] for rank in range(3)}, done


def test_ctrl_c_in_wait_leaves_the_operation_running(local):
    done = fail(local, "interrupted_wait")
    assert done.code == 0, done
    assert done.texts_by_rank() == {0: ["interrupted", "went on"], 1: ["went on"], 2: ["went on"]}, done


def test_ctrl_c_while_an_operation_is_started_leaves_it_running(local):
    done = fail(local, "interrupted_start")
    assert done.code == 0, done
    assert done.texts_by_rank() == {0: ["interrupted", "went on"], 1: ["went on"], 2: ["went on"]}, done


def test_a_timeout_names_missing_ranks(local):
    done = fail(local, "timeout")
    for error in told(done, [0, 1]).values():
        assert error["kind"] == "Timeout" and error["rank"] == 2 and "rank 2" in error["text"], done


def test_the_operation_continues_after_a_wait_times_out(local):
    done = fail(local, "still_running")
    assert done.code == 0, done
    assert done.texts_by_rank() == {0: ["still running", "went on"], 1: ["went on"], 2: ["went on"]}, done


def test_abort_reports_the_reason(local):
    done = fail(local, "aborted")
    for error in told(done, range(3)).values():
        assert error["kind"] == "Aborted" and error["rank"] == 2 and "enough of it" in error["text"], done


EACH = ("--fake-hosts", "2", "--nproc_per_node", "1")


@needs_numpy
@pytest.mark.parametrize("flags", [("-n", "2"), EACH], ids=["one", "hosts"])
def test_a_missing_message_times_out(local, flags):
    done = fail(local, "message_timeouts", *flags, *CALM)
    assert done.code == 0, done
    for lines in done.texts_by_rank().values():
        *errors, last = lines
        assert last == "went on" and len(errors) == 4, done
        for error in map(json.loads, errors):
            assert error["kind"] == "Timeout" and error["rank"] == 1 and "rank 1 " in error["text"], done


@needs_numpy
@pytest.mark.parametrize("flags", [("-n", "2"), EACH], ids=["one", "hosts"])
def test_a_failed_message_is_reported_on_every_rank(local, flags):
    done = fail(local, "message_mismatch", *flags, *CALM)
    assert done.texts_by_rank()[1][0] == "mismatch", done
    for error in told(done, range(2)).values():
        assert error["kind"] == "Mismatch" and "6 f64" in error["text"] and "5 f64" in error["text"], done


@needs_numpy
def test_a_rank_that_left_does_not_break_messages_of_others(local):
    done = fail(local, "message_beside_left", "--fake-hosts", "3", "--nproc_per_node", "1", *CALM)
    assert done.code == 0, done
    assert done.texts_by_rank() == {0: ["went on"], 1: ["went on"]}, done


@needs_numpy
def test_works_may_be_discarded(local):
    done = fail(local, "thrown_away")
    assert done.code == 0, done
    assert done.texts_by_rank() == {rank: ["went on"] for rank in range(3)}, done


def test_the_interpreter_may_exit_while_a_thread_waits(local):
    done = fail(local, "daemon_thread")
    assert done.code == 0, done
    assert done.texts_by_rank() == {rank: ["went on"] for rank in range(3)}, done
