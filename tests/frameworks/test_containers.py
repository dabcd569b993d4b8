# SPDX-License-Identifier: Apache-2.0
"""Workers in containers: podman with an image whose only program is busybox."""

import io
import os
import shutil
import signal
import subprocess
import tarfile
import uuid

import pytest

from launching import wait_until

BUSYBOX = "/bin/busybox"
# crun does not support machines that use cgroup v1 and v2 at the same time.
RUNTIMES = [name for name in ("crun", "runc") if shutil.which(name)]

pytestmark = [pytest.mark.long,
              pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed"),
              pytest.mark.skipif(not os.path.exists(BUSYBOX), reason="busybox-static is not installed")]


def podman(*words, **options):
    return subprocess.run(["podman", *words], capture_output=True, timeout=60, **options)


def image_bytes():
    with open(BUSYBOX, "rb") as file:
        busybox = file.read()
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in ("bin", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(folder)
        program = tarfile.TarInfo("bin/busybox")
        program.mode, program.size = 0o755, len(busybox)
        tar.addfile(program, io.BytesIO(busybox))
        for name in ("sh", "sleep", "pwd"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return data.getvalue()


@pytest.fixture(scope="module")
def image():
    name = f"localhost/ivyrun-test-{uuid.uuid4().hex[:8]}"
    made = podman("import", "-", name, input=image_bytes())
    assert made.returncode == 0, made
    yield name
    for container in podman("ps", "-aq", "--filter", f"ancestor={name}").stdout.decode().split():
        podman("rm", "-f", container)
    podman("rmi", "-f", name)


@pytest.fixture(scope="module")
def words(image):
    """Returns the command in docs/launching.md, with limits that also work on machines that cannot raise them."""
    common = ["podman", "run", "--rm", "--network", "host", "--ipc", "host", "--pid", "host", "--env-host", "-v", "/tmp:/tmp",
              "--ulimit", "nofile=1000:1000", "--ulimit", "nproc=10000:10000"]
    said = []
    for runtime in RUNTIMES:
        tried = podman(*common[1:], "--runtime", runtime, image, "sh", "-c", ":")
        if tried.returncode == 0:
            return [*common, "--runtime", runtime, "-w", "/tmp", image]
        said.append(tried.stderr.decode())
    pytest.skip("podman starts no container here: " + " ".join(said))


def running(image):
    return podman("ps", "-q", "--filter", f"ancestor={image}").stdout.decode().split()


def test_workers_are_ranks(local, words):
    done = local.run("-n", "2", *words, "sh", "-c", "echo $RANK of $WORLD_SIZE in $(pwd)", limit=60)
    assert done.code == 0 and done.texts_by_rank() == {0: ["0 of 2 in /tmp"], 1: ["1 of 2 in /tmp"]}, done


def test_the_first_failure_counts(local, words):
    done = local.run("-n", "2", *words, "sh", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 600", limit=60)
    assert done.code == 7 and "rank 1 failed first" in done.err_text, done


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_container_is_left(local, words, image, end):
    with local.start("-n", "2", *words, "sh", "-c", "echo ready; exec sleep 600") as run:
        run.wait_for("ready", count=2)
        assert len(running(image)) == 2
        os.kill(run.pid(), end)
        run.finish(limit=60)
    wait_until(lambda: not running(image), 20, "the containers have ended")
