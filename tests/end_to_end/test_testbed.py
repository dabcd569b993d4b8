# SPDX-License-Identifier: Apache-2.0
"""The test hosts behave as described. Otherwise the other tests would prove nothing."""

import os
import subprocess
import tempfile

import pytest

from launching import HOSTS, REPOSITORY, stop_if_mounts_are_lost
from testbed import Testbed


def test_hosts_differ_as_they_should(hosts):
    def say(number, command, user="root"):
        return hosts.run_on(number, "sh", "-c", command, user=user).out.decode().strip()

    assert [say(k, "hostname") for k in hosts.bed.numbers()] == [f"node{k}" for k in range(1, 7)]
    assert len({say(k, "cat /proc/sys/kernel/random/boot_id") for k in hosts.bed.numbers()}) == 6
    assert say(2, "ls -A " + REPOSITORY) == "" and say(1, f"ls {REPOSITORY}/tests") != ""
    assert say(4, "getent hosts node4").startswith("127.0.1.1")
    assert say(1, "getent hosts node4").startswith("10.77.0.4")
    assert say(2, "id -u; id -g", user="ivyuser").split() == ["2001", "2001"]
    assert say(5, "cp /bin/true ~/true && ~/true; echo $?") == "126"
    for user in ("root", "ivyuser"):
        assert say(6, "echo x > ~/new; echo $?", user=user) != "0"
        assert say(1, "find /sys/fs/cgroup -name cgroup.procs -writable | wc -l", user=user) == (
            "1" if user == "root" else "0")


@pytest.mark.parametrize("user", ["root", "ivyuser"])
def test_every_sshd_accepts_logins(hosts, user):
    for name in ("node1", "node2", "node3", "node4", "node5", "node6", "node3-v6"):
        done = hosts.run_on(1, "ssh", f"{user}@{name}", "id -un", user=user)
        assert user in done.out.decode().split("\n"), done
        assert ("Welcome" in done.out.decode()) == (name == "node2"), f"{name} prints at login, or node2 does not"
    shell = hosts.run_on(1, "ssh", f"{user}@node3", "echo $SHELL", user=user).out.decode()
    assert shell.strip() == ("/bin/csh" if user == "root" else "/usr/bin/fish")


def reaches(hosts, source, target):
    return hosts.run_on(source, "ping", "-c1", "-W1", "-q", f"node{target}").code == 0


def test_cut_is_silent_and_unplug_is_not(hosts):
    carrier = ("cat", "/sys/class/net/eth0/carrier")
    assert reaches(hosts, 1, 3)
    hosts.bed.cut(3)
    assert not reaches(hosts, 1, 3)
    assert hosts.run_on(3, *carrier).out == b"1\n"
    hosts.bed.join(3)
    assert reaches(hosts, 1, 3)
    hosts.bed.unplug(3)
    assert hosts.run_on(3, *carrier).out == b"0\n"
    hosts.bed.join(3)
    assert reaches(hosts, 1, 3)


def test_cut_one_way_blocks_one_direction(hosts):
    received = ("cat", "/sys/class/net/eth0/statistics/rx_packets")
    assert reaches(hosts, 3, 2)  # Both hosts now know each other's hardware address.
    hosts.bed.cut_one_way(3)
    heard_by_2 = int(hosts.run_on(2, *received).out)
    heard_by_3 = int(hosts.run_on(3, *received).out)
    assert not reaches(hosts, 3, 2)
    assert int(hosts.run_on(2, *received).out) > heard_by_2, "node2 does not receive node3's packets"
    assert int(hosts.run_on(3, *received).out) == heard_by_3, "node3 still receives packets"


def test_power(hosts):
    def boot_id():
        return hosts.run_on(3, "cat", "/proc/sys/kernel/random/boot_id").out

    before = boot_id()
    hosts.bed.power_off(3)
    assert not reaches(hosts, 1, 3) and not hosts.bed.is_on(3)
    hosts.bed.power_on(3)
    assert reaches(hosts, 1, 3) and boot_id() != before
    assert hosts.run_on(1, "ssh", "node3", "hostname").out == b"node3\n"


