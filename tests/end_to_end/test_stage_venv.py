# SPDX-License-Identifier: Apache-2.0
"""--stage-venv: the Python environment reaches hosts that have Python, but not the packages; uv.lock is synced there."""

import os
import re
import shutil
import sys

import pytest

from launching import REPOSITORY

PROJECT = "/tmp/venv-project"  # On node1 only: each host has a private /tmp.
VENV = f"{PROJECT}/.venv"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"lib/python{VERSION}/site-packages"
ACTIVATED = (f"VIRTUAL_ENV={VENV}", f"PATH={VENV}/bin:/usr/local/bin:/usr/bin:/bin")  # As `activate` does.
STAGED = "/root/.cache/ivyrun/stage/trees"
WHERE = """\
import os, subprocess, sys
import greeting
print(sys.prefix, os.environ.get("VIRTUAL_ENV"), greeting.__file__, subprocess.check_output(["greet"], text=True).strip())
"""


class Project:
    """A git work tree with a virtual environment on node1, which no other host sees."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.shell(f"rm -rf {PROJECT} && mkdir {PROJECT} && cd {PROJECT} && git init -q . && echo .venv > .gitignore && "
                   f"/usr/bin/python3 -m venv --without-pip .venv && mkdir {VENV}/{SITE}/greeting")
        self.file("train.py", WHERE)
        self.file(f".venv/{SITE}/greeting/__init__.py", "text = 'hello from the package'\n")
        self.file(".venv/bin/greet", f"#!{VENV}/bin/python3\nimport greeting\nprint(greeting.text)\n")
        self.shell(f"chmod +x {VENV}/bin/greet && {VENV}/bin/python -m compileall -q {VENV}/{SITE}")

    def shell(self, command, host=1):
        done = self.hosts.run_on(host, "bash", "-c", command, limit=60)
        assert done.code == 0, done
        return done.out.decode(errors="surrogateescape")

    def file(self, name, text, host=1):
        self.shell(f"cat > {os.path.join(PROJECT, name)} <<'END'\n{text}END", host)

    def run(self, *arguments, names="node2,node4", env=ACTIVATED, limit=60):
        return self.hosts.run_program("env", "-C", PROJECT, *env, self.hosts.ivyrun(), "-H", names, *arguments, limit=limit)

    def forget(self):
        for number in (1, 2, 3, 4):
            self.shell("rm -rf /root/.cache/ivyrun/stage /root/.cache/ivyrun/environments /root/.local", number)


@pytest.fixture
def project(hosts):
    made = Project(hosts)
    made.forget()
    yield made
    made.forget()
    made.shell(f"rm -rf {PROJECT} /root/.cache/ivyrun/stage-hashes-*")


def texts(done, ranks=2):
    assert done.code == 0, done
    found = done.texts_by_rank()
    assert len(found) == ranks, done
    return [found[rank][0].split(" ", 3) for rank in sorted(found)]


def test_workers_use_the_packages_and_programs_of_the_environment(project):
    for prefix, variable, module, greeting in texts(project.run("--stage-venv", "train.py")):
        assert re.fullmatch(rf"{STAGED}/venv-[0-9a-f]{{24}}", prefix)
        assert variable == prefix and module == f"{prefix}/{SITE}/greeting/__init__.py"
        assert greeting == "hello from the package"


def test_this_host_uses_the_environment_itself(project):
    here, there = texts(project.run("--stage-venv", "train.py", names="node1,node2"))
    assert here[0] == VENV and there[0].startswith(STAGED)


def test_the_environment_of_the_project_need_not_be_active(project):
    here, there = texts(project.run("--stage-venv", "train.py", names="node1,node2", env=()))
    assert here[0] == VENV and there[0].startswith(STAGED)


def test_an_unchanged_environment_is_used_again(project):
    first = texts(project.run("--stage-venv", "train.py"))
    before = project.shell(f"stat -c %Z {first[0][0]}", 2)
    project.file("train.py", WHERE + "\n")
    again = project.run("--stage-venv", "train.py")
    assert texts(again) == first
    assert re.search(r"\(\d+ B sent\)", again.err_text), again
    assert project.shell(f"stat -c %Z {first[0][0]}", 2) == before
    project.file(f".venv/{SITE}/greeting/__init__.py", "text = 'changed'\n")
    changed = texts(project.run("--stage-venv", "train.py"))
    assert changed[0][3] == "changed" and changed[0][0] != first[0][0]


def test_bytecode_is_not_compiled_again(project):
    project.file("train.py", "import greeting; print(greeting.__cached__)\n")
    done = project.run("--stage-venv", "train.py", names="node2")
    assert done.code == 0, done
    cached = done.labelled()[0][2] if done.labelled() else done.out_lines[0]
    sent = project.shell(f"find {VENV} -name '__init__.cpython*.pyc' -path '*greeting*' -exec sha256sum {{}} +").split()[0]
    assert project.shell(f"sha256sum {cached}", 2).split()[0] == sent


def test_activate_works_on_the_host(project):
    done = project.run("--stage-venv", "bash", "-c", "source $VIRTUAL_ENV/bin/activate && command -v greet && greet", names="node2")
    assert done.code == 0, done
    assert re.search(rf"{STAGED}/venv-\w+/bin/greet", "\n".join(done.out_lines)), done


@pytest.mark.parametrize("form", ["path", "finder"])
def test_editable_installs_of_the_project_work(project, form):
    project.shell(f"rm -rf {VENV}/{SITE}/greeting; mkdir -p {PROJECT}/src/greeting")
    project.file("src/greeting/__init__.py", "text = 'editable'\n")
    if form == "path":
        project.file(f".venv/{SITE}/__editable__.greeting-0.1.pth", f"{PROJECT}/src\n")
    else:
        project.file(f".venv/{SITE}/__editable__.greeting-0.1.pth",
                     "import __editable___greeting_0_1_finder; __editable___greeting_0_1_finder.install()\n")
        project.file(f".venv/{SITE}/__editable___greeting_0_1_finder.py",
                     f"import sys\nMAPPING = {{'greeting': '{PROJECT}/src/greeting'}}\ndef install(): sys.path.append('{PROJECT}/src')\n")
    for _, _, module, greeting in texts(project.run("--stage-venv", "train.py")):
        assert re.fullmatch(rf"{STAGED}/venv-project-[0-9a-f]{{12}}-\d/src/greeting/__init__.py", module)
        assert greeting == "editable"


def test_editable_installs_of_other_directories_are_rejected(project):
    project.file(f".venv/{SITE}/__editable__.other-0.1.pth", "/tmp/other/src\n")
    done = project.run("--stage-venv", "train.py")
    assert done.code == 122, done
    assert "imports package other-0.1 from /tmp/other/src" in done.err_text, done
    assert "pip install /tmp/other/src" in done.err_text, done


def test_a_host_without_that_python_is_named(project):
    project.shell(f"cd {VENV} && sed -i 's/^version.*/version = 3.99.1/' pyvenv.cfg && mv lib/python{VERSION} lib/python3.99")
    done = project.run("--stage-venv", "train.py")
    assert done.code != 0 and "IVY-H015" in done.err_text, done
    assert "where: node2,node4" in done.err_text or "where: node[2,4]" in done.err_text or "2 of 2 hosts" in done.err_text, done
    assert "needs Python 3.99" in done.err_text and "uv python install 3.99" in done.err_text, done


def test_compiled_files_of_another_architecture_are_rejected(project):
    # The header of a shared library for s390x.
    project.shell(f"printf '\\x7fELF\\x02\\x02\\x01%09d\\x00\\x03\\x00\\x16' 0 > {VENV}/{SITE}/greeting/fast.so")
    done = project.run("--stage-venv", "train.py")
    assert done.code != 0 and "IVY-H015" in done.err_text, done
    assert f"compiled for s390x, but this host is {os.uname().machine}: {SITE}/greeting/fast.so" in done.err_text, done
    assert "--stage-venv=uv" in done.err_text, done


def test_without_an_environment_the_message_says_what_to_do(project):
    project.shell(f"rm -rf {VENV}")
    done = project.run("--stage-venv", "train.py", env=())
    assert done.code != 0 and "is not in a virtual environment" in done.err_text, done
    assert "--activate DIR" in done.err_text, done


def test_a_python_of_uv_is_sent_along(project):
    """A copy of this machine's Python where uv would have installed it, which the other hosts do not have."""
    root = f"/root/.local/share/uv/python/cpython-{VERSION}.0-linux-x86_64-gnu"
    left_out = " ".join(f"--exclude={name}" for name in ("__pycache__", "test", "idlelib", "'config-*'"))
    project.shell(f"mkdir -p {root}/bin {root}/lib && cp $(readlink -f /usr/bin/python3) {root}/bin/python{VERSION} && "
                  f"tar c -C /usr/lib {left_out} python{VERSION} | tar x -C {root}/lib && "
                  f"sed -i 's|^home.*|home = {root}/bin|' {VENV}/pyvenv.cfg")
    project.file("train.py", "import sys, greeting; print(sys.base_prefix, greeting.text)\n")
    done = project.run("--stage-venv", "train.py", names="node2", limit=120)
    assert done.code == 0, done
    assert re.search(rf"{STAGED}/python-[0-9a-f]{{24}} hello", done.out.decode()), done


