# SPDX-License-Identifier: Apache-2.0
"""Mistakes of users: one clear message with the host and the fix, the right exit code, in time."""

import contextlib
import os
import re
import socket
import time

import pytest

from launching import BIN, seconds, wait_until

HELLO = ("sh", "-c", "echo started")


def refused(done, code, *words, within=15):
    """Checks that the job ended with this code and one message that contains all words, and that no worker started."""
    assert done.code == code, done
    text = done.own_text()
    assert re.search(r"^ivyrun: error", text, re.MULTILINE), done
    for word in words:
        assert re.search(word, text), f"no {word!r} in the message: {done!r}"
    assert b"started" not in done.out, done
    assert done.took < seconds(within), done.took


# ---- hosts ---------------------------------------------------------------------------------------

def test_unknown_host(hosts):
    refused(hosts.run("-H", "nosuchhost", *HELLO), 120, "nosuchhost", "fix:")


def test_all_bad_hosts_are_named_in_one_message(hosts):
    done = hosts.run("-H", "node2,nosuch[1-3],node3", *HELLO)
    refused(done, 120, r"3 of 5 hosts", r"nosuch\[1-3\], name lookup",
            r"cannot resolve nosuch1: no such name\n")


def test_unreachable_host(hosts):
    """No machine has this address, so ARP requests get no reply."""
    refused(hosts.run("-H", "node2,10.77.9.9", "--start-timeout", "6s", *HELLO), 120,
            r"1 of 2 hosts", r"10\.77\.9\.9")


def test_silent_host(hosts):
    hosts.bed.cut(3)
    refused(hosts.run("-H", "node2,node3", "--start-timeout", "5s", *HELLO), 120, "node3")


def test_host_without_sshd(hosts):
    refused(hosts.run("-H", "node2", "--ssh-port", "2222", *HELLO), 120, "node2", "refused")


def test_a_host_without_a_route_is_tried_again(hosts):
    """While a host boots, there may be no route to it for some seconds."""
    route = ("ip", "route", "{}", "unreachable", "10.77.0.3/32")
    assert hosts.run_on(1, *(word.format("add") for word in route)).code == 0
    try:
        with hosts.start("-vv", "-H", "node2,node3", *HELLO) as run:
            run.wait_for(r"node3: ssh: [^\n]*No route to host, trying again", 10)
            assert hosts.run_on(1, *(word.format("del") for word in route)).code == 0
            done = run.finish()
    finally:
        hosts.run_on(1, *(word.format("del") for word in route))
    assert done.code == 0 and done.out.count(b"started") == 2, done


def ssh_config(hosts, known_hosts, *more):
    """Writes an ssh configuration with the same key as the host's own configuration."""
    known = hosts.file("known_hosts", known_hosts)
    lines = ["Host *", "  IdentityFile ~/.ssh/id_ed25519", f"  UserKnownHostsFile {known}",
             "  GlobalKnownHostsFile /dev/null", "  StrictHostKeyChecking yes", *more]
    return {"IVY_SSH_CONFIG": hosts.file("ssh_config", "\n".join(lines) + "\n")}


def test_unknown_host_key(hosts):
    """Without a terminal to ask on, the connection fails, and the message has the command that fixes it."""
    done = hosts.run("-H", "node2", *HELLO, env=ssh_config(hosts, ""))
    refused(done, 120, "node2", "host key", "ssh")


def known_hosts_with_another_key(hosts):
    lines = hosts.bed.read("known_hosts").splitlines()
    key_of = {line.split(",")[0]: line.split()[-1] for line in lines}
    return "\n".join(line.replace(key_of["node2"], key_of["node3"]) for line in lines) + "\n"


@pytest.mark.parametrize("flags", [(), ("--ssh-command", "ssh")])
def test_changed_host_key(hosts, flags):
    done = hosts.run("-H", "node2", *flags, *HELLO,
                     env=ssh_config(hosts, known_hosts_with_another_key(hosts)))
    refused(done, 120, "node2", r"(?i)host key|host identification", r"ssh-keygen|ssh ")


def test_a_valid_configuration_in_another_directory_works(hosts):
    """Without this check the two tests above would prove nothing."""
    for flags in ((), ("--ssh-command", "ssh")):
        done = hosts.run("-H", "node2", *flags, *HELLO,
                         env=ssh_config(hosts, hosts.bed.read("known_hosts")))
        assert done.code == 0 and b"started" in done.out, done


def test_wrong_user(hosts):
    user = hosts.as_user("ivyuser")
    refused(user.run("-H", "node1,root@node2", *HELLO), 120, "node2", r"(?i)denied|authenticat")


def test_no_such_user(hosts):
    refused(hosts.run("-H", "nobodyatall@node2", *HELLO), 120, "node2", r"(?i)denied|authenticat")


def test_wrong_key(hosts):
    env = ssh_config(hosts, hosts.bed.read("known_hosts"))
    key = hosts.read("ssh_config").decode().replace("~/.ssh/id_ed25519", "/etc/hostname")
    hosts.file("ssh_config", key + "  IdentitiesOnly yes\n")
    refused(hosts.run("-H", "node2", *HELLO, env=env), 120, "node2", r"(?i)denied|authenticat|key")


