# SPDX-License-Identifier: Apache-2.0
"""ivycomm without ivyrun: under torchrun, Open MPI, MPICH and Slurm, and in plain processes with tcp:// and file://; deaths of
ranks, and invalid arguments."""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from aborts import TURNS, aborts_told, in_every_operation, median_of_ranks, show
from launching import BIN, PATH, REPOSITORY, WORKERS, seconds, wait_until

PYTHON = "/usr/bin/python3"
PACKAGE = os.path.join(REPOSITORY, "comm/python")
LIBRARY = os.path.join(os.path.dirname(BIN), "lib/libivycomm.so.1")
EXTENSION = os.path.join(os.path.dirname(BIN), "lib/ivyrun/ivycomm_calls.abi3.so")
GELU = os.path.join(REPOSITORY, "scripts/examples/ivy_gelu.py")
ENVIRONMENT = {"PYTHONPATH": PACKAGE, "IVY_LIBRARY": LIBRARY, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
LIMIT = 120  # Importing torch takes seconds if many workers share few cores.


def needs(program, package):
    return pytest.mark.skipif(shutil.which(program, path=PATH) is None, reason=f"{package} is not installed")


has_torch = os.path.isdir("/usr/lib/python3/dist-packages/torch")
needs_torch = pytest.mark.skipif(not has_torch, reason="python3-torch is not installed")

# Debian's torch 1.13 under Python 3.11 cannot parse its own defaults of --redirects and --tee. Without a directory for logs,
# it leaves one in /tmp. Its default port is the same for the whole machine, but test files run at the same time.
PORT = 29500 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "-r", "1", "-t", "1", "--log_dir", "torchrun-logs",
            "--master_port", str(PORT))
LAUNCHERS = [
    pytest.param((*TORCHRUN, "--nproc_per_node", "4"), "torchrun", marks=needs_torch, id="torchrun"),
    pytest.param((*TORCHRUN, "--standalone", "--nproc_per_node", "4"), "torchrun", marks=needs_torch,
                 id="torchrun_standalone"),
    pytest.param(("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "4", PYTHON),
                 "Open MPI's mpirun", marks=needs("mpirun.openmpi", "openmpi-bin"), id="openmpi"),
    pytest.param(("mpiexec.hydra", "-n", "4", PYTHON), "MPICH's mpiexec", marks=needs("mpiexec.hydra", "mpich"),
                 id="mpich"),
]
under_each_launcher = pytest.mark.parametrize("launcher, name", LAUNCHERS)


def told(*finished):
    """Returns every JSON object in the output, with the index of its process in the arguments."""
    found = []
    for place, done in enumerate(finished):
        for line in done.out_lines:
            match = re.search(r"\{.*\}$", line)
            if match:
                found.append({"process": place, **json.loads(match[0])})
    return found


def check_met(finished, ranks, source, worlds=1):
    """Checks that all ranks joined each world and printed nothing else."""
    assert all(done.code == 0 for done in finished), finished
    said = told(*finished)
    assert sorted((one["world"], one["rank"]) for one in said) == [
        (world, rank) for world in range(worlds) for rank in range(ranks)], finished
    assert {one["size"] for one in said} == {ranks}, finished
    assert all(one["source"].startswith(source) for one in said), finished
    return said


def error_of(done, *named):
    """Returns the only error of a process, and checks that it contains these words."""
    errors = [one for one in told(done) if "error" in one]
    assert len(errors) == 1, done
    for word in named:
        assert word in errors[0]["text"], done
    return errors[0]


class Processes:
    """Plain processes, started as by a user's script."""

    def __init__(self, local, method=None, size=None):
        self.local, self.method, self.size = local, method, size
        self.running = []
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def start(self, rank, *arguments, env=None):
        words = [PYTHON, self.local.script("comm_meet.py")]
        words += ["--method", self.method, "--rank", str(rank), "--size", str(self.size)] if self.method else []
        run = self.local.start_program(*words, *arguments, env={**ENVIRONMENT, **(env or {})})
        self.running.append(self.stack.enter_context(run))
        return run

    def finish(self, limit=LIMIT):
        return [run.finish(limit) for run in self.running]


def meet(local, *arguments, env=None, limit=LIMIT):
    """Runs one process with these variables."""
    with Processes(local) as one:
        one.start(0, *arguments, env=env)
        return one.finish(limit)[0]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def notes():
    return set(glob.glob(f"/tmp/ivycomm-{os.getuid()}/*"))


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Checks that no files of rank 0 and no shared memory are left. The fixture `local` searches for processes."""
    before = notes() | set(glob.glob("/dev/shm/ivycomm-*"))
    yield
    left = (notes() | set(glob.glob("/dev/shm/ivycomm-*"))) - before
    assert not left, left


# ---- launchers --------------------------------------------------------------------------------------

@under_each_launcher
def test_ranks_come_from_the_launcher(local, launcher, name):
    done = local.run_program(*launcher, local.script("comm_meet.py"), env=ENVIRONMENT, limit=LIMIT)
    said = check_met([done], 4, name)
    assert {one["local"] for one in said} == {4}, done


def check_examples(done):
    """Checks the output of the examples of Ivy Distributed, Neurenix (remote calls, training) and the tutorials."""
    assert done.code == 0, done
    for words in (b"on 4 ranks: gather and pmap agree", b"learnt by 3 workers", b"4 ranks with 64 bytes of optimizer state",
                  b"Epoch: 3, Loss: "):
        assert words in done.out, done


@contextlib.contextmanager
def installed_environment(place, *beside):
    """Makes an environment in which the package is installed with links, and yields its python3. It also has the packages of
    the directories `beside`, or else those of the system."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", *([] if beside else ["--system-site-packages"]), str(place)],
                   check=True)
    site, = place.glob("lib/python3*/site-packages")
    for part in ("ivycomm", *(os.path.basename(path) for path in glob.glob(f"{PACKAGE}/ivycomm_*.p*"))):
        os.symlink(os.path.join(PACKAGE, part), site / part)
    (site / "beside.pth").write_text("".join(f"import site; site.addsitedir({folder!r})\n" for folder in beside))
    yield str(place / "bin/python3")
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    with installed_environment(tmp_path_factory.mktemp("venv")) as python:
        yield python


