# SPDX-License-Identifier: Apache-2.0
"""Jobs on an x86-64 and an aarch64 host: output, exit codes, deaths, restarts, the store, collectives, agents, launchers.

The aarch64 host is emulated (qemu-user), with the root that `scripts/setup arm64` makes. The emulator lacks system calls
such as clone3, so the job's processes there use the fallbacks for old kernels.
"""

import contextlib
import json
import os
import re
import shutil
import struct

import pytest

from agents import Agents, Credentials
from launching import BIN, REPOSITORY
from slurm_jobs import Slurm, running_on

pytestmark = pytest.mark.long

BOTH = ("-H", "node1,node2", "--nproc-per-node", "1")
LIMIT = 90
PYTHON = "/usr/bin/python3"
QUICKLY = {"IVY_TEST_RESTART_PAUSE": "200ms"}
ARM_BUILD = os.path.join(REPOSITORY, "build-arm64")


@pytest.mark.parametrize("user", ["root", "ivyuser"])
def test_ranks_of_both_architectures(mixed_hosts, user):
    done = mixed_hosts.as_user(user).run(*BOTH, "sh", "-c", "echo $RANK of $WORLD_SIZE $(uname -m); echo error >&2", limit=LIMIT)
    assert done.code == 0, done
    assert sorted(done.labelled("out")) == [(0, "node1", "0 of 2 x86_64"), (1, "node2", "1 of 2 aarch64")], done
    assert sorted(done.labelled("err")) == [(0, "node1", "error"), (1, "node2", "error")], done


def test_the_exit_code_of_a_rank_on_aarch64(mixed_hosts):
    done = mixed_hosts.run(*BOTH, "sh", "-c", "[ $RANK = 1 ] && { echo reason >&2; exit 7; }; sleep 60", limit=LIMIT)
    assert done.code == 7, done
    assert re.search(r"rank 1 failed first .*node2.*pid \d+.*exit 7", done.own_text()) and "reason" in done.own_text(), done


@pytest.mark.parametrize("name, code", [("SEGV", 139), ("KILL", 137)])
def test_the_death_of_a_rank_on_aarch64(mixed_hosts, name, code):
    done = mixed_hosts.run(*BOTH, "sh", "-c", f"[ $RANK = 1 ] && kill -{name} $$; sleep 60", limit=LIMIT)
    assert done.code == code, done
    assert re.search(rf"rank 1 failed first .*node2.*SIG{name}", done.own_text()), done


def test_a_rank_on_x86_64_ends_the_rank_on_aarch64(mixed_hosts):
    program = "trap 'echo TERM received; exit 0' TERM; [ $RANK = 0 ] && exit 3; sleep 60 & wait"
    done = mixed_hosts.run(*BOTH, "sh", "-c", program, limit=LIMIT)
    assert done.code == 3, done
    assert "rank 0 failed first" in done.own_text(), done


def test_a_program_of_another_architecture(mixed_hosts):
    program = mixed_hosts.file("program", mode=0o755)
    shutil.copy(os.path.join(mixed_hosts.bed.arm64_root, "usr/bin/true"), mixed_hosts.outside(program))
    done = mixed_hosts.run(*BOTH, program, limit=LIMIT)
    assert done.code == 126 and "build it for the architecture of node1" in done.own_text(), done


def test_a_restart(mixed_hosts):
    program = "echo attempt $TORCHELASTIC_RESTART_COUNT; [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 4; sleep 1"
    done = mixed_hosts.run(*BOTH, "--max-restarts", "1", "sh", "-c", program + "; exit 0", env=QUICKLY, limit=LIMIT)
    assert done.code == 0, done
    assert done.texts_by_rank() == {0: ["attempt 0", "attempt 1"], 1: ["attempt 0", "attempt 1"]}, done


def test_the_lost_aarch64_host_is_named(mixed_hosts):
    with mixed_hosts.start(*BOTH, "--lease", "4", "sh", "-c", "echo ready; sleep 120") as job:
        job.wait_for("ready", LIMIT, count=2)
        mixed_hosts.bed.power_off(2)
        done = job.finish(LIMIT)
    assert done.code != 0 and "node2" in done.own_text(), done


@pytest.mark.parametrize("ranks", [1, 2])
def test_results_are_bitwise_equal(mixed_hosts, ranks):
    """ivycomm of both architectures, with its shared library and extension from the bundle."""
    done = mixed_hosts.run("-H", "node1,node2", "--nproc-per-node", str(ranks), PYTHON, mixed_hosts.script("comm_bits.py"),
                           limit=2 * LIMIT)
    assert done.code == 0, done
    texts = done.texts_by_rank()
    results = {rank: [text for text in texts[rank] if re.search(r" [0-9a-f]{64}$", text)] for rank in texts}
    assert len(results) == 2 * ranks and len(results[0]) > 30, done
    assert all(result == results[0] for result in results.values()), done
    machines = {rank: [text for text in texts[rank] if text.startswith("stored")] for rank in texts}
    assert machines == {rank: ["stored aarch64" if rank < ranks else "stored x86_64"] for rank in texts}, done


