# SPDX-License-Identifier: Apache-2.0
"""Command lines in the style of other launchers or with mistakes: ivyrun never silently starts a different job, and its
message shows the right command."""

import os
import re

import pytest

from test_bad_input import refused

HELLO = ("sh", "-c", "echo started")


def noted(done, *words):
    """Checks that the job ran and that a note contains all words."""
    assert done.code == 0 and b"started" in done.out, done
    for word in words:
        assert re.search(word, done.own_text()), f"no {word!r} in {done!r}"


# ---- worlds of one -------------------------------------------------------------------------------

# A package that replaces Horovod. In Horovod, `basics` is the module that joins the world.
WORLD = "import horovod.common.basics as b\nprint('started', b.size)\n"


@pytest.fixture
def horovod(local):
    os.makedirs(os.path.join(local.directory, "horovod/common"))
    for name in ("horovod/__init__.py", "horovod/common/__init__.py"):
        local.file(name, "")
    local.file("horovod/common/basics.py", "size = 1\n")
    return local.file("world.py", WORLD)


def test_a_python_script_that_would_be_a_world_of_one_is_rejected(local, horovod):
    done = local.run("-n", "3", "--python", "/usr/bin/python3", horovod)
    assert done.code == 122 and b"started" not in done.out, done
    said = done.err.count(b"IVY-P024]: horovod.common.basics was imported")
    assert said in (1, 2), done  # In the rank's line, and perhaps in the report.
    assert b"each of the 3 workers would be a world of one" in done.err, done
    assert b"--allow-singletons" in done.err and b"-B horovod" in done.err, done


@pytest.mark.parametrize("before", ["import horovod",
                                    "import importlib.util as u; u.find_spec('horovod.common.basics')"])
def test_a_process_that_only_queries_the_world_is_not_affected(local, horovod, before):
    local.file("world.py", before + "\nprint('started')\n")
    done = local.run("-n", "2", "--python", "/usr/bin/python3", horovod)
    assert done.code == 0 and done.out.count(b"started") == 2, done


@pytest.mark.parametrize("flags", [("-n", "1"), ("-n", "2", "--allow-singletons"),
                                   ("-n", "2", "--no-python-hook")])
def test_intended_worlds_of_one_are_accepted(local, horovod, flags):
    done = local.run(*flags, "--python", "/usr/bin/python3", horovod)
    assert done.code == 0 and b"started 1" in done.out, done


def test_a_worker_may_start_a_launcher(local, horovod):
    """A launcher inside a worker sets the ranks of its processes, so they are not worlds of one."""
    done = local.run("-n", "2", "sh", "-c", f"HOROVOD_RANK=0 exec /usr/bin/python3 {horovod}")
    assert done.code == 0 and done.out.count(b"started 1") == 2, done


def test_several_programs_in_one_job(local):
    for words in (("-np", "2", *HELLO, ":", "-np", "2", *HELLO), ("-np", "2", ":", "-np", "2", *HELLO)):
        refused(local.run(*words), 2, "not supported", "reads RANK")
    done = local.run("-np", "1", "--", "echo", "started", ":", "b")
    assert done.code == 0 and done.out == b"started : b\n", done


# ---- programs ------------------------------------------------------------------------------------

def test_the_fix_suggests_a_similar_name(local):
    local.file("train.py", "print('started')\n")
    local.file("run.sh", "#!/bin/sh\necho started\n")
    local.file("notes.ipynb", "{}")
    os.makedirs(os.path.join(local.directory, "pkg"))
    local.file("pkg/mod.py", "")
    local.file("pkg/__main__.py", "")
    for program, code, fix in (("tarin.py", 127, "write train.py"),
                               ("./tarin.py", 127, r"write \./train.py"),
                               ("pkg.mod", 127, "write -m pkg.mod"),
                               ("pkg", 127, "write -m pkg"),
                               ("no.such.module", 127, "-m no.such.module"),
                               ("train.py --lr 3", 127, r"remove the quotes: .*train.py --lr 3"),
                               ("echo a | cat", 127, "sh -c 'echo a | cat'"),
                               ("./run.sh", 126, r"bash \./run.sh"),
                               ("./notes.ipynb", 126, "notebook cannot be launched")):
        refused(local.run("-n", "2", program), code, r"fix: .*" + fix)


