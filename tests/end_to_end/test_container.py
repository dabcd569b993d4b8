# SPDX-License-Identifier: Apache-2.0
"""--container: ranks in one container per host, with real podman, and a stand-in for apptainer that checks its arguments.

The image contains busybox and a marker. /usr of this machine is mounted where a test needs Python.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid

import pytest

from launching import BIN, REPOSITORY, seconds, wait_until

BUSYBOX = "/bin/busybox"
IMAGE = f"localhost/ivytest-{uuid.uuid4().hex[:8]}:1"
LOOP = "echo up; while :; do sleep 0.1; done"

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists(BUSYBOX) or shutil.which("podman") is None,
                                reason="needs root, podman and busybox-static (scripts/setup apps)")


def call(*command, env=None):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds(60),
                          env={**os.environ, **(env or {})}).stdout


@pytest.fixture(scope="module")
def root():
    """The image's files: busybox, a marker, and empty directories."""
    with tempfile.TemporaryDirectory(prefix="ivytest-root-", dir="/var/tmp") as directory:
        for folder in ("bin", "tmp", "proc", "sys", "dev", "etc", "run", "root", "usr", "var", "only-in-the-image"):
            os.mkdir(f"{directory}/{folder}")
        for library in ("lib", "lib64"):
            os.symlink(f"usr/{library}", f"{directory}/{library}")
        shutil.copy(BUSYBOX, f"{directory}/bin/busybox")
        for applet in call(BUSYBOX, "--list").split():
            with contextlib.suppress(FileExistsError):
                os.symlink("busybox", f"{directory}/bin/{applet}")
        with open(f"{directory}/etc/marker", "w", encoding="utf-8") as file:
            file.write("in the image\n")
        yield directory


@pytest.fixture(scope="module")
def podman(root):
    """The variables with which podman works here, and the image. Skips if podman cannot start a container."""
    said = []
    with tempfile.TemporaryDirectory(prefix="ivytest-podman-", dir="/var/tmp") as directory:
        try:
            tar = f"{directory}/image.tar"
            call("tar", "-C", root, "-cf", tar, ".")
            call("podman", "import", "--change", "ENV PATH=/usr/bin:/bin", "--change", "ENV FROM_IMAGE=yes", tar, IMAGE)
            for runtime in filter(shutil.which, ("crun", "runc")):
                # Lower limits than podman's own, which root may not be allowed to set here.
                config = f"{directory}/{runtime}.conf"
                with open(config, "w", encoding="utf-8") as file:
                    file.write('[containers]\ndefault_ulimits = ["nofile=1000:1000", "nproc=10000:10000"]\n'
                               f'[engine]\nruntime = "{runtime}"\n')
                tried = subprocess.run(["podman", "run", "--rm", IMAGE, "true"], capture_output=True, text=True,
                                       env={**os.environ, "CONTAINERS_CONF": config}, timeout=seconds(60))
                said.append(tried.stderr)
                if tried.returncode == 0:
                    yield {"CONTAINERS_CONF": config}
                    return
            pytest.skip("podman starts no container here: " + " ".join(said))
        finally:
            subprocess.run(["podman", "rmi", "-f", IMAGE], capture_output=True, timeout=seconds(60))


class Jobs:
    """Runs ivyrun with --container, and checks that no container is left."""

    def __init__(self, launcher, environment):
        self.launcher, self.environment = launcher, environment

    def words(self, arguments, image):
        # The mark by which the fixture finds processes of the test.
        return ("--container", image, "-x", "IVYTEST_MARK", *arguments)

    def start(self, *arguments, image=IMAGE, env=None):
        return self.launcher.start(*self.words(arguments, image), env={**self.environment, **(env or {})})

    def run(self, *arguments, image=IMAGE, env=None, limit=60):
        return self.launcher.run(*self.words(arguments, image), limit=limit, env={**self.environment, **(env or {})})

    def containers(self):
        return call("podman", "ps", "-a", "--format", "{{.Names}}", env=self.environment).split()


@pytest.fixture
def jobs(local, podman):
    jobs = Jobs(local, podman)
    before = jobs.containers()
    yield jobs
    left = [name for name in jobs.containers() if name not in before]
    for name in left:
        subprocess.run(["podman", "rm", "-f", name], capture_output=True, timeout=seconds(60))
    assert not left, f"containers left behind: {left}"


def refused(done, *words, code=122):
    assert done.code == code, done
    for word in words:
        assert word in done.own_text(), f"no {word!r} in the message: {done!r}"


# ---- a job ---------------------------------------------------------------------------------------