def test_the_check_finds_leftovers(hosts):
    """Without this check, tests that search for leftovers at their end would prove nothing."""
    token = "0123456789abcdef" * 2
    quiet = "< /dev/null > /dev/null 2>&1 &"
    hosts.run_on(2, "sh", "-c", f"IVY_JOB_ID=x setsid sleep 61 {quiet}")
    hosts.run_on(3, "sh", "-c", f"sleep 62 {quiet}")
    hosts.run_on(3, "mkdir", "-p", f"/tmp/ivyrun-0/{token}-1")
    hosts.run_on(4, "mkdir", "/sys/fs/cgroup/ivy-job")
    hosts.run_on(4, "touch", "/dev/shm/segment")
    server = "import socket, time; s = socket.create_server(('', 7777)); time.sleep(63)"
    hosts.run_on(5, "sh", "-c", f'/usr/bin/python3 -c "$0" {quiet} sleep 0.5', server)
    hosts.run_on(6, "sh", "-c", f"unshare --pid --fork sh -c 'IVY_JOB_ID=x exec sleep 64' {quiet} sleep 0.5")
    left = "\n".join(hosts.leftovers())
    for text in ("node2: process", "sleep 61", "node3: process", "sleep 62", token, "ivy-job",
                 "/dev/shm/segment", "listening port 7777", "(sleep, S): sleep 64"):
        assert text in left, left
    hosts.bed.sweep()
    assert hosts.leftovers() in ([], ["node4: file /dev/shm/segment"])
    hosts.run_on(4, "rm", "-f", "/dev/shm/segment")


def test_two_testbeds_are_isolated_and_leave_nothing():
    if os.geteuid() != 0:
        pytest.skip("test hosts are made of namespaces, which need root")
    state = tempfile.mkdtemp(prefix="ivytest-second-", dir="/run")
    environment = {**os.environ, "IVY_TESTBED": state}

    def run(*words):
        return subprocess.run([HOSTS, *words], env=environment, capture_output=True, text=True)

    try:
        assert run("up", "2").returncode == 0
        assert run("exec", "2", "ping", "-c1", "-W1", "node1").returncode == 0
        assert run("exec", "2", "ping", "-c1", "-W1", "10.77.0.3").returncode != 0
        assert run("up", "2").returncode == 1, "a second `up` succeeded"
    finally:
        assert run("down").returncode == 0
    assert not os.path.exists(state)
    assert not any(os.path.exists(path) for path in Testbed(state)._cgroups(""))


def test_lost_mount_stops_the_run(hosts):
    """When a package's installation replaces the machine's /etc/passwd, every host loses its mount over it."""
    account_file = "/etc/passwd"
    text = hosts.run_on(2, "cat", account_file).out
    assert hosts.bed.lost_mounts() == []
    assert hosts.run_on(2, "umount", account_file).code == 0
    try:
        assert hosts.bed.lost_mounts() == [f"node2: {account_file}"]
        with pytest.raises(pytest.exit.Exception, match="node2: /etc/passwd"):
            stop_if_mounts_are_lost(hosts.bed)
    finally:
        hosts.bed.power_off(2)
        hosts.bed.power_on(2)
    assert hosts.bed.lost_mounts() == [] and hosts.run_on(2, "cat", account_file).out == text


@pytest.mark.parametrize("parent", ["/run", "/opt"])
def test_a_mount_of_the_machine_is_not_lost(hosts, parent):
    """Mounts of containers and network namespaces appear and disappear on the machine. Hosts hide its /run, but not /opt."""
    folder = tempfile.mkdtemp(prefix="ivybed-mount-", dir=parent)
    try:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
        try:
            hosts.bed.power_off(2)
            hosts.bed.power_on(2)
        finally:
            subprocess.run(["umount", folder], check=True)
    finally:
        os.rmdir(folder)
    assert hosts.bed.lost_mounts() == []