def run_installed(local, environment, launcher, script):
    """Runs a launcher's workers in that environment, which finds the package without PYTHONPATH."""
    words = [environment if word == PYTHON else word for word in launcher]
    return local.run_program(*words, script, env=without(ENVIRONMENT, "PYTHONPATH"), limit=LIMIT)


# Importing torch takes most of the time, so this is not run under the second way to start the same workers.
under_each_kind = pytest.mark.parametrize("launcher, name", [one for one in LAUNCHERS if one.id != "torchrun_standalone"])


@needs_torch
@under_each_kind
def test_an_example_of_each_original(local, environment, launcher, name):
    check_examples(run_installed(local, environment, launcher, local.script("each_original.py")))


@needs_torch
@under_each_kind
@pytest.mark.parametrize("program", ["neurenix_program.py", "comm_original_names.py", "comm_parallel.py"])
def test_the_originals_programs_run_after_import_ivycomm(local, environment, launcher, name, program):
    script = local.file("after.py", f"import ivycomm, runpy\nrunpy.run_path({local.script(program)!r}, run_name='__main__')\n")
    done = run_installed(local, environment, launcher, script)
    assert done.code == 0 and done.out.count(b"all equal") == 4, done


# torch's own examples: DDP under each kind of torchrun. MPI's launchers do not set MASTER_*, so the test does.
@needs_torch
@under_each_kind
@pytest.mark.parametrize("program, says", [("torch_process_groups.py", b"4 ranks of backend gloo agree"),
                                           ("train_ddp.py", b"weights equal on all ranks")])
def test_examples_of_torch(local, launcher, name, program, says):
    path = os.path.join(REPOSITORY, "scripts/examples", program)
    if name != "torchrun":
        variables = "RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} WORLD_SIZE=${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}"
        launcher = (*launcher[:-1], "sh", "-c", f'exec env {variables} "$@"', "sh", PYTHON)
    meets = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if name != "torchrun" else {}
    done = local.run_program(*launcher, path, env={"OMP_NUM_THREADS": "1", **meets}, limit=LIMIT)
    assert done.code == 0 and done.out.count(says) == (4 if program == "train_ddp.py" else 1), done