def test_ranks_of_a_host_share_one_container(jobs):
    done = jobs.run("-n", "2", "sh", "-c", 'cat /etc/marker; readlink /proc/self/ns/mnt; echo "$PWD $FROM_IMAGE"; ls -d /usr/lib || true')
    assert done.code == 0, done
    texts = done.texts_by_rank()
    assert texts[0][0] == "in the image" and texts[0][2] == f"{jobs.launcher.directory} yes", done
    assert texts[0] == texts[1] and texts[0][1] != os.readlink("/proc/self/ns/mnt"), done
    assert "No such file" in done.err_text, done
    assert jobs.containers() == [], done


def test_the_plan_names_the_runtime(jobs):
    done = jobs.run("-n", "2", "--dry-run", "sh")
    assert done.code == 0 and re.search(r"^plan: .*, in podman containers$", done.out.decode(), re.MULTILINE), done


def test_collectives_use_shared_memory_in_the_container(jobs):
    jobs.launcher.file("sum.py", """
import os
import numpy as np
import ivycomm as ic

ic.init()
total = ic.all_reduce(np.full(1000, ic.rank() + 1.0))
assert os.path.exists("/etc/marker") and float(total[-1]) == 3, total
print("sum", float(total[0]))
ic.finalize()
""")
    if not os.path.isdir("/usr/lib/python3/dist-packages/numpy"):
        pytest.skip("python3-numpy is not installed")
    # NumPy finds its libraries by the links of Debian's alternatives.
    done = jobs.run("-n", "2", "--container-mount", "/usr:/usr:ro", "--container-mount",
                    "/etc/alternatives:/etc/alternatives:ro", "sum.py", limit=120)
    assert done.code == 0 and done.texts_by_rank() == {0: ["sum 3.0"], 1: ["sum 3.0"]}, done


def test_variables_are_those_of_the_image_and_the_job(jobs):
    done = jobs.run("-n", "1", "-x", "CHOSEN=by -x", "sh", "-c", 'echo "$SECRET|$CHOSEN|$NCCL_DEBUG|$PATH|$RANK|$WORLD_SIZE"',
                    env={"SECRET": "of the shell", "NCCL_DEBUG": "INFO"})
    assert done.code == 0 and done.out_lines == ["|by -x|INFO|/usr/bin:/bin|0|1"], done
    assert "not sent to the containers: " in done.own_text() and "SECRET" in done.own_text(), done


def test_directories_are_mounted(jobs):
    jobs.launcher.file("given.txt", "given\n")
    directory = jobs.launcher.directory
    done = jobs.run("-n", "1", "--container-mount", f"{directory}:/data:ro", "sh", "-c",
                    "cat /data/given.txt; touch /data/new 2>/dev/null || echo read-only; echo written > here.txt")
    assert done.code == 0 and done.out_lines == ["given", "read-only"], done
    assert jobs.launcher.read("here.txt") == b"written\n"


def test_a_directory_of_the_image_can_be_the_working_directory(jobs):
    done = jobs.run("-n", "1", "--wdir", "/only-in-the-image", "sh", "-c", "pwd")
    assert done.code == 0 and done.out_lines == ["/only-in-the-image"], done
    refused(jobs.run("-n", "1", "--wdir", "/nowhere", "true"), "the working directory cannot be entered", "/nowhere")


@pytest.mark.parametrize("program, code", [("exit 7", 7), ("kill -SEGV $$", 139)])
def test_the_first_failure_counts(jobs, program, code):
    done = jobs.run("-n", "2", "sh", "-c", f"test $RANK = 1 && {{ {program}; }}; exec sleep 600")
    assert done.code == code and "rank 1 failed first" in done.err_text, done


def test_a_restart_uses_the_same_container(jobs):
    program = 'if test -e /tmp/seen; then echo again; else touch /tmp/seen; exit 3; fi'
    done = jobs.run("-n", "1", "--max-restarts", "1", "sh", "-c", program)
    assert done.code == 0 and b"again" in done.out, done


def test_input_reaches_rank_0(jobs):
    with open(jobs.launcher.file("input", "a line\n"), "rb") as stdin:
        with jobs.launcher.start(*jobs.words(("-n", "2", "cat"), IMAGE), stdin=stdin, env=jobs.environment) as run:
            done = run.finish(60)
    assert done.code == 0 and done.texts_by_rank() == {0: ["a line"]}, done


