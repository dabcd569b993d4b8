# SPDX-License-Identifier: Apache-2.0
"""README and docs/: the programs accept the documented commands and flags."""

import concurrent.futures
import glob
import os
import re
import shlex
import subprocess

import pytest

from launching import BIN, REPOSITORY, seconds

PROGRAMS = ("ivyrun", "ivyctl", "ivy-agent", "ivy-rendezvous")
PAGES = [os.path.join(REPOSITORY, "README.md"), *sorted(glob.glob(os.path.join(REPOSITORY, "docs/**/*.md"), recursive=True))]
# Pages that are generated from the tables or describe flags of other programs.
MADE = ("flags.md", "coming-from.md", "when-it-fails.md", "CHANGELOG.md")
BROKEN = """import os
if os.environ["RANK"] == "3":
    raise RuntimeError("loss is not finite: nan at step 12")
import time
time.sleep(60)
"""


def typed(page):
    """Yields the command lines of a page, in indented blocks (with or without a prompt) and between backquotes."""
    with open(page, encoding="utf-8") as file:
        text = re.sub(r"\\\\\n\s*", " ", file.read())
    for line in text.splitlines():
        command = re.sub(r"^\s+(\$ )?(exec )?(build/bin/)?", "", line)
        if line.startswith("    ") and command.split(" ")[0] in PROGRAMS:
            yield command
    for command in re.findall(r"`((?:ivyrun|ivyctl|ivy-agent|ivy-rendezvous) [^`]+)`", re.sub(r"\n\s*", " ", text)):
        yield command


# It accepts the flags of ivyrun, too.
DOCTOR = "ivyctl doctor"