@needs_torch
def test_a_program_of_neurenix_by_tcp(local, environment):
    """As in its documentation, each process gets the address, the number of ranks and its rank."""
    program = os.path.join(REPOSITORY, "scripts/examples/neurenix_by_tcp.py")
    with contextlib.ExitStack() as stack:
        words = (environment, program, f"tcp://localhost:{free_port()}", "4")
        runs = [stack.enter_context(local.start_program(*words, str(rank), env=without(ENVIRONMENT, "PYTHONPATH")))
                for rank in range(4)]
        finished = [run.finish(LIMIT) for run in runs]
    assert all(done.code == 0 for done in finished) and finished[0].out_lines == ["4 ranks have met by tcp"], finished


def test_installing_the_package_changes_no_import(local, environment):
    """`try: import ivy` in another package must fail if neither Ivy nor ivycomm has been imported."""
    done = local.run_program(environment, "-c", "import importlib.util, sys\n"
                             "print(importlib.util.find_spec('ivy'), importlib.util.find_spec('neurenix'))\n"
                             "print([name for name in sys.modules if 'ivy' in name])\n"
                             "import ivycomm, ivy.distributed, neurenix", env=without(ENVIRONMENT, "PYTHONPATH"))
    assert done.code == 0 and done.out_lines == ["None None", "[]"], done
    local.file("neurenix.py", "print('the real one')")
    done = local.run_program(environment, "-c", "import ivycomm, neurenix", env={"PYTHONPATH": local.directory})
    assert done.out_lines == ["the real one"], done


@needs_torch
def test_an_example_of_each_original_with_ivyrun(local):
    check_examples(local.run("-H", "localhost:4", "-x", "OMP_NUM_THREADS=1", local.script("each_original.py"), limit=LIMIT))


def test_gelu_example_runs_without_a_launcher(local, environment):
    done = run_installed(local, environment, [PYTHON], GELU)
    assert done.code == 0 and b"on 1 ranks: gather and pmap agree" in done.out, done


@under_each_launcher
def test_the_package_works_under_each_launcher(local, launcher, name):
    done = local.run_program(*launcher, local.script("comm_world.py"), env=ENVIRONMENT, limit=LIMIT)
    assert done.code == 0 and done.out.count(b"all equal") == 4, done


# Here, too, importing torch takes most of the time.
@needs_torch
@pytest.mark.parametrize("launcher, name", [one for one in LAUNCHERS if one.id != "torchrun_standalone"])
def test_remote_calls_work_under_each_launcher(local, launcher, name):
    done = local.run_program(*launcher, local.script("comm_rpc.py"), "200", env=ENVIRONMENT, limit=LIMIT)
    assert done.code == 0 and done.out.count(b"all equal") == 4, done


@needs_torch
@pytest.mark.parametrize("flags, first", [((), "torch"), (("--standalone",), "ours"), (("--standalone",), "torch")],
                         ids=["static_torch_first", "standalone", "standalone_torch_first"])
def test_groups_coexist_with_torchs_process_group(local, flags, first):
    done = local.run_program(*TORCHRUN, *flags, "--nproc_per_node", "2", local.script("comm_beside_torch.py"), first,
                             env=ENVIRONMENT, limit=LIMIT)
    assert done.code == 0 and done.out.count(b": both") == 2, done


@needs("mpiexec.hydra", "mpich")
def test_concurrent_jobs_do_not_mix(local):
    words = ("mpiexec.hydra", "-n", "2", PYTHON, local.script("comm_meet.py"), "--worlds", "3")
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(local.start_program(*words, env=ENVIRONMENT)) for _ in range(3)]
        for done in [run.finish(LIMIT) for run in runs]:
            check_met([done], 2, "MPICH's mpiexec", worlds=3)


def test_ivyrun_names_itself_in_messages(local):
    done = local.run("-n", "2", local.script("comm_meet.py"), limit=LIMIT)
    assert done.code == 0, done
    assert {one["source"] for one in told(done)} == {f"ivyrun (IVY_RANK={r}, IVY_WORLD_SIZE=2)" for r in (0, 1)}, done


# ---- no launcher ------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["tcp", "file"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=["first", "last"])
def test_plain_processes(local, kind, order):
    method = f"tcp://127.0.0.1:{free_port()}" if kind == "tcp" else f"file://{local.directory}/meet"
    with Processes(local, method, 3) as processes:
        for rank in order:
            processes.start(rank, "--worlds", "3")
        check_met(processes.finish(), 3, "the program (rank=", worlds=3)
    assert not local.exists("meet")


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_options_of_remote_calls(local, kind):
    method = f"tcp://127.0.0.1:{free_port()}" if kind == "tcp" else f"file://{local.directory}/meet"
    with Processes(local) as processes:
        for rank in range(3):
            words = [PYTHON, local.script("comm_rpc_context.py"), method, str(rank), "3"]
            processes.running.append(processes.stack.enter_context(local.start_program(*words, env=ENVIRONMENT)))
        for done in processes.finish():
            assert done.code == 0 and done.out_lines[-1] == "all equal", done


