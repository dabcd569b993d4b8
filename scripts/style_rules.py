# SPDX-License-Identifier: Apache-2.0
"""Checks the style rules that need no compiler: allowed includes, pure files, blocking calls, coroutines, READMEs.

Prints each violation as "file:line: text", and exits with 1 if there is one. scripts/README.md explains the rules.
"""

import ast
import os
import re
import subprocess
import sys

FOLDERS = ("proto", "rendezvous", "comm", "agent", "launcher", "tests")

# Folder -> folders whose headers it may include.
ARROWS = {
    "proto": {"proto"},
    "rendezvous": {"proto", "rendezvous"},
    "comm": {"comm", "proto", "rendezvous"},
    "agent": {"proto", "agent"},
    "launcher": {"proto", "rendezvous", "launcher"},
    "tests": set(FOLDERS),
}

# The headers that comm may include: comm is loaded into users' processes, so it uses only headers that need no
# additional library.
COMM_MAY_SEE = re.compile(
    r"^(comm/.*|proto/(contract|os)/(?!log\b|file_writer\b|blocking\b|heartbeat\b)\w+\.h"
    r"|proto/wire/(control_wire|operation|status_page|store_wire|handshake|ras)\.h|proto/wire/operations\.def"
    r"|rendezvous/client/client\.h)$"
)

# Header -> the only files that may include it.
HOMES = (
    (
        r"^CLI/",
        r"^(launcher/options/(options\.cc|flag_values\.h)|(launcher/ctl/ctl_options|agent/daemon/options)\.cc)$",
        "CLI11 lives in the options files",
    ),
    (r"^libssh/", r"^launcher/links/ssh/\w+\.(h|cc)$", "libssh lives in launcher/links/ssh"),
    (
        r"^grpc(pp)?/|\.grpc\.pb\.h$",
        r"^(launcher/links/agent/|agent/daemon/|tests/(agent|launcher)/)",
        "gRPC lives in launcher/links/agent and agent/daemon",
    ),
    (r"^(spdlog|fmt)/", r"^proto/contract/log\.(h|cc)$", "spdlog and fmt live in proto/contract/log"),
    (r"^r?nccl", r"^(comm/nccl/|tests/comm/nccl_abi_test\.cc$)", "NCCL lives in comm/nccl"),
    (r"^boost/", r"^(launcher|agent|rendezvous|tests)/", "Boost stays out of proto and comm"),
    (r"^openssl/", r"^(proto/(wire/handshake|trust/)|agent/node/facts/program_facts|launcher/|agent/daemon/|tests/)",
     "OpenSSL has homes"),
    (r"^archive", r"^agent/daemon/jobs/bundle_tar\.cc$", "libarchive lives in bundle_tar"),
    (r"^toml\+\+/", r"^(proto/trust/agent_config|launcher/options/(app_file|toml_file))\.cc$", "toml++ has homes"),
    (r"^pmix", r"^(agent/pmix/|tests/(agent|end_to_end/workers)/)", "libpmix lives in agent/pmix"),
)

# Pure modules, which compute values from values, without system calls, clocks or globals. A name stands for the header
# and its source.
PURE = {
    f"{folder}/{name}"
    for folder, names in {
        "proto/contract": "env exit_code metrics_page recent_minimum status device_vendor edit_distance",
        "proto/wire": "session mpi_names mpi_server_options dial_wire control_wire operation status_page store_wire",
        "launcher/drill": "drill_schedule fault_log",
        "launcher/options": "drill_rule hosts",
        "launcher/plan": "plan worker_environment jax_variables placement device_checks device_and_slurm_variables allocation",
        "launcher/job/core": "job_state job_workers",
        "launcher/job/hosts": "host_clock host_failures node_ranks notice_board",
        "launcher/report": "diagnostic verdict label",
        "launcher/slurm": "nodelist slurm_allocation allocation_end step",
        "launcher/screen": "host_credit line_splitter control_filter summary",
        "agent/node/container": "container_runtime",
        "agent/node/workers": "worker_state lease mpi_identity",
        "agent/pmix": "event_line fence_group job_facts job_layout mpi_variables",
        "rendezvous/engine": "engine contents watches wait_graph explanation",
        "rendezvous/dialects": "connection native_dialect torch_dialect codec",
        "comm/join": "identity launchers endpoint",
        "comm/contract": "fingerprint",
        "comm/group/core": "membership",
        "comm/group/p2p": "message_matching",
        "comm/collectives": "selector",
        "comm/nccl": "preflight reduction_plan",
    }.items()
    for name in names.split()
}
# <cerrno> is allowed because its constants are values; `errno` itself is one of IMPURE_WORD.
IMPURE_HEADER = re.compile(
    r"^(boost/|spdlog/|fmt/|openssl/|unistd\.h|poll\.h|fcntl\.h|netdb\.h|c?time(\.h)?$"
    r"|sys/(socket|stat|epoll|wait|types\.h$)|fstream|iostream|filesystem|thread|mutex"
    r"|condition_variable)"
)
IMPURE_WORD = re.compile(
    r"_clock::now\b|\berrno\b|\bgetenv\b|\bstd::c(out|err)\b|\bfopen\b|\bclock_gettime\b"
    r"|\b(steady|system)_now\(|\b(monotonic|wall)_n?s\("
)

