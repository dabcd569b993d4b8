# SPDX-License-Identifier: Apache-2.0
"""The workers' output arrives complete, in order, with labels, and at the speed of its reader."""

import contextlib
import fcntl
import glob
import hashlib
import os
import re
import signal
import struct
import subprocess
import termios
import time
import zlib

import pytest

from launching import BIN, Reader, parse_label, seconds, wait_until

MEGABYTE = 1 << 20
PYTHON = "/usr/bin/python3"


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])


@pytest.mark.parametrize("call", ["input()", "breakpoint()"])
def test_a_rank_without_input_gets_advice(local, call):
    local.file("ask.py", f"import os\nif os.environ['RANK'] == '1':\n    {call}\n    pass\nelse:\n    import time; time.sleep(60)\n")
    done = local.run("-n", "2", "ask.py")
    assert "note: rank 1 read standard input, which is empty for it: only rank 0 gets ivyrun's input" in done.own_text(), done
    assert "--stdin all" in done.own_text(), done


def test_long_lines_without_labels_stay_whole(local):
    program = "import sys; sys.stdout.write('{' + 'a' * 200000 + '}\\n')"
    done = local.run("-n", "2", "--label", "none", "python3", "-c", program)
    assert sorted(map(len, done.out_lines)) == [200002, 200002], [len(line) for line in done.out_lines]
    program = "import sys; sys.stdout.write('a' * 2000000 + '\\n')"
    done = local.run("-n", "2", "--label", "none", "python3", "-c", program)
    assert "1 long lines of rank 1 were split on the console" in done.own_text(), done.own_text()


def test_torchs_own_prefix_is_not_shown_twice(local):
    done = local.run("-n", "2", "sh", "-c", "echo \"[rank$RANK]: Traceback\"; echo '[rank7]: other'")
    assert sorted(text for _, _, text in done.labelled()) == ["Traceback", "Traceback", "[rank7]: other", "[rank7]: other"], done


def test_a_loop_over_a_list_runs_for_every_line(local):
    """Input that no rank has read remains for the commands after ivyrun."""
    local.file("list", "a\nb\nc\n")
    ivyrun = local.ivyrun()
    script = f"while read x; do {ivyrun} -n 2 true; echo $x; done < list"
    done = local.run_program("sh", "-c", f"cd {local.directory} && {script}")
    assert done.out_lines == ["a", "b", "c"] and not done.own_text(), done
    script = f"{{ {ivyrun} -n 2 sh -c '[ $RANK = 1 ] || read x; echo got $x'; cat; }} < list"
    done = local.run_program("sh", "-c", f"cd {local.directory} && {script}")
    assert b"got a" in done.out and done.out.endswith(b"b\nc\n"), done


def test_input_of_a_pipe_that_no_rank_used_is_noted(local):
    """Input from a pipe cannot be put back."""
    script = f"printf 'a\\nb\\n' | {local.ivyrun()} -n 2 sleep 1"
    done = local.run_program("sh", "-c", script)
    assert done.code == 0 and "no rank used it" in done.err_text, done
    done = local.run_program("sh", "-c", script.replace("sleep 1", "cat"))
    assert done.code == 0 and "no rank used" not in done.err_text, done


def test_label_shows_rank_and_host(local):
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", "sh", "-c",
                     "echo to out; echo to err >&2")
    assert done.code == 0, done
    everyone = [(0, "fake0"), (1, "fake0"), (2, "fake1"), (3, "fake1")]
    assert sorted(done.labelled("out")) == [(*place, "to out") for place in everyone]
    assert sorted(done.labelled("err")) == [(*place, "to err") for place in everyone]
    assert re.search(rb"^\[ *1 fake0\] to out$", done.out, re.MULTILINE), done


def test_one_worker_needs_no_label(local):
    done = local.run("-n", "1", "sh", "-c", "echo hello; echo oops >&2")
    assert (done.code, done.out) == (0, b"hello\n"), done
    assert b"oops\n" in done.err


@pytest.mark.parametrize("kind, line", [("none", r"text"), ("rank", r"\[? *1\]?:? text"),
                                        ("host", r"\[?fake1\]?:? text"),
                                        ("<%r/%h/%l>", r"<1/fake1/0> ?text")])
def test_label_kinds(local, kind, line):
    done = local.run("--fake-hosts", "2", "--label", kind, "sh", "-c", "echo text")
    assert done.code == 0 and len(done.out_lines) == 2, done
    assert any(re.fullmatch(line, text) for text in done.out_lines), done