def test_the_environment_identifies_host_and_rank(local):
    """The program passes no arguments: the variables are IVY_INIT_METHOD and a launcher's ranks."""
    env = {"IVY_INIT_METHOD": f"tcp://localhost:{free_port()}", "OMPI_COMM_WORLD_SIZE": "2"}
    with Processes(local) as processes:
        for rank in (0, 1):
            processes.start(rank, env={**env, "OMPI_COMM_WORLD_RANK": str(rank)})
        check_met(processes.finish(), 2, "Open MPI's mpirun")


@pytest.mark.parametrize("content", [b"nobody knows\0this", b"k" * 3000], ids=["short", "long"])
def test_a_secret_of_all_ranks(local, content):
    secret = local.file("secret", content, mode=0o600)
    with Processes(local, f"tcp://127.0.0.1:{free_port()}", 2) as processes:
        for rank in (0, 1):
            processes.start(rank, env={"IVY_TOKEN_FILE": secret})
        check_met(processes.finish(), 2, "the program")


def test_a_stale_file_of_a_killed_run_is_replaced(local):
    method = f"file://{local.directory}/meet"
    with Processes(local, method, 2) as first:
        run = first.start(0)
        wait_until(lambda: local.exists("meet"), 30, "rank 0 has written the file")
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
    assert local.exists("meet")
    with Processes(local, method, 2) as second:
        second.start(1)
        # Rank 1 has read the old file by now, and rank 0 replaces it.
        with pytest.raises(subprocess.TimeoutExpired):
            second.running[0].process.wait(1)
        second.start(0)
        check_met(second.finish(), 2, "the program")
    assert not local.exists("meet")


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_is_named_within_a_second(local, victim):
    with Processes(local, f"tcp://127.0.0.1:{free_port()}", 3) as processes:
        for rank in range(3):
            processes.start(rank, "--victim", str(victim))
        said = told(*processes.finish())
    killed, = (one for one in said if "killed" in one)
    errors = [one for one in said if "error" in one]
    assert sorted(one["process"] for one in errors) == sorted({0, 1, 2} - {victim}), said
    for error in errors:
        assert error["error"] == "RankDied" and error["blamed"] == victim, error
        assert f"rank {victim} (" in error["text"] and f"pid {killed['pid']}" in error["text"], error
        assert error["at"] - killed["at"] < seconds(1), (error, killed)


