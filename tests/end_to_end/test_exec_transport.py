# SPDX-License-Identifier: Apache-2.0
"""Hosts behind a command: `ip netns exec`, nsenter, podman, and a stand-in for kubectl that can fail."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid

import pytest

from launching import seconds, wait_until

NETNS = "ip netns exec {host}"
LEASE = 4     # --lease of jobs that lose a host.
ABSENCE = 60  # Seconds that a supervisor waits for another connection after its own broke.
GRACE = 5     # TERM to KILL.
WAIT_FOR_END = 'for i in $(seq 1 600); do test -e {0}/end && exit 0; echo tick $RANK $$; sleep 0.1; done; exit 9'

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None,
                                reason="makes network namespaces, as root")


def call(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds(60)).stdout


@pytest.fixture(scope="module")
def pair():
    """Two network namespaces with a network between them, to which this machine has no route."""
    suffix = uuid.uuid4().hex[:6]
    names = [f"ivyexec{suffix}{letter}" for letter in "ab"]
    try:
        for name in names:
            call("ip", "netns", "add", name)
        call("ip", "link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for number, name in enumerate(names, 1):
            inside = ("ip", "-n", name)
            call(*inside, "addr", "add", f"10.78.0.{number}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                call(*inside, "link", "set", interface, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.fixture(scope="module")
def cache():
    """A cache for ivy-node, so that this file's tests upload it only once and not into the caller's home."""
    with tempfile.TemporaryDirectory(prefix="ivytest-cache-") as directory:
        yield directory


class Jobs:
    """Runs ivyrun on the two hosts by a command."""

    def __init__(self, launcher, pair, cache):
        self.launcher, self.pair = launcher, pair
        self.environment = {"XDG_CACHE_HOME": cache}

    def words(self, command, hosts):
        chosen = ("--transport", command) if command in ("kubectl", "podman") else ("--exec", command)
        return (*chosen, "-H", ",".join(hosts or self.pair))

    def start(self, *arguments, command=NETNS, hosts=None, env=None):
        return self.launcher.start(*self.words(command, hosts), *arguments, env={**self.environment, **(env or {})})

    def run(self, *arguments, command=NETNS, hosts=None, env=None, limit=30):
        return self.launcher.run(*self.words(command, hosts), *arguments, limit=limit,
                                 env={**self.environment, **(env or {})})

    def waiting(self):
        """Returns a program that prints its pid until end() is called."""
        return ("bash", "-c", WAIT_FOR_END.format(self.launcher.directory))

    def end(self):
        self.launcher.file("end")


@pytest.fixture
def jobs(local, pair, cache):
    return Jobs(local, pair, cache)


def refused(done, code, *words):
    assert done.code == code, done
    for word in words:
        assert word in done.own_text(), f"no {word!r} in the message: {done!r}"


def processes_called(local, name):
    """Returns the pids of the test's processes whose program or role has this name: `podman exec ...`, `ivy-node relay`.
    Wardens, whose arguments contain `--transport relay`, are not included."""
    return [process.pid for process in local.processes() if name.encode() in process.command.split(b"\0")[:2]]


# ---- a job ---------------------------------------------------------------------------------------

def test_ranks_run_on_the_hosts_and_connect(jobs):
    program = ("echo $RANK of $WORLD_SIZE on $(ip -o -4 addr show eth0 | grep -o '10.78.0.[0-9]*' | head -1); "
               "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && echo reached $MASTER_ADDR")
    done = jobs.run("bash", "-c", program)
    assert done.code == 0, done
    texts = done.texts_by_rank()
    assert texts == {0: ["0 of 2 on 10.78.0.1", "reached 10.78.0.1"], 1: ["1 of 2 on 10.78.0.2", "reached 10.78.0.1"]}, done


def test_input_arguments_and_output_pass_unchanged(jobs):
    jobs.launcher.file("input", bytes(range(256)) * 4000)
    program = 'test "$1" = "a \'b\' \\$c" && cksum; head -c 300000 /dev/zero | tr "\\0" x; echo'
    with open(f"{jobs.launcher.directory}/input", "rb") as stdin:
        with jobs.launcher.start(*jobs.words(NETNS, None), "--log-dir", "logs", "sh", "-c", program, "sh", "a 'b' $c",
                                 stdin=stdin, env=jobs.environment) as run:
            done = run.finish()
    expected = call("cksum", f"{jobs.launcher.directory}/input").split()
    assert done.code == 0 and f"{expected[0]} {expected[1]}" in done.texts_by_rank()[0], done
    for rank in (0, 1):
        # The console splits such a long line; log files do not.
        log = jobs.launcher.read(f"logs/latest/0/rank0000{rank}.out")
        assert log.endswith(b"\n" + b"x" * 300000 + b"\n"), log[:200]


def test_the_first_failure_counts(jobs):
    done = jobs.run("sh", "-c", "test $RANK = 1 && exit 85; exec sleep 600")
    assert done.code == 85 and "rank 1 failed first" in done.err_text, done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_on_every_host(jobs, local, number):
    with jobs.start("sh", "-c", 'trap "echo rank $RANK stops; exit 0" INT TERM; echo up; while :; do sleep 0.1; done') as run:
        run.wait_for("up", count=2)
        run.signal(number)
        done = run.finish()
    assert done.code in (128 + number, -number) and done.out.count(b"stops") == 2, done
    local.wait_clean(5)


def test_a_killed_launcher_leaves_nothing(jobs, local):
    with jobs.start("--lease", "3s", "sh", "-c", "echo up; exec sleep 600") as run:
        run.wait_for("up", count=2)
        run.signal(signal.SIGKILL)
        run.finish()
    local.wait_clean(20)


def test_a_dry_run_shows_the_command_of_each_host(jobs, pair):
    done = jobs.run("--dry-run", "true")
    for name in pair:
        assert f"command for {name}: ip netns exec {name} /bin/sh\n" in done.out.decode(), done
    assert done.code == 0 and " exec " in done.out.decode(), done
    done = jobs.run("--dry-run=json", "true")
    assert [host["command"] for host in json.loads(done.out)["hosts"]] == [f"ip netns exec {name} /bin/sh" for name in pair]


def test_doctor_reports_a_host_that_the_command_does_not_reach(jobs, pair):
    done = jobs.run("--doctor", hosts=[*pair, "nosuchns"])
    text = done.out.decode() + done.err_text
    assert done.code == 1 and re.search(r"FAIL.*reach.*nosuchns|nosuchns.*reach", text), done
    assert "echo echo started | ip netns exec nosuchns /bin/sh" in text, done


def test_a_config_file_can_name_a_command(jobs, pair):
    config = jobs.launcher.file("config.toml", f'[transports]\nspaces = "{NETNS}"\n')
    done = jobs.launcher.run("--config", config, "--transport", "spaces", "-H", ",".join(pair), "sh", "-c", "echo on $RANK",
                             env=jobs.environment)
    assert done.code == 0 and done.texts_by_rank() == {0: ["on 0"], 1: ["on 1"]}, done


def test_a_command_may_allocate_a_terminal(jobs):
    """The command allocates a terminal, as `machinectl shell` does."""
    done = jobs.run("sh", "-c", "echo rank $RANK", command="sh -c 'exec script -qec \"$*\" /dev/null' sh ip netns exec {host}")
    assert done.code == 0 and done.texts_by_rank() == {0: ["rank 0"], 1: ["rank 1"]}, done


# ---- wrong input ---------------------------------------------------------------------------------

def test_a_command_without_a_host_is_rejected(jobs):
    refused(jobs.run("true", command="docker exec -i c1"), 2, '--exec: "docker exec -i c1" does not contain {host}', "fix:")
    refused(jobs.launcher.run("--transport", "docker", "true"), 2, "no hosts are given", "-H NAME,NAME")
    refused(jobs.launcher.run("--transport", "docker", "-H", "me@c1", "true"), 2, "me@c1", "{user}")


def test_all_hosts_that_do_not_exist_are_in_one_message(jobs, pair):
    done = jobs.run("echo", "started", hosts=[pair[0], "nosuch1", "nosuch2"])
    refused(done, 120, "2 of 3 hosts could not be reached", "nosuch[1-2], connecting",
            'ip exited before ivy-node ran (exit 255); it printed: Cannot open network namespace "nosuch1": No such file',
            "fix:   this must print 'started': echo echo started | ip netns exec nosuch1 /bin/sh")
    assert b"started" not in done.out and done.err_text.count("error[") == 1, done


def test_a_command_that_does_not_exist_is_named_once(jobs):
    done = jobs.run("true", command="no-such-command {host}")
    refused(done, 120, "start no-such-command: No such file or directory", "no-such-command runs on this machine: install it")
    assert done.err_text.count("error[") == 1, done


def test_a_host_without_a_shell_is_named(jobs, pair):
    """The host cannot execute the last word of the command line."""
    done = jobs.run("true", command="ip netns exec {host} /nonexistent", hosts=pair[:1])
    refused(done, 120, pair[0], 'exec of "/nonexistent" failed: No such file or directory', "fix:")


@pytest.mark.parametrize("command,reason", [
    ("sh -c 'exec \"$@\" </dev/null' {host}", "sh exited before ivy-node ran (exit 0)"),
    ("yes {host}", "its shell does not start ivy-node, but keeps printing; the last line: hostname1 /bin/sh"),
    ("sh -c 'echo no entry; exit 3' {host}", "sh exited before ivy-node ran (exit 3); it printed: no entry"),
])
def test_a_command_that_starts_no_shell_is_named(jobs, command, reason):
    refused(jobs.run("true", command=command, hosts=["hostname1"]), 120, "hostname1", reason, "fix:")


def test_a_command_that_waits_is_named_with_its_output(jobs):
    done = jobs.run("--start-timeout", "8s", "true", command="sh -c 'printf Password:; exec sleep 600' {host}", hosts=["c1"])
    refused(done, 120, "last step: sh: no shell has started there yet; it printed: Password:",
            "this must print 'started': echo echo started | sh -c ")


# ---- broken connections --------------------------------------------------------------------------

def pids(done):
    """Returns the pids that each rank has printed: one, unless its worker was started again."""
    return {rank: {text.split()[2] for text in texts if text.startswith("tick")} for rank, texts in done.texts_by_rank().items()}


def kept_running(run, jobs, after):
    """Waits for two more lines of each rank, then ends the job."""
    for rank in (0, 1):
        count = len(re.findall(rb"tick %d " % rank, after))
        run.wait_for(rf"tick {rank} ", count=count + 3)
    jobs.end()
    done = run.finish()
    assert done.code == 0 and all(len(own) == 1 for own in pids(done).values()), done
    return done


def test_a_killed_command_is_run_again(jobs, local):
    with jobs.start(*jobs.waiting()) as run:
        run.wait_for("tick [01]", count=6)
        for pid in wait_until(lambda: processes_called(local, "relay"), 10, "relays run"):
            os.kill(pid, signal.SIGKILL)
        kept_running(run, jobs, run.said())


@pytest.fixture
def kubectl(jobs):
    """Puts the stand-in before the real kubectl, and returns a function that causes a fault."""
    faults = os.path.join(jobs.launcher.directory, "faults")
    programs = os.path.join(jobs.launcher.directory, "programs")
    os.mkdir(faults)
    os.mkdir(programs)
    script = jobs.launcher.script("kubectl.py")
    jobs.launcher.file("programs/kubectl", f'#!/bin/sh\nexec /usr/bin/python3 {script} "$@"\n', 0o755)
    jobs.environment["PATH"] = f"{programs}:{jobs.launcher.environment['PATH']}"
    jobs.environment["FAULTS"] = faults

    def cause(fault, host=1):
        return jobs.launcher.file(f"faults/{jobs.pair[host]}.{fault}")
    return cause


def test_output_before_the_shell_starts_is_ignored(jobs, kubectl):
    kubectl("noise")
    done = jobs.run("sh", "-c", "echo rank $RANK", command="kubectl")
    assert done.code == 0 and done.texts_by_rank() == {0: ["rank 0"], 1: ["rank 1"]}, done


def test_a_missing_pod_is_named_in_kubectls_words(jobs, kubectl, pair):
    done = jobs.run("true", command="kubectl", hosts=[pair[0], "trainer-9"])
    refused(done, 120, 'it printed: Error from server (NotFound): pods "trainer-9" not found',
            "kubectl exec -i trainer-9 -- /bin/sh")


@pytest.mark.parametrize("fault", ["cut", "killed", "garbage"])
def test_a_broken_stream_is_continued(jobs, kubectl, fault):
    with jobs.start(*jobs.waiting(), command="kubectl") as run:
        run.wait_for("tick [01]", count=6)
        path = kubectl(fault)
        wait_until(lambda: not os.path.exists(path), 10, "the fault happens")
        kept_running(run, jobs, run.said())


def test_a_silent_stream_is_replaced(jobs, kubectl):
    with jobs.start("--lease", f"{seconds(6):g}s", *jobs.waiting(), command="kubectl") as run:
        run.wait_for("tick [01]", count=6)
        path = kubectl("stall")
        time.sleep(1)  # The stand-in stalls within its polling interval. Without the file, the next one does not stall.
        os.unlink(path)
        kept_running(run, jobs, run.said())


@pytest.mark.parametrize("fault, stops_within", [
    ("stall", LEASE),
    pytest.param("cut", ABSENCE, marks=pytest.mark.long),
])
def test_a_host_that_is_not_reached_again_is_lost(jobs, local, kubectl, pair, fault, stops_within):
    with jobs.start("--lease", f"{LEASE}s", *jobs.waiting(), command="kubectl") as run:
        run.wait_for("tick [01]", count=6)
        jobs.launcher.file("programs/kubectl", "#!/bin/sh\necho 'error: connection refused' >&2; exit 1\n", 0o755)
        kubectl(fault)
        done = run.finish()
    assert done.code == 121, done
    assert f"{pair[1]} was lost" in done.err_text and "error: connection refused" in done.err_text, done
    # Its supervisor stops the workers.
    local.wait_clean(stops_within + GRACE)


# ---- nsenter -------------------------------------------------------------------------------------

def test_nsenter_reaches_hosts_by_their_process_ids(jobs, hosts):
    """This machine has no route to these hosts, either."""
    numbers = {str(hosts.bed.init_pid(number)): f"node{number}" for number in (2, 3)}
    done = jobs.run("--wdir", "/", "sh", "-c", "echo $(hostname) $MASTER_ADDR", command="nsenter -t {host} -m -u -i -n -p --",
                    hosts=list(numbers), env={"XDG_CACHE_HOME": ""})
    assert done.code == 0, done
    assert done.texts_by_rank() == {0: ["node2 10.77.0.2"], 1: ["node3 10.77.0.2"]}, done


# ---- podman --------------------------------------------------------------------------------------

BUSYBOX = "/bin/busybox"


def podman(*words):
    return subprocess.run(["podman", *words], capture_output=True, text=True, timeout=seconds(60))


@pytest.fixture(scope="module")
def containers(pair):
    """A container in each of the two network namespaces, whose only program is busybox."""
    if shutil.which("podman") is None or not os.path.exists(BUSYBOX):
        pytest.skip("podman or busybox-static is not installed (scripts/setup apps)")
    names = []
    with tempfile.TemporaryDirectory(prefix="ivytest-root-") as root:
        for folder in ("bin", "tmp", "proc", "sys", "dev", "etc", "run", "root"):
            os.mkdir(f"{root}/{folder}")
        shutil.copy(BUSYBOX, f"{root}/bin/busybox")
        for applet in call(BUSYBOX, "--list").split():
            with contextlib.suppress(FileExistsError):
                os.symlink("busybox", f"{root}/bin/{applet}")
        try:
            said = []
            for name in pair:
                for runtime in filter(shutil.which, ("crun", "runc")):
                    # --replace, because a runtime that fails leaves a container with this name.
                    started = podman("--runtime", runtime, "run", "-d", "--replace", "--name", name, "--hostname", name,
                                     "--network", f"ns:/run/netns/{name}", "--ulimit", "nofile=1000:1000", "--ulimit",
                                     "nproc=10000:10000", "--rootfs", f"{root}:O", "sleep", "100000")
                    said.append(started.stderr)
                    if started.returncode == 0:
                        names.append(name)
                        break
                else:
                    pytest.skip("podman starts no container here: " + " ".join(said))
            yield names
        finally:
            for name in pair:
                podman("rm", "-f", "-t", "0", name)


def test_a_job_in_two_containers(jobs, containers):
    done = jobs.run("--wdir", "/tmp", "sh", "-c", "echo $RANK on $(hostname) $MASTER_ADDR; test ! -e /usr",
                    command="podman", hosts=containers, limit=60)
    assert done.code == 0, done
    assert done.texts_by_rank() == {rank: [f"{rank} on {name} 10.78.0.1"] for rank, name in enumerate(containers)}, done


def test_a_killed_podman_is_run_again(jobs, containers, local):
    program = ("sh", "-c", "i=0; while [ $i -lt 100 ]; do test -e /tmp/end && exit 0; echo tick $RANK $$; sleep 0.1; "
               "i=$((i + 1)); done; exit 9")
    with jobs.start("--wdir", "/tmp", *program, command="podman", hosts=containers) as run:
        run.wait_for("tick [01]", count=6)
        for pid in wait_until(lambda: processes_called(local, "podman"), 10, "podman runs"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        said = run.said()
        for rank in (0, 1):
            run.wait_for(rf"tick {rank} ", count=len(re.findall(rb"tick %d " % rank, said)) + 3)
        for name in containers:
            podman("exec", name, "touch", "/tmp/end")
        done = run.finish()
    assert done.code == 0 and all(len(own) == 1 for own in pids(done).values()), done


def test_a_removed_container_is_a_lost_host(jobs, containers):
    with jobs.start("--wdir", "/tmp", "--lease", "4s", "sh", "-c", "echo up; exec sleep 600", command="podman",
                    hosts=containers) as run:
        run.wait_for("up", count=2)
        podman("kill", containers[1])
        done = run.finish(60)
    assert done.code == 121 and f"{containers[1]} was lost" in done.err_text, done