# Operations that only proto/os performs: closing descriptors, filling a sockaddr_un, reading clocks.
OWNED_BY_OS = {
    "calls of close()": re.compile(r"(?<!not_inherited::)(?<![\w.>])(?:::)?close\([^)]"),
    "clocks read": re.compile(r"_clock::now\(|\bclock_gettime\("),
    "sockaddr_un": re.compile(r"\bsockaddr_un\b"),
}
OWN_CLOSE = re.compile(r"\b(void|Result<void>) (\w+::)*close\(")  # A method, unlike the system's `::close`.
# The exceptions outside proto/os, each with its reason.
MAY_CALL_THE_OS = {
    "agent/node/roles/warden.cc": "closes every number that it may have inherited, before Linux 5.9",
    "agent/daemon/jobs/bundle_tar.cc": "some file systems report a full disk only to close()",
    "launcher/fetch/fetch_writer.cc": "the same",
    "comm/contract/fast_clock.cc": "read in every operation: a call less",
    "comm/transports/shm/futex.cc": "the same",
    "comm/transports/liveness/failure_detectors.cc": "pidfds stand in the array that poll() takes",
    "comm/transports/shm/registered_memory.cc": "a region gives its descriptor up before its memory",
}

# Calls that wait for a file system, a name server or a child process. In LOOP_FOLDERS, whose code runs on event loops,
# only tasks of a BlockingPool may make them (proto/os/blocking.h).
MAY_BLOCK = re.compile(
    r"(?<![\w.>:])(?:::)?(stat|lstat|fstatat|access|faccessat|open|openat|opendir|readlink|realpath|statvfs"
    r"|getaddrinfo|getnameinfo|getpwnam\w*|getpwuid\w*|find_executable|program_directory|read_own_program"
    r"|posix_spawnp?|popen|system)\("
    r"|\bstd::[io]?fstream\b|\bwaitpid\((?![^;]*WNOHANG)"
)
LOOP_FOLDERS = ("agent/daemon/", "agent/node/facts/", "agent/node/hang/", "agent/node/spawn/",
                "agent/node/supervisor/", "agent/node/workers/", "launcher/job/", "launcher/join/",
                "launcher/links/", "launcher/screen/", "launcher/slurm/", "launcher/streams/")