def connections_to(port):
    """Returns the number of established connections to that port of this host."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return sum(int(row[2].split(":")[1], 16) == port and row[3] == "01" for row in rows)


def sleeps_for(pid, duration):
    """Returns whether a process only sleeps for so many seconds."""
    until = time.monotonic() + duration
    while time.monotonic() < until:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] != "S":
                return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_while_others_are_awaited_is_named_within_a_second(local, victim):
    port = free_port()
    with Processes(local, f"tcp://127.0.0.1:{port}", 4) as processes:
        runs = [processes.start(rank) for rank in range(3)]
        wait_until(lambda: connections_to(port) == 3, 30, "three ranks have connected")
        wait_until(lambda: all(sleeps_for(run.process.pid, seconds(0.3)) for run in runs), 30, "all three wait")
        runs[victim].process.kill()
        killed_at = time.monotonic()
        survivors = [run.finish(LIMIT) for rank, run in enumerate(runs) if rank != victim]
        assert time.monotonic() - killed_at < seconds(1), survivors
    for done in survivors:
        error = error_of(done, f"rank {victim} (", f"pid {runs[victim].process.pid}", "before all ranks had called init")
        assert error["error"] == "RankDied", error


# ---- bad input --------------------------------------------------------------------------------------

TORCHRUNS = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": "29500"}
OPEN_MPIS = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
             "PMIX_NAMESPACE": "1"}


def without(variables, name):
    return {key: value for key, value in variables.items() if key != name}


@pytest.mark.parametrize("env, words", [
    ({**TORCHRUNS, **OPEN_MPIS},
     ["RANK=1, WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=2, OMPI_COMM_WORLD_SIZE=4", "IVY_LAUNCHER=openmpi"]),
    (without(TORCHRUNS, "MASTER_PORT"), ["torchrun are incomplete", "MASTER_PORT is not"]),
    (without(TORCHRUNS, "WORLD_SIZE"), ["torchrun are incomplete", "WORLD_SIZE is not"]),
    ({**OPEN_MPIS, "OMPI_COMM_WORLD_RANK": "4"}, ["rank 4 in a world of 4", "OMPI_COMM_WORLD_RANK=4"]),
    ({**OPEN_MPIS, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, ["which host rank 0 runs on", "-x MASTER_ADDR"]),
    ({"IVY_LAUNCHER": "lsf"}, ["IVY_LAUNCHER", "lsf", "torchrun"]),
    ({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, ["hydra_pmi_proxy", "IVY_INIT_METHOD"]),
    ({"IVY_INIT_METHOD": "tcp://127.0.0.1:4000"}, ["needs rank and world size"]),
    ({"IVY_RANK": "0", "IVY_WORLD_SIZE": "2"}, ["IVY_STORE is not set"]),
], ids=["disagree", "no_port", "no_size", "rank_too_large", "several_hosts", "launcher", "no_hydra", "no_rank",
        "half_ivyrun"])
def test_an_invalid_environment_is_an_error(local, env, words):
    done = meet(local, "--timeout", "5", env=env)
    assert done.code == 3, done
    assert error_of(done, *words)["code"] == "FailedPrecondition", done


@pytest.mark.parametrize("words, named", [
    (["--method", "tcp://127.0.0.1:4000", "--rank", "2", "--size", "2"], ["rank 2 in a world of 2"]),
    (["--method", "tcp://127.0.0.1", "--rank", "0", "--size", "2"], ["port"]),
    (["--method", "etcd://127.0.0.1:1", "--rank", "0", "--size", "2"], ["etcd://", "tcp://"]),
], ids=["rank", "port", "method"])
def test_invalid_arguments_are_errors(local, words, named):
    done = meet(local, *words)
    assert error_of(done, *named)["code"] == "InvalidArgument", done


def test_a_missing_rank_zero_is_named(local):
    port = free_port()
    with Processes(local, f"tcp://127.0.0.1:{port}", 2) as processes:
        processes.start(1, "--timeout", "2")
        done, = processes.finish()
    error = error_of(done, f"rank 0 has not opened 127.0.0.1:{port} within 2 s")
    assert error["error"] == "Timeout" and 1.9 < error["took"] < 2 + seconds(2), done
    with Processes(local, f"file://{local.directory}/meet", 2) as processes:
        processes.start(1, "--timeout", "1")
        done, = processes.finish()
    error_of(done, f"rank 0 has not written {local.directory}/meet within 1 s")


def test_rank_zero_names_a_missing_rank(local):
    with Processes(local, f"tcp://127.0.0.1:{free_port()}", 3) as processes:
        processes.start(0, "--timeout", "3")
        processes.start(1, "--timeout", "3")
        for done in processes.finish():
            assert error_of(done)["error"] in ("Timeout", "TransportError"), done
        assert any("members that have not arrived: 2" in error_of(done)["text"] for done in processes.finish())


class ForeignServer(threading.Thread):
    """Another program that listens on the port."""

    def __init__(self, answer):
        super().__init__(daemon=True)
        self.answer = answer
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                client.recv(4096)
                client.sendall(self.answer)
                client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20], ids=["hangs_up", "http"])
def test_a_foreign_server_on_the_port(local, answer):
    with ForeignServer(answer) as server, Processes(local, f"tcp://127.0.0.1:{server.port}", 2) as processes:
        processes.start(1, "--timeout", "30")
        processes.start(0, "--timeout", "30")
        other, first = processes.finish()
    error = error_of(other, f"127.0.0.1:{server.port} is not rank 0 of this job")
    assert error["error"] == "Unauthenticated" and error["took"] < seconds(10), other
    error_of(first, f"cannot open 127.0.0.1:{server.port}", "another program uses that port")


def test_another_token_is_rejected(local):
    with Processes(local, f"tcp://127.0.0.1:{free_port()}", 2) as processes:
        for rank in (0, 1):
            secret = local.file(f"secret{rank}", f"the secret of {rank}", mode=0o600)
            processes.start(rank, "--timeout", "8", env={"IVY_TOKEN_FILE": secret})
        first, other = processes.finish()
    assert error_of(other, "a different token")["error"] == "Unauthenticated", other
    error_of(first, "members that have not arrived: 1")


def test_different_world_sizes_are_an_error(local):
    method = f"tcp://127.0.0.1:{free_port()}"
    with Processes(local, method, 2) as first, Processes(local, method, 3) as second:
        first.start(0, "--timeout", "5")
        second.start(1, "--timeout", "5")
        done, = second.finish()
        error_of(done, "rank 0 has a world size of 2", "has 3")
        first.finish()


def test_a_file_that_others_can_write_is_rejected(local):
    local.file("meet", "ivycomm meeting 1\n", mode=0o666)
    with Processes(local, f"file://{local.directory}/meet", 2) as processes:
        for rank in (0, 1):
            processes.start(rank, "--timeout", "5")
        for done in processes.finish():
            error_of(done, "is not a regular file that only this user", "not used")


@pytest.mark.parametrize("program, words", [("/nonexistent/ivy-rendezvous", ["IVY_RENDEZVOUS", "/nonexistent"]),
                                            ("/bin/false", ["false", "exited immediately"])], ids=["absent", "false"])
def test_a_store_that_cannot_be_started(local, program, words):
    with Processes(local, f"tcp://127.0.0.1:{free_port()}", 2) as processes:
        processes.start(0, "--timeout", "5", env={"IVY_RENDEZVOUS": program})
        done, = processes.finish()
    error_of(done, *words)


# ---- several hosts ----------------------------------------------------------------------------------

@pytest.fixture
def installed(hosts):
    """The package with library and store, laid out as in a wheel, on the file system that all test hosts share."""
    place = hosts.outside(f"{hosts.directory}/site/ivycomm")
    shutil.copytree(os.path.join(PACKAGE, "ivycomm"), place, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(LIBRARY, place)
    shutil.copy(EXTENSION, place)
    shutil.copy(os.path.join(BIN, "ivy-rendezvous"), place)
    shutil.copy(os.path.join(WORKERS, "comm_meet.py"), hosts.outside(hosts.directory))
    user = hosts.as_user("ivyuser")
    user.variables = {"PYTHONPATH": f"{hosts.directory}/site", "PYTHONDONTWRITEBYTECODE": "1"}
    user.worker = f"{hosts.directory}/comm_meet.py"
    return user


def on_hosts(installed, commands):
    """Runs commands on hosts at the same time. `commands` is {host: command} or a list of such pairs."""
    with contextlib.ExitStack() as stack:
        runs = []
        for host, words in commands.items() if isinstance(commands, dict) else commands:
            installed.host = host
            run = installed.start_program(*words, env=installed.variables)
            runs.append(stack.enter_context(run))
        installed.host = 1
        return [run.finish(LIMIT) for run in runs]


@pytest.mark.parametrize("method", ["tcp://node1:4000", "tcp://[fd77::1]:4000", "file://{directory}/meet"],
                         ids=["name", "ipv6", "file"])
def test_plain_processes_on_hosts(installed, method):
    method = method.format(directory=installed.directory)
    finished = on_hosts(installed, {host: (PYTHON, installed.worker, "--method", method, "--rank", str(host - 1),
                                           "--size", "3", "--worlds", "2") for host in (1, 2, 3)})
    said = check_met(finished, 3, "the program", worlds=2)
    assert {one["hosts"] for one in said} == {3}, finished


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named_on_other_hosts(installed, victim):
    words = (PYTHON, installed.worker, "--method", "tcp://10.77.0.1:4000", "--size", "3", "--victim", str(victim))
    said = told(*on_hosts(installed, {host: (*words, "--rank", str(host - 1)) for host in (1, 2, 3)}))
    killed, = (one for one in said if "killed" in one)
    errors = [one for one in said if "error" in one]
    assert len(errors) == 2, said
    for error in errors:
        assert error["blamed"] == victim and f"rank {victim} (" in error["text"], error
        assert error["at"] - killed["at"] < seconds(1), (error, killed)


def test_a_killed_rank_that_has_forked_is_named_within_a_second(installed):
    """The rank's child continues and holds a copy of every connection."""
    words = (PYTHON, installed.worker, "--method", "tcp://10.77.0.1:4000", "--size", "2", "--victim", "1",
             "--forks", f"{installed.directory}/over")
    said = told(*on_hosts(installed, {host: (*words, "--rank", str(host - 1)) for host in (1, 2)}))
    with open(installed.outside(f"{installed.directory}/over"), "w"):
        pass
    assert any("forked" in one for one in said), said
    killed, = (one for one in said if "killed" in one)
    error, = (one for one in said if "error" in one)
    assert error["blamed"] == 1 and "rank 1 (" in error["text"], error
    assert error["at"] - killed["at"] < seconds(1), (error, killed)


