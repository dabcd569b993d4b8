# SPDX-License-Identifier: Apache-2.0
"""torchrun mode: an ivyrun is started on every node (by a pod's operator, srun or a user), and the one on node 0 launches the
whole job. Every node reports an error in one line and exits with the same code."""

import contextlib
import os
import re
import shutil
import signal
import socket
import threading

import pytest

from launching import BIN, seconds
from slurm_jobs import Slurm, running_on
from stalling_fs import Stalling

SECRET = "0123456789abcdef0123456789abcdef"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Nodes:
    """Several ivyruns of one job on this machine."""

    def __init__(self, launcher, count, *flags):
        self.launcher, self.count = launcher, count
        self.flags = ["--nnodes", str(count), "--nproc_per_node", "2", "--master-addr", "127.0.0.1",
                      "--master-port", str(free_port()), "--start-timeout", f"{seconds(20):g}s", *flags]

    def start(self, rank, *words, env=None):
        return self.launcher.start(*self.flags, "--node-rank", str(rank), *words, env=env)

    @contextlib.contextmanager
    def all(self, *words, env=None):
        with contextlib.ExitStack() as stack:
            # Node 0 starts last: the others retry until it accepts connections.
            started = [stack.enter_context(self.start(rank, *words, env=env))
                       for rank in reversed(range(self.count))]
            yield started[::-1]

    def run(self, *words, env=None, limit=40):
        with self.all(*words, env=env) as runs:
            return [run.finish(limit) for run in runs]


@pytest.fixture
def two(local):
    return Nodes(local, 2)


def hello(local):
    return local.file("hello.py", "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'],"
                                  " 'node', os.environ['GROUP_RANK'], os.environ.get('OWN', '-'))\n")


def everybody(done, code, *words):
    for one in done:
        assert one.code == code, one
        for word in words:
            assert re.search(word, one.own_text()), f"no {word!r} in {one!r}"


def sequence(local):
    return [local.script("sequence.py"), "0.1", os.path.join(local.directory, "stop")]


# ---- a job ---------------------------------------------------------------------------------------

def test_an_endpoint_without_a_rank_suggests_the_right_form(local):
    """The command line is torchrun's elastic form."""
    done = local.run("--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "node1:29400", "true")
    assert done.code == 2 and "IVY-P002" in done.err_text, done
    assert "on each node: --nnodes 2 --node-rank R --master-addr node1, with R=0 on node1" in done.err_text, done


def test_each_node_shows_its_own_workers(local, two):
    done = two.run(hello(local))
    everybody(done, 0, r"2 hosts x 2 = 4 ranks")
    for node, one in enumerate(done):
        texts = one.texts_by_rank()
        assert sorted(texts) == [2 * node, 2 * node + 1], one
        for rank, (text,) in texts.items():
            assert text == f"rank {rank} of 4 node {node} -", one


def test_workers_have_the_variables_of_their_own_node(local, two):
    script = hello(local)
    with two.start(1, script, env={"OWN": "one"}) as second, two.start(0, script, env={"OWN": "zero"}) as first:
        for run, own in ((first, "zero"), (second, "one")):
            done = run.finish()
            assert done.code == 0 and all(text.endswith(own) for _, _, text in done.labelled()), done


def test_variables_of_an_operator_are_enough(local):
    port = free_port()
    pod = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "localhost",
           "PET_MASTER_PORT": str(port), "PET_RDZV_ID": "job-7"}
    script = hello(local)
    with local.start(script, env={**pod, "PET_NODE_RANK": "1"}) as second, \
         local.start(script, env={**pod, "PET_NODE_RANK": "0"}) as first:
        done = [first.finish(), second.finish()]
    everybody(done, 0)
    assert b"no effect" not in done[0].err + done[1].err, done


def test_every_node_reports_the_first_failure(local, two):
    script = local.file("fails.py", "import os, sys, time\nif os.environ['RANK'] == '2': sys.exit('broken data')\n"
                                    "time.sleep(600)\n")
    everybody(two.run(script), 1, r"IVY-R001", r"rank 2 failed first", "broken data", r"exit code 1 \(from rank 2\)")


