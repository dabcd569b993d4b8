# SPDX-License-Identifier: Apache-2.0
"""--preload: workers that are forked from a process that has imported their modules behave as workers that are not, and
start in the usual way if they cannot be forked."""

import json
import os
import re
import signal
import sys
import tempfile

import pytest

from launching import wait_until

QUICKLY = {"IVY_TEST_RESTART_PAUSE": "200ms"}

# Notes each import, and the process that imports it.
MODULE = """
import os
with open("imports", "a") as file:
    file.write("%d\\n" % os.getpid())
IMPORTED_BY = os.getpid()
"""

# Prints everything by which a program could notice how it was started.
FACTS = """
import json, os, resource, signal, slow, sys
VARYING = ("IVY_STORE", "IVYTEST_MARK", "IVY_MPI_PLACE", "NCCL_RAS_ADDR", "KERAS_DISTRIBUTION_JOB_ADDRESSES",
           "JAX_COORDINATOR_ADDRESS")
environment = {name: value for name, value in os.environ.items()
               if os.environ["IVY_JOB_ID"] not in value and os.environ["MASTER_PORT"] not in value
               and "PORT" not in name and not name.startswith(("PMI", "OMPI_")) and name not in VARYING}
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "orig_argv": getattr(sys, "orig_argv", None), "flags": list(sys.flags),
    "main": {name: str(globals().get(name)) for name in ("__name__", "__file__", "__spec__", "__package__", "__doc__")},
    "loader": type(__loader__).__name__, "frame": str(sys._getframe().f_back).split(",")[1:], "cwd": os.getcwd(),
    "environment": environment, "command": open("/proc/self/cmdline").read(), "name": open("/proc/self/comm").read(),
    "descriptors": sorted(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
    "streams": [[stream.encoding, stream.errors, stream.line_buffering, stream.isatty(), stream.seekable()]
                for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "limits": [resource.getrlimit(number) for number in range(16)], "mask": len(signal.pthread_sigmask(0, ())),
    "handlers": [str(signal.getsignal(number)).split(" at ")[0] for number in (2, 13, 15, 17)],
    "umask": os.umask(0o22), "nice": os.nice(0), "cores": sorted(os.sched_getaffinity(0)),
    "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    "hook": "sitecustomize" in sys.modules and sys.modules["sitecustomize"].__file__.split("/")[-2:]}, sort_keys=True))
"""


@pytest.fixture
def job(local):
    """Writes the module `slow`, and runs a script with or without --preload."""
    return Job(local)


class Job:
    def __init__(self, local):
        self.local = local
        self.write("slow.py", MODULE)

    def write(self, name, text):
        with open(os.path.join(self.local.directory, name), "w", encoding="utf-8") as file:
            file.write(text)

    def __call__(self, script, *flags, preload="slow", arguments=(), **kwargs):
        self.write("train.py", "import os, sys\n" + script)
        given = ["--preload", preload] if preload else []
        return self.local.run("--python", sys.executable, *flags, *given, "train.py", *arguments, **kwargs)


def imports(job):
    return [int(line) for line in job.local.read("imports").split()]


def test_workers_are_forked_from_one_process(job):
    done = job("import slow\nprint(os.environ['RANK'], slow.IMPORTED_BY, os.getpid())", "-n", "3")
    assert done.code == 0 and done.err == b"", done
    lines = [text.split() for _, _, text in done.labelled()]
    assert sorted(rank for rank, _, _ in lines) == ["0", "1", "2"], done
    assert len({importer for _, importer, _ in lines}) == 1 and len({pid for _, _, pid in lines}) == 3, done
    assert len(imports(job)) == 1, done


@pytest.mark.parametrize("flags", [["-n", "2"], ["-n", "1", "--bind-to", "core"], ["-n", "2", "--no-python-hook"],
                                   ["-n", "2", "--rlimit", "nofile=512"]], ids=lambda flags: flags[-1])
