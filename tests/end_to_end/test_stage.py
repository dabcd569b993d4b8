# SPDX-License-Identifier: Apache-2.0
"""--stage: files reach hosts without a shared file system, only what a host lacks is sent, and nothing half-sent is used."""

import os
import re
import shutil
import signal
import time

import pytest

from launching import HOSTS, REPOSITORY, seconds, wait_until
from stalling_fs import Stalling

PROJECT = "/tmp/project"  # On node1 only: each host has a private /tmp.
CACHE = ".cache/ivyrun/stage"
USAGE, HOSTS_NOT_UP, REJECTED = 2, 120, 122
TRAIN = """\
import os, sys
print(os.getcwd(), open("conf/a.toml").read().strip(), *sys.argv[1:], flush=True)
"""


class Project:
    """A git work tree on node1, which no other host sees."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.shell(f"rm -rf {PROJECT} && mkdir -p {PROJECT}/conf {PROJECT}/pkg {PROJECT}/data && cd {PROJECT} && "
                   "git init -q . && echo 'data/' > .gitignore && echo x=1 > conf/a.toml && "
                   "touch pkg/__init__.py && head -c 100000 /dev/urandom > weights.bin && echo secret > data/big")
        self.file("train.py", TRAIN)
        self.file("pkg/job.py", TRAIN)

    def shell(self, command, host=1):
        done = self.hosts.run_on(host, "bash", "-c", command, limit=60)
        assert done.code == 0, done
        return done.out.decode(errors="surrogateescape")

    def file(self, name, text):
        self.shell(f"cat > {PROJECT}/{name} <<'END'\n{text}END")

    def random_file(self, name, mib):
        self.shell(f"head -c {mib}M /dev/urandom > {PROJECT}/{name}")

    def run(self, *arguments, names="node2,node4", limit=60, cwd=PROJECT):
        return self.hosts.run_program("env", "-C", cwd, self.hosts.ivyrun(), "-H", names, *arguments, limit=limit)

    def start(self, *arguments, names="node2,node4"):
        return self.hosts.start_program("env", "-C", PROJECT, self.hosts.ivyrun(), "-H", names, *arguments)

    def forget(self, *numbers):
        for number in numbers:
            self.shell(f"rm -rf /root/{CACHE} /tmp/stage", number)


@pytest.fixture
def project(hosts):
    made = Project(hosts)
    made.forget(1, 2, 3, 4)
    yield made
    hosts.bed.repair()
    made.forget(1, 2, 3, 4)
    made.shell(f"rm -rf {PROJECT} /root/.cache/ivyrun/stage-hashes-*")


def staged_line(done):
    lines = [line for line in done.err_text.splitlines() if line.startswith("ivyrun: staged ")]
    assert len(lines) == 1, done
    return lines[0]


def files_on(project, number):
    """Returns the files of all trees of a host, relative to them."""
    found = project.shell(f"cd /root/{CACHE}/trees && find . -mindepth 2 -type f -printf '%P\\n'", number)
    return sorted(line.partition("/")[2] for line in found.splitlines())


def test_workers_run_in_the_staged_copy(project):
    done = project.run("--stage", "--nproc_per_node", "1", "train.py", "--lr", "1", names="node1,node2,node3")
    assert done.code == 0, done
    texts = done.texts_by_rank()
    assert texts[0] == [f"{PROJECT} x=1 --lr 1"], done
    for rank in (1, 2):
        assert re.fullmatch(rf"/root/{CACHE}/trees/project-[0-9a-f]{{12}}-{rank} x=1 --lr 1", texts[rank][0]), done
    assert "6 files" in staged_line(done) and "to 2 hosts" in staged_line(done), done


def test_ignored_files_stay_here(project):
    assert project.run("--stage", "train.py").code == 0
    assert files_on(project, 2) == [".gitignore", "conf/a.toml", "pkg/__init__.py", "pkg/job.py", "train.py", "weights.bin"]


def test_only_what_a_host_lacks_is_sent(project):
    assert project.run("--stage", "train.py").code == 0
    again = project.run("--stage", "train.py")
    assert again.code == 0 and "(nothing sent)" in staged_line(again), again
    project.file("conf/a.toml", "y=22\n")
    changed = project.run("--stage", "train.py")
    assert changed.code == 0 and "(5 B sent)" in staged_line(changed), changed
    assert [text.split()[-1] for _, _, text in changed.labelled()] == ["y=22", "y=22"], changed


def test_a_worker_cannot_change_what_later_jobs_get(project):
    project.file("write.py", "open('conf/a.toml', 'w').write('spoiled')\n")
    assert project.run("--stage", "write.py").code == 0
    done = project.run("--stage", "train.py")
    assert [text.split()[-1] for _, _, text in done.labelled()] == ["x=1", "x=1"], done


def test_modules_and_subdirectories_work(project):
    module = project.run("--stage", "-m", "pkg.job")
    assert module.code == 0, module
    project.shell(f"mkdir -p {PROJECT}/sub/conf && echo z=3 > {PROJECT}/sub/conf/a.toml")
    below = project.run("--stage", "../train.py", cwd=f"{PROJECT}/sub")
    assert below.code == 0, below
    assert all(text.split()[0].endswith("/sub") and text.split()[1] == "z=3" for _, _, text in below.labelled()), below
    absolute = project.run("--stage", f"{PROJECT}/train.py")
    assert absolute.code == 0, absolute


def test_a_named_directory_and_patterns_choose_the_files(project):
    done = project.run("--stage=.:*.py,conf,data/big,!pkg", "train.py")
    assert done.code == 0, done
    assert files_on(project, 2) == ["conf/a.toml", "data/big", "train.py"]


def test_the_directory_on_the_hosts_can_be_chosen(project):
    done = project.run("--stage", "--stage-to", "/tmp/stage", "train.py", names="node1,node2")
    assert done.code == 0, done
    assert all(text.startswith("/tmp/stage/trees/project-") for _, _, text in done.labelled()), done
    assert project.shell("stat -c %a /tmp/stage/trees", 2).strip() == "700"


def test_a_dry_run_sends_nothing(project):
    done = project.run("--stage", "--dry-run", "train.py")
    assert done.code == 0 and "--stage would send 6 files" in done.err_text, done
    assert project.shell(f"ls /root/{CACHE} 2>/dev/null || true", 2) == ""


@pytest.mark.parametrize("transport", [("--exec", "ssh -o BatchMode=yes {host}"), ("--ssh-command", "ssh -o BatchMode=yes")])
def test_other_transports_carry_the_files_too(project, transport):
    done = project.run(*transport, "--stage", "train.py")
    assert done.code == 0, done
    assert len(done.labelled()) == 2, done


def sent_by_node1(project):
    return int(project.shell("cat /sys/class/net/eth0/statistics/tx_bytes"))


def test_hosts_pass_files_on_to_each_other(project):
    first = project.run("--stage", "train.py", names="node2,node3,node4", limit=120)
    assert first.code == 0, first  # From now on the hosts have ivy-node.
    project.random_file("big.bin", 24)
    before = sent_by_node1(project)
    done = project.run("--stage", "train.py", names="node2,node3,node4", limit=120)
    assert done.code == 0, done
    assert sent_by_node1(project) - before < 1.5 * (24 << 20), "the launcher has sent the file to more than one host"


def test_an_interrupted_transfer_continues(project):
    project.random_file("big.bin", 24)
    project.hosts.bed.slow(2, "40mbit")
    with project.start("--stage", "train.py", names="node2") as run:
        wait_until(lambda: int(project.shell(f"du -sk /root/{CACHE}/partial 2>/dev/null | cut -f1; echo 0", 2).split()[0]) > 4000,
                   60, "node2 has a part of the file")
        run.signal(signal.SIGKILL)
    project.hosts.bed.join(2)
    project.hosts.wait_clean(30)
    done = project.run("--stage", "train.py", names="node2", limit=120)
    assert done.code == 0, done
    sent = re.search(r"\((\d+) MiB sent\)", staged_line(done))
    assert sent and int(sent[1]) < 21, done


def test_hosts_continue_without_a_lost_predecessor(project):
    project.random_file("big.bin", 24)
    for number in (2, 3, 4):
        project.hosts.bed.slow(number, "40mbit")
    with project.start("--stage", "--nnodes", "2:3", "--start-timeout", "15", "--lease", "8", "train.py",
                       names="node2,node3,node4") as run:
        wait_until(lambda: int(project.shell(f"du -sk /root/{CACHE}/partial 2>/dev/null | cut -f1; echo 0", 4).split()[0]) > 2000,
                   60, "node4 has a part of the file")
        project.hosts.bed.power_off(2)
        done = run.finish(120)
    assert done.code == 0, done
    assert {host for _, host, _ in done.labelled()} == {"node3", "node4"}, done


def test_a_full_disk_is_named_and_keeps_earlier_files(project):
    project.shell("mkdir -p /tmp/small && mount -t tmpfs -o size=2m tmpfs /tmp/small", 2)
    try:
        first = project.run("--stage", "--stage-to", "/tmp/small/s", "train.py", names="node2")
        assert first.code == 0, first
        project.random_file("big.bin", 3)
        full = project.run("--stage", "--stage-to", "/tmp/small/s", "train.py", names="node2")
        assert full.code == HOSTS_NOT_UP and "IVY-H014" in full.err_text, full
        assert "node2, staging files" in full.err_text and "MiB are free" in full.err_text, full
        assert "--stage-to DIR" in full.err_text, full
        project.shell(f"rm {PROJECT}/big.bin")
        again = project.run("--stage", "--stage-to", "/tmp/small/s", "train.py", names="node2")
        assert again.code == 0 and "(nothing sent)" in staged_line(again), again
    finally:
        project.shell("umount -l /tmp/small", 2)


def test_a_file_that_changes_while_it_is_sent_is_named(project):
    project.random_file("big.bin", 24)
    project.hosts.bed.slow(2, "40mbit")
    with project.start("--stage", "train.py", names="node2") as run:
        wait_until(lambda: int(project.shell(f"du -sk /root/{CACHE}/partial 2>/dev/null | cut -f1; echo 0", 2).split()[0]) > 2000,
                   60, "node2 has a part of the file")
        project.shell(f"echo more >> {PROJECT}/big.bin")
        done = run.finish(60)
    assert done.code == REJECTED and "IVY-P040" in done.err_text, done
    assert f"{PROJECT}/big.bin changed while it was staged" in done.err_text, done
    assert project.shell(f"ls /root/{CACHE}/trees", 2) == "", "a half-staged tree is left"


BAD_INPUT = {
    "a file above the limit": ("head -c 3M /dev/zero > big", ("--stage-limit", "2M"), "/big has 3.0 MiB, more than --stage-limit"),
    "a tree above the limit": ("mkdir d && head -c 1500K /dev/zero > d/a && cp d/a d/b", ("--stage-limit", "2M"),
                               "the largest: d/ (2.9 MiB)"),
    "a link out of the tree": ("ln -s /etc/passwd out", (), "/out is a symbolic link to /etc/passwd, out of the staged directory"),
    "a name that is not UTF-8": ("touch $'a\\xff'", (), "a\\xff: its name is not UTF-8"),
    "a file that cannot be read": ("ln -s nowhere ok; mkdir locked; mkfifo pipe", (), None),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_named_before_anything_is_sent(project, case):
    command, flags, message = BAD_INPUT[case]
    project.shell(f"cd {PROJECT} && {command}")
    done = project.run("--stage", *flags, "train.py", names="node2")
    if message is None:
        assert done.code == 0, done
        return
    assert "IVY-P040" in done.err_text and message in done.err_text, done
    assert "fix:" in done.err_text and "--stage" in done.err_text.partition("fix:")[2], done
    assert project.shell(f"ls /root/{CACHE}/trees 2>/dev/null || true", 2) == ""


def test_a_directory_without_an_equals_sign_is_explained(project):
    done = project.run("--stage", "conf", "train.py", names="node2")
    assert done.code != 0 and "--stage=conf" in done.err_text, done


def test_flags_about_staging_need_it(project):
    done = project.run("--stage-to", "/tmp/stage", "train.py", names="node2")
    assert done.code == USAGE and "--stage-to needs --stage" in done.err_text, done


def test_nothing_but_the_cache_is_left(project):
    started = time.monotonic()
    assert project.run("--stage", "train.py", names="node2").code == 0
    project.hosts.wait_clean(10)
    assert time.monotonic() - started < seconds(60)
    names = project.shell(f"ls -A /root/{CACHE} /root/{CACHE}/trees /root/{CACHE}/partial", 2).split()
    assert not any(name.endswith(".new") for name in names), names


@pytest.mark.long  # Staging may stand still for a minute before --start-timeout begins.
def test_a_stalled_cache_of_a_host_is_named_and_other_hosts_go_on(project):
    hosts = project.hosts
    program = f"{hosts.directory}/stalling_fs.py"
    shutil.copy(os.path.join(REPOSITORY, "tests/testbed/stalling_fs.py"), hosts.outside(program))
    os.makedirs(hosts.outside(f"{hosts.directory}/cache"))
    prefix = ["env", f"IVY_TESTBED={hosts.bed.state}", HOSTS, "exec", "root@4"]
    with Stalling(f"{hosts.directory}/backing", f"{hosts.directory}/cache", prefix=prefix, program=program,
                  outside=hosts.outside) as cache:
        flags = ("--stage", "--stage-to", cache.mount_point, "--start-timeout", "6")
        cache.stall()
        try:
            done = project.run(*flags, "train.py", limit=120)
            smaller = project.run(*flags, "--nnodes", "1:2", "train.py", limit=120)
        finally:
            cache.go_on()
    assert done.code == HOSTS_NOT_UP and "IVY-H003" in done.err_text and "node4" in done.err_text, done
    assert "node2" not in done.err_text.partition("IVY-H003")[2], done
    assert smaller.code == 0 and "without node4" in smaller.err_text and "x=1" in smaller.out.decode(), smaller
    project.hosts.wait_clean(10)


def test_a_stalled_file_system_here_is_named(local):
    with Stalling(f"{local.directory}/backing", f"{local.directory}/project") as project:
        local.file("backing/train.py", "print('ran')\n")
        project.stall()
        done = local.run(f"--stage={project.mount_point}:**", "--stage-to", f"{local.directory}/stage", "--start-timeout",
                         "2", "-n", "1", "true", limit=seconds(20))
        project.go_on()
    assert done.code == REJECTED and "IVY-P040" in done.err_text, done
    assert f"the file system of {project.mount_point} did not respond within --start-timeout" in done.err_text, done