def test_a_restart_happens_on_all_nodes(local):
    script = local.file("once.py", "import os, sys\nattempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
                                   "print('attempt', attempt)\n"
                                   "sys.exit(attempt == '0' and os.environ['RANK'] == '3')\n")
    done = Nodes(local, 2, "--max-restarts", "1").run(script)
    everybody(done, 0)
    for one in done:
        assert one.out.count(b"attempt 1") == 2, one


def test_torchs_store(local, two):
    if not os.path.isdir("/usr/lib/python3/dist-packages/torch"):
        pytest.skip("python3-torch is not installed")
    done = two.run("--python", "/usr/bin/python3", local.script("torch_store.py"), "short", limit=90)
    everybody(done, 0)
    assert all(b"squares [0, 1, 4, 9] sum 4" in one.out or b"squares [0, 1, 4, 9]" in one.out for one in done)


def test_large_output_is_complete(local, two):
    lines = 20_000
    script = local.file("much.py", f"for i in range({lines}): print('line', i, 'x' * 100)\n")
    done = two.run("--label", "none", script, limit=90)
    everybody(done, 0)
    for one in done:
        assert one.out.count(b"\n") == 2 * lines, len(one.out)


def test_fewer_nodes_are_enough(local):
    nodes = Nodes(local, 2, "--nnodes", "2:3", "--start-timeout", f"{seconds(3):g}s")
    done = nodes.run(hello(local))
    everybody(done, 0, r"2 hosts x 2 = 4 ranks")


def test_each_node_keeps_its_own_files(local, two):
    script = hello(local)
    logs = [os.path.join(local.directory, f"logs{node}") for node in (0, 1)]
    with two.start(1, "--log-dir", logs[1], script) as second, two.start(0, "--log-dir", logs[0], script) as first:
        everybody([first.finish(), second.finish()], 0)
    for node, directory in enumerate(logs):
        found = {name for _, _, names in os.walk(directory) for name in names if name.endswith(".out")}
        assert found == {f"rank{rank:05}.out" for rank in (2 * node, 2 * node + 1)}, directory


# ---- joining -------------------------------------------------------------------------------------

def test_nodes_without_the_secret_are_rejected(local, two):
    secret = {"IVY_JOIN_SECRET": SECRET}
    script = local.file("env.py", "import os\nassert 'IVY_JOIN_SECRET' not in os.environ\nprint('fine')\n")
    done = two.run(script, env=secret)
    everybody(done, 0)
    assert not re.search("may join", done[0].own_text()), done[0]
    with two.start(0, script, env=secret) as first:
        first.wait_for("waiting for node 1")
        stranger = two.launcher.run(*two.flags, "--node-rank", "1", script)
        everybody([stranger], 122, "IVY-J004", "rejected this node", "--join-secret-file")
        first.wait_for("does not have the job's key")
        file = local.file("secret", SECRET + "\n", 0o600)
        member = two.launcher.run(*two.flags, "--join-secret-file", file, "--node-rank", "1", script)
        everybody([member, first.finish()], 0)


def test_garbage_at_the_port_does_not_disturb_a_job(local, two):
    script = hello(local)
    port = int(two.flags[two.flags.index("--master-port") + 1])
    with two.start(0, script) as first:
        first.wait_for("waiting for node 1")
        for bytes_ in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\x16\x03\x01\xff\xff" + b"x" * 100, b""):
            with socket.create_connection(("127.0.0.1", port)) as stranger, contextlib.suppress(OSError):
                stranger.sendall(bytes_)
        done = two.launcher.run(*two.flags, "--node-rank", "1", script)
        everybody([first.finish(), done], 0)


@pytest.mark.parametrize("flags, said", [
    (("--nproc_per_node", "1"), "a different --nproc-per-node than node 0"),
    (("--nnodes", "3"), "a different --nnodes than node 0"),
])
def test_nodes_with_different_flags_are_rejected(local, two, flags, said):
    script = hello(local)
    with two.start(0, script) as first, two.start(1, *flags, script) as second:
        everybody([first.finish(), second.finish()], 122, "IVY-J001", said, "same command line")


def test_nodes_with_different_programs_are_rejected(local, two):
    script = hello(local)
    with two.start(0, script) as first, two.start(1, script, "more") as second:
        everybody([first.finish(), second.finish()], 122, "IVY-J001", "a different program", r"hello\.py more")


