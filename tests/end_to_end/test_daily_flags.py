# SPDX-License-Identifier: Apache-2.0
"""Flags that choose hosts, wrap the workers, filter their output and write metrics."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading

import pytest

from launching import BIN, wait_until

IVYCTL = os.path.join(BIN, "ivyctl")
SLEEP = ["sh", "-c", "echo ready; exec sleep 600"]


def test_hosts_are_included_and_excluded(local):
    hosts = ("--fake-hosts", "4", "--nproc-per-node", "1")
    show = ("sh", "-c", "echo here")
    def names(done):
        assert done.code == 0, done
        return {host for _, host, _ in done.labelled()}
    assert names(local.run(*hosts, "--exclude", "fake[1-2]", *show)) == {"fake0", "fake3"}
    assert names(local.run(*hosts, "--include", "fake3@fake1", *show)) == {"fake1", "fake3"}
    two = local.run("-H", "localhost:4", "--include", "localhost:0,2", "sh", "-c", "echo $WORLD_SIZE")
    assert two.code == 0 and [text for _, _, text in two.labelled()] == ["2", "2"], two
    wrong = local.run(*hosts, "--include", "nosuch", *show)
    assert wrong.code == 2 and "nosuch is not in the list of hosts (fake[0-3])" in wrong.err_text, wrong


def test_the_plan_is_displayed_before_the_job(local):
    done = local.run("--display-map", "--fake-hosts", "2", "echo", "ran")
    assert done.code == 0 and done.out.count(b"ran") == 2, done
    shown = done.own_text()
    assert "plan: 2 hosts x 1 = 2 ranks" in shown and re.search("fake1 +1 +1 +local", shown), done
    done = local.run("--display", "map,bindings", "-n", "2", "echo", "ran")
    assert "listens: " in done.own_text() and "rank 1 on localhost: " in done.own_text(), done
    refused = local.run("--display", "topo", "echo", "ran")
    assert refused.code == 2 and '"topo" is not a kind of display' in refused.err_text and "map, bindings" in refused.err_text, refused


def test_equal_lines_are_shown_once(local):
    done = local.run("--dedup", "--log-dir", "logs", "-n", "4", "sh", "-c", "echo same; echo mine $RANK")
    assert done.code == 0, done
    seen = []
    for line in done.out_lines:
        ranks, text = re.fullmatch(r"\[([0-9,-]+)\] (.*)", line).groups()
        for part in ranks.split(","):
            first, _, last = part.partition("-")
            seen += [(rank, text) for rank in range(int(first), int(last or first) + 1)]
    for rank in range(4):
        assert [text for number, text in seen if number == rank] == ["same", f"mine {rank}"], done
    # The log files contain all lines.
    folder = os.path.join(local.directory, "logs", "latest", "0")
    for rank in range(4):
        with open(os.path.join(folder, f"rank{rank:05d}.out")) as file:
            assert file.read() == f"same\nmine {rank}\n"


def test_only_failing_ranks_are_shown(local):
    script = "echo out $RANK; echo err $RANK >&2; [ $RANK = 1 ] || exec sleep 600; sleep 0.3; exit 3"
    done = local.run("--show-ranks", "failed", "-n", "3", "sh", "-c", script)
    assert done.code == 3, done
    assert done.out_lines == ["[1] out 1"], done
    assert "err 1" in done.err_text and "err 0" not in done.err_text, done
    quiet = local.run("--show-ranks", "failed", "-n", "2", "echo", "fine")
    assert quiet.code == 0 and quiet.out == b"", quiet


def test_a_tool_wraps_the_workers(local):
    show = ("sh", "-c", "echo ${TOOL:-none}")
    done = local.run("-n", "2", "--wrap", "env 'TOOL=of %r'", *show)
    assert done.code == 0 and sorted(text for _, _, text in done.labelled()) == ["of 0", "of 1"], done
    done = local.run("-n", "2", "--wrap", "env TOOL=%R", "--wrap-ranks", "1", *show)
    assert done.texts_by_rank() == {0: ["none"], 1: ["00001"]}, done
    done = local.run("-n", "1", "--wrap", "nosuchtool -x", *show)
    assert done.code == 127 and "nosuchtool" in done.err_text, done
    done = local.run("-n", "1", "--wrap", "env A=%z", *show)
    assert done.code == 2 and "%z" in done.err_text, done


def test_the_environment_of_workers_can_be_bare(local):
    show = ("sh", "-c", "echo \"$SECRET/$GIVEN/${PATH:+path}/$RANK\"")
    env = {"SECRET": "s", "GIVEN": "g"}
    assert local.run("-n", "1", *show, env=env).out == b"s/g/path/0\n"
    assert local.run("-n", "1", "--env", "none", "-x", "GIVEN", *show, env=env).out == b"/g/path/0\n"


def test_workers_run_in_a_virtual_environment(local):
    venv = os.path.join(local.directory, "venv")
    os.makedirs(os.path.join(venv, "bin"))
    os.symlink(os.path.realpath(sys.executable), os.path.join(venv, "bin", "python"))
    local.file("venv/pyvenv.cfg", f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    script = local.file("where.py", "import os, sys, shutil\n"
                        "print(sys.prefix, os.environ['VIRTUAL_ENV'], shutil.which('python'), sep='\\n')\n")
    # A typed --activate outweighs IVY_PYTHON.
    for variables in {}, {"IVY_PYTHON": "/nonexistent/python3"}:
        done = local.run("--activate", "venv", "-n", "1", script, env=variables)
        assert done.out_lines == [venv, venv, f"{venv}/bin/python"], done
    wrong = local.run("--activate", "conda:nosuch", "-n", "1", script)
    assert wrong.code == 2 and "no conda environment \"nosuch\"" in wrong.err_text, wrong


def test_every_rank_reads_the_input(local):
    name = local.file("input", "".join(f"line {number}\n" for number in range(50_000)))
    with open(name) as file:
        done = local.run("--stdin", "all", "-H", "localhost:2,localhost:1", "-n", "3", "cksum", stdin=file)
    assert done.code == 0 and len(done.labelled()) == 3, done
    with open(name) as file:
        known = local.run_program("cksum", stdin=file).out_lines[0]
    assert {text for _, _, text in done.labelled()} == {known}, done


def test_another_rank_reads_the_input(local):
    """Also on another host; the debugger of that rank takes its commands from there."""
    script = local.file("ask.py", "import os, sys\nrank = os.environ['RANK']\nif rank == '2': breakpoint()\n"
                        "print(rank, 'read', repr(sys.stdin.read()))\n")
    name = local.file("input", "p 'this is rank ' + rank\nc\nrest\n")
    with open(name) as file:
        done = local.run("--fake-hosts", "3", "--stdin", "2", script, stdin=file)
    said = done.out.decode()
    assert done.code == 0, done
    assert "'this is rank 2'" in said and "2 read 'rest\\n'" in said, done
    assert "0 read ''" in said and "1 read ''" in said, done
    wrong = local.run("--stdin", "2", "-n", "2", "true")
    assert wrong.code == 2 and "--stdin: there is no rank 2" in wrong.err_text, wrong


def test_metrics_are_written_to_a_file(local):
    with local.start("--metrics-file", "job.prom", "--name", "bert", "-n", "2", "sleep", "600") as run:
        text = wait_until(lambda: local.exists("job.prom") and local.read("job.prom").decode(), 20,
                          "the file is there")
        assert re.search(r'^ivyrun_rank_running\{job_id="[0-9a-f]{32}",rank="1",host=".*"\} 1$', text, re.M), text
        assert 'name="bert"' in text and "ivyrun_rank_memory_bytes{" in text, text
        os.kill(run.pid(), 15)
        run.finish()
    assert re.search(r"^ivyrun_job_exit_code\{.*\} 143$", local.read("job.prom").decode(), re.M)
    assert sorted(os.listdir(local.directory)) == ["job.prom"]


@pytest.mark.parametrize("seconds", [0, 1.5], ids=["the last text alone", "the first one too"])
def test_an_unwritable_metrics_file_is_reported(local, seconds):
    done = local.run("--metrics-file", "/dev/full/job", "-n", "1", "sh", "-c", f"sleep {seconds}; exit 3")
    assert done.code == 3 and done.err_text.count("warning: --metrics-file /dev/full/job: Not a directory") == 1, done


def test_a_full_disk_keeps_the_previous_metrics(local, tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "ivy-test", str(folder)], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted")
    try:
        place = folder / "job.prom"
        assert local.run("--metrics-file", str(place), "-n", "1", "true").code == 0
        before = place.read_text()
        assert "ivyrun_job_exit_code" in before, before
        with contextlib.suppress(OSError), open(folder / "other", "wb", buffering=0) as other:
            while True:
                other.write(b"x" * 4096)
        done = local.run("--metrics-file", str(place), "-n", "1", "sleep", "1.5")
        assert done.code == 0 and f"warning: --metrics-file {place}: No space left on device" in done.err_text, done
        assert place.read_text() == before and sorted(os.listdir(folder)) == ["job.prom", "other"]
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_plan_that_cannot_be_written_is_a_failure(local):
    for flag in ("--dry-run=json", "--dry-run"):
        with open("/dev/full", "wb") as full:
            done = local.run(flag, "-n", "1", "true", stdout=full)
        assert done.code == 125 and "standard output: No space left on device" in done.own_text(), done


# Sequences that set the clipboard or the title, in every encoding of a control character. The last word shows that the
# text has arrived.
EVIL = b"\x1b]52;c;QUFB\a \xc2\x9d0;t\xc2\x9c \x9d0;t\x9c \x1bPq\x1b\\ \x05\b\b\r\nEVIL"


def field(number, value):
    """Encodes a protobuf field: a number or bytes."""
    def varint(rest):
        return bytes([rest]) if rest < 128 else bytes([rest & 127 | 128]) + varint(rest >> 7)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


@contextlib.contextmanager
def launcher_that_says(job, reply):
    """Serves the job socket of a launcher that answers every request with this message."""
    place = f"/tmp/ivyrun-{os.getuid()}/{job}"
    os.makedirs(place, 0o700)
    lock = os.open(place, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{place}/launcher.sock")
    listener.listen()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                asking, _ = listener.accept()
                with asking:
                    asking.recv(4096)
                    asking.sendall(struct.pack("<I", len(reply)) + reply)
                    asking.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
        shutil.rmtree(place)
        os.close(lock)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_top_escapes_text_of_other_hosts(local, form):
    """The host's name, its state and the communicator's name come from the hosts of the job."""
    job = os.urandom(16).hex()
    description = field(1, job.encode()) + field(2, os.getpid()) + field(3, b"running") + field(5, 1) + field(6, 1)
    row = field(2, EVIL) + field(3, 77) + field(4, EVIL) + field(11, b'all_reduce #8 of "' + EVIL + b'"')
    with launcher_that_says(job, field(1, 1) + field(61, field(1, description) + field(2, row))):
        done = local.run_program(IVYCTL, "top", job, "--once", *form)
    assert done.code == 0 and not done.err, done
    text = done.out.decode()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), repr(text)
    assert len(text.splitlines()) == (1 if form else 3), text
    assert "]52;c;QUFB" in text, text


def test_top_shows_the_activity_of_each_rank(local):
    busy = "echo ready; [ $RANK = 0 ] && exec sleep 600; while :; do :; done"
    with local.start("--name", "topped", "-n", "2", "sh", "-c", busy) as run:
        run.wait_for("ready", count=2)
        table = wait_until(lambda: (done := local.run_program(IVYCTL, "top", "topped", "--json")).code == 0
                           and json.loads(done.out), 10, "the job is found")
        ranks = table["ranks"]
        assert [rank["rank"] for rank in ranks] == [0, 1] and table["state"] == "running"
        assert all(rank["state"] == "running" and rank["pid"] > 0 for rank in ranks), ranks
        assert all(rank["memory_bytes"] > 0 and rank["processes"] >= 1 for rank in ranks), ranks
        assert all(rank["output_age_s"] >= 0 for rank in ranks), ranks
        assert ranks[1]["cpu_percent"] > ranks[0]["cpu_percent"], ranks
        lines = local.run_program(IVYCTL, "top", "topped", "--once", "--ranks", "1").out_lines
        assert lines[1].split() == ["RANK", "HOST", "PID", "STATE", "CPU%", "MEMORY", "PROCS", "OUTPUT", "IN"]
        assert len(lines) == 3 and lines[2].startswith("1 "), lines
        for verb in (["top", "topped", "--once"], ["top", "topped", "--json"], ["stack", "topped"], ["logs", "-f", "topped"],
                     ["attach", "topped"]):
            none = local.run_program(IVYCTL, *verb, "--ranks", "9")
            assert none.code == 1 and "this job has none of these ranks" in none.err_text, none
        run.signal(15)
        run.finish()


def message_of_two_ranks(job, state=b"exit 3"):
    """Returns a launcher's response about two ranks; rank 1 has the given state."""
    description = field(1, job.encode()) + field(2, os.getpid()) + field(3, b"running") + field(5, 2) + field(6, 1)
    description += field(10, b"/home/somebody/a/long/path/of/a/project") + field(9, b"train.py") + field(9, b"--lr=3e-4" * 9)
    rows = [field(1, rank) + field(2, b"node%02d" % rank) + field(3, 4000 + rank) + field(4, state if rank else b"running") +
            field(5, 1) + field(8, 3 << 30) + field(9, 4) + field(10, 1) + field(11, b'all_reduce #812 of "world" for 3.2 s')
            for rank in range(2)]
    return field(1, 1) + field(61, field(1, description) + b"".join(field(2, row) for row in rows)), description