def test_no_torn_lines(local):
    """Eight ranks write numbered lines in pieces of any length. Every line arrives whole."""
    count = 4000
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "4", local.script("chatty.py"),
                     str(count), limit=90)
    assert done.code == 0, done
    following = dict.fromkeys(range(8), 0)
    for line in done.out.split(b"\n")[:-1]:
        rank, _, text = parse_label(line)
        own_rank, number, check, words = text.split(b" ", 3)
        assert int(own_rank) == rank and int(number) == following[rank], line
        assert zlib.crc32(words) == int(check), line
        following[rank] += 1
    assert set(following.values()) == {count}, following


def test_last_line_without_newline(local):
    done = local.run("-n", "1", "printf", "first\\nlast")
    assert (done.code, done.out) == (0, b"first\nlast"), done
    done = local.run("-n", "2", "sh", "-c", "printf 'first\\nlast'")
    assert done.texts_by_rank() == {0: ["first", "last"], 1: ["first", "last"]}, done


def test_output_before_a_crash(anyone):
    done = anyone.run("-H", "node1,node2", "sh", "-c",
                     "[ $RANK = 1 ] || exec sleep 60; seq 1 2000; printf 'last words'; "
                     "kill -SEGV $$")
    assert done.code == 139, done
    assert done.texts_by_rank()[1] == [*map(str, range(1, 2001)), "last words"], done
    assert re.search(r"rank 1 failed first .*node2.*SIGSEGV", done.own_text()), done


def test_carriage_returns(local):
    """Only the last state of a progress bar is shown, but the log file has every byte."""
    done = local.run("-n", "2", "--log-dir", local.directory, "sh", "-c",
                     "printf ' 10%%\\r 20%%\\r 30%%\\n'")
    assert done.code == 0, done
    assert {texts[-1].split("\r")[-1] for texts in done.texts_by_rank().values()} == {" 30%"}, done
    assert log_file(local, 1, "out") == b" 10%\r 20%\r 30%\n"


NESTED = """
import sys, time
for outer in range(12):
    sys.stdout.write(f"\\router {outer}")
    for inner in range(12):
        sys.stdout.write(f"\\n\\r  inner {inner}\\x1b[A")
        sys.stdout.flush()
        time.sleep(0.005)
sys.stdout.write("\\n\\r         \\r\\x1b[A\\router 12\\nready\\n")
"""


def test_nested_progress_bars_print_few_lines(local):
    local.file("nested.py", NESTED)
    done = local.run("-n", "2", "--log-dir", "logs", PYTHON, "nested.py")
    assert b"\x1b" not in done.out, done
    for texts in done.texts_by_rank().values():
        assert texts[-2:] == ["outer 12", "ready"] and len(texts) < 8, done
    assert log_file(local, 1, "out").count(b"\x1b[A") == 12 * 12 + 1
    # The output of a single rank is unchanged, for a terminal after the pipe.
    alone = local.run("-n", "1", PYTHON, "nested.py")
    assert alone.out.count(b"\x1b[A") == 12 * 12 + 1, alone


def test_nested_progress_bars_do_not_scroll_a_terminal(local):
    local.file("nested.py", NESTED)
    with local.on_terminal(local.ivyrun(), "--dedup=false", "-n", "2", PYTHON, "nested.py") as run:
        done = run.finish()
    # Between two redraws the cursor moves up as many lines as it has moved down.
    drawn = done.out.replace(b"\r", b"")
    lasting = drawn.count(b"\n") - drawn.count(b"\x1b[A")
    assert 4 <= lasting <= 10, (lasting, done)
    assert done.out.count(b"\x1b[A") > 2 and re.search(rb"inner \d", done.out), done


def log_file(launcher, rank, stream):
    for directory, _, names in os.walk(getattr(launcher, "outside", str)(launcher.directory)):
        for name in names:
            if re.fullmatch(rf"rank0*{rank}\.{stream}", name):
                with open(os.path.join(directory, name), "rb") as file:
                    return file.read()
    raise AssertionError(f"no file of rank {rank} in {launcher.directory}")


