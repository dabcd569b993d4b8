# SPDX-License-Identifier: Apache-2.0
"""--fetch brings files of every host back when the workers have exited; limits and umask travel with the job."""

import hashlib
import os
import re
import shlex
import shutil
import signal
import stat

import pytest

from launching import HOSTS, REPOSITORY, wait_until
from stalling_fs import Stalling

MEGABYTE = 1 << 20
# Each rank writes a file of its own, and one per host.
WRITE = 'mkdir -p out/rank$RANK && echo "rank $RANK" > out/rank$RANK/x.txt && echo "$1" > "out/$IVY_NODE_RANK.log"'


def tree(directory):
    """Returns the relative paths of all files below a directory, and their contents."""
    found = {}
    for parent, _, names in os.walk(os.fsencode(directory)):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                found[os.fsdecode(os.path.relpath(path, os.fsencode(directory)))] = file.read()
    return found


def at(local, name):
    return os.path.join(local.directory, name)


def test_files_of_hosts_and_ranks_arrive(local):
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", "--fetch", "out/*.log", "--fetch", "out/rank{rank}/*:results",
                     "sh", "-c", WRITE, "sh", "text")
    assert done.code == 0, done
    hosts = sorted(os.listdir(at(local, "fetched")))
    assert len(hosts) == 2, hosts
    # Simulated hosts share a directory.
    assert tree(at(local, "fetched")) == {f"{host}/out/{n}.log": b"text\n" for host in hosts for n in (0, 1)}
    assert tree(at(local, "results")) == {f"rank{n:05d}/out/rank{n}/x.txt": b"rank %d\n" % n for n in range(4)}
    assert re.search(r"^ivyrun: fetched 8 files, \d+ bytes, into fetched, results/$", done.own_text(), re.M), done


def test_modes_times_and_odd_names_are_kept(local):
    script = r"""mkdir -p 'out/a b'; printf x > 'out/a b/run.sh'; chmod 755 'out/a b/run.sh'; touch -d @1600000000 'out/a b/run.sh'
printf y > "$(printf 'out/\377\n\033[31m')"; : > out/empty"""
    done = local.run("-n", "1", "--fetch", "out", "sh", "-c", script)
    assert done.code == 0, done
    host, = os.listdir(at(local, "fetched"))
    assert tree(at(local, f"fetched/{host}/out")) == {"a b/run.sh": b"x", os.fsdecode(b"\xff\n\x1b[31m"): b"y", "empty": b""}
    status = os.stat(at(local, f"fetched/{host}/out/a b/run.sh"))
    assert stat.S_IMODE(status.st_mode) == 0o755 and status.st_mtime == 1600000000


def test_nothing_of_an_earlier_fetch_is_lost(local):
    for number in range(3):
        done = local.run("-n", "1", "--fetch", "*.log:results", "sh", "-c", f"echo {number} > x.log")
        assert done.code == 0, done
        name = "results" if number == 0 else f"results.{number + 1}"
        assert f"into {name}/" in done.own_text(), done
    for number, name in enumerate(("results", "results.2", "results.3")):
        assert list(tree(at(local, name)).values()) == [b"%d\n" % number]


def test_files_arrive_after_a_failure(local):
    done = local.run("-n", "2", "--fetch", "*.log", "sh", "-c", "echo $RANK > $RANK.log; [ $RANK = 0 ] || { sleep 0.3; exit 7; }; sleep 60")
    assert done.code == 7, done
    assert sorted(tree(at(local, "fetched")).values()) == [b"0\n", b"1\n"]
    assert "the job ends with exit code 7; fetching files" in done.own_text(), done
    assert "error[IVY-R001]: rank 1 failed first" in done.own_text(), done


@pytest.mark.parametrize(("presses", "fetches"), [(1, True), (2, False)])
def test_files_arrive_after_one_ctrl_c_and_not_after_two(local, presses, fetches):
    script = "trap '' TERM; trap 'echo caught' INT; echo text > x.log; echo ready; while :; do sleep 0.1; done"
    flags = ("--shutdown-timeout", "2s") if presses == 1 else ()
    with local.start("-n", "1", *flags, "--fetch", "*.log", "sh", "-c", script) as run:
        run.wait_for("ready")
        run.signal(signal.SIGINT)
        if presses == 2:
            run.wait_for("caught")
            run.signal(signal.SIGINT)
        done = run.finish()
    assert done.code == -signal.SIGINT, done
    assert os.path.exists(at(local, "fetched")) is fetches, done


def test_no_match_is_a_note(local):
    done = local.run("-n", "2", "--fetch", "nothing/*.pt", "true")
    assert done.code == 0 and "note: --fetch nothing/*.pt: no file matches on any host" in done.own_text(), done
    assert not os.path.exists(at(local, "fetched"))


def test_more_than_the_limit_is_an_error_before_anything_is_sent(local):
    done = local.run("-n", "1", "--fetch", "*.bin", "--fetch-limit", "1M", "sh", "-c", f"head -c {3 * MEGABYTE} /dev/zero > x.bin")
    assert done.code == 119, done
    assert "error[IVY-O004]: all ranks succeeded, but files of --fetch are missing: the files take 3 MiB" in done.own_text(), done
    assert "--fetch-limit" in done.own_text() and not os.path.exists(at(local, "fetched")), done


def test_a_link_that_leaves_the_directory_is_named(local):
    local.file("secret.bin", "s")
    script = "mkdir -p work/out && echo a > work/out/real.bin && ln -sf ../../secret.bin work/out/link.bin"
    local.run("-n", "1", "sh", "-c", script)
    done = local.run("-n", "1", "--wdir", at(local, "work"), "--fetch", "out/*.bin", "true")
    assert done.code == 119, done
    assert re.search(r"warning: --fetch: \S+: /\S*out/link\.bin: is a symbolic link to .*secret\.bin, outside of", done.own_text()), done
    assert list(tree(at(local, "fetched")).values()) == [b"a\n"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_file_that_cannot_be_read_is_named(local):
    done = local.run("-n", "1", "--fetch", "*.log", "sh", "-c", "echo a > a.log; echo b > b.log; chmod 0 a.log")
    assert done.code == 119 and "a.log: Permission denied" in done.own_text(), done
    assert list(tree(at(local, "fetched")).values()) == [b"b\n"]


@pytest.mark.parametrize(("flag", "message"), [
    ("../x", 'leaves the working directory by ".."'),
    ("{node}/x", "{rank}, {local_rank}, {host}"),
    ("x:/dev/null/here", "cannot create files in /dev/null/here"),
])
def test_wrong_patterns_are_rejected_before_the_start(local, flag, message):
    done = local.run("-n", "1", "--fetch", flag, "touch", "started")
    assert done.code == 2 and message in done.own_text(), done
    assert not local.exists("started")


def test_large_files_arrive_whole_while_the_screen_shows_progress(local):
    script = f"head -c {200 * MEGABYTE} /dev/urandom > big.bin"
    with local.on_terminal(local.ivyrun(), "-n", "1", "--fetch", "*.bin", "sh", "-c", script) as run:
        done = run.finish(120)
    assert done.code == 0 and re.search(rb"fetching 200 MiB from 1 host: \d+ %", done.out), done
    host, = os.listdir(at(local, "fetched"))
    digests = [hashlib.sha256(open(path, "rb").read()).hexdigest()
               for path in (at(local, "big.bin"), at(local, f"fetched/{host}/big.bin"))]
    assert digests[0] == digests[1]


def test_ctrl_c_during_the_fetch_stops_it(local):
    script = "mkfifo pipe; for i in 1 2 3; do head -c 300000000 /dev/zero > $i.bin; done"
    with local.start("-n", "1", "--fetch", "*.bin", "sh", "-c", script) as run:
        run.wait_for("fetching 3 files", limit=60)
        run.signal(signal.SIGINT)
        done = run.finish()
    assert done.code == 119 and "it was stopped by SIGINT" in done.own_text(), done
    assert not [name for name in tree(at(local, "fetched")) if "part" in name]


def test_a_background_job_fetches_as_well(local):
    local.file("go")
    done = local.run("-n", "1", "--detach", "--name", "fetching", "--fetch", "x.log:back", "sh", "-c", "sleep 1; echo a > x.log")
    assert done.code == 0, done
    wait_until(lambda: os.path.isdir(at(local, "back")) and list(tree(at(local, "back")).values()) == [b"a\n"], 20, "the file arrives")


# ---- Hosts without a shared directory ------------------------------------------------------------

def test_files_arrive_over_ssh(hosts):
    script = 'mkdir -p /tmp/run/deep && echo "rank $RANK" > /tmp/run/deep/r$RANK.txt && head -c 3000000 /dev/urandom > /tmp/run/big.$RANK && sha256sum < /tmp/run/big.$RANK'
    done = hosts.run("-H", "node1,node2,node3", "--label", "none", "--fetch", "/tmp/run/**:all", "--fetch", "/tmp/run/deep/r{rank}.txt:ranks",
                     "sh", "-c", script)
    assert done.code == 0, done
    found = tree(hosts.outside(f"{hosts.directory}/all"))
    assert {name: text for name, text in found.items() if "deep" in name} == {
        f"node{n + 1}/tmp/run/deep/r{n}.txt": b"rank %d\n" % n for n in range(3)}
    assert sorted(hashlib.sha256(found[f"node{n + 1}/tmp/run/big.{n}"]).hexdigest() for n in range(3)) == sorted(
        line.split()[0] for line in done.out_lines)
    assert tree(hosts.outside(f"{hosts.directory}/ranks")) == {
        f"rank{n:05d}/tmp/run/deep/r{n}.txt": b"rank %d\n" % n for n in range(3)}


def test_a_lost_host_is_named_and_the_others_files_arrive(hosts):
    script = "echo text > /tmp/x.log; echo ready; sleep 600"
    with hosts.start("-H", "node1,node2,node3", "--lease", "4s", "--fetch", "/tmp/*.log", "sh", "-c", script) as run:
        run.wait_for("ready", count=3)
        hosts.bed.power_off(3)
        done = run.finish(60)
    assert done.code == 121, done
    assert "warning: --fetch: node3: it was lost; its files cannot be fetched" in done.own_text(), done
    assert tree(hosts.outside(f"{hosts.directory}/fetched")) == {f"node{n}/tmp/x.log": b"text\n" for n in (1, 2)}


def test_a_file_that_changes_while_it_is_sent_is_named(hosts):
    hosts.bed.slow(2, "16mbit")
    script = "head -c 12000000 /dev/urandom > /tmp/x.bin; echo small > /tmp/y.bin"
    with hosts.start("-H", "node2", "--fetch", "/tmp/*.bin:got", "sh", "-c", script) as run:
        got = hosts.outside(f"{hosts.directory}/got")
        wait_until(lambda: sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(got) for name in names) > 100_000,
                   30, "a part of the file is here")
        assert hosts.run_on(2, "sh", "-c", "echo more >> /tmp/x.bin").code == 0
        done = run.finish(60)
    assert done.code == 119, done
    assert "node2: /tmp/x.bin: changed while it was read" in done.own_text(), done
    assert "fetched 1 file, 6 bytes, into got/" in done.own_text(), done
    assert list(tree(got).values()) == [b"small\n"], done


def test_a_stalled_file_system_on_one_host_does_not_keep_the_files_of_others(hosts):
    program = f"{hosts.directory}/stalling_fs.py"
    shutil.copy(os.path.join(REPOSITORY, "tests/testbed/stalling_fs.py"), hosts.outside(program))
    os.makedirs(hosts.outside(f"{hosts.directory}/slow"))
    prefix = ["env", f"IVY_TESTBED={hosts.bed.state}", HOSTS, "exec", "root@2"]
    with Stalling(f"{hosts.directory}/backing", f"{hosts.directory}/slow", prefix=prefix, program=program, outside=hosts.outside) as slow:
        script = "mkdir -p slow/out; echo $RANK > slow/out/r.txt; echo ready; while [ ! -e go ]; do sleep 0.1; done"
        with hosts.start("-H", "node3,node2", "--fetch", "slow/out/*:got", "--fetch-timeout", "8s", "sh", "-c", script) as run:
            run.wait_for("ready", count=2)
            slow.stall()
            hosts.file("go")
            done = run.finish(60)
        slow.go_on()
    assert done.code == 119, done
    assert "--fetch: node2: it has sent nothing for 4 s; its file system may not respond" in done.own_text(), done
    assert list(tree(hosts.outside(f"{hosts.directory}/got")).values()) == [b"0\n"], done


def test_a_full_disk_here_is_an_error(hosts):
    small = "/tmp/small"
    hosts.run_on(1, "mkdir", "-p", small)
    mounted = hosts.run_on(1, "mount", "-t", "tmpfs", "-o", "size=1m", "none", small)
    assert mounted.code == 0, mounted
    done = hosts.run("-H", "node1,node2", "--fetch", f"/tmp/*.bin:{small}/r", "sh", "-c", "head -c 2000000 /dev/urandom > /tmp/x.bin")
    assert done.code == 119 and "has only" in done.own_text() and f"{small}/r" in done.own_text(), done
    hosts.run_on(1, "umount", small)


# ---- Limits --------------------------------------------------------------------------------------

def test_rlimit_sets_limits_of_workers(local):
    done = local.run("-n", "1", "--label", "none", "--rlimit", "nofile=200", "--rlimit", "stack=4M", "--rlimit", "core=0", "--rlimit",
                     "cpu=1000", "sh", "-c", "ulimit -Sn; ulimit -Ss; ulimit -Sc; ulimit -St")
    assert done.code == 0 and done.out_lines == ["200", "4096", "0", "1000"], done


def test_rlimit_names_what_a_host_forbids(local):
    script = "ulimit -n 500; exec " + shlex.join([local.ivyrun(), "-n", "1", "--label", "none", "--rlimit", "nofile=4000", "sh", "-c", "ulimit -Sn"])
    done = local.run_program("sh", "-c", script)
    assert done.out_lines == ["500"], done
    assert re.search(r"note: \S+: workers have a smaller limit here than where ivyrun was started: nofile 500 instead of 4000 \(--rlimit\)",
                     done.own_text()), done


@pytest.mark.parametrize("value", ["nofile", "files=3", "stack=-1", "nofile=8M"])
def test_wrong_limits_are_rejected(local, value):
    done = local.run("-n", "1", "--rlimit", value, "true")
    assert done.code == 2 and "--rlimit" in done.own_text(), done


def test_limits_of_the_shell_travel_and_those_of_a_login_host_stay(hosts):
    script = ("umask 027; ulimit -S -f 1000000; ulimit -S -t 5000; exec "
              + shlex.join([hosts.ivyrun(), "-H", "node1,node2", "--label", "none", "sh", "-c", "umask; ulimit -Sf; ulimit -St"]))
    done = hosts.run_program("sh", "-c", script)
    assert sorted(done.out_lines) == sorted(["0027", "0027", "1000000", "1000000", "5000", "unlimited"]), done
    assert "limits of this shell that other hosts do not get: cpu 5000 s" in done.own_text(), done


def test_exported_functions_reach_other_hosts_byte_for_byte(hosts):
    body = "odd() { printf '%s|' \"$@\"; printf '\\t%s\\n' 'a  b' \"$HOME\"; }\nexport -f odd\n"
    flags = [hosts.ivyrun(), "-H", "node1,node2", "--label", "none", "--env", "all", "bash", "-c", "odd 1 '2  3'; declare -f odd | sha256sum"]
    done = hosts.run_program("bash", "-c", body + shlex.join(flags) + "; declare -f odd | sha256sum")
    assert done.code == 0, done
    digests = [line for line in done.out_lines if line.endswith("  -")]
    assert len(digests) == 3 and len(set(digests)) == 1, done
    assert sum("1|2  3|" in line for line in done.out_lines) == 2, done