def picture(local, *words, columns=80, env=None):
    """Returns the lines that a terminal of that width shows before the first redraw."""
    with local.on_terminal(IVYCTL, *words, size=(24, columns), env=env) as run:
        run.wait_for(rb"(?s)RANK.*\x1b\[H")
        run.type(b"q")
        done = run.finish()
    assert done.code == 0, done
    return done.out.decode().split("\x1b[H\x1b[J")[1].replace("\r", "").splitlines()


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_top_fits_the_terminal(local, columns):
    job = os.urandom(16).hex()
    with launcher_that_says(job, message_of_two_ranks(job)[0]):
        lines = picture(local, "top", job, columns=columns, env={"NO_COLOR": "1"})
    assert len(lines) == 4 and all(len(line) <= columns for line in lines), lines
    names = lines[1].split()
    assert names[0] == "RANK" and "STATE" in names and names[-1] == "IN", lines
    assert "all_reduce #8" in lines[2] and "exit 3" in lines[3], lines
    assert ("PID" in names) == (columns == 80) and ("OUTPUT" in names) == (columns > 40), lines


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["colour", "no-color", "dumb"])
def test_top_colours_the_names_and_failed_ranks(local, env):
    job = os.urandom(16).hex()
    with launcher_that_says(job, message_of_two_ranks(job)[0]):
        lines = picture(local, "top", job, env=env)
    if env:
        assert not any("\x1b" in line for line in lines), lines
        return
    assert lines[1].startswith("\x1b[1mRANK") and lines[1].endswith("\x1b[0m"), lines
    assert "\x1b" not in lines[2], lines
    assert lines[3].startswith("\x1b[31m1 ") and lines[3].endswith("\x1b[0m"), lines