OWN_OPEN = re.compile(r"\b(void|int|bool|Result<.*>) (\w+::)*open\(")  # A method.
# The files that make such calls, with the reason why no event loop waits for them.
TASKS = "called in tasks only"
LOCAL = "the job's directory and /proc, /sys, /dev are local"
EARLY = "called before the loop runs"
WRITER = "called on the thread of FileWriter"
BLOCKING_FILES = {
    "agent/daemon/net/acceptor.cc": "called before the loop runs, and for /dev/null",
    "agent/daemon/agent_metrics.cc": WRITER,
    "agent/daemon/agent_admin.cc": "a command's own process, which has no loop",
    "agent/daemon/net/agent_credentials.cc": "called before the loop runs and in tasks",
    "agent/daemon/jobs/agent_core.cc": EARLY,
    "agent/daemon/jobs/bundle_cache.cc": TASKS,
    "agent/daemon/jobs/bundle_tar.cc": TASKS,
    "agent/daemon/jobs/warden_start.cc": TASKS,
    "agent/daemon/jobs/job_registry.cc": LOCAL,
    "agent/daemon/serve.cc": EARLY,
    "agent/daemon/jobs/state_directory.cc": "take() and read() run before the loop, the rest in tasks",
    "agent/daemon/jobs/unit_cgroup.cc": EARLY,
    "agent/node/facts/elf_libraries.cc": TASKS,
    "agent/node/facts/host_facts.cc": TASKS,
    "agent/node/facts/own_package.cc": TASKS,
    "agent/node/facts/program_facts.cc": TASKS,
    "agent/node/facts/staged_python.cc": TASKS,
    "agent/node/hang/process_view.cc": LOCAL,
    "agent/node/hang/stack_collector.cc": "a task searches PATH, and the rest is in the job's directory",
    "agent/node/spawn/fork_request.cc": TASKS,
    "agent/node/spawn/clone_process.cc": "the child that it waits for only joins a cgroup and exits",
    "agent/node/spawn/cgroup.cc": LOCAL,
    "agent/node/spawn/job_directory.cc": LOCAL + "; a removal command, with a limit, after all else has ended",
    "agent/node/spawn/process_tree.cc": LOCAL,
    "agent/node/spawn/processor_share.cc": LOCAL,
    "agent/node/spawn/spawn.cc": "called in tasks only; the child that it reaps has left our memory",
    "agent/node/spawn/spawn.h": "declares find_executable()",
    "agent/node/spawn/user_scope.cc": "runs before the loop",
    "agent/node/supervisor/hello.cc": LOCAL,
    "agent/node/supervisor/host_health.cc": TASKS,
    "agent/node/supervisor/host_workers.cc": "find_own_files() is called in a task",
    "agent/node/supervisor/jax_service.cc": LOCAL,
    "agent/node/supervisor/mpi_libraries.cc": TASKS,
    "agent/node/workers/python_hook.cc": LOCAL,
    "agent/node/workers/node_rank_file.cc": WRITER,
    "agent/node/workers/worker.cc": "WorkerLaunch::find_program() runs in a task",
    "launcher/job/control/ended_jobs.cc": LOCAL,
    "launcher/job/control/job_record.cc": LOCAL,
    "launcher/job/control/launcher_directory.cc": LOCAL,
    "launcher/job/core/detach.cc": EARLY,
    "launcher/job/core/job_reports.cc": WRITER,
    "launcher/links/agent_identity.cc": "the socket's place is local",
    "launcher/links/node_upload.cc": TASKS,
    "launcher/links/ssh/host_key_question.cc": LOCAL,
    "launcher/links/ssh/ssh_session.cc": TASKS,
    "launcher/links/ssh/ssh_state.cc": TASKS,
    "launcher/links/this_host.cc": "asked before any host is dialled, and kept",
    "launcher/screen/console_sink.cc": LOCAL,
    "launcher/screen/rank_file_set.cc": WRITER,
    "launcher/streams/child_process.cc": "system tools, and a child that was killed",
    "launcher/streams/command_output.cc": "called before the loop runs and in tasks",
}

FORBIDDEN_NAMES = {
    "util", "utils", "common", "manager", "manage", "helper", "helpers", "base", "impl", "misc",
}
LICENCE = "SPDX-License-Identifier: Apache-2.0"
UNFINISHED = re.compile(r"\bTODO\(now\)|\bFIX" + r"ME\b|\bXX" + r"X\b")

CXX = (".h", ".hpp", ".c", ".cc", ".cpp", ".cxx")
TEXT = CXX + (".py", ".sh", ".proto", ".cmake", ".md", ".txt", ".yml", ".yaml", ".json", ".in")


class Findings:
    def __init__(self):
        self.lines = []

    def add(self, path, line, what):
        self.lines.append((path, line, what))