FAKE_UV = """\
#!/bin/sh
echo "$@" >> /tmp/uv-calls
test -e /tmp/uv-fails && { echo 'error: no wheel of torch for this platform' >&2; exit 2; }
/usr/bin/python3 -m venv --without-pip "$UV_PROJECT_ENVIRONMENT"
"""


@pytest.fixture
def uv(project):
    """A stand-in for uv on the hosts, which notes its calls."""
    project.shell(f"cd {PROJECT} && echo > uv.lock && echo > pyproject.toml")
    project.file("train.py", "import os, sys; print(sys.prefix, os.environ['VIRTUAL_ENV'])\n")
    for number in (1, 2, 4):
        project.shell("mkdir -p /root/.local/bin && rm -f /tmp/uv-calls /tmp/uv-fails", number)
        project.shell(f"cat > /root/.local/bin/uv <<'END'\n{FAKE_UV}END\nchmod +x /root/.local/bin/uv", number)
    yield project
    for number in (1, 2, 4):
        project.shell("rm -f /tmp/uv-calls /tmp/uv-fails", number)


def test_uv_syncs_once_on_each_host(uv):
    done = uv.run("--stage-venv=uv", "--nproc_per_node", "3", "train.py", names="node1,node2,node4", env=())
    found = texts(done, ranks=9)
    assert all(prefix == variable for prefix, variable in found), done
    assert found[0][0] == VENV and found[3][0].startswith(f"{STAGED}/venv-project-"), done
    for number in (2, 4):
        calls = uv.shell("cat /tmp/uv-calls", number).splitlines()
        assert len(calls) == 1 and calls[0].startswith("sync --frozen --project /"), calls