def test_top_leaves_ranks_that_ended_well_without_colour(local):
    job = os.urandom(16).hex()
    with launcher_that_says(job, message_of_two_ranks(job, b"exit 0")[0]):
        assert not any("\x1b" in line for line in picture(local, "top", job)[2:])


def test_top_shows_where_silent_python_ranks_are(local):
    local.file("silent.py", "import os, sys, time\n\ndef waits_here():\n"
                            "    while True:\n        time.sleep(0.3)\n"
                            "        if len(sys.argv) > 1 and os.environ['RANK'] == '1':\n"
                            "            print('alive', flush=True)\n\nwaits_here()\n")
    silent = ("--name", "silent", "-n", "2", "--python", "/usr/bin/python3", "silent.py")
    with local.start(*silent), local.start(*silent[:1], "alive", *silent[2:], "alive") as alive:
        alive.wait_for("alive")
        place = r"running .* \S*waits_here\S* .*silent.py"

        def shown():
            return local.run_program(IVYCTL, "top", "silent", "--once").out_lines[2:]
        wait_until(lambda: len([line for line in shown() if re.search(place, line)]) == 2, 20, "where the ranks are")
        # A rank that prints is active, so ivyctl does not interrupt it to read its stack.
        lines = local.run_program(IVYCTL, "top", "alive", "--once").out_lines[2:]
        assert len(lines) == 2 and all(line.split()[-1] == "-" for line in lines), lines