def own_flags(line):
    """Returns the name of the program and its flags up to the program that it launches."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split("#")[0].split()
    flags = []
    for word in words[1:]:
        if word in ("--", "|", "&&", ";") or re.search(r"\.(py|sh|ipynb)$", word) or re.match(r"\./|python|apptainer$|podman$|sh$", word):
            break
        if word.startswith("--"):
            flags.append(re.split(r"[=\[]", word)[0].replace("_", "-"))
        # The following arguments belong to the app.
        if word == "--app":
            break
    return DOCTOR if " ".join(words[:2]) == DOCTOR else words[0], flags


@pytest.fixture(scope="module")
def known():
    flags = {}
    for program in PROGRAMS:
        said = subprocess.run([os.path.join(BIN, program), "--generate", "markdown"], capture_output=True, text=True,
                              timeout=seconds(20))
        assert said.returncode == 0, said
        flags[program] = set(re.findall(r"--[a-z][a-z0-9-]*", said.stdout)) | {"--help", "--version", "--generate", "--resume"}
    # `ivy-agent cert` has its own help, which lists all of its commands.
    certificates = subprocess.run([os.path.join(BIN, "ivy-agent"), "cert", "--help"], capture_output=True, text=True,
                                  timeout=seconds(20))
    flags["ivy-agent"] |= set(re.findall(r"--[a-z][a-z0-9-]*", certificates.stdout))
    flags[DOCTOR] = flags["ivyctl"] | flags["ivyrun"]
    return flags


@pytest.mark.parametrize("page", [page for page in PAGES if os.path.basename(page) not in MADE],
                         ids=lambda page: os.path.relpath(page, REPOSITORY))
def test_documented_flags_are_accepted(page, known):
    wrong = [f"{line}: {flag}" for line in typed(page) for program, flags in [own_flags(line)] for flag in flags
             if flag not in known[program]]
    assert wrong == [], "\n".join(wrong)


# Placeholders for the reader's own values, for any number of arguments, or for the output of a command.
PLACEHOLDER = re.compile(r"^\$\(|^[A-Z][A-Z0-9_]*$|\.\.\.|…|\[flags\]|/[A-Z]+/|^-B/")
# Lines that need an open descriptor or continue in the next line.
NOT_BY_ITSELF = ("fd:3", "\\")


def whole_commands():
    """Returns the arguments of each `ivyrun` line that can be typed unchanged, up to the first shell operator."""
    found = {}
    for page in PAGES:
        if os.path.basename(page) in MADE:
            continue
        for line in typed(page):
            if not line.startswith("ivyrun ") or line.endswith(NOT_BY_ITSELF):
                continue
            words = shlex.split(line, comments=True)[1:]
            if any(PLACEHOLDER.search(word) or word in NOT_BY_ITSELF for word in words):
                continue
            if len(words) == 1 and words[0].startswith("-"):  # The text only mentions a flag.
                continue
            end = next((at for at, word in enumerate(words) if re.match(r"\d*>|\||&&|;", word)), len(words))
            found.setdefault(tuple(words[:end]), os.path.basename(page))
    return found


def test_documented_commands_work_unchanged(local):
    """Runs each command without its hosts and tools. It may fail because of them, but not with a usage error."""
    for name in ("train.py", "analyse.py", "ask.py", "main.py", "train_mpi4py.py"):
        local.file(name, "print('ran')\n")
    local.file("run.sh", "#!/bin/sh\necho ran\n", 0o755)
    local.file("hosts", "node[01-08] slots=8\n")
    local.file("uv.lock")
    # Stand for programs whose hosts cannot be reached here.
    os.mkdir(os.path.join(local.directory, "tools"))
    local.file("tools/kubectl", "#!/bin/sh\necho pod/ivy-nodes-0\n", 0o755)
    # No image is pulled.
    for runtime in ("podman", "apptainer"):
        local.file(f"tools/{runtime}", "#!/bin/sh\nexit 125\n", 0o755)
    local.file("tools/my-cluster", "#!/bin/sh\necho node01\n", 0o755)
    commands = whole_commands()
    assert len(commands) > 40
    limits = {"IVY_START_TIMEOUT": "1s", "IVY_TIMEOUT": "5s",
              "PATH": f"{local.directory}/tools:{local.environment['PATH']}"}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda words: local.run(*words, env=limits, limit=60), commands))
    wrong = {words: (page, ended) for (words, page), ended in zip(commands.items(), done)
             if ended.code == 125 or (ended.code == 2 and "no program given" not in ended.err_text)}
    assert not wrong, wrong
    assert sum(b"ran" in ended.out for ended in done) > 10, done


def test_the_readme_is_short():
    with open(PAGES[0], encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert len(lines) <= 90 and max(map(len, lines)) <= 120


def test_the_failure_in_the_readme_is_reported(local):
    local.file("train.py", BROKEN)
    done = local.run("--fake-hosts", "3", "--nproc_per_node", "2", "train.py")
    assert done.code == 1, done
    for line in (r"3 hosts x 2 = 6 ranks \(--nproc-per-node 2\)", r"error\[IVY-R001\]: rank 3 failed first \(fake1, pid \d+\) "
                 r"with exit 1 after \d+\.\d s", r"    RuntimeError: loss is not finite: nan at step 12",
                 r"  5 other ranks were stopped: 0-2,4-5", r"exit code 1 \(from rank 3\)"):
        assert re.search(line, done.err_text), line


def test_the_everyday_commands_in_the_readme_work(local):
    local.file("train.py", "import os; print('rank', os.environ['RANK'])")
    done = local.run("--nproc_per_node", "8", "train.py")
    assert done.code == 0 and done.out.count(b"rank ") == 8, done
    done = local.run("--detach", "--output", "logs/%h-%r.log", "train.py")
    assert done.code == 0, done
    for words in (["ps"], ["why"]):
        assert local.run_program(os.path.join(BIN, "ivyctl"), *words).code in (0, 1), words
    done = local.run("--fake-hosts", "4", "--dry-run", "train.py")
    assert done.code == 0 and "fake3" in done.err_text + done.out.decode(), done


def test_tests_that_pages_name_exist():
    """Files, or functions in them; also in the READMEs of the tests."""
    programs = glob.glob(os.path.join(REPOSITORY, "tests/**/*.py"), recursive=True)
    there = {os.path.basename(path)[:-len(".py")] for path in programs}
    for path in programs:
        with open(path, encoding="utf-8") as file:
            there |= set(re.findall(r"^def (test_\w+)", file.read(), re.MULTILINE))
    named = {}
    for page in [*PAGES, *glob.glob(os.path.join(REPOSITORY, "tests/*/README.md"))]:
        with open(page, encoding="utf-8") as file:
            for name in re.findall(r"(?<![\w/])test_\w*[a-z0-9](?![\w*.]*\*|\.cc|\.h)\b", file.read()):
                named.setdefault(name, os.path.basename(page))
    assert len(named) > 20
    assert {name: page for name, page in named.items() if name not in there} == {}


def test_exit_codes_are_documented():
    """The page and the help list the same codes, which include all of proto/contract/exit_code.h."""
    def codes(lists):
        return {int(code) for text in lists for code in text.split(", ")}

    with open(os.path.join(REPOSITORY, "proto/contract/exit_code.h"), encoding="utf-8") as file:
        own = codes(re.findall(r"int kExit\w+ = (\d+);", file.read())) - {1}  # Only ivyrun's other programs use 1.
    with open(os.path.join(REPOSITORY, "docs/endings-and-exit-codes.md"), encoding="utf-8") as file:
        page = codes(re.findall(r"^\| (\d+(?:, \d+)*) \|", file.read(), re.MULTILINE))
    said = subprocess.run([os.path.join(BIN, "ivyrun"), "--help", "all"], capture_output=True, text=True,
                          timeout=seconds(20)).stdout
    listed = said[said.index("Exit code:"):said.index("If a job fails")]
    assert len(own) > 8 and own <= page, own - page
    assert codes(re.findall(r"(?:\n|  )(\d+(?:, \d+)*) ", listed)) == page, listed


# A shell may expand brackets: zsh fails if no file has a matching name.
BARE_BRACKETS = re.compile(r"""(?:-H|--hosts?|--include|--exclude)[ =](?![\[<])[^\s'"\]]*\w\[[0-9]""")


def test_host_ranges_are_quoted():
    assert BARE_BRACKETS.search("ivyrun -H node[1-2] x") and not BARE_BRACKETS.search("ivyrun -H 'node[1-2]' x")
    helps = [subprocess.run([os.path.join(BIN, program), "--help"], capture_output=True, text=True, timeout=seconds(30))
             for program in ("ivyrun", "ivyctl")]
    lines = [line for page in PAGES for line in typed(page)]
    lines += [line for done in helps for line in done.stdout.splitlines()]
    assert [line for line in lines if BARE_BRACKETS.search(line)] == []


# Phrases that are not plain English. Instead of "no job of yours", for example: "You have no running jobs on this host."
FOREIGN = re.compile(r"\bno [a-z]+ of yours\b|\b(?:store|agent|job|port)s? of ivyrun's\b|jobs are found on")
# Messages to users of ivyrun and to administrators of agents: "X is not a transport". "There is no such host" is English.
IS_NO = re.compile(r"(?<!there )\bis no (?!longer\b)[a-z]+", re.I)
READ_BY_USERS = ("launcher/", "agent/daemon/", "agent/node/")


def test_messages_are_plain_english():
    found = []
    for folder in ("launcher", "agent", "rendezvous", "comm", "proto"):
        for path in glob.glob(os.path.join(REPOSITORY, folder, "**", "*.cc"), recursive=True):
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if line.lstrip().startswith("//"):
                        continue
                    said = " ".join(re.findall(r'"(?:[^"\\]|\\.)*"', line))
                    place = os.path.relpath(path, REPOSITORY)
                    if FOREIGN.search(said) or (place.startswith(READ_BY_USERS) and IS_NO.search(said)):
                        found.append(f"{place}:{number}: {line.strip()}")
    assert not found, found