# Without a supervisor's status page, ranks get the abort from rank 0's store, which sends it without waiting for their next
# request.
WAKES_MS = 50


@in_every_operation
def test_an_abort_wakes_every_rank_on_every_host(installed, operations):
    words = (PYTHON, installed.script("comm_aborts.py"), str(TURNS), *operations, "--method", "tcp://10.77.0.1:4000",
             "--size", "4")
    finished = on_hosts(installed, [(host, (*words, "--rank", str(rank))) for rank, host in enumerate((1, 1, 2, 3))])
    late_ms = aborts_told(told(*finished), finished)
    show("without ivyrun, three hosts with 2, 1 and 1 ranks", late_ms)
    assert max(median_of_ranks(late_ms)) < seconds(WAKES_MS), (late_ms, finished)


@needs_torch
@pytest.mark.parametrize("flags", [("--master_addr", "10.77.0.1", "--master_port", "29511"),
                                   ("--rdzv_backend", "c10d", "--rdzv_endpoint", "10.77.0.1:29411", "--rdzv_id", "7")],
                         ids=["static", "c10d"])
def test_torchrun_on_hosts(installed, flags):
    finished = on_hosts(installed, {
        host: (*TORCHRUN, "--nnodes", "2", "--nproc_per_node", "2", "--node_rank", str(host - 1), *flags,
               installed.worker) for host in (1, 2)})
    said = check_met(finished, 4, "torchrun")
    assert {(one["local"], one["hosts"]) for one in said} == {(2, 2)}, finished