def test_status_fits_a_narrow_terminal(local):
    with local.start("--name", "narrow", "-n", "1", "sh", "-c", "echo ready; exec sleep 600", "x", "y " * 20) as run:
        run.wait_for("ready")
        wait_until(lambda: local.run_program(IVYCTL, "status", "narrow").code == 0, 10, "the job is found")
        with local.on_terminal(IVYCTL, "status", "narrow", size=(24, 40)) as asked:
            narrow = asked.finish().out.decode().replace("\r", "").splitlines()
        wide = local.run_program(IVYCTL, "status", "narrow").out_lines
        run.signal(15)
        run.finish()
    assert re.match(r"command    sh -c echo ready", next(line for line in wide if line.startswith("command"))), wide
    at = narrow.index("command")
    assert narrow[at + 1].startswith("  sh -c echo ready"), narrow
    assert any(re.fullmatch("state      running", line) for line in narrow), narrow


def test_help_fits_a_narrow_terminal(local):
    for words in ([local.ivyrun()], [local.ivyrun(), "--help"], [IVYCTL], [IVYCTL, "top", "--help"]):
        with local.on_terminal(*words, size=(24, 40)) as run:
            lines = run.finish().out.decode().replace("\r", "").splitlines()
        # Command lines are not wrapped, so that they can be copied.
        wide = [line for line in lines if len(line) > 40 and not re.match("(usage:)?  ?(ivyrun|ivyctl) ", line)]
        assert len(lines) > 10 and not wide, wide