def test_log_files_have_raw_bytes_and_a_fixed_layout(local):
    done = local.run("--fake-hosts", "2", "--show-ranks", "0", "--log-dir", local.directory, "sh",
                     "-c", "printf '\\033[1mrank %s\\033[0m \\377\\000' $RANK; echo err $RANK >&2")
    assert done.code == 0, done
    for rank in (0, 1):
        assert log_file(local, rank, "out") == b"\x1b[1mrank %d\x1b[0m \xff\x00" % rank
        assert log_file(local, rank, "err") == b"err %d\n" % rank
    paths = [os.path.relpath(os.path.join(directory, name), local.directory)
             for directory, _, names in os.walk(local.directory) for name in names]
    for path in paths:
        assert re.match(r"[0-9a-f]{8,32}/0/", path), f"DIR/job/attempt/file, not {path}"
    assert {rank for rank, _, _ in done.labelled()} <= {0}, "the console shows another rank than --show-ranks"


def test_output_writes_files_by_a_pattern(local):
    pattern = f"{local.directory}/logs/%h/%2t-%n.log"
    done = local.run("--fake-hosts", "2", "--nproc-per-node", "1", "--output", pattern, "--redirects", "3", "sh", "-c",
                     "echo out $RANK; echo err $RANK >&2")
    assert done.code == 0 and b"out" not in done.out, done
    for rank in (0, 1):
        with open(f"{local.directory}/logs/fake{rank}/0{rank}-{rank}.log") as file:
            assert sorted(file.read().splitlines()) == [f"err {rank}", f"out {rank}"]


def test_files_by_a_pattern_hold_all_attempts_or_one(local):
    program = 'echo attempt $TORCHELASTIC_RESTART_COUNT; test "$TORCHELASTIC_RESTART_COUNT" != 0'
    for pattern, files in (("all-%r.%s", {"all-0.out": "attempt 0\nattempt 1\n"}),
                           ("%a-%r.%s", {"0-0.out": "attempt 0\n", "1-0.out": "attempt 1\n"})):
        done = local.run("-n", "1", "--max-restarts", "1", "-o", f"{local.directory}/{pattern}", "sh", "-c", program)
        assert done.code == 0, done
        for name, content in files.items():
            with open(f"{local.directory}/{name}") as file:
                assert file.read() == content, name


@pytest.mark.parametrize("pattern, said", [
    ("%h.log", "ranks 0 and 1 would write to the same file"), ("%r.%q", '"%q" is not a placeholder of a file name'),
    ("tag,timestamp", "see --label and --timestamps"), ("/proc/nowhere/%r", "create directory /proc/nowhere")])
def test_invalid_file_patterns_are_rejected(local, pattern, said):
    done = local.run("-n", "2", "--output", pattern, "sh", "-c", "echo ran")
    assert done.code != 0 and said in done.err_text and b"ran" not in done.out, done


def test_log_files_on_the_nodes(hosts):
    done = hosts.run("-H", "node1,node2", "--log-dir", "/tmp/logs", "--log-to", "node", "sh", "-c",
                     "echo from $(hostname)")
    assert done.code == 0, done
    for number in (1, 2):
        found = hosts.run_on(number, "sh", "-c", "cd /tmp/logs && find . -name '*.out' | xargs cat")
        assert found.out.decode() == f"from node{number}\n", found
        hosts.run_on(number, "rm", "-rf", "/tmp/logs")


def test_log_files_are_in_one_directory_for_any_working_directory(local):
    done = local.run("-n", "1", "--wdir", "/", "--log-dir", "logs", "--log-to", "both", "sh", "-c", "pwd")
    assert done.code == 0 and done.out == b"/\n", done
    (job,) = set(os.listdir(os.path.join(local.directory, "logs"))) - {"latest"}
    assert not os.path.exists("/logs") and local.read(f"logs/{job}/0/rank00000.out") == b"/\n"
    assert done.err_text.count(f"{local.directory}/logs/{job}/0 on every host") == 1, done


def test_a_stalled_log_directory_of_a_node_does_not_stop_a_job(hosts):
    """The file system stalls for longer than a host may be silent. A pipe that is not read yet replaces a log file; the first
    attempt creates it for the second one."""
    lines = 1_000_000
    script = (f"echo attempt $IVY_GENERATION; [ $IVY_GENERATION.$RANK = 1.1 ] && exec seq {lines}; "
              "[ $RANK = 0 ] && exec sleep $IVY_GENERATION; folder=/tmp/logs/$IVY_JOB_ID/1; "
              "mkdir -p $folder; mkfifo $folder/rank00001.out; exit 3")
    with hosts.start("-H", "node1,node2", "--log-dir", "/tmp/logs", "--log-to", "node", "--max-restarts", "1",
                     "sh", "-c", script, env={"IVY_TEST_RESTART_PAUSE": "200ms"}) as run:
        run.wait_for("attempt 1", count=2)
        time.sleep(14)
        assert run.process.poll() is None, run.finish()
        found = hosts.run_on(2, "sh", "-c", "cat /tmp/logs/*/1/rank00001.out", limit=60)
        done = run.finish()
    assert done.code == 0, done
    assert found.out == b"attempt 1\n" + b"".join(b"%d\n" % number for number in range(1, lines + 1))
    assert done.out.endswith(b"] %d\n" % lines) and done.out.count(b"\n") >= lines, done
    assert "lost" not in done.own_text() and "incomplete" not in done.own_text(), done
    for number in (1, 2):
        hosts.run_on(number, "rm", "-rf", "/tmp/logs")