def test_the_ssh_client_is_used_if_libssh_cannot_connect(hosts):
    """The host's configuration needs an option that libssh ignores. The job runs, and one line reports it."""
    env = ssh_config(hosts, hosts.bed.read("known_hosts").replace("node2,", "alias-of-2,")
                     .replace(",10.77.0.2,", ","), "  HostKeyAlias alias-of-2")
    done = hosts.run("-H", "node2", "-v", *HELLO, env=env)
    assert done.code == 0 and b"started" in done.out, done


# ---- disks ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("number", [5, 6])
def test_a_job_runs_despite_a_noexec_or_full_home(anyone, number):
    done = anyone.run("-H", f"node{number}", "sh", "-c", "echo on $(hostname)")
    assert done.code == 0 and f"on node{number}" in done.out.decode(), done


@contextlib.contextmanager
def every_disk_full(hosts, number):
    places = ("/tmp", "/var/tmp", "/dev/shm", "/run")
    try:
        for place in places:
            used = f"$(df -k --output=used {place} | tail -1)"
            hosts.run_on(number, "sh", "-c", f"mount -o remount,size=$(({used} + 4))k {place}; "
                         f"cat /dev/zero > {place}/filler")
        yield
    finally:
        for place in places:
            hosts.run_on(number, "sh", "-c", f"mount -o remount,size=1g {place}; "
                         f"rm -f {place}/filler")


@pytest.mark.parametrize("been_there", [False, True])
def test_no_space_on_any_disk(hosts, been_there):
    """There is no space for ivy-node on the first connection, nor for the job's directory on a later one."""
    hosts.run_on(6, "sh", "-c", "rm -rf /tmp/ivyrun* /dev/shm/ivyrun* /var/tmp/ivyrun*")
    if been_there:
        assert hosts.run("-H", "node6", "/bin/true").code == 0
    with every_disk_full(hosts, 6):
        done = hosts.run("-H", "node2,node6", *HELLO)
    refused(done, 120, "node6", r"(?i)no space|no room|full", "fix: .*node6.*/tmp|fix: .*/.*node6")


# ---- programs and directories --------------------------------------------------------------------

def test_missing_program(hosts):
    refused(hosts.run("-H", "node1,node2", "/no/such/program"), 127, "/no/such/program", "node")


def test_name_that_is_not_on_the_path(local):
    refused(local.run("-n", "1", "nosuchprogram"), 127, "nosuchprogram")


def test_directory_as_program(hosts):
    refused(hosts.run("-H", "node1,node2", "/usr/lib"), 126, "/usr/lib", r"(?i)directory")


def test_file_that_cannot_be_executed(local):
    path = local.file("data.txt", "words\n")
    refused(local.run("-n", "1", path), 126, "data.txt", "(?i)permission|execut")


def test_missing_working_directory(hosts):
    done = hosts.run("-H", "node1,node2", "--wdir", "/no/such/place", *HELLO)
    refused(done, 122, "/no/such/place", r"node\[1-2\]|node1")


def test_working_directory_missing_on_one_host(hosts):
    hosts.run_on(1, "mkdir", "-p", "/tmp/only-here")
    done = hosts.run("-H", "node1,node2", "--wdir", "/tmp/only-here", *HELLO)
    refused(done, 122, "/tmp/only-here", "node2")


def place_script(hosts, number, text):
    command = "mkdir -p /tmp/own && printf '%s' \"$0\" > /tmp/own/train.py"
    assert hosts.run_on(number, "sh", "-c", command, text).code == 0


def test_a_different_script_on_one_host(hosts):
    for number in (1, 2, 3):
        place_script(hosts, number, "print('started')" + (" # old" if number == 3 else ""))
    refused(hosts.run("-H", "node[1-3]", "/tmp/own/train.py"), 122, "node3", r"train\.py")
    place_script(hosts, 3, "print('started')")
    assert hosts.run("-H", "node[1-3]", "/tmp/own/train.py").out.count(b"started") == 3


def test_script_missing_on_one_host(hosts):
    place_script(hosts, 1, "print('started')")
    hosts.run_on(4, "rm", "-rf", "/tmp/own")
    done = hosts.run("-H", "node1,node4", "/tmp/own/train.py")
    assert done.code in (122, 127), done
    refused(done, done.code, "node4", "/tmp/own/train.py")


def test_no_python(local):
    script = local.file("train.py", "print('started')\n")
    os.mkdir(os.path.join(local.directory, "empty"))
    done = local.run("-n", "1", script, env={"PATH": os.path.join(local.directory, "empty")})
    assert done.code in (122, 126, 127), done
    refused(done, done.code, "(?i)python|interpreter", "--python")


def test_missing_interpreter(hosts):
    script = hosts.file("train.py", "print('started')\n")
    done = hosts.run("-H", "node1,node2", "--python", "/opt/none/bin/python3", script)
    assert done.code in (122, 126, 127), done
    refused(done, done.code, "/opt/none/bin/python3")


