# SPDX-License-Identifier: Apache-2.0
"""Installs, uses, upgrades during a job, and purges the Debian packages in a copy of this system (overlayfs)."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time

import pytest

from launching import BIN, REPOSITORY, pages_that_programs_name, seconds

BUILD = os.path.dirname(BIN)
NAMES = {"ivyrun", "ivy-agent", "libivycomm1", "libivycomm-dev", "python3-ivycomm"}
WORLD = "import ivycomm as ic; ic.init(); print(ic.all_gather_object(ic.rank()), ic.__file__)"

pytestmark = [pytest.mark.long,
              pytest.mark.skipif(os.geteuid() != 0, reason="mounts a copy of this system"),
              pytest.mark.skipif(shutil.which("dh") is None or shutil.which("lintian") is None,
                                 reason="scripts/setup package installs debhelper and lintian")]


def call(*command, limit=900, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(limit), **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    out = tmp_path_factory.mktemp("debs")
    call(os.path.join(REPOSITORY, "scripts/package"), "--native", "--no-build", "--quick", "--out", str(out), "deb")
    yield out
    shutil.rmtree(out, ignore_errors=True)


class Root:
    def __init__(self, path, changes):
        self.path, self.changes = path, changes

    def run(self, *command, **options):
        return call("chroot", self.path, "/usr/bin/env", "--ignore-environment", "HOME=/root", "LC_ALL=C.UTF-8",
                    "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", *command, **options)

    def written(self):
        """Returns ivyrun's files that exist in the copy but not in this system."""
        names = call("find", ".", "-type", "f", "-o", "-type", "l", cwd=self.changes).splitlines()
        return {name for name in names if "ivy" in name and not name.startswith(("./debs", "./root/.cache"))}


@pytest.fixture(scope="module")
def root(packages):
    # On a separate file system, because the upper directory of an overlay may not be in an overlay.
    place = tempfile.mkdtemp(prefix="ivyroot.", dir="/dev/shm")
    path = f"{place}/root"
    for name in ("root", "upper", "work"):
        os.mkdir(f"{place}/{name}")
    mounted = []
    try:
        for kind, options, where in (("overlay", f"lowerdir=/,upperdir={place}/upper,workdir={place}/work", path),
                                     ("proc", "rw", f"{path}/proc"), ("tmpfs", "rw", f"{path}/dev/shm"),
                                     ("tmpfs", "rw", f"{path}/tmp")):
            done = subprocess.run(["mount", "-t", kind, "-o", options, kind, where], capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"{kind} cannot be mounted here: {done.stderr.strip()}")
            mounted.append(where)
        shutil.copytree(packages, f"{path}/debs")
        yield Root(path, f"{place}/upper")
    finally:
        for where in reversed(mounted):
            subprocess.run(["umount", "--lazy", where], stderr=subprocess.DEVNULL)
        shutil.rmtree(place, ignore_errors=True)


def install(root):
    """Installs all packages in a separate network namespace, where no other program of this machine listens."""
    return call("unshare", "--net", "sh", "-c", 'chroot "$0" sh -c "dpkg --install /debs/*.deb" > /dev/null && ss -Hltn',
                root.path)


def processes_in(root):
    roots = {pid: f"/proc/{pid}/root" for pid in os.listdir("/proc") if pid.isdigit()}
    found = []
    for pid, link in roots.items():
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(root.path):
                found.append(pid)
    return found


def test_packages_have_no_state_and_no_service_scripts(packages):
    assert {name.split("_")[0] for name in os.listdir(packages)} == NAMES
    for package in packages.glob("*.deb"):
        listed = call("dpkg-deb", "--contents", str(package))
        assert not re.search(r"\./etc/|\./var/|\./run/", listed), listed
        call("dpkg-deb", "--control", str(package), str(packages / "control"))
        scripts = "".join((packages / "control" / name).read_text() for name in os.listdir(packages / "control"))
        shutil.rmtree(packages / "control")
        assert not re.search("systemctl|deb-systemd|invoke-rc.d", scripts), scripts


def test_the_package_has_the_pages_that_programs_name(packages):
    """Without compression, so that their links work."""
    package, = packages.glob("ivyrun_*.deb")
    listed = call("dpkg-deb", "--contents", str(package))
    for page in pages_that_programs_name():
        assert f"./usr/share/doc/ivyrun/docs/{page}\n" in listed, page


def test_lintian_finds_no_error(packages):
    done = subprocess.run(["lintian", "--fail-on", "error", "--suppress-tags", "bad-distribution-in-changes-file",
                           "--allow-root", *map(str, packages.glob("*.deb"))], capture_output=True, text=True,
                          timeout=seconds(600))
    assert done.returncode == 0, done.stdout + done.stderr


def test_packages_are_installed_used_upgraded_and_purged(root):
    before = root.written()
    assert install(root) == ""
    assert processes_in(root) == []
    # The service is neither enabled nor started, so there is no link to an instance.
    assert not any(name.startswith("./etc/") for name in root.written()), root.written()
    said = root.run("ivyrun", "-n", "2", "/usr/bin/python3", "-B", "-c", WORLD)
    assert said.count("[0, 1] /usr/lib/ivyrun/python/ivycomm") == 2, said
    assert "/usr/lib/python3/dist-packages/ivycomm" in root.run("python3", "-B", "-c", WORLD)
    for name in ("ivyctl", "ivy-agent", "ivy-rendezvous"):
        assert root.run(name, "--version").startswith(name)
    upgrade_under_a_job(root)
    root.run("dpkg", "--purge", *NAMES)
    assert root.written() == before


def upgrade_under_a_job(root):
    """Reinstalls all packages during a job, which continues to its end."""
    mark = f"{root.path}/tmp/go"
    program = "while [ ! -e /tmp/go ]; do sleep 0.1; done; echo rank $RANK went on"
    job = subprocess.Popen(["chroot", root.path, "/usr/bin/env", "HOME=/root", "ivyrun", "-n", "2", "/bin/sh", "-c",
                            program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + seconds(30)
        while "/bin/sh" not in root.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '") and \
                time.monotonic() < deadline:
            time.sleep(0.2)
        root.run("sh", "-c", "dpkg --install /debs/*.deb")
        assert job.poll() is None
        open(mark, "w").close()
        said, _ = job.communicate(timeout=seconds(30))
        assert job.returncode == 0 and said.count("went on") == 2, said
    finally:
        job.kill()
        job.wait()