def repository_files():
    """Returns the files that git tracks, and untracked files that it does not ignore."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"],
            check=True, capture_output=True,
        ).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [
            os.path.relpath(os.path.join(folder, name))
            for folder, _, names in os.walk(".")
            for name in names
            if not re.match(r"\./(\.git|build[^/]*)(/|$)", folder + "/")
        ]
    return sorted({path for path in listed if path and os.path.isfile(path)})


# Comments, strings and character literals. The apostrophe in 1'000 does not start a literal.
LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)


def without_literals(text):
    """Returns the text with blanks in place of comments and literals, so that positions and line numbers do not change."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return LITERAL.sub(blank, text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def check_includes(path, text, findings):
    folder = path.split("/")[0]
    stem = path.rsplit(".", 1)[0]
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if not match:
            continue
        quote, header = match.groups()
        target = header.split("/")[0]
        # The headers of the C interface are installed in one directory, so they include each other without a path.
        is_installed = (path, header) in (("comm/contract/ivycomm.h", "ivycomm_types.h"),
                                          ("comm/contract/ivycomm_types.h", "ivycomm_operations.def"),
                                          ("comm/contract/ivycomm_collectives.hpp", "ivycomm_operations.def"))
        if quote == '"' and "/" not in header and not is_installed:
            findings.add(path, number, f'"{header}": name our headers from the top folder')
        if target in FOLDERS and quote == '"':
            check_arrow(path, number, folder, header, findings)
        for pattern, home, what in HOMES:
            if re.search(pattern, header) and not re.search(home, path):
                findings.add(path, number, f"<{header}> here: {what}")
        if stem in PURE and IMPURE_HEADER.search(header):
            findings.add(path, number, f"<{header}> in a pure file")


def check_arrow(path, number, folder, header, findings):
    target = header.split("/")[0]
    if path == "agent/node/node_main.cc" and target == "rendezvous":
        return  # The node binary can also run as the store.
    if path == "launcher/main.cc" and header == "agent/node/roles/warden_role.h":
        return  # ivyrun becomes the warden of its own host.
    if path.startswith("agent/pmix/") and header.startswith("rendezvous/client/"):
        return  # For a PMIx fence between hosts, ivy-pmix is a client of the store.
    if target not in ARROWS.get(folder, set(FOLDERS)):
        findings.add(path, number, f'"{header}": there is no arrow from {folder} to {target}')
    elif folder == "comm" and not COMM_MAY_SEE.match(header):
        findings.add(path, number, f'"{header}": comm sees the contract and the store client only')
    elif path.startswith("agent/node/") and header.startswith("agent/daemon/"):
        findings.add(path, number, f'"{header}": the node binary does not know the daemon')


def os_calls(code):
    """Yields (description, position) of each operation that only proto/os may perform."""
    has_method = OWN_CLOSE.search(code) is not None
    for what, pattern in OWNED_BY_OS.items():
        for match in pattern.finditer(code):
            if not (has_method and match.group(0).startswith("close")):
                yield what, match.start()


def check_os_floor(path, code, findings):
    if path.startswith(("proto/os/", "tests/", "scripts/")) or path in MAY_CALL_THE_OS:
        return
    for what, position in os_calls(code):
        findings.add(path, line_of(code, position), f"{what}: proto/os does that")


def check_blocking(path, code, findings):
    if not path.startswith(LOOP_FOLDERS) or path in BLOCKING_FILES:
        return
    has_method = OWN_OPEN.search(code) is not None
    for match in MAY_BLOCK.finditer(code):
        if has_method and match.group(1) == "open":
            continue
        findings.add(path, line_of(code, match.start()),
                     f"{match.group(0).rstrip('(')} may block the loop: make it a task of BlockingPool")


def check_purity(path, code, findings):
    if path.rsplit(".", 1)[0] not in PURE:
        return
    for match in IMPURE_WORD.finditer(code):
        findings.add(path, line_of(code, match.start()), f"{match.group(0)} in a pure file")


def matching_braces(code):
    """Returns {position of an opening brace, bracket or parenthesis: position of the closing one}."""
    pairs, stack = {}, []
    for position, character in enumerate(code):
        if character in "({[":
            stack.append(position)
        elif character in ")}]" and stack:
            pairs[stack.pop()] = position
    return pairs


def awaited_expressions(code):
    """Yields (start, end) of the expression after each co_await."""
    pairs = matching_braces(code)
    for match in re.finditer(r"\bco_await\b", code):
        position = match.end()
        while position < len(code) and code[position] not in ";)]},":
            if code[position] in "({[":
                position = pairs.get(position, len(code) - 1)
            position += 1
        yield match.end(), position


# Constructs that GCC 12 miscompiles in coroutines: it destroys these temporaries twice if they exist across a suspension,
# a switch over an awaited value jumps behind its last case, and a coroutine with `if (!co_await ...)` gets a wrong frame.
CAPTURING_LAMBDA = re.compile(r"(?<![\w)\]])\s*\[\s*[^\]\s][^\]]*\]\s*(\(|\{|mutable\b|<)")
BRACE_TEMPORARY = re.compile(r"[\w>]\s*\{|[(,]\s*\{")
AWAITING_SWITCH = re.compile(r"\bswitch\s*\(\s*co_await\b")
AWAITING_CONDITION = re.compile(r"\b(?:if|while)\s*\(\s*!?\s*co_await\b")