def test_script_with_a_broken_first_line(local):
    path = local.file("tool", "#!/no/such/interpreter\n", mode=0o755)
    refused(local.run("-n", "1", path), 126, "tool", "#!/no/such/interpreter", "localhost", "fix:")


def test_program_without_a_first_line(hosts):
    path = hosts.file("tool", "echo started\n", mode=0o755)
    refused(hosts.run("-H", "node1,node2", path), 126, r"node\[1-2\]", "#!", f"sh {path}")


def test_script_that_its_user_may_not_read(hosts):
    path = hosts.file("secret.py", "print('started')\n", mode=0o600)
    user = hosts.as_user("ivyuser")
    refused(user.run("-H", "node1,node2", path), 126, "ivyuser", rf"chmod \+r {path}")


def test_directory_that_another_account_may_not_enter(hosts):
    done = hosts.run("-H", "ivyuser@node2", "--wdir", "/root", *HELLO)
    refused(done, 122, "node2", "/root", "ivyuser", "--wdir")


@pytest.mark.parametrize("flags", [(), ("--ssh-command", "ssh")])
def test_missing_ssh_configuration(hosts, flags):
    done = hosts.run("-H", "node2", *flags, *HELLO, env={"IVY_SSH_CONFIG": "/no/such/config"})
    refused(done, 120, "IVY_SSH_CONFIG", "/no/such/config", "fix:")


def test_show_ranks_rejects_ranks_that_do_not_exist(local):
    refused(local.run("--show-ranks", "9", "-n", "4", *HELLO), 2, "rank 9", "0-3")


def test_broken_env_file_names_the_line(local):
    path = local.file("job.env", "# values\nexport A='x y'\nB=$HOME/data\n")
    refused(local.run("--env-file", path, "-n", "1", *HELLO), 2, f"{path}:3:3", "fix:")
    local.file("job.env", "export A='x y'  # quoted\n")
    done = local.run("--env-file", path, "-n", "1", "sh", "-c", 'echo "<$A>"')
    assert done.code == 0 and done.out == b"<x y>\n", done


# ---- junk on the wire ----------------------------------------------------------------------------

JUNK = [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        bytes(range(256)) * 64, b"\xff" * (3 << 20), b"\x01IVYLINK\x010001\n" + b"\xff" * 48,
        b"\x01IVYLINK\x010001\n" + bytes(48)]


def command_sockets(job):
    with open("/proc/net/unix") as table:
        return [line.split()[7] for line in table
                if job in line and line.rstrip().endswith("/command.sock")]


def test_junk_on_the_command_socket(local):
    """Another program of the same user sends garbage to the supervisor. The job continues."""
    with local.start("-n", "2", "sh", "-c", "echo job $IVY_JOB_ID; sleep 4; echo finished") as run:
        run.wait_for(r"job [0-9a-f]{32}", count=2)
        job = re.search(rb"job ([0-9a-f]{32})", run.out.bytes())[1].decode()
        path = wait_until(lambda: command_sockets(job), 5, "the supervisor listens")[0]
        held = []
        for junk in JUNK:
            stranger = socket.socket(socket.AF_UNIX)
            stranger.settimeout(seconds(1))
            stranger.connect(path)
            with contextlib.suppress(OSError):  # The supervisor may close the connection while it receives.
                stranger.sendall(junk)
            held.append(stranger)  # Remains open, because an idle connection must not disturb the job either.
        done = run.finish()
        for stranger in held:
            stranger.close()
    assert done.code == 0, done
    assert done.out.count(b"finished") == 2, done


def test_many_long_arguments_are_passed(local):
    """The arguments have 1.5 MB."""
    started = time.monotonic()
    words = [b"x" * 100_000] * 15
    done = local.run("-n", "2", "sh", "-c", 'echo $#', "sh", *words)
    assert done.code == 0 and done.out.count(b"15") == 2, done
    assert time.monotonic() - started < seconds(10)


def test_too_many_workers_for_a_host(local):
    refused(local.run("-n", "4097", *HELLO), 2, "4097 processes on one host", "4096", "fix:")


def test_environment_larger_than_a_message(local):
    """Nine megabytes are rejected before anything is sent."""
    flags = []
    for file in range(9):
        lines = "".join(f"BIG_{file}_{i}={'x' * 100_000}\n" for i in range(10))
        flags += ["--env-file", local.file(f"{file}.env", lines)]
    refused(local.run("-n", "2", *flags, *HELLO), 2, r"take 9\d{6} bytes; the limit is 8388608",
            "fix:.*fewer or shorter variables")


# ---- accounts ------------------------------------------------------------------------------------

def test_a_uid_without_a_name_is_named(hosts):
    """Containers may run with an arbitrary uid."""
    uid = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
    words = ["env", "HOME=/tmp", "IVY_CONFIG=none", f"{BIN}/ivyrun", "--transport", "ssh", "-H", "node2", "-n", "1",
             "true"]
    done = hosts.run_on(1, *uid, *words)
    assert done.code == 120, done
    assert "uid 12345 has no name on this machine, so the account on node2 is not known" in done.err_text, done
    assert "write USER@node2" in done.err_text, done