def test_two_hosts_have_a_container_each(jobs):
    """Two network namespaces, reached by a command."""
    names = [f"ivycont{uuid.uuid4().hex[:6]}{letter}" for letter in "ab"]
    try:
        for name in names:
            call("ip", "netns", "add", name)
        call("ip", "link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for number, name in enumerate(names, 1):
            call("ip", "-n", name, "addr", "add", f"10.79.0.{number}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                call("ip", "-n", name, "link", "set", interface, "up")
        with tempfile.TemporaryDirectory(prefix="ivytest-cache-", dir="/var/tmp") as cache:
            done = jobs.run("--exec", "nsenter --net=/run/netns/{host}", "-H", ",".join(names), "sh", "-c",
                            "cat /etc/marker; ip -o -4 addr show eth0 | grep -o '10.79.0.[0-9]*' | head -1; readlink /proc/self/ns/mnt",
                            env={"XDG_CACHE_HOME": cache}, limit=90)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
    assert done.code == 0, done
    texts = done.texts_by_rank()
    assert [texts[rank][:2] for rank in (0, 1)] == [["in the image", f"10.79.0.{rank + 1}"] for rank in (0, 1)], done
    assert texts[0][2] != texts[1][2], done


# ---- ends ----------------------------------------------------------------------------------------

def test_ctrl_c_ends_ranks_and_container(jobs):
    with jobs.start("-n", "2", "sh", "-c", f'trap "echo stops; exit 0" INT TERM; {LOOP}') as run:
        run.wait_for("up", count=2, limit=60)
        assert len(jobs.containers()) == 1
        run.signal(signal.SIGINT)
        done = run.finish()
    assert done.code in (130, -2) and done.out.count(b"stops") == 2, done


@pytest.mark.parametrize("victim", ["ivyrun", "supervisor", "warden", "keeper"])
def test_a_killed_process_of_ivyrun_leaves_nothing(jobs, local, victim):
    with jobs.start("-n", "2", "--lease", "3s", "sh", "-c", LOOP) as run:
        run.wait_for("up", count=2, limit=60)
        launcher = run.pid()
        workers = [process for process in local.processes() if b"/sh\0-c\0echo up" in process.command]
        supervisor = parent_of(workers[0].pid)
        keepers = [process.pid for process in local.processes() if process.command.split(b"\0")[1:2] == [b"container"]]
        os.kill({"ivyrun": launcher, "supervisor": supervisor, "warden": parent_of(supervisor),
                 "keeper": keepers[0]}[victim], signal.SIGKILL)
        run.finish(60)
    local.wait_clean(30)
    wait_until(lambda: not jobs.containers(), 20, "the container is removed")


def parent_of(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


def test_a_stopped_container_ends_the_job(jobs):
    with jobs.start("-n", "2", "sh", "-c", LOOP) as run:
        run.wait_for("up", count=2, limit=60)
        call("podman", "kill", jobs.containers()[0], env=jobs.environment)
        done = run.finish(60)
    assert done.code == 121 and "its container was stopped by another program" in done.err_text, done


def test_a_stop_while_an_image_is_pulled_leaves_nothing(jobs, local):
    programs = os.path.join(local.directory, "programs")
    os.mkdir(programs)
    local.file("programs/podman", '#!/bin/sh\ncase "$1" in image) exit 1;; pull) echo pulling > pulled; exec sleep 600;; esac\n',
               0o755)
    with jobs.start("-n", "1", "true", image="slow:1", env={"PATH": f"{programs}:{local.environment['PATH']}"}) as run:
        run.wait_for("podman to pull slow:1, [0-9]+ s", limit=30)
        run.signal(signal.SIGINT)
        run.finish()


# ---- a host that cannot ---------------------------------------------------------------------------

def test_a_missing_image_is_named(jobs):
    done = jobs.run("-n", "2", "true", image="localhost/no-such-image:1")
    refused(done, "IVY-P050", "the container cannot be started: localhost/no-such-image:1", "podman pull: ", "fix:")


def test_a_missing_runtime_is_named(jobs, local):
    done = jobs.run("-n", "1", "true", env={"PATH": "/nonexistent"})
    refused(done, "IVY-P050", "none of podman, apptainer, enroot, docker is in PATH (/nonexistent)", "install one of them there")
    done = jobs.run("-n", "1", "--container-runtime", "enroot", "true")
    refused(done, "enroot is not in PATH", "install it there")
    done = jobs.run("-n", "1", "true", image="model.sif")
    refused(done, "apptainer is not in PATH")


def test_a_missing_mount_is_named(jobs):
    done = jobs.run("-n", "1", "--container-mount", "/no/such:/data", "true")
    refused(done, "--container-mount /no/such: No such file or directory")


def test_programs_are_looked_up_in_the_image(jobs):
    refused(jobs.run("-n", "1", "gcc"), "program not found: gcc", code=127)
    jobs.launcher.file("train.py")
    refused(jobs.run("-n", "1", "train.py"), "no interpreter for train.py", code=127)


def test_wrong_flags_are_rejected(jobs):
    refused(jobs.run("--container-mount", "data", "true"), '"data" is not SOURCE:TARGET', code=2)
    refused(jobs.launcher.run("--container-runtime", "podman", "true"), "needs --container IMAGE", code=2)


# ---- docs/containers.md ---------------------------------------------------------------------------

# Replaces the images of the page by the test's image, with this machine's Python, and calls podman.
PODMAN = """#!/bin/sh
for word; do
  shift
  case "$word" in
    docker.io/*) word={image} ;;
    --entrypoint) set -- "$@" --volume /usr:/usr:ro ;;
  esac
  set -- "$@" "$word"
done
exec /usr/bin/podman "$@"
"""


@pytest.mark.long
def test_commands_of_the_page_run_as_written(jobs, local):
    with open(os.path.join(REPOSITORY, "docs/containers.md"), encoding="utf-8") as file:
        lines = [line for line in re.findall(r"^    (ivyrun .*)$", file.read(), re.MULTILINE) if " -H " not in line]
    assert len(lines) > 4, lines
    os.mkdir(os.path.join(local.directory, "programs"))
    local.file("programs/podman", PODMAN.format(image=IMAGE), 0o755)
    local.file("train.py", "import os; print('trained by', os.environ['RANK'])\n")
    environment = {**jobs.environment, "PATH": f"{local.directory}/programs:{BIN}:{local.environment['PATH']}"}
    for line in lines:
        done = local.run_program("sh", "-c", line, env=environment, limit=60)
        assert done.code == 0, (line, done)
        assert done.texts_by_rank() == {rank: [f"trained by {rank}"] for rank in (0, 1)}, (line, done)


# ---- other runtimes -------------------------------------------------------------------------------

# Enters new namespaces as apptainer does. It accepts only the arguments that apptainer documents.
APPTAINER = r"""#!/bin/sh
echo "$@" >> "$APPTAINER_LOG"
test "$1" = exec || exit 255
shift
mounts=
while :; do
  case "$1" in
    --cleanenv) shift ;;
    --pwd) test "$2" = / || exit 255; shift 2 ;;
    --bind) mounts="$mounts $2"; shift 2 ;;
    --nv|--rocm) shift ;;
    -*) echo "unknown flag: $1" >&2; exit 255 ;;
    *) break ;;
  esac
done
root=$(mktemp -d /var/tmp/ivytest-apptainer-XXXXXX)
trap 'rmdir "$root"' EXIT
image=$1 mounts=$mounts root=$root unshare --mount /bin/sh -c '
  mount --bind "$image" "$root" && cd "$root" || exit 255
  for each in $mounts; do
    from=${each%%:*}; to=${each#*:}; to=${to%:ro}
    if test -d "$from"; then mkdir -p ".$to"; else mkdir -p ".$(dirname "$to")"; touch ".$to"; fi
    mount --rbind "$from" ".$to"
  done
  for each in proc sys dev; do mount --rbind /$each $each; done
  mkdir -p old && /usr/sbin/pivot_root . old && /bin/umount -l /old; cd /; rmdir old
  shift
  exec env -i PATH=/bin FROM_IMAGE=yes "$@"' sh "$@"
"""


def test_apptainer_gets_documented_arguments(local, root, podman):
    """A stand-in for apptainer, which Debian does not package."""
    del podman  # Only its checks of this machine are needed.
    os.mkdir(os.path.join(local.directory, "programs"))
    local.file("programs/apptainer", APPTAINER, 0o755)
    log = local.file("log")
    copy = os.path.join(local.directory, "image")
    shutil.copytree(root, copy, symlinks=True)
    environment = {"PATH": f"{local.directory}/programs:{local.environment['PATH']}", "APPTAINER_LOG": log}
    done = local.run("--container", copy, "--container-runtime", "apptainer", "-x", "IVYTEST_MARK", "-n", "2", "sh", "-c",
                     "cat /etc/marker; echo $FROM_IMAGE", env=environment, limit=60)
    assert done.code == 0 and done.texts_by_rank() == {rank: ["in the image", "yes"] for rank in (0, 1)}, done
    words = local.read("log").decode()
    assert re.search(rf"^exec --cleanenv --pwd / --bind .* {copy} \S+/ivy-node container-hold \S+/container.sock$", words, re.M), words