def test_the_fix_suggests_python3_if_python_is_missing(local):
    place = os.path.join(local.directory, "bin")
    os.makedirs(place)
    os.symlink("/usr/bin/python3", os.path.join(place, "python3"))
    refused(local.run("-n", "1", "python", "-c", "1", env={"PATH": place}), 127, "fix: .*write python3")


def test_a_long_path_is_not_printed(local):
    place = ":".join(f"/opt/no/such/directory/{number}" for number in range(20))
    done = local.run("-n", "1", "nosuchprogram", env={"PATH": place})
    refused(done, 127, r"PATH \(20 directories\)")
    assert "/opt/no/such" not in done.own_text(), done


# ---- flags of other launchers --------------------------------------------------------------------

@pytest.mark.parametrize("words, fix", [
    (("-t", "10:00"), "--timeout 10:00"),
    (("-t", "30"), "--timeout 30m"),
    (("--map-by", "ppr:2:node"), "--nproc-per-node N"),
    (("--gres=gpu:1",), "--gpus-per-proc K"),
    (("--export=ALL,FOO=1",), "--export NAME=VALUE"),
    (("--config_file", "cfg.yaml"), "instead of num_processes"),
    (("--config", "cfg.yaml"), "--config FILE needs a TOML file of flags"),
    (("--page", "job.html"), "ivyctl top"),
    (("-c", "print(1)"), "python3 -c CODE"),
    (("--nprc", "2"), "did you mean --nproc-per-node?"),
    (("-H", "node1", "node2"), "separate hosts with commas: -H node1,node2"),
    (("-H", "node1,"), "a list cannot contain spaces: -H node1,node2"),
    (("--rdzv_backend", "etcd-v2"), "leave it out")])
def test_the_fix_of_a_foreign_flag(local, words, fix):
    refused(local.run(*words, *HELLO), 2, "fix: .*" + re.escape(fix))


def test_messages_name_the_flag_as_typed(local):
    refused(local.run("--export=ALL,FOO=1", *HELLO), 2, "--export: ")


@pytest.mark.parametrize("words, notes", [
    (("-K1",), "-K is ignored"),
    (("--mpi=pmix",), "--mpi is ignored"),
    (("--use_env",), "--use_env is ignored"),
    (("-t", "2"), "for a time limit use --timeout"),
    (("--timeout", "1h30m"), ""),
    (("--timeout", "01:00:00"), ""),
    (("-H", "localhost:22", "-n", "1"), "localhost:22 means 22 workers.*localhost:port=22")])
def test_equivalent_flags_are_noted(local, words, notes):
    noted(local.run(*words, *HELLO), notes)


def test_unknown_variables_are_noted(local):
    noted(local.run(*HELLO, env={"IVY_HOST": "foo"}), "IVY_HOST is set, but nothing reads it", "IVY_HOSTS")
    done = local.run(*HELLO, env={"IVY_TIMEOUT": "1h", "IVY_PYTHON": "python3", "IVY_KERNELS": "avx2"})
    assert "nothing reads" not in done.own_text(), done


def test_brackets_that_the_shell_has_expanded(local):
    for name in ("node1", "node2", "node3"):
        local.file(name, "a certificate\n")
    done = local.run_program("sh", "-c", f"cd {local.directory} && exec {local.ivyrun()} -H node[1-3] echo started")
    refused(done, 2, "expanded a host name with brackets", r"quote it: -H 'node\[1-3\]'")


# ---- host files ----------------------------------------------------------------------------------

def test_max_slots_limits_the_workers(local):
    path = local.file("hosts", "localhost slots=2 max_slots=1\n")
    refused(local.run("--hostfile", path, *HELLO), 2, f"{path}:1:1", "max_slots=1")
    local.file("hosts", "localhost max_slots=2\n")
    refused(local.run("--hostfile", path, "--nproc_per_node", "3", *HELLO), 2, "requested 3 processes",
            "allows only 2", f"{path}:1")
    assert local.run("--hostfile", path, "-n", "2", *HELLO).out.count(b"started") == 2


def test_host_files_of_other_launchers(local):
    path = local.file("hosts", "localhost 3\n")
    assert local.run("--hostfile", path, *HELLO).out.count(b"started") == 3
    local.file("hosts", "localhost:2 binding=user:1\n")
    refused(local.run("--hostfile", path, *HELLO), 2, f"{path}:1:13", "MPICH", "fix: .*--bind-to")


# ---- messages ------------------------------------------------------------------------------------