def test_two_nodes_with_the_same_rank_are_rejected(local):
    nodes = Nodes(local, 3)
    script = hello(local)
    with nodes.start(1, script) as one, nodes.start(1, script) as other, nodes.start(0, script) as first:
        everybody([run.finish() for run in (one, other, first)], 122, "IVY-J002", "--node-rank 1", "SLURM_NODEID")


def test_a_missing_node_is_named(local):
    nodes = Nodes(local, 3, "--start-timeout", "3s")
    script = hello(local)
    with nodes.start(1, script) as second, nodes.start(0, script) as first:
        everybody([first.finish(), second.finish()], 120, "IVY-J003", "node 2 did not join", "--node-rank R")


def test_a_missing_node_0_is_reported(local, two):
    done = two.launcher.run(*two.flags, "--start-timeout", "2s", "--node-rank", "1", "x")
    everybody([done], 120, "IVY-J004", "could not reach node 0", "Connection refused", "--start-timeout")
    done = two.launcher.run(*two.flags, "--start-timeout", "2s", "--master-addr", "no.such.host", "--node-rank", "1", "x")
    everybody([done], 120, "IVY-J004", "cannot resolve no.such.host")


def test_a_node_that_joins_too_late_is_rejected(local, two):
    script = sequence(local)
    with two.all(*script) as runs:
        runs[0].wait_for("count 1")
        late = two.launcher.run(*two.flags, "--node-rank", "1", *script)
        everybody([late], 122, "IVY-J004", "too late")
        local.file("stop")
        everybody([run.finish() for run in runs], 0)


def test_a_node_reports_what_it_waits_for_and_gives_up_on_a_stopped_node_0(local):
    nodes = Nodes(local, 3, "--start-timeout", f"{3 + seconds(2):g}s")
    script = hello(local)
    with nodes.start(1, script) as second, nodes.start(0, script) as first:
        second.wait_for("node 1 has reached node 0 at 127.0.0.1:.*; waiting for the other nodes")
        first.signal(signal.SIGSTOP)
        try:
            done = second.finish()
        finally:
            first.signal(signal.SIGCONT)
        everybody([done], 120, "IVY-J004", "neither started the job nor gave up")


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounts through /dev/fuse, as root")
@pytest.mark.parametrize("when", ["within --start-timeout", "before the job had ended"])
def test_a_node_names_the_file_system_that_it_waits_for(local, when):
    nodes = Nodes(local, 2, "--start-timeout", f"{4 + seconds(2):g}s")
    script = sequence(local) if when == "within --start-timeout" else ["sh", "-c", "sleep 3"]
    with Stalling(f"{local.directory}/backing", f"{local.directory}/logs") as logs:
        logs.stall()
        with nodes.start(0, *script), nodes.start(1, "--log-dir", logs.mount_point, *script) as second:
            second.wait_for(f"waiting for the file system of --log-dir {logs.mount_point}")
            done = second.finish()
        everybody([done], 122, "IVY-O002", f"did not respond {when}")


def test_node_0_may_be_restarted_while_others_wait(local):
    nodes = Nodes(local, 3)
    script = hello(local)
    with nodes.start(1, script) as second:
        with nodes.start(0, "-v", script) as first:
            first.wait_for("node 1 .* has joined")
            first.signal(signal.SIGKILL)
        second.wait_for("reconnecting")
        with nodes.start(0, script) as first, nodes.start(2, script) as third:
            everybody([run.finish() for run in (first, second, third)], 0)


# ---- ends ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_on_any_node_ends_the_job_everywhere(local, two, who, number, code):
    with two.all(*sequence(local)) as runs:
        for run in runs:
            run.wait_for("count 1", count=2)
        runs[who].signal(number)
        done = [run.finish() for run in runs]
        # A shell sees 128 + signal; another parent process sees the signal itself.
        assert {one.code for one in done} <= {code, -number}, done
        everybody([done[1]], code, "IVY-R003")


def test_a_scheduler_that_signals_all_nodes_counts_once(local, two):
    script = local.file("gentle.py", "import signal, time, sys\nsignal.signal(signal.SIGTERM, lambda *_: "
                                     "(time.sleep(1), print('saved', flush=True), sys.exit(0)))\nprint('up', flush=True)\n"
                                     "time.sleep(600)\n")
    with two.all(script) as runs:
        for run in runs:
            run.wait_for("up", count=2)
        for run in runs:
            run.signal(signal.SIGTERM)
        done = [run.finish() for run in runs]
        assert all(one.out.count(b"saved") == 2 for one in done), done


