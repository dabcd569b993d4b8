# SPDX-License-Identifier: Apache-2.0
"""An ordinary user without a writable cgroup, but with a real `systemd --user` in a cgroup that belongs to the user, as in a
login session."""

import os
import shutil
import signal
import subprocess
import time

import pytest

from launching import BIN, SLOW

UNIFIED = "/sys/fs/cgroup/unified" if os.path.isdir("/sys/fs/cgroup/unified") else "/sys/fs/cgroup"
UID = 2091  # An unused uid; the user does not need a name.

# Runs in a separate mount namespace, so that /run is private and looks like a machine booted by systemd. Otherwise the
# user's manager would not start.
SESSION = r"""
set -e
uid=$1; base=$2; shift 2
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user/$uid
chown $uid:$uid /run/user/$uid; chmod 700 /run/user/$uid
for tree in {trees}; do
  mkdir -p $tree/$base/session; chown -R $uid $tree/$base
done
as_user() {{ setpriv --reuid $uid --regid $uid --clear-groups env -i HOME=/tmp PATH=/usr/bin:/bin "$@"; }}
for tree in {trees}; do echo $$ > $tree/$base/cgroup.procs; done
setpriv --reuid $uid --regid $uid --clear-groups env -i HOME=/tmp PATH=/usr/bin:/bin \
  XDG_RUNTIME_DIR=/run/user/$uid /lib/systemd/systemd --user > /dev/null 2>&1 &
manager=$!
for i in $(seq 100); do [ -S /run/user/$uid/systemd/private ] && break; sleep 0.1; done
[ -S /run/user/$uid/systemd/private ]
{before}
for tree in {trees}; do echo $$ > $tree/$base/session/cgroup.procs; done
# The session's own cgroup cannot be written, as on a real machine.
for tree in {trees}; do chown -R 0 $tree/$base/session; done
chown $uid {unified}/$base/session/cgroup.procs
set +e
as_user "$@"
code=$?
kill -KILL $manager; wait $manager 2> /dev/null
exit $code
"""


def trees():
    found = [UNIFIED]
    if os.path.isdir("/sys/fs/cgroup/systemd"):
        found.append("/sys/fs/cgroup/systemd")
    return found


@pytest.fixture
def session():
    if os.geteuid() != 0 or not os.path.exists("/lib/systemd/systemd") or \
            not shutil.which("systemd-run"):
        pytest.skip("needs root and systemd's programs")
    base = f"ivytest-user-{os.getpid()}"

    def start(*command, before=""):
        script = SESSION.format(trees=" ".join(trees()), unified=UNIFIED, before=before)
        return subprocess.Popen(
            ["unshare", "-m", "bash", "-c", script, "session", str(UID), base, *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True)

    start.members = lambda: members(base)
    yield start
    deadline = time.monotonic() + 10
    while members(base) and time.monotonic() < deadline:
        for pid in members(base):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
    for tree in trees():
        for folder, _, _ in os.walk(f"{tree}/{base}", topdown=False):
            os.rmdir(folder)
    shutil.rmtree(f"/tmp/ivyrun-{UID}", ignore_errors=True)


def members(base):
    pids = []
    for folder, _, files in os.walk(f"{UNIFIED}/{base}"):
        if "cgroup.procs" in files:
            with open(f"{folder}/cgroup.procs") as listing:
                pids += [int(pid) for pid in listing.read().split()]
    return pids


IVYRUN = os.path.join(BIN, "ivyrun")


def test_workers_live_in_a_delegated_scope(session):
    process = session(IVYRUN, "-n", "2", "cat", "/proc/self/cgroup")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    lines = [line for line in out.splitlines() if "0::/" in line]
    assert len(lines) == 2, out + err
    for line in lines:
        assert ".scope/ivy-" in line, line


def test_workers_do_not_see_the_scopes_variables(session):
    process = session(IVYRUN, "-n", "1", "env")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert "IVY_RANK=0" in out and "IVY_NODE_SCOPE" not in out and "XDG_RUNTIME_DIR" not in out


def test_killed_launcher_leaves_nothing(session):
    process = session(IVYRUN, "-n", "2", "sh", "-c",
                      "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 300 & sleep 300' & "
                      "echo there; sleep 300")
    assert "there" in process.stdout.readline()

    def sleepers():
        found = []
        for pid in session.members():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as words:
                    if words.read().startswith(b"sleep\x00300\x00"):
                        found.append(pid)
            except FileNotFoundError:
                pass
        return found

    launchers = [pid for pid in session.members() if os.path.exists(f"/proc/{pid}/exe") and
                 os.readlink(f"/proc/{pid}/exe").endswith("/ivyrun")]
    deadline = time.monotonic() + 10 * SLOW
    while len(sleepers()) < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(sleepers()) == 6 and launchers
    for pid in launchers:
        os.kill(pid, signal.SIGKILL)
    limit = time.monotonic() + 7 * SLOW
    while sleepers() and time.monotonic() < limit:
        time.sleep(0.1)
    assert not sleepers()
    process.communicate(timeout=30)


def test_an_unreachable_service_manager_does_not_stop_a_job(session):
    """The manager's socket exists, but nothing answers. The job runs without a scope."""
    process = session(IVYRUN, "-n", "1", "cat", "/proc/self/cgroup",
                      before="kill -STOP $manager")
    out, err = process.communicate(timeout=60)
    assert "0::/" in out and ".scope" not in out, out + err