def test_the_output_of_a_failed_sync_names_the_host(uv):
    uv.shell("touch /tmp/uv-fails", 4)
    done = uv.run("--stage-venv=uv", "train.py", env=())
    assert done.code != 0 and "IVY-H015" in done.err_text, done
    assert "where: node4" in done.err_text and "no wheel of torch for this platform" in done.err_text, done


def test_a_missing_lock_or_uv_is_named(uv):
    uv.shell("rm /root/.local/bin/uv", 2)
    done = uv.run("--stage-venv=uv", "train.py", env=())
    assert done.code != 0 and "uv is not in PATH, ~/.local/bin or ~/.cargo/bin" in done.err_text, done
    uv.shell(f"rm {PROJECT}/uv.lock")
    done = uv.run("--stage-venv=uv", "train.py", env=())
    assert done.code != 0 and "there is no uv.lock in" in done.err_text, done


def test_uv_itself_creates_the_environment(project):
    """The real uv, with a lock that needs no package."""
    program = os.path.join(REPOSITORY, "build/lint/bin/uv")
    if not os.access(program, os.X_OK):
        pytest.skip("no uv here (scripts/setup lint)")
    inside = project.hosts.directory
    shutil.copy(program, project.hosts.outside(f"{inside}/uv"))
    project.file("pyproject.toml", "[project]\nname = 'demo'\nversion = '0.1'\nrequires-python = '>=3.8'\n\n[tool.uv]\npackage = false\n")
    project.file("train.py", "import os, sys; print(sys.prefix, os.environ['VIRTUAL_ENV'])\n")
    project.shell(f"cd {PROJECT} && rm -rf .venv && UV_OFFLINE=1 {inside}/uv lock -q -p /usr/bin/python3")
    done = project.run("--stage-venv=uv", "train.py", names="node2", env=(f"PATH={inside}:/usr/bin:/bin", "UV_OFFLINE=1"))
    assert done.code == 0, done
    assert re.search(rf"{STAGED}/venv-project-\w+(-0)?/\.venv ", done.out.decode()), done
