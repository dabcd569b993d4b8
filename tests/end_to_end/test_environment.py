# SPDX-License-Identifier: Apache-2.0
"""The environment and arguments of a worker, byte for byte, and the protection of the job's token."""

import hashlib
import json
import os
import re
import subprocess

import pytest

from launching import BIN, Finished

# Every byte that an argument can contain, and everything that a shell would change.
ODD_WORDS = [b"", b" ", b"a b", b"line\nbreak", b"tab\there", b"'", b'"', b"\\", b"$(touch /tmp/x)",
             b"`id`", b"$HOME", b"*", b"~", b"!!", b"#", b";", b"&&", b"--flag=1", b"-n",
             "größe".encode(), b"\xff\xfe\x80", bytes(range(1, 256))]


def dump(launcher, rank):
    record = json.loads(launcher.read(f"dump.{rank}"))
    variables = {bytes.fromhex(key): bytes.fromhex(value)
                 for key, value in record["variables"].items()}
    return [bytes.fromhex(word) for word in record["arguments"]], variables, record


def run_dump(launcher, flags=(), words=(), **options):
    done = launcher.run(*flags, launcher.script("dump.py"), launcher.directory, *words, **options)
    assert done.code == 0, done
    return done


def text_variables(launcher, rank):
    return {key.decode(): value.decode(errors="replace")
            for key, value in dump(launcher, rank)[1].items()}


def test_torchrun_block(local):
    run_dump(local, ("--fake-hosts", "2", "--nproc_per_node", "2"))
    every = [text_variables(local, rank) for rank in range(4)]
    for rank, variables in enumerate(every):
        expected = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2,
                    "GROUP_RANK": rank // 2, "GROUP_WORLD_SIZE": 2, "ROLE_RANK": rank,
                    "ROLE_WORLD_SIZE": 4, "ROLE_NAME": "default", "TORCHELASTIC_RESTART_COUNT": 0,
                    "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_USE_AGENT_STORE": "True",
                    "IVY_RANK": rank, "IVY_WORLD_SIZE": 4, "IVY_LOCAL_RANK": rank % 2,
                    "IVY_LOCAL_WORLD_SIZE": 2, "IVY_NODE_RANK": rank // 2, "IVY_NUM_NODES": 2,
                    "IVY_GENERATION": 0}
        for name, value in expected.items():
            assert variables.get(name) == str(value), f"rank {rank}: {name}={variables.get(name)!r}"
        for name in ("MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "IVY_JOB_ID",
                     "IVY_TOKEN_FILE"):
            assert variables.get(name), f"rank {rank}: {name} is missing"
        assert 0 < int(variables["MASTER_PORT"]) < 65536
    for name in ("MASTER_ADDR", "MASTER_PORT", "IVY_JOB_ID", "TORCHELASTIC_RUN_ID"):
        assert len({variables[name] for variables in every}) == 1, name
    files = [variables["TORCHELASTIC_ERROR_FILE"] for variables in every]
    assert len(set(files)) == 4, files


def test_exports_and_env_file(local):
    path = local.file("vars", "# comment\nFROM_FILE=one two\nBOTH=file\n\nTAKEN\n")
    run_dump(local, ("-n", "1", "--env-file", path, "-x", "GIVEN=a=b", "-x", "TAKEN", "-x",
                     "BOTH=flag", "-x", "EMPTY="), env={"TAKEN": "from the caller"})
    variables = text_variables(local, 0)
    assert variables["FROM_FILE"] == "one two"
    assert variables["GIVEN"] == "a=b"
    assert variables["TAKEN"] == "from the caller"
    assert variables["BOTH"] == "flag", "-x does not override --env-file"
    assert variables["EMPTY"] == ""


def test_wrong_export_is_a_usage_error(local):
    done = local.run("-x", "1BAD=x", "/bin/true")
    assert done.code == 2 and "1BAD" in done.own_text(), done
    done = local.run("--env-file", local.file("vars", "fine=1\nnot a variable\n"), "/bin/true")
    assert done.code == 2 and "vars:2" in done.own_text(), done