def test_an_address_of_another_machine(local):
    done = local.run("--master-addr", "203.0.113.9", "-n", "2", "sleep", "30")
    refused(done, 122, "IVY-P022", "not an address of the first host", "fix: .*leave out --master-addr")


def test_short_times_have_tenths(local):
    done = local.run("-n", "1", "sh", "-c", "exit 3")
    assert re.search(r"with exit 3 after \d+\.\d s\n    \(no stderr output\)\n", done.own_text()), done


def test_verbose_lines_have_the_same_prefix(local):
    done = local.run("-v", *HELLO)
    assert "debug:" not in done.own_text() and "ivyrun: job: " in done.own_text(), done


def test_the_python_that_has_the_module_is_named(local):
    for place in ("lacks/bin", "has/bin", "has/lib/python3.11/site-packages/planetarium"):
        os.makedirs(os.path.join(local.directory, place))
    for place in ("lacks", "has"):
        os.symlink("/usr/bin/python3", os.path.join(local.directory, place, "bin/python3"))
    local.file("train.py", "import planetarium.stars\n")
    path = ":".join(os.path.join(local.directory, place, "bin") for place in ("lacks", "has"))
    done = local.run("-n", "1", "train.py", env={"PATH": path})
    assert done.code == 1, done
    assert re.search(rf"fix:   use --python {local.directory}/has/bin/python3 \(it has planetarium\)", done.own_text()), done


@pytest.mark.parametrize("module, fix", [
    ("no_module_of_this_name", "if it is your own module, put it next to the script on every host; otherwise install the package "
                               "that provides it for {python}"),
    ("cv2", "{python} -m pip install 'opencv-python'")])
def test_pip_is_advised_only_for_known_distributions(local, module, fix):
    os.makedirs(os.path.join(local.directory, "env/bin"))
    python = os.path.join(local.directory, "env/bin/python3")
    local.file("env/bin/python3", '#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n', 0o755)
    local.file("train.py", f"import {module}\n")
    done = local.run("-n", "1", "--python", python, "train.py")
    assert "fix:   " + fix.format(python=python) in done.own_text(), done
    if module != "cv2":
        assert "pip" not in done.own_text(), done


def test_an_externally_managed_python_gets_a_virtual_environment(local):
    local.file("train.py", "raise ModuleNotFoundError(\"No module named 'deepspeed'\")\n")
    done = local.run("-n", "1", "--python", "/usr/bin/python3", "train.py")
    assert "/usr/bin/python3 -m venv ~/venv && ~/venv/bin/pip install 'deepspeed'" in done.own_text(), done


def test_a_module_that_safe_path_hides_is_named(local):
    local.file("mine_too.py", "")
    local.file("train.py", "import mine_too\n")
    assert local.run("-n", "1", "train.py").code == 0
    done = local.run("-n", "1", "train.py", env={"PYTHONSAFEPATH": "1"})
    assert done.code == 1, done
    assert f"it is in {local.directory}, which Python skips because of PYTHONSAFEPATH" in done.err_text, done


def test_a_module_in_the_working_directory_of_a_script_elsewhere_is_named(local):
    local.file("mine_too.py", "")
    os.makedirs(os.path.join(local.directory, "scripts"))
    local.file("scripts/train.py", "import mine_too\n")
    done = local.run("-n", "1", "scripts/train.py")
    assert done.code == 1, done
    assert f"it is in {local.directory}, which Python does not search" in done.err_text, done
    assert local.run("-n", "1", "-x", f"PYTHONPATH={local.directory}", "scripts/train.py").code == 0
    assert local.run("-n", "1", "-m", "scripts.train").code == 0


def test_a_module_of_the_projects_own_environment(local):
    """uv and poetry create ./.venv. VIRTUAL_ENV often still names an environment that has been removed."""
    for folder in (".venv/bin", ".venv/lib/python3.11/site-packages/onlyhere"):
        os.makedirs(os.path.join(local.directory, folder))
    os.symlink("/usr/bin/python3", os.path.join(local.directory, ".venv/bin/python"))
    script = local.file("train.py", "import onlyhere\n")
    done = local.run("-n", "1", "--python", "/usr/bin/python3", script, env={"VIRTUAL_ENV": "/gone/venv"})
    assert done.code == 1, done
    assert f"fix:   use --python {local.directory}/.venv/bin/python (it has onlyhere)" in done.own_text(), done
    assert "VIRTUAL_ENV is set to /gone/venv, which has no bin/python" in done.own_text(), done