def check_coroutines(path, code, findings):
    for match in AWAITING_SWITCH.finditer(code):
        findings.add(path, line_of(code, match.start()),
                     "a switch over an awaited value: name it first (GCC 12)")
    for match in AWAITING_CONDITION.finditer(code):
        findings.add(path, line_of(code, match.start()),
                     "an awaited value as a condition: name it first (GCC 12)")
    for start, end in awaited_expressions(code):
        expression = code[start:end]
        lambda_match = CAPTURING_LAMBDA.search(expression)
        if lambda_match:
            findings.add(path, line_of(code, start + lambda_match.start(1)),
                         "a capturing lambda inside a co_await expression: name it first (GCC 12)")
            continue  # Do not report the lambda's braces as well.
        brace_match = BRACE_TEMPORARY.search(expression)
        if brace_match and not re.match(r"\s*\[\]", expression[: brace_match.start()]):
            findings.add(path, line_of(code, start + brace_match.start()),
                         "a braced temporary inside a co_await expression: name it first (GCC 12)")


# `new` allocates memory before it evaluates its arguments, and the memory leaks if IVY_TRY returns from there.
TRYING_NEW = re.compile(r"\bnew\s+[\w:<>]+\s*\([^;]*?\bIVY_TRY\b")


def check_trying_new(path, code, findings):
    for match in TRYING_NEW.finditer(code):
        findings.add(path, line_of(code, match.start()), "IVY_TRY among the arguments of new: name the value first")


def check_python(path, text, findings):
    try:
        ast.parse(text)
    except SyntaxError as error:
        findings.add(path, error.lineno or 1, f"not Python 3: {error.msg}")


def check_text(path, text, findings):
    for number, line in enumerate(text.splitlines(), 1):
        if line != line.rstrip():
            findings.add(path, number, "blanks at the end of the line")
        if "\t" in line:
            findings.add(path, number, "a tab")
        unfinished = UNFINISHED.search(line)
        if unfinished:
            findings.add(path, number, f"unfinished: {unfinished.group(0)}")
    if text and not text.endswith("\n"):
        findings.add(path, text.count("\n") + 1, "no newline at the end of the file")


# Files that have the licence line, by the ends of their names. JSON has no comments.
LICENSED = (*CXX, ".py", ".proto", ".cmake", "CMakeLists.txt", ".toml", ".yml", ".yaml", ".map", ".service", "Dockerfile",
            ".clang-format", ".clang-tidy")


def check_licence(path, text, findings):
    """Requires the licence line in scripts and in LICENSED files, except in workers and examples: tests and docs quote
    output that contains their line numbers."""
    if not path.endswith(LICENSED) and not text.startswith("#!"):
        return
    if path.startswith("tests/") and "/workers/" in path or path.startswith(("scripts/examples/", "scripts/slurm/")):
        return
    if not any(LICENCE in line for line in text.split("\n", 2)[:2]):
        findings.add(path, 1, f"does not begin with {LICENCE}")


def check_name(path, findings):
    for part in path.split("/"):
        words = set(re.split(r"[._\-]", part.lower()))
        for word in sorted(words & FORBIDDEN_NAMES):
            findings.add(path, 1, f'"{word}" in a name says nothing: name what it holds')


def check_readmes(files, findings):
    """Requires that every folder has a README.md, or is named with a slash (`links/`) in a README.md above it."""
    for folder in sorted({os.path.dirname(path) for path in files} - {""}):
        if folder.startswith(".") or f"{folder}/README.md" in files:
            continue
        above, name = os.path.split(folder)
        while above and not (f"{above}/README.md" in files
                             and f"{name}/" in read(f"{above}/README.md")):
            above = os.path.dirname(above)
        if not above:
            findings.add(folder, 1, "no README.md, and none above it names it")
    if "README.md" not in files:
        findings.add("README.md", 1, "missing")


def check_pure_files(files, findings):
    """Requires that the modules in PURE exist: a renamed one would no longer be checked."""
    for module in sorted(PURE):
        if not {f"{module}.h", f"{module}.cc"} & files:
            findings.add("scripts/style_rules.py", 1, f"PURE names {module}, which is not there")