@pytest.mark.parametrize("hosts, ranks", [("node2", 4), ("node1,node2", 2)])
def test_every_collective(mixed_hosts, hosts, ranks):
    """Compared with NumPy. Ranks of one host use shared memory, with the futexes of the emulator."""
    done = mixed_hosts.run("-H", hosts, "--nproc-per-node", str(ranks), PYTHON, mixed_hosts.script("comm_collectives.py"),
                           limit=2 * LIMIT)
    assert done.code == 0, done
    assert [texts[-1] for texts in done.texts_by_rank().values()] == ["all equal"] * 4, done


def stress(hosts, *options, seconds):
    done = hosts.run("-H", "node2", "--nproc-per-node", "4", *options, PYTHON, hosts.script("comm_stress.py"), str(seconds),
                     limit=LIMIT + 4 * seconds)
    assert done.code == 0, done
    assert [texts[-1] for texts in done.texts_by_rank().values()] == ["all equal"] * 4, done


def test_stress_of_shared_memory(mixed_hosts):
    """Random operations of four ranks for a minute. The emulator keeps the memory order of x86-64; comm/README.md has the
    reading for weaker orders."""
    stress(mixed_hosts, seconds=60)


@pytest.fixture
def pages_of_64_kib(mixed_hosts):
    """Processes of node2 that sshd starts have pages of 64 KiB: the supervisor, its helpers and the workers."""
    path = mixed_hosts.bed.host_view(2).place("/root/.bashrc")
    before = ""
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        before = file.read()
    with open(path, "w") as file:
        file.write("export QEMU_PAGESIZE=65536\n" + before)
    yield mixed_hosts
    with open(path, "w") as file:
        file.write(before)


def test_pages_of_64_kib(pages_of_64_kib):
    """The emulator rounds what it maps to such pages, but accepts offsets that a kernel would reject: large_pages.c checks
    those, on x86-64 in test_ivycomm.py."""
    hosts, large = pages_of_64_kib, ("-x", "QEMU_PAGESIZE=65536")
    done = hosts.run(*BOTH, *large, "sh", "-c", "echo $(getconf PAGESIZE) $(uname -m)", limit=LIMIT)
    assert done.code == 0 and done.texts_by_rank() == {0: ["4096 x86_64"], 1: ["65536 aarch64"]}, done
    done = hosts.run("-H", "node1,node2", "--nproc-per-node", "2", *large, PYTHON, hosts.script("comm_collectives.py"),
                     limit=2 * LIMIT)
    assert done.code == 0, done
    assert [texts[-1] for texts in done.texts_by_rank().values()] == ["all equal"] * 4, done
    stress(hosts, *large, "-x", "EXPECTED_PAGE=65536", seconds=15)


def elf_files(folder):
    for directory, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF" and not os.path.islink(path):
                    yield path


def alignments(path):
    """Returns the alignments of an ELF file's segments that are loaded (64 bits, little-endian)."""
    with open(path, "rb") as file:
        head = file.read(64)
        offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        file.seek(offset)
        entries = [file.read(size) for _ in range(count)]
    return {struct.unpack_from("<Q", entry, 48)[0] for entry in entries if struct.unpack_from("<I", entry)[0] == 1}


def test_programs_can_be_loaded_on_pages_of_64_kib(tmp_path):
    built("ivy-node")
    found = [path for folder in ("bin", "lib") for path in elf_files(os.path.join(ARM_BUILD, folder))]
    assert {"ivy-node", "ivy-probe", "unpack"} < {os.path.basename(path) for path in found}, found
    for path in found:
        assert min(alignments(path)) >= 1 << 16, f"{path}: {alignments(path)}"


def test_ivyctl_shows_the_architectures(mixed_hosts):
    ivyctl = os.path.join(BIN, "ivyctl")
    with mixed_hosts.start(*BOTH, "--name", "mixed", "sh", "-c", "echo up; sleep 300") as job:
        job.wait_for("up", LIMIT, count=2)
        for verb in ("status", "why", "top"):
            words = (ivyctl, verb, *(["--once"] if verb == "top" else []), "mixed")
            done = mixed_hosts.run_program(*words, limit=LIMIT)
            assert done.code == 0, done
            assert "node1 (x86_64), node2 (aarch64)" in done.out.decode(), done
            done = mixed_hosts.run_program(ivyctl, verb, "--json", "mixed", limit=LIMIT)
            assert done.code == 0, done
            assert b"aarch64" in done.out and json.loads(done.out), done
        assert mixed_hosts.run_program(ivyctl, "stop", "mixed", limit=LIMIT).code == 0
        assert job.finish(LIMIT).code != 0


def test_the_plan_and_the_doctor_show_the_architecture(mixed_hosts):
    done = mixed_hosts.run(*BOTH, "--dry-run", "true", limit=LIMIT)
    assert done.code == 0 and re.search(r"node1 .*x86_64", done.out.decode()), done
    assert re.search(r"node2 .*aarch64", done.out.decode()), done
    ivyctl = os.path.join(BIN, "ivyctl")
    done = mixed_hosts.run_program(ivyctl, "doctor", "--json", "-H", "node1,node2", limit=LIMIT)
    found = json.loads(done.out)
    assert [host["architecture"] for host in found["hosts"]] == ["x86_64", "aarch64"], found
    assert any(finding["check"] == "architecture" for finding in found["findings"]), found
    done = mixed_hosts.run("--doctor", *BOTH, "true", limit=LIMIT)
    assert re.search(r"node2 .*aarch64", done.out.decode()), done


