"""--wal: the job goes on over kill -9 of its store."""

import os
import re
import signal
import subprocess

import pytest

from launching import BIN, wait_until
from test_store import TORCH_LIMIT, store_of

WORKER = os.path.join(os.path.dirname(BIN), "children", "store_worker")
ROUNDS = 120  # The last kill comes long before the last round.


@pytest.fixture
def log_folder(tmp_path):
    folder = tmp_path / "wal"
    yield folder
    assert not folder.exists() or not list(folder.iterdir()), "the log goes with the job"


def kill_store(job_id):
    """Kills the job's store, and waits until another one is there."""
    before = store_of(job_id)
    assert len(before) == 1, before
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: store_of(job_id) not in ([], before), 20, "the store's next process")


def job_of(run):
    return next(line for line in run.said().decode().split() if len(line) == 32)


def test_native_clients_notice_nothing(local, log_folder):
    """Sets, adds, barriers and reads of three ranks, over five kills of the store."""
    with local.start("--wal", str(log_folder), "-n", "3", "bash", "-c",
                     'echo job $IVY_JOB_ID; exec "$@"', "-", WORKER, str(ROUNDS), "20") as job:
        for kill in range(5):
            job.wait_for(rf"round {4 + 10 * kill}\b".encode(), limit=60, count=3)
            kill_store(job_of(job))
        done = job.finish()
    assert done.code == 0, done
    lines = done.texts_by_rank()
    unknown = 0
    for rank in range(3):
        assert [line for line in lines[rank] if line.startswith("round")] == [
            f"round {number}" for number in range(1, ROUNDS + 1)], done
        unknown += int(lines[rank][-1].split()[3])
    total = max(int(lines[rank][-1].split()[1]) for rank in range(3))
    assert 3 * ROUNDS - unknown <= total <= 3 * ROUNDS, done
    assert done.own_text().count("killed by signal 9") == 5, done
    assert "started again from its log" in done.own_text(), done


def test_torch_sees_its_client_fail_and_another_find_everything(local, log_folder):
    if not os.path.isdir("/usr/lib/python3/dist-packages/torch"):
        pytest.skip("python3-torch is not installed")
    with local.start("--wal", str(log_folder), "-n", "2", "bash", "-c",
                     'echo job $IVY_JOB_ID; exec "$@"', "-", "/usr/bin/python3",
                     local.script("torch_store.py"), "outlive") as job:
        job.wait_for(rb"squares", limit=TORCH_LIMIT, count=2)
        kill_store(job_of(job))
        done = job.finish(limit=TORCH_LIMIT)
    assert done.code == 0, done
    lines = done.texts_by_rank()
    for rank in range(2):
        assert any(re.match(r"lost: .*(Broken pipe|Connection reset|failed to recv)", line)
                   for line in lines[rank]), done
        assert "again [0, 1]" in lines[rank], done
    assert "torch's own client cannot dial again" in done.own_text(), done


def test_a_store_that_is_killed_again_and_again_ends_the_job(local, log_folder):
    with local.start("--wal", str(log_folder), "-n", "1", "bash", "-c",
                     'echo job $IVY_JOB_ID; exec "$@"', "-", WORKER, "100000", "20") as job:
        job.wait_for(rb"round 2\b", limit=60)
        job_id = job_of(job)
        for _ in range(5):
            kill_store(job_id)
        os.kill(store_of(job_id)[0], signal.SIGKILL)
        done = job.finish()
    assert done.code == 121, done
    assert "IVY-R008" in done.err_text and "6 times within 60 s" in done.err_text, done


def test_a_full_disk_is_a_typed_error_to_the_worker(local, tmp_path):
    """Not a lost acknowledgement, and not the end of the store."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "ivy-test", str(folder)],
                      capture_output=True).returncode != 0:
        pytest.skip("a small disk cannot be mounted")
    try:
        done = local.run("--wal", str(folder), "-n", "1", WORKER, "3", "1", limit=60)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    assert done.code == 1, done
    assert "the disk of the store's log is full" in done.err_text, done


def test_a_folder_that_cannot_be_written_is_refused_before_the_start(local):
    done = local.run("--wal", "/proc/none", "-n", "1", "echo", "started")
    assert done.code == 122, done
    assert "IVY-H011" in done.err_text and "/proc/none" in done.err_text, done
    assert b"started" not in done.out, done


def test_another_jobs_log_is_not_read(local, log_folder):
    for _ in range(2):
        done = local.run("--wal", str(log_folder), "-n", "2", WORKER, "2", "1", limit=60)
        assert done.code == 0, done
        assert all(lines[-1] == "sum 4 unknown 0" or lines[-1].startswith("sum")
                   for lines in done.texts_by_rank().values()), done


RESTARTED = """
echo job $IVY_JOB_ID
if [ "$IVY_GENERATION" = 0 ]; then "$1" 5 1; exit 1; fi
exec "$1" 20 20
"""


def test_a_restart_forgets_and_is_kept_too(local, log_folder):
    """The log's second generation: nothing of the first is in it, and a kill loses nothing of it."""
    with local.start("--wal", str(log_folder), "--max-restarts", "1", "-n", "2", "bash", "-c",
                     RESTARTED, "-", WORKER) as job:
        job.wait_for(rb"round 8\b", limit=60, count=2)
        kill_store(job_of(job))
        done = job.finish()
    assert done.code == 0, done
    for lines in done.texts_by_rank().values():
        total, unknown = int(lines[-1].split()[1]), int(lines[-1].split()[3])
        assert 40 - 2 - unknown <= total <= 40, done
        assert [line for line in lines if line.startswith("round")][5:] == [
            f"round {number}" for number in range(1, 21)], done