@needs("mpirun.openmpi", "openmpi-bin")
def test_openmpi_on_hosts(installed):
    words = ["mpirun.openmpi", "-H", "node1:2,node2:2", "-x", "PYTHONPATH"]
    done = installed.run_program(*words, "-x", "MASTER_ADDR=node1", "-x", "MASTER_PORT=29500", PYTHON,
                                 installed.worker, env=installed.variables, limit=LIMIT)
    check_met([done], 4, "Open MPI's mpirun")


@needs("mpiexec.hydra", "mpich")
def test_mpich_on_hosts(installed):
    done = installed.run_program("mpiexec.hydra", "-hosts", "node1:2,node2:2", "-genv", "MASTER_ADDR", "node1",
                                 "-genv", "MASTER_PORT", "29500", PYTHON, installed.worker, env=installed.variables,
                                 limit=LIMIT)
    check_met([done], 4, "MPICH's mpiexec")


@needs("slurmctld", "slurm-wlm")
@needs("munged", "munge")
def test_slurm_steps(installed):
    slurm = os.path.join(REPOSITORY, "tests/testbed/slurm")
    environment = {**os.environ, "IVY_TESTBED": installed.bed.state}
    subprocess.run([slurm, "up"], env=environment, check=True, timeout=seconds(90))
    try:
        installed.variables["SLURM_CONF"] = "/srv/ivyshared/slurm/slurm.conf"

        def run(*words):
            return installed.run_program(*words, env=installed.variables, limit=LIMIT)

        two_hosts = check_met([run("srun", "-N", "2", "-n", "3", PYTHON, installed.worker)], 3, "the Slurm step")
        assert {one["hosts"] for one in two_hosts} == {2}, two_hosts
        check_met([run("srun", "-N", "1", "-n", "2", PYTHON, installed.worker)], 2, "the Slurm step")
        check_met([run("srun", "-N", "2", "-n", "2", "--mpi=pmi2", PYTHON, installed.worker)], 2, "the Slurm step")
        # A batch script also has SLURM_PROCID=0, but is not a rank.
        done = run("sbatch", "-W", "-N", "2", "-n", "2", "-o", f"{installed.directory}/out", "--wrap",
                   f"{PYTHON} {installed.worker}")
        assert done.code == 0 and json.loads(installed.read("out"))["source"] == "a world of one", done
    finally:
        subprocess.run([slurm, "down"], env=environment, check=True, timeout=seconds(60))