def test_other_hosts_get_only_the_variables_of_frameworks(hosts):
    given = {"HF_HOME": "/data/hf", "NCCL_DEBUG": "INFO", "XLA_FLAGS": "--a",
             "WANDB_MODE": "offline", "MY_PASSWORD": "swordfish", "CUDA_VISIBLE_DEVICES": "3",
             "EXTRA": "asked for"}
    done = run_dump(hosts, ("-H", "node1,node2", "-x", "EXTRA"), env=given)
    here, there = text_variables(hosts, 0), text_variables(hosts, 1)
    for name in ("HF_HOME", "NCCL_DEBUG", "XLA_FLAGS", "WANDB_MODE", "EXTRA"):
        assert there.get(name) == given[name], name
    assert "MY_PASSWORD" not in there and "CUDA_VISIBLE_DEVICES" not in there
    assert here["MY_PASSWORD"] == "swordfish", "a worker on the launcher's host lacks a variable of the caller"
    assert "MY_PASSWORD" in done.own_text(), "the variable that is not passed is not named"
    assert "swordfish" not in done.own_text(), "the value of a variable was printed"


def test_explain_env_lists_every_variable_of_a_worker(local):
    run_dump(local, ("-n", "1"))
    done = local.run("--explain-env", "-n", "1", local.script("dump.py"), local.directory)
    assert done.code == 0, done
    listed = set(re.findall(r"^  ([A-Za-z_]\w*)=", done.out.decode(), re.MULTILINE))
    added = {name for name, value in text_variables(local, 0).items() if local.environment.get(name) != value}
    # The interpreter sets these itself: PEP 538.
    added -= {"LC_CTYPE"}
    assert not added - listed, f"not listed: {sorted(added - listed)}"