@contextlib.contextmanager
def architecture_of(hosts, name):
    """`uname -m` on node2 prints `name`."""
    path = hosts.bed.host_view(2).place("/usr/local/bin/uname")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\ncase $* in -m) echo {name};; *) exec /usr/bin/uname "$@";; esac\n')
    os.chmod(path, 0o755)
    try:
        yield
    finally:
        os.unlink(path)


def test_an_unknown_architecture(mixed_hosts):
    with architecture_of(mixed_hosts, "riscv64"):
        done = mixed_hosts.run(*BOTH, "true", limit=LIMIT)
    assert done.code != 0, done
    text = done.own_text()
    assert text.count("the host is riscv64; this ivyrun can start workers on: aarch64 x86_64") == 1, done
    assert "node2" in text and "bundle-riscv64.run" in text, done


def built(program):
    path = os.path.join(ARM_BUILD, "bin", program)
    if not os.path.exists(path):
        pytest.skip(f"{path} is not there: cmake --build build-arm64")
    return path


@pytest.fixture(scope="module")
def arm_launcher(mixed_testbed):
    """ivyrun for aarch64, as hosts see it, with the bundles of both architectures."""
    built("ivyrun")
    for folder in ("bin", "lib"):
        shutil.copytree(os.path.join(ARM_BUILD, folder), os.path.join(mixed_testbed.shared, "arm64", folder), symlinks=True)
    for name in ("bundle-x86_64.run", "bundle-x86_64.run.sha256"):
        shutil.copy(os.path.join(BIN, "../lib/ivyrun", name), os.path.join(mixed_testbed.shared, "arm64/lib/ivyrun"))
    return "/srv/ivyshared/arm64/bin/ivyrun"


def test_a_launcher_on_aarch64(mixed_hosts, arm_launcher):
    node2 = type(mixed_hosts)(mixed_hosts.bed, mixed_hosts.name, host=2)
    done = node2.run_program(arm_launcher, "-n", "2", "sh", "-c", "echo $RANK $(uname -m)", limit=LIMIT)
    assert done.code == 0 and done.texts_by_rank() == {0: ["0 aarch64"], 1: ["1 aarch64"]}, done
    done = node2.run_program(arm_launcher, *BOTH, "sh", "-c", "echo $(uname -m); exit $((3 * RANK))", limit=LIMIT)
    assert done.code == 3 and done.texts_by_rank() == {0: ["x86_64"], 1: ["aarch64"]}, done


@pytest.fixture(scope="module")
def mixed_credentials(mixed_testbed):
    agent = built("ivy-agent")
    made = Credentials(mixed_testbed)
    os.mkdir(made.place("bin-aarch64"))
    shutil.copy(agent, made.place("bin-aarch64"))
    return made


def test_agents_of_both_architectures(mixed_hosts, mixed_credentials):
    agents = Agents(mixed_hosts.as_user("ivyuser"), mixed_credentials)
    try:
        agents.prepare(1, 2)
        agents[2].program = mixed_credentials.path("bin-aarch64/ivy-agent")
        for number in (1, 2):
            agents[number].start()
        done = agents.run(*BOTH, "sh", "-c", "uname -m", limit=LIMIT)
        assert done.code == 0, done
        assert sorted(done.labelled()) == [(0, "node1", "x86_64"), (1, "node2", "aarch64")], done
    finally:
        agents.remove()


@pytest.fixture
def mixed_slurm(mixed_hosts):
    with running_on(mixed_hosts.bed, "linuxproc"), Slurm(mixed_hosts.as_user("ivyuser"), "linuxproc") as slurm:
        yield slurm


def test_a_slurm_job_on_both_architectures(mixed_slurm):
    """slurmd of node2 is emulated as well. Its step gets the programs for aarch64, and each rank's end is reported."""
    done = mixed_slurm.run(["-N", "2"], "sh", "-c", "echo $RANK of $WORLD_SIZE $(uname -m)", limit=2 * LIMIT)
    assert done.code == 0, done
    assert sorted(done.labelled()) == [(0, "node1", "0 of 2 x86_64"), (1, "node2", "1 of 2 aarch64")], done
    done = mixed_slurm.run(["-N", "2"], PYTHON, mixed_slurm.launcher.script("comm_bits.py"), limit=4 * LIMIT)
    assert done.code == 0, done
    machines = {rank: [text for text in texts if text.startswith("stored")] for rank, texts in done.texts_by_rank().items()}
    assert machines == {0: ["stored aarch64"], 1: ["stored x86_64"]}, done
    done = mixed_slurm.run(["-N", "2"], "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 60", limit=2 * LIMIT)
    assert done.code == 7 and re.search(r"rank 1 failed first .*node2.*exit 7", done.own_text()), done