def test_a_killed_node_is_a_lost_host(local, two):
    with two.all(*sequence(local)) as runs:
        runs[1].wait_for("count 1", count=2)
        runs[1].signal(signal.SIGKILL)
        everybody([runs[0].finish()], 121, "IVY-R00[67]")
        local.wait_clean(10)


def test_a_job_of_min_to_max_continues_without_a_killed_node(local):
    nodes = Nodes(local, 3, "--nnodes", "2:3")
    with nodes.all(*sequence(local)) as runs:
        for run in runs:
            run.wait_for("count 1", count=2)
        runs[2].signal(signal.SIGKILL)
        for run in runs[:2]:
            run.wait_for("continuing with 2 of 3 hosts")
            run.wait_for("count 1", count=4)
        local.file("stop")
        everybody([run.finish() for run in runs[:2]], 0)


def test_node_0_is_killed(local, two):
    with two.all(*sequence(local)) as runs:
        runs[1].wait_for("count 1", count=2)
        runs[0].signal(signal.SIGKILL)
        everybody([runs[1].finish()], 121, "IVY-J005", "closed the connection", "start every node again")
        local.wait_clean(15)


class Cutter:
    """A proxy to node 0 on another port, whose connections can be cut by their number."""

    def __init__(self, port):
        self.to = int(port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.pairs = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                try:
                    far = socket.create_connection(("127.0.0.1", self.to))
                except ConnectionRefusedError:
                    near.close()
                    continue
                self.pairs.append((near, far))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self.carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def carry(source, sink):
        with contextlib.suppress(OSError):
            while block := source.recv(65536):
                sink.sendall(block)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self, number):
        for end in self.pairs[number]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # Interrupts accept(), unlike close().
        self.listener.close()
        for number in range(len(self.pairs)):
            self.cut(number)


@pytest.fixture
def cut(two):
    """Starts node 0, and node 1 behind a Cutter. Its first connection is from ivyrun, the second one from ivy-node."""
    @contextlib.contextmanager
    def started(*words):
        cutter = Cutter(two.flags[two.flags.index("--master-port") + 1])
        flags = [*two.flags, "--master-port", str(cutter.port)]
        try:
            with two.start(0, *words) as head:
                head.wait_for("node 0 is waiting for node 1")
                with two.launcher.start(*flags, "--node-rank", "1", *words) as other:
                    yield head, other, cutter
        finally:
            cutter.close()
    return started


def test_a_node_whose_connection_breaks_dials_again(local, cut):
    """Output of the time without a connection arrives afterwards, without repetitions."""
    path = local.file("lines.py", "import sys, time\n"
                                  "for number in range(400):\n"
                                  "    print('line', number, 'x' * 500, flush=True)\n"
                                  "    time.sleep(0.005)\n")
    with cut(path) as (head, other, cutter):
        for turn, number in enumerate((0, 2, 3)):
            other.wait_for(f"line {40 + 100 * turn} ")
            cutter.cut(number)
        done = [head.finish(), other.finish()]
    everybody(done, 0)
    assert done[1].own_text().count("was closed; reconnecting") == 3, done[1]
    for one in done:
        for lines in one.texts_by_rank().values():
            assert [line.split()[1] for line in lines] == [str(number) for number in range(400)]
        assert len(one.texts_by_rank()) == 2


def test_an_interrupt_is_sent_over_the_next_connection(local, cut):
    with cut(*sequence(local)) as (head, other, cutter):
        other.wait_for("count 1", count=2)
        cutter.cut(0)
        other.wait_for("reconnecting")
        other.signal(signal.SIGTERM)
        done = [head.finish(), other.finish()]
        assert done[0].code in (143, -signal.SIGTERM) and "IVY-R003" in done[0].own_text(), done
        everybody([done[1]], 143, "IVY-R003")