def test_a_stalled_log_directory_does_not_stop_a_job(hosts):
    """The file system stalls for three leases. The hosts still get heartbeats from their launcher, and the job continues. A
    pipe that is not read yet replaces a log file; the first attempt creates it for the second one."""
    lines = 1_000_000
    logs = f"{hosts.directory}/logs"
    script = (f"echo attempt $IVY_GENERATION; [ $IVY_GENERATION.$RANK = 1.1 ] && exec seq {lines}; "
              f"[ $RANK = 0 ] && exec sleep $IVY_GENERATION; folder={logs}/$IVY_JOB_ID/1; "
              "mkdir -p $folder; mkfifo $folder/rank00001.out; exit 3")
    with hosts.start("-H", "node1,node2", "--lease", "3s", "--log-dir", logs, "--max-restarts", "1",
                     "sh", "-c", script) as run:
        pipes = wait_until(lambda: glob.glob(hosts.outside(f"{logs}/*/1/rank00001.out")), 30, "the pipe")
        with open(os.open(pipes[0], os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
            run.wait_for("attempt 1", count=2)
            time.sleep(10)
            assert run.process.poll() is None, run.finish()
            os.set_blocking(pipe.fileno(), True)
            written = pipe.read()
        done = run.finish()
    assert done.code == 0, done
    assert written == b"attempt 1\n" + b"".join(b"%d\n" % number for number in range(1, lines + 1))
    assert done.out.endswith(b"] %d\n" % lines), done
    assert "lost" not in done.own_text() and "lease" not in done.own_text(), done


def test_log_directory_that_cannot_be_created(local):
    done = local.run("-n", "1", "--log-dir", "/proc/nowhere", "sh", "-c", "echo started")
    assert done.code in (2, 122), done
    assert "/proc/nowhere" in done.own_text() and b"started" not in done.out, done


@pytest.mark.parametrize("flag, shown", [(("--show-ranks", "1,3"), {1, 3}),
                                         (("--show-ranks", "1-2"), {1, 2}),
                                         (("--show-ranks", "first-per-host"), {0, 2}),
                                         (("--local-ranks-filter", "1"), {1, 3})])
def test_show_ranks(local, flag, shown):
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", *flag, "sh", "-c", "echo $RANK")
    assert done.code == 0, done
    assert {int(text) for _, _, text in done.labelled()} == shown, done


def run_into_reader(launcher, arguments, lines):
    """Runs `ivyrun ... | head -n LINES` like a shell and returns ivyrun's result and the output of head."""
    started = time.monotonic()
    head = subprocess.Popen(["head", "-n", str(lines)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
    with launcher.start(*arguments, stdout=head.stdin) as run:
        head.stdin.close()
        shown = head.stdout.read()
        head.wait()
        done = run.finish(20)
    done.took = time.monotonic() - started
    return done, shown


def test_head_ends_the_job_cleanly(anyone):
    done, shown = run_into_reader(anyone, ("-H", "node1,node2", "yes", "a line"), 5)
    assert done.code == 141, done
    assert shown.count(b"\n") == 5 and b"a line" in shown
    assert done.took < seconds(8), done.took
    anyone.wait_clean(3)


def test_a_closed_reader_ends_a_job_that_prints_nothing(local):
    reading, writing = os.pipe()
    with local.start("-n", "2", "sh", "-c", "echo up; sleep 60", stdout=writing) as run:
        os.close(writing)
        while b"up" not in os.read(reading, 4096):
            pass
        os.close(reading)
        done = run.finish(20)
    assert done.code == 141, done
    local.wait_clean(3)


@contextlib.contextmanager
def start_unread(launcher, *arguments):
    """Starts ivyrun with a pipe without a reader as standard output, and yields when the pipe is full."""
    reading, writing = os.pipe()
    try:
        with launcher.start(*arguments, stdout=writing) as run:
            os.close(writing)
            wait_until(lambda: bytes_waiting(reading) > 60000, 20, "the pipe is full")
            yield run
    finally:
        os.close(reading)


def bytes_waiting(descriptor):
    return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0]


def test_the_job_ends_in_time_without_a_reader(hosts):
    """Ctrl-C twice and --timeout end the job in time without a reader. The console has 2 s while the workers are killed, 2 s
    for queued output, and 2 s for the summary."""
    flood = ("-H", "node1,node2", "yes", "a line")
    with start_unread(hosts, "--timeout", "3s", "--shutdown-timeout", "1s", *flood) as timed, \
            start_unread(hosts, *flood) as interrupted:
        interrupted.signal(signal.SIGINT)
        interrupted.wait_for("again to kill", 5)
        time.sleep(0.2)  # Two signals at the same time would count as one request.
        interrupted.signal(signal.SIGINT)
        asked = time.monotonic()
        done = interrupted.finish()
        assert time.monotonic() - asked < seconds(2 + 2 + 2 + 2)
        assert done.code in (-signal.SIGINT, 130), done
        done = timed.finish()
        assert done.code == 124 and "--timeout" in done.own_text(), done
        assert done.took < seconds(3 + 1 + 2 + 2 + 2 + 2), done.took
    hosts.wait_clean(3)


def lost_output(done):
    assert done.code == 125, done
    assert re.search(r"error\[IVY-O003\].*standard output.*No space left", done.own_text()), done


def test_a_full_disk_under_the_output_is_reported(hosts):
    """Every rank succeeds, but its output is lost. This must not count as a success."""
    with open("/dev/full", "wb") as full:
        lost_output(hosts.run("-H", "node1,node2", "seq", "1", "3000", stdout=full))
    hosts.run_on(1, "sh", "-c", "mkdir /mnt/small && mount -t tmpfs -o size=64k none /mnt/small")
    try:
        lost_output(hosts.run_program("sh", "-c", f"exec {hosts.ivyrun()} -H node1,node2 --label "
                                      "none seq 1 30000 > /mnt/small/out"))
        kept = hosts.run_on(1, "cat", "/mnt/small/out").out
    finally:
        hosts.run_on(1, "sh", "-c", "umount /mnt/small; rmdir /mnt/small")
    assert len(kept) == 64 << 10, "the disk is not full of output"
    assert all(line.isdigit() for line in kept.split(b"\n")[:-1]), kept[-100:]


def test_slow_reader_slows_the_workers_and_nothing_is_lost(local):
    """The output is not read for a while. ivyrun uses little memory, no lease expires, and then everything arrives."""
    size = 40 * MEGABYTE
    reading, writing = os.pipe()
    with local.start("-n", "2", "--lease", "2s", "--label", "none", "sh", "-c",
                     f"yes | head -c {size}", stdout=writing) as run:
        os.close(writing)
        time.sleep(seconds(3.5))
        assert run.process.poll() is None, run.finish()
        for pid in (run.pid(), *supervisors(local)):
            assert resident_bytes(pid) < 64 * MEGABYTE, pid
        run.out = Reader(reading)
        done = run.finish()
    assert done.code == 0, done
    assert len(done.out) == 2 * size
    assert done.out.count(b"y\n") == size


def supervisors(local):
    found = [process.pid for process in local.processes() if process.name == b"ivy-supervisor"]
    assert found, "no supervisor is running"
    return found


def test_a_hundred_megabytes_unlabelled(local):
    done = local.run("-n", "1", "sh", "-c", "seq 1 13000000 | head -c 100000000", limit=60)
    assert done.code == 0, done
    expected = subprocess.run("seq 1 13000000 | head -c 100000000", shell=True,
                              stdout=subprocess.PIPE, check=True).stdout
    assert hashlib.md5(done.out).digest() == hashlib.md5(expected).digest()


def test_megabytes_from_two_hosts(hosts):
    done = hosts.run("-H", "node2,node3", "sh", "-c", 'seq -f "$RANK line %.0f" 1 300000', limit=60)
    assert done.code == 0, done
    ranks = {0: [], 1: []}
    for line in done.out.split(b"\n")[:-1]:
        rank, _, text = parse_label(line)
        ranks[rank].append(text)
    for rank, lines in ranks.items():
        assert lines == [b"%d line %d" % (rank, number) for number in range(1, 300001)]


def test_a_partial_line_is_shown_after_a_moment(local):
    with local.start("-n", "2", "sh", "-c", "[ $RANK = 1 ] || exec sleep 5; printf 'Continue? '; "
                     "sleep 5") as run:
        started = time.monotonic()
        run.wait_for("Continue\\?", 4)
        assert run.process.poll() is None
        assert time.monotonic() - started < seconds(3)
        run.signal(15)
        run.finish()


def test_a_line_in_two_writes_stays_one_line_in_a_pipe(local):
    """A rank pauses for half a second between two writes of one line, as on a busy machine."""
    script = ("if [ $RANK = 0 ]; then printf 'half'; sleep 0.5; echo ' whole'; "
              "else sleep 0.25; echo between; fi")
    done = local.run("-n", "2", "sh", "-c", script)
    assert done.texts_by_rank() == {0: ["half whole"], 1: ["between"]}, done


def test_a_partial_line_and_another_rank(local):
    """The other rank's line starts on a new line, and the rest of the partial line gets its label again."""
    script = ("if [ $RANK = 0 ]; then printf 'half'; sleep 2.8; echo ' whole'; "
              "else sleep 1.8; echo between; fi")
    done = local.run("-n", "2", "sh", "-c", script)
    assert done.code == 0, done
    texts = done.texts_by_rank()
    assert texts[1] == ["between"], done
    assert "".join(texts[0]).replace("…", "").replace("...", "").startswith("half"), done
    assert texts[0][-1].endswith("whole"), done


def test_a_terminal_gets_colours_and_no_control_strings(local):
    """On a terminal labels are coloured and control strings are removed. In a pipe there are no colours."""
    worker = ("sh", "-c", "printf '\\033]0;a title\\007hello\\033P1q\\033\\\\ world\\n'; "
              "printf '\\033[31mred\\033[0m\\n'")
    with local.on_terminal(local.ivyrun(), "-n", "2", *worker) as run:
        done = run.finish()
    assert done.code == 0, done
    assert b"a title" not in done.out and b"\x1bP" not in done.out, done
    assert b"hello world" in done.out, done
    assert b"\x1b[31mred" in done.out, "a worker's own colour is removed"
    assert re.search(rb"\x1b\[[0-9;]*m[^\n]*1", done.out), "labels have no colour"
    with local.on_terminal(local.ivyrun(), "--raw", "-n", "2", *worker) as run:
        assert b"\x1b]0;a title\x07hello" in run.finish().out
    piped = local.run("-n", "2", "echo", "plain")
    assert b"\x1b" not in piped.out, piped


def test_no_color_disables_colours(local):
    with local.on_terminal(local.ivyrun(), "-n", "2", "echo", "plain",
                           env={"NO_COLOR": "1"}) as run:
        done = run.finish()
    assert b"plain" in done.out and b"\x1b[" not in done.out.replace(b"\x1b[K", b""), done


def test_invalid_utf8_is_not_changed(local):
    done = local.run("-n", "2", "printf", "\\377\\376 ok\\n")
    assert done.out.count(b"\xff\xfe ok\n") == 2, done


def test_a_very_long_line(local):
    """The line is longer than any buffer. No part of it is lost or mixed with another rank's line."""
    done = local.run("-n", "2", "sh", "-c", "head -c 300000 /dev/zero | tr '\\0' $RANK; echo")
    assert done.code == 0, done
    for rank in (0, 1):
        text = "".join(done.texts_by_rank()[rank])
        assert text.count(str(rank)) == 300000, len(text)


def test_background_output_in_a_shell_pipe(local):
    """Runs `ivyrun | cat` in a real shell."""
    done = local.run_program("bash", "-c",
                             f"{BIN}/ivyrun -n 2 echo hi | cat; echo ${{PIPESTATUS[0]}}")
    assert done.out.endswith(b"0\n") and done.out.count(b"hi") == 2, done


def test_waiting_line_names_the_missing_host(hosts):
    """A host does not answer. After 5 s one line shows the host and the current step."""
    hosts.bed.cut(3)
    with hosts.start("-H", "node2,node3", "--start-timeout", "8s", "sh", "-c",
                     "echo started") as run:
        run.wait_for(r"hosts 1/2 up[^\n]*node3", 8)
        done = run.finish(20)
    assert done.code == 120, done
    assert "node3" in done.own_text() and "node2" not in done.own_text().split("error[")[-1], done
    assert b"started" not in done.out