def test_a_program_sees_no_difference(job, flags):
    facts = {}
    for preload in ("slow", ""):
        done = job(FACTS, *flags, preload=preload, arguments=["--lr", "3e-4"])
        assert done.code == 0 and done.err == b"", done
        facts[preload] = [json.loads(line[line.index("{"):]) for line in sorted(done.out_lines)]
    for with_preload, without in zip(facts["slow"], facts[""], strict=True):
        for name, value in without.items():
            assert with_preload[name] == value, name


def test_a_module_is_run_as_without_preload(job):
    job.write("train.py", "import os, sys\n" + FACTS)
    outputs = [job.local.run("--python", sys.executable, "-n", "1", *given, "-m", "train", "a")
               for given in ([], ["--preload", "slow"])]
    assert all(done.code == 0 for done in outputs), outputs
    # The loader's address.
    without, with_preload = (json.loads(re.sub(rb"0x[0-9a-f]+", b"0x", done.out)) for done in outputs)
    for name, value in without.items():
        assert with_preload[name] == value, name


def test_python_as_the_program_is_forked_too(job):
    done = job.local.run("-n", "2", "--preload", "slow", sys.executable, "-B", "-c", "import slow; print(slow.IMPORTED_BY)")
    assert done.code == 0, done
    assert len({text for _, _, text in done.labelled()}) == 1, done


@pytest.mark.parametrize("ending, code", [("sys.exit(7)", 7), ("os.kill(os.getpid(), 11)", 139), ("1 / 0", 1),
                                          ("os._exit(5)", 5)])
def test_endings_are_the_same(job, ending, code):
    script = f"if os.environ['RANK'] == '1':\n    {ending}\nimport time\ntime.sleep(60)"
    texts = []
    for preload in ("slow", ""):
        done = job(script, "-n", "2", preload=preload)
        assert done.code == code, done
        texts.append(re.sub(r"\d\d:\d\d:\d\d\S*|pid \d+|after [\d.]+ \w+|job \w+|[\d.]+ m?s\b|\b[0-9a-f]{8,}\b", "*",
                            re.sub("ivyrun: .* waits for .*\n|ivyrun: .* no longer waits for .*\n", "", done.err_text)))
    assert texts[0] == texts[1]


def test_a_restart_imports_nothing(job):
    done = job("import slow\nprint(slow.IMPORTED_BY, os.environ['IVY_GENERATION'])\n"
               "if os.environ['IVY_GENERATION'] == '0' and os.environ['RANK'] == '1':\n    sys.exit(3)\n"
               "if os.environ['IVY_GENERATION'] == '0':\n    import time\n    time.sleep(60)",
               "-n", "2", "--max-restarts", "1", env=QUICKLY)
    assert done.code == 0, done
    importer, = set(imports(job))
    assert {text for _, _, text in done.labelled()} == {f"{importer} 0", f"{importer} 1"}, done


def test_a_single_rank_starts_again_from_the_same_process(job):
    done = job("import slow, time\nprint(slow.IMPORTED_BY, os.environ.get('IVY_REJOIN', 'first'))\n"
               "if os.environ['RANK'] == '1' and 'IVY_REJOIN' not in os.environ:\n    time.sleep(0.5)\n    sys.exit(3)\n"
               "if os.environ['RANK'] == '0':\n    time.sleep(4)", "-n", "2", "--on-failure", "replace", env=QUICKLY)
    importer, = set(imports(job))
    assert done.code == 0 and f"{importer} 1" in {text for _, _, text in done.labelled()}, done


def test_each_host_imports_once(job):
    done = job("import slow\nprint(slow.IMPORTED_BY)", "--fake-hosts", "2", "--nproc_per_node", "2")
    assert done.code == 0 and len(imports(job)) == 2, done


def test_more_workers_than_fit_into_a_request(job):
    done = job("import slow\nprint(slow.IMPORTED_BY)", "-n", "70")
    assert done.code == 0 and len(imports(job)) == 1 and len(done.labelled()) == 70, done


def test_rank_0_reads_standard_input(job):
    with tempfile.TemporaryFile() as given:
        given.write(b"given")
        given.seek(0)
        done = job("import slow\nprint(os.environ['RANK'] + sys.stdin.read())", "-n", "2", stdin=given)
    assert done.code == 0 and {text for _, _, text in done.labelled()} == {"0given", "1"}, done