# The pages other than READMEs whose names of files and functions are checked.
NAMING_PAGES = {"docs/internals/structure.md", "docs/internals/changes.md"}


def naming_pages(files):
    return sorted(path for path in files if path.endswith("/README.md") or path in NAMING_PAGES)


def check_named_files(files, findings):
    """Requires that the files named in READMEs and in NAMING_PAGES exist."""
    for path in naming_pages(files):
        folder = os.path.dirname(path)
        for number, line in enumerate(read(path).splitlines(), 1):
            for name in re.findall(r"`([\w/.]+/\w+\.(?:h|cc|py|cmake|proto|def))`|`(\w+\.(?:h|cc|proto|def))`", line):
                check_named_file(path, number, folder, name[0] or name[1], files, findings)


NAMED_SOURCE = re.compile(r"`([\w./]+\.(?:h|cc|py|def))`")
NAMED_FUNCTION = re.compile(r"`(\w+)\(\)`")


def check_named_functions(files, findings):
    """Requires that the functions named in a row of those tables occur in a file of the same row, unless the row has none
    or names the class, as in `Job::act()`."""
    for path in naming_pages(files):
        for number, line in enumerate(read(path).splitlines(), 1):
            sources = sources_named(line, os.path.dirname(path), files) if line.startswith("|") else []
            text = "\n".join(read(source) for source in sources)
            for name in NAMED_FUNCTION.findall(line) if sources else ():
                if not re.search(rf"(?<![.>\w]){name}\(", text):  # Not as a call of another object's function.
                    findings.add(path, number, f"{name}() is not in {', '.join(sources)}")


def sources_named(line, folder, files):
    """Returns the header and the source of each file that the line names."""
    found = []
    for name in NAMED_SOURCE.findall(line):
        places = [os.path.normpath(os.path.join(above, name)) for above in above_and_self(folder)] + [name]
        stems = [os.path.splitext(place)[0] for place in places]
        endings = (".h", ".cc") if name.endswith((".h", ".cc")) else (os.path.splitext(name)[1],)
        near = next((stem for stem in stems if any(stem + ending in files for ending in endings)), None)
        if near is None:
            near = next((file.rsplit(".", 1)[0] for file in sorted(files) if file.endswith("/" + name)), stems[-1])
        found += [near + ending for ending in endings if near + ending in files]
    return sorted(set(found))


def check_named_file(path, number, folder, name, files, findings):
    if re.search(r"[A-Z]{3}", name):  # A placeholder, such as NAME_test.cc.
        return
    places = [name] + [os.path.normpath(os.path.join(above, name)) for above in above_and_self(folder)]
    if any(place in files for place in places) or any(file.endswith("/" + name) for file in files):
        return
    findings.add(path, number, f"{name} is not there")


def above_and_self(folder):
    while folder:
        yield folder
        folder = os.path.dirname(folder)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def check_cxx(path, text, findings):
    code = without_literals(text)
    check_includes(path, text, findings)
    check_purity(path, code, findings)
    check_os_floor(path, code, findings)
    check_blocking(path, code, findings)
    check_coroutines(path, code, findings)
    check_trying_new(path, code, findings)
    if path.endswith((".h", ".hpp")) and not re.search(r"^#pragma once$", text, re.MULTILINE):
        findings.add(path, 1, "no #pragma once")


def is_script(path):
    with open(path, "rb") as stream:
        return stream.read(2) == b"#!"


def check_file(path, findings):
    check_name(path, findings)
    if not path.endswith((*TEXT, *LICENSED)) and not is_script(path):
        return
    text = read(path)
    check_text(path, text, findings)
    check_licence(path, text, findings)
    if path.endswith(CXX):
        check_cxx(path, text, findings)
    elif path.endswith(".py") or (text.startswith("#!") and "python" in text.split("\n", 1)[0]):
        check_python(path, text, findings)


def main():
    files = repository_files()
    if sys.argv[1:] == ["--list-cxx"]:
        print("\n".join(path for path in files if path.endswith(CXX)))
        return 0
    findings = Findings()
    for path in files:
        check_file(path, findings)
    check_readmes(set(files), findings)
    check_pure_files(set(files), findings)
    check_named_files(set(files), findings)
    check_named_functions(set(files), findings)
    for path, line, what in sorted(findings.lines):
        print(f"{path}:{line}: {what}")
    return 1 if findings.lines else 0


if __name__ == "__main__":
    sys.exit(main())