def test_foreign_ranks_are_scrubbed(local):
    foreign = {"OMPI_COMM_WORLD_RANK": "7", "PMI_RANK": "7", "SLURM_PROCID": "7", "PMIX_RANK": "7",
               "MY_OWN": "kept"}
    run_dump(local, ("-n", "1"), env=foreign)
    variables = text_variables(local, 0)
    assert variables["MY_OWN"] == "kept"
    assert not {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PMIX_RANK"} & set(variables)


def test_interface_variables_only_on_several_hosts(hosts):
    run_dump(hosts, ("-H", "node1,node2"))
    for rank in (0, 1):
        variables = text_variables(hosts, rank)
        assert variables["GLOO_SOCKET_IFNAME"] == variables["NCCL_SOCKET_IFNAME"] == "eth0"
    run_dump(hosts, ("-n", "1"))
    assert "GLOO_SOCKET_IFNAME" not in text_variables(hosts, 0)


def test_a_set_interface_is_kept(hosts):
    run_dump(hosts, ("-H", "node1,node2"), env={"GLOO_SOCKET_IFNAME": "lo"})
    assert text_variables(hosts, 1)["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.skipif(not os.path.isdir("/usr/lib/python3/dist-packages/torch"),
                    reason="python3-torch is not installed")
@pytest.mark.parametrize("flags, mode, rank, warned", [
    ((), "all", 1, r"rank 1 looked for rank 0 on its own host"),
    ((), "first", 0, r"rank 0 started its own store, and no other rank connected to it"),
    (("--no-python-hook",), "first", 0, r"rank 0 looked for the store at a different address"),
    (("--no-store",), "first", 1, r"rank 1 found no server there while rank 0 was"),
    ((), "dies", 0, None)])
def test_a_script_that_overwrites_master_addr(hosts, flags, mode, rank, warned):
    done = hosts.run(*flags, "-H", "node2,node3", hosts.script("overwrite_master.py"), mode, limit=60)
    text = done.own_text()
    assert done.code == 1, done
    if warned is None:
        assert "rank 0 failed first" in text and "IVY-R010" not in text, done
        return
    assert re.search(rf"ivyrun: warning\[IVY-R010\]: {warned}", text), done
    host = ("node2", "node3")[rank]
    assert re.search(rf"{host}; workers were given MASTER_ADDR=10\.77\.0\.2 ", text), done
    note = re.search(r"note: the script sets MASTER_PORT=12355 \(ivyrun chose \d+\)", done.err_text)
    assert bool(note) == (mode == "first" and not flags), done
    assert f"rank {rank} failed first" in text and "os.environ.setdefault" in text, done


def test_arguments_and_variables_are_passed_byte_for_byte_here(local):
    odd = {f"ODD{index}": word for index, word in enumerate(ODD_WORDS)}
    flags = [part for name, word in odd.items() for part in ("-x", name.encode() + b"=" + word)]
    run_dump(local, ("-n", "1", *flags), ODD_WORDS)
    arguments, variables, _ = dump(local, 0)
    assert arguments == ODD_WORDS
    assert {name: variables[name.encode()] for name in odd} == odd


def test_arguments_and_variables_are_passed_byte_for_byte_everywhere(hosts):
    """Over SSH, with bash, csh and a shell whose startup file prints."""
    odd = {f"ODD{index}": word for index, word in enumerate(ODD_WORDS)}
    flags = [part for name, word in odd.items() for part in ("-x", name.encode() + b"=" + word)]
    run_dump(hosts, ("-H", "node2,node3,node4", *flags), ODD_WORDS)
    for rank in range(3):
        arguments, variables, _ = dump(hosts, rank)
        assert arguments == ODD_WORDS, f"rank {rank}"
        assert {name: variables[name.encode()] for name in odd} == odd, f"rank {rank}"


@pytest.mark.parametrize("where", ["here", "by ssh"])
def test_a_megabyte_of_arguments(where, request):
    launcher = request.getfixturevalue("local" if where == "here" else "hosts")
    flags = ("-n", "2") if where == "here" else ("-H", "node2,node3")
    words = [bytes([65 + index]) * 65536 for index in range(16)]
    run_dump(launcher, flags, words)
    for rank in (0, 1):
        assert dump(launcher, rank)[0] == words


def test_interpreter_and_directory(hosts):
    run_dump(hosts, ("-H", "node1,node2", "--wdir", "/usr"))
    for rank in (0, 1):
        record = dump(hosts, rank)[2]
        assert record["directory"] == "/usr"
        assert record["executable"] == "/usr/bin/python3"


SHOW_DIRECTORIES = "import os; print(os.getcwd(), os.environ.get('PWD'), os.environ.get('OLDPWD'), sep='|')"


def test_pwd_is_the_working_directory_on_every_host(hosts):
    hosts.file("show.py", SHOW_DIRECTORIES)
    done = hosts.run("-H", "node1,node2", "--nproc_per_node", "1", "show.py")
    assert done.code == 0 and {text for _, _, text in done.labelled()} == \
        {f"{hosts.directory}|{hosts.directory}|None"}, done
    done = hosts.run("-H", "node1,node2", "--nproc_per_node", "1", "--wdir", "/tmp", f"{hosts.directory}/show.py")
    assert done.code == 0 and {text for _, _, text in done.labelled()} == {"/tmp|/tmp|None"}, done


def test_a_symlinked_working_directory_keeps_its_name(hosts):
    """The physical path does not exist on the other host, as with an automounter."""
    hosts.file("show.py", SHOW_DIRECTORIES)
    link = f"/srv/work-{os.path.basename(hosts.directory)}"
    for host in (1, 2):
        target = f"/srv/work-of-node{host}"
        assert hosts.run_on(host, "/bin/sh", "-c", f"mkdir -p {target} && ln -sfn {target} {link}").code == 0
    command = f"cd {link} && exec {hosts.ivyrun()} -H node1,node2 --nproc_per_node 1 {hosts.directory}/show.py"
    try:
        done = hosts.run_program("/bin/sh", "-c", command)
        assert done.code == 0, done
        assert {text.split("|")[1] for _, _, text in done.labelled()} == {link}, done
    finally:
        for host in (1, 2):
            hosts.run_on(host, "rm", "-rf", link, f"/srv/work-of-node{host}")


def test_a_deleted_working_directory_is_an_error(local):
    gone = os.path.join(local.directory, "gone")
    os.mkdir(gone)
    done = local.run_program("/bin/sh", "-c", f"cd gone && rmdir ../gone && exec {os.path.join(BIN, 'ivyrun')} -n 1 pwd")
    assert done.code == 2 and "current directory" in done.err_text and "deleted" in done.err_text, done
    assert b"/" not in done.out, done


def test_module_and_plain_program(local):
    done = local.run("-n", "1", "-m", "calendar", "2026", "1")
    assert done.code == 0 and "January 2026" in done.out.decode(), done
    path = local.file("tool.py", "#!/bin/sh\necho run by sh\n", mode=0o755)
    done = local.run("-n", "1", "--no-python", path)
    assert done.code == 0 and done.out == b"run by sh\n", done


def scan_for(needles):
    """Returns the files below /proc that contain these bytes and that `ps` could show, on this machine and all test hosts."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                with open(f"/proc/{entry}/{name}", "rb") as file:
                    content = file.read()
            except OSError:
                continue
            found += [f"/proc/{entry}/{name}" for needle in needles if needle in content]
    return found


def test_the_token_is_not_visible(anyone):
    """The token is in a file with mode 0400, and never in an argument, a variable or the output."""
    show = 'stat -c "mode %a" "$IVY_TOKEN_FILE"; od -An -v -tx1 "$IVY_TOKEN_FILE"; sleep 3'
    with anyone.start("-vv", "-H", "node1,node2", "sh", "-c", show) as run:
        run.wait_for("mode 400", count=2)
        run.wait_for("(?: [0-9a-f]{2}){16}", count=4)
        now = Finished(0, run.out.bytes(), b"", 0)
        digits = "".join(text for rank, _, text in now.labelled()
                         if rank == 0 and "mode" not in text).replace(" ", "")
        token = bytes.fromhex(digits)
        assert len(token) >= 32, digits
        needles = [token, token.hex().encode()]
        if len(token) >= 64:  # The file contains hex digits: search for the decoded bytes, too.
            needles.append(bytes.fromhex(token.decode().strip()))
        assert scan_for(needles) == []
        done = run.finish()
    assert done.code == 0, done
    assert not any(needle in done.err for needle in needles), "the token was printed"


def test_another_user_cannot_enter_the_job_directory(hosts):
    with hosts.start("-n", "1", "sh", "-c", "echo $IVY_TOKEN_FILE; sleep 3") as run:
        run.wait_for("/token")
        path = run.out.bytes().decode().strip()
        peek = hosts.run_on(1, "cat", path, user="ivyuser")
        assert peek.code != 0 and b"ermission denied" in peek.err, peek
        assert run.finish().code == 0


def test_a_user_namespace_coexists_with_roots_directories(hosts):
    """As in rootless podman with the host's /tmp, the directories that are named after uid 0 belong to the real root."""
    places = ("/tmp/ivyrun-0", "/dev/shm/ivyrun-0")
    assert hosts.run_on(1, "mkdir", "-p", "-m", "700", *places).code == 0
    done = hosts.run_on(1, "env", "HOME=/home/ivyuser", "unshare", "--user", "--map-root-user", hosts.ivyrun(), "-n", "2",
                        "sh", "-c", "echo rank $RANK: $IVY_TOKEN_FILE", user="ivyuser")
    assert hosts.run_on(1, "rmdir", places[1]).code == 0
    assert done.code == 0, done
    assert all(f"rank {rank}: /tmp/ivyrun-0-of-2001/".encode() in done.out for rank in range(2)), done


def test_only_rank_0_gets_standard_input(local):
    data = os.urandom(1 << 20)
    path = local.file("data", data)
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as cat:
        done = local.run("-n", "2", "--label", "none", "sh", "-c",
                         '[ $RANK = 0 ] && md5sum || wc -c', stdin=cat.stdout)
    assert done.code == 0, done
    assert hashlib.md5(data).hexdigest() in done.out.decode(), done
    assert "0" in done.out.decode().split(), "rank 1 does not read /dev/null"


def test_standard_input_reaches_rank_0_on_another_host(hosts):
    data = os.urandom(3 << 20)
    with subprocess.Popen(["cat", hosts.outside(hosts.file("data", data))],
                          stdout=subprocess.PIPE) as cat:
        done = hosts.run("-H", "node2,node1", "--label", "none", "sh", "-c",
                         '[ $RANK = 0 ] && md5sum || wc -c', stdin=cat.stdout)
    assert done.code == 0, done
    assert hashlib.md5(data).hexdigest() in done.out.decode(), done


def test_the_device_check_mode_reaches_workers(local):
    done = local.run("-x", "IVY_DEVICE_CHECK=every", "-x", "IVY_DEVICE_AHEAD=3", "-n", "1", "sh", "-c",
                     "echo $IVY_DEVICE_CHECK $IVY_DEVICE_AHEAD")
    assert done.code == 0 and b"every 3" in done.out and "nothing reads" not in done.err_text, done