def test_output_of_the_import_is_printed_once(job):
    job.write("loud.py", "import sys\nprint('welcome')\nprint('careful', file=sys.stderr)\n")
    done = job("import loud", "-n", "3", preload="loud")
    assert done.code == 0, done
    assert [text for _, _, text in done.labelled()] == ["welcome"], done
    assert [text for _, _, text in done.labelled("err")] == ["careful"], done


def test_random_numbers_differ_between_workers(job):
    done = job("import random, slow\nprint(random.random())", "-n", "3", preload="slow,random")
    assert done.code == 0 and len({text for _, _, text in done.labelled()}) == 3, done


WRONG = {
    "threads": ("import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True, name='loader').start()",
                "odd: it starts threads (loader)"),
    "rank": ("import os\nRANK = os.environ.get('LOCAL_RANK')", "odd: odd reads LOCAL_RANK, which differs between the workers"),
    "missing": ("import not_installed", "odd: ModuleNotFoundError: No module named 'not_installed'"),
    "exit": ("raise SystemExit('no licence')", "odd: SystemExit: no licence"),
    "killed": ("import os\nif 'RANK' not in os.environ:\n    os.kill(os.getpid(), 9)", "the process that imports them has exited"),
}


@pytest.mark.parametrize("kind", sorted(WRONG))
def test_a_module_that_cannot_be_shared_is_named(job, kind):
    text, why = WRONG[kind]
    job.write("odd.py", text + "\n")
    done = job("print('ran', os.environ['RANK'])", "-n", "2", preload="slow,odd")
    assert done.code == 0 and sorted(text for _, _, text in done.labelled()) == ["ran 0", "ran 1"], done
    assert f"--preload slow,odd: {why}; workers start in the usual way" in done.err_text, done


def test_the_death_of_the_process_between_attempts_is_survived(job):
    done = job("import signal, slow\nprint(slow.IMPORTED_BY == os.getpid())\nif os.environ['IVY_GENERATION'] == '0':\n"
               "    if os.environ['RANK'] == '0':\n        os.kill(slow.IMPORTED_BY, signal.SIGKILL)\n        sys.exit(3)\n"
               "    import time\n    time.sleep(60)", "-n", "2", "--max-restarts", "1", env=QUICKLY)
    assert done.code == 0, done
    assert [text for _, _, text in done.labelled()].count("True") == 2, done
    assert "workers start in the usual way" in done.err_text, done


@pytest.mark.parametrize("flags, why", [(["--wrap", "env"], "run under --wrap"), (["-B", "mpi"], "join MPI before Python starts")])
def test_workers_that_cannot_be_forked_start_in_the_usual_way(job, flags, why):
    done = job("import slow\nprint(slow.IMPORTED_BY == os.getpid())", "-n", "2", *flags)
    assert "IVY-P070" in done.err_text and why in done.err_text, done
    if flags[0] == "--wrap":
        assert done.code == 0 and {text for _, _, text in done.labelled()} == {"True"}, done


def test_isolated_python_starts_in_the_usual_way(job):
    done = job.local.run("-n", "1", "--preload", "json", sys.executable, "-I", "-c", "print('ran')")
    assert done.code == 0 and "IVY-P070" in done.err_text and "use python -I" in done.err_text, done


@pytest.mark.parametrize("modules", ["", ",torch", "a b", "./torch", "3d"])
def test_text_that_is_not_a_module_is_rejected(job, modules):
    done = job.local.run("-n", "1", "--preload", modules, "train.py")
    assert done.code == 2 and "--preload" in done.err_text, done


def test_nothing_is_left_after_the_launcher_was_killed(job):
    job.write("train.py", "import slow, time\nprint('up', slow.IMPORTED_BY, flush=True)\ntime.sleep(600)")
    with job.local.start("--python", sys.executable, "-n", "2", "--max-restarts", "1", "--preload", "slow", "train.py") as run:
        wait_until(lambda: run.out.bytes().count(b"up") == 2, 20, "workers run")
        server = imports(job)[0]
        assert os.path.exists(f"/proc/{server}")
        os.kill(run.pid(), signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{server}"), 10, "the process of --preload is gone")