def examined(local, *words):
    done = local.run_program(IVYCTL, "doctor", "--json", *words)
    return done, json.loads(done.out)


def test_the_doctor_examines_hosts(local):
    done, found = examined(local, "--fake-hosts", "2", "--check-module", "json")
    assert [host["name"] for host in found["hosts"]] == ["fake0", "fake1"], found
    host = found["hosts"][0]
    assert host["up"] and abs(host["clock_ahead_s"]) < 5 and host["disk_free"] > 0, host
    assert host["c_library"] and host["module_version"] and host["interpreter_version"], host
    failed = [finding for finding in found["findings"] if finding["result"] == "fail"]
    assert done.code == (1 if failed else 0), done
    done, found = examined(local, "--check-module", "nosuchmodule")
    assert done.code == 1 and "IVY-H013" in done.err_text, done
    assert any(finding["check"] == "module" and "nosuchmodule" in finding["what"] for finding in found["findings"])
    done = local.run("--doctor", "-n", "1", "nosuchprogram")
    assert done.code == 1 and "FAIL start" in done.out.decode() and "nosuchprogram" in done.out.decode(), done


def test_the_doctor_names_hosts_that_do_not_answer(hosts):
    done = hosts.run("--doctor", "-H", "node2,nosuchhost.invalid", "--start-timeout", "10", limit=60)
    text = done.out.decode()
    assert done.code == 1 and "FAIL reach nosuchhost.invalid" in text, done
    assert re.search(r"^node2 +ssh", text, re.M), done


def test_the_doctor_writes_a_hostfile_of_healthy_hosts(local):
    hosts = local.file("all", "localhost slots=2\nnosuchhost.invalid slots=2\n")
    words = ("--start-timeout", "10", "--healthy-hostfile", "good")
    done = local.run_program(IVYCTL, "doctor", "--hostfile", hosts, *words)
    assert done.code == 1 and local.read("good") == b"localhost slots=2\n", done
    done = local.run("--hostfile", "good", "echo", "here")
    assert done.code == 0 and len(done.labelled()) == 2, done
    done = local.run("--doctor", "-H", "nosuchhost.invalid", *words)
    assert done.code == 120 and local.read("good") == b"", "an older list remains"
    for name in ("all", "./all"):
        done = local.run("--doctor", "--hostfile", "all", "--healthy-hostfile", name)
        assert done.code == 2 and "would overwrite all" in done.err_text, done
    assert local.read("all").startswith(b"localhost"), "the list of hosts was overwritten"
    os.symlink("good", os.path.join(local.directory, "link"))
    done = local.run("--doctor", "--healthy-hostfile", "link", "-n", "1", "true")
    assert done.code == 0 and os.path.islink(os.path.join(local.directory, "link")), done
    assert local.read("good") == b"localhost\n"
    done = local.run("--doctor", "--healthy-hostfile", "nosuch/good")
    assert done.code == 2 and "nosuch/good" in done.err_text, done


@pytest.mark.parametrize("words, fix", [
    (("--include", "a", "--exclude", "b"), "use only one of them"),
    (("--wrap-ranks", "0"), "--wrap COMMAND"),
    (("-n", "2", "--wrap", "env", "--wrap-ranks", "7"), "--wrap-ranks: there is no rank 7"),
    (("--dry-run=xml",), "--dry-run takes nothing or json"),
    (("--check-module", "torch"), "--doctor"),
    (("--env", "none", "--activate", "x"), "--python PATH"),
    (("--show-ranks", "failed", "--detach"), "--log-dir DIR")])
def test_conflicting_flags_are_rejected(local, words, fix):
    done = local.run(*words, "true")
    assert done.code == 2 and fix in done.err_text, done