def test_an_interrupt_of_an_earlier_job_does_not_affect_the_next(local, two, cut):
    with cut(*sequence(local)) as (head, other, cutter):
        other.wait_for("count 1", count=2)
        port, cutter.to = cutter.to, free_port()
        head.signal(signal.SIGKILL)
        other.wait_for("reconnecting")
        other.signal(signal.SIGTERM)
        with two.all(*sequence(local)) as runs:
            for run in runs:
                run.wait_for("count 1", count=2)
            cutter.to = port
            everybody([other.finish()], 122, "joined too late")
            runs[0].wait_for("its connection was rejected")
            local.file("stop")
            everybody([run.finish() for run in runs], 0)


def test_a_node_without_a_connection_is_lost(local, cut):
    with cut(*sequence(local)) as (head, other, cutter):
        other.wait_for("count 1", count=2)
        cutter.close()
        everybody([head.finish()], 121, "IVY-R00[67]")
        everybody([other.finish()], 121, "IVY-J005")
        local.wait_clean(10)


def test_a_node_that_leaves_before_the_start_may_be_replaced(local):
    nodes = Nodes(local, 3)
    script = hello(local)
    with nodes.start(0, "-v", script) as first:
        with nodes.start(1, script) as second:
            first.wait_for("node 1 .* has joined")
            second.signal(signal.SIGTERM)
            assert second.finish().code == 143
        first.wait_for("disconnected before all nodes had joined")
        with nodes.start(1, script) as second, nodes.start(2, script) as third:
            everybody([run.finish() for run in (first, second, third)], 0)


# ---- real hosts ----------------------------------------------------------------------------------

@pytest.fixture
def everywhere(hosts):
    """Returns a function that makes a launcher for a test host by its number. All hosts have ivyrun at the same path, as in a
    cluster where it is installed."""
    folder = hosts.outside(f"{hosts.directory}/bin")
    os.mkdir(folder)
    for name in ("ivyrun", "ivy-node", "ivy-probe"):
        shutil.copy2(os.path.join(BIN, name), folder)

    def on(number):
        launcher = type(hosts)(hosts.bed, hosts.name, hosts.user, number)
        launcher.ivyrun = lambda: f"{hosts.directory}/bin/ivyrun"
        return launcher
    return on


def test_three_hosts_by_name(hosts, everywhere):
    script = hello(hosts)
    flags = ["--nnodes", "3", "--nproc_per_node", "2", "--master-addr", "node1"]
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(everywhere(rank + 1).start(*flags, "--node-rank", str(rank), script))
                for rank in (2, 1, 0)][::-1]
        done = [run.finish() for run in runs]
    everybody(done, 0, "3 hosts x 2 = 6 ranks")
    for node, one in enumerate(done):
        assert sorted(one.labelled()) == [(rank, f"node{node + 1}", f"rank {rank} of 6 node {node} -")
                                          for rank in (2 * node, 2 * node + 1)], one


def test_a_silent_host_is_lost(hosts, everywhere):
    flags = ["--nnodes", "2", "--nproc_per_node", "1", "--master-addr", "node1", "--lease", "3s"]
    with contextlib.ExitStack() as stack:
        second = stack.enter_context(everywhere(2).start(*flags, "--node-rank", "1", *sequence(hosts)))
        first = stack.enter_context(everywhere(1).start(*flags, "--node-rank", "0", *sequence(hosts)))
        second.wait_for("count 1")
        hosts.bed.cut(2)
        everybody([first.finish()], 121, "IVY-R006", "node2 was lost")


@pytest.fixture(scope="module")
def with_slurm(testbed):
    with running_on(testbed, "linuxproc"):
        yield


def test_one_ivyrun_for_each_task_of_srun(hosts, everywhere, with_slurm):
    with Slurm(hosts.as_user("ivyuser"), "linuxproc") as slurm:
        script = hello(slurm.launcher)
        job = slurm.batch(("-N", "3", "--ntasks-per-node", "1"),
                          "export HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)\n"
                          f"srun sh -c 'exec {everywhere(1).ivyrun()} --nnodes $SLURM_NNODES --node-rank "
                          f"$SLURM_NODEID --nproc_per_node 2 --master-addr $HEAD {script}'")
        done = job.finish(60)
        assert done.code == 0, done
        placed = sorted((rank, host) for rank, host, _ in done.labelled())
        assert placed == [(rank, f"node{rank // 2 + 1}") for rank in range(6)], done
