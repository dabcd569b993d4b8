# SPDX-License-Identifier: Apache-2.0
"""--app and --role: servers start before the script, end with it, and cannot outlive the job. Ray and Dask are real
(`scripts/setup apps`); vLLM and SGLang are stand-ins with the same command line."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import time

import pytest

from environments import example, on_hosts, python_of, script
from launching import seconds, wait_until

PYTHON = "/usr/bin/python3"
TWO_HOSTS = ("--fake-hosts", "2")
# Listens on the port in its argument, answers requests, and ignores TERM.
SERVER = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'a row')
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Answer).serve_forever()
"""
CLIENT = """
import os, sys, urllib.request
print(urllib.request.urlopen('http://' + os.environ['IVY_ROLE_DB']).read().decode(), 'RANK' in os.environ, flush=True)
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


def processes_with(text):
    """Returns the pids of processes whose command line contains this text."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if text.encode() in file.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


@pytest.fixture
def role(local):
    server, client = local.file("server.py", SERVER), local.file("client.py", CLIENT)
    return server, client, ("--role", f"db@first={PYTHON} {server} {{db.port}}")


def test_a_role_of_the_user_runs_with_the_program(local, role):
    server, client, flags = role
    done = local.run(*TWO_HOSTS, *flags, "--role", f"part=sleep 1{os.getpid()}", "--python", PYTHON, client)
    assert done.code == 0 and done.out.count(b"a row False") == 1, done
    assert not processes_with(server) and not processes_with(f"1{os.getpid()}")


def test_the_job_has_the_exit_code_of_the_program(local, role):
    server, client, flags = role
    done = local.run(*flags, "--python", PYTHON, client, "7")
    assert done.code == 7 and not processes_with(server), done


def test_a_role_that_ends_early_is_named(local):
    done = local.run(*TWO_HOSTS, "--role", "db@others=sh -c 'echo its last words; exit 3'", "sleep", "60")
    assert done.code == 1 and b"IVY-R018" in done.err and b"its db exited with code 3" in done.err, done
    assert b"its last words" in done.err and done.took < seconds(20), done


def test_a_framework_that_is_missing_is_named(local):
    """Ray is not installed for Debian's Python."""
    done = local.run("--app", "ray", "--python", PYTHON, local.file("client.py", CLIENT))
    assert done.code == 1 and b"IVY-R018" in done.err and b"No module named 'ray'" in done.err, done
    assert f"install it for {PYTHON}" in done.err_text and "--python PATH" in done.err_text, done


def test_a_role_that_is_not_ready_is_named(local):
    done = local.run("--start-timeout", "6s", "--role", "db@first=sh -c 'echo waits; sleep 60' {db.port}", "true")
    assert done.code == 1 and b"IVY-R019" in done.err and b"--start-timeout" in done.err and b"waits" in done.err, done


def test_a_readiness_command_that_hangs_times_out(local):
    server = local.file("server.py", SERVER)
    app = local.file("own.toml", f"""ready-command = ["sleep", "100"]
[[role]]
name = "db"
on = "first"
ports = 1
ready = "port"
command = ["{PYTHON}", "{server}", "{{db.port}}"]
""")
    done = local.run("--start-timeout", f"{3 + seconds(2):g}s", "--app", app, "true", limit=20)
    assert done.code == 1 and "the readiness command did not exit within" in done.err_text, done
    assert "IVY-R019" in done.err_text and not processes_with(server), done


def test_a_missing_server_program_is_named(local):
    done = local.run("--role", "db@first=/no/such/server {db.port}", "true")
    assert done.code == 1 and b"IVY-R018" in done.err and b"/no/such/server" in done.err, done


@pytest.mark.parametrize("words, what", [
    (("--app", "spark", "x"), b"\"spark\" is not one of dask, jax-service, ray, "),
    (("--app", "dask", "--no-store", "x"), b"--no-store cannot be used with --app"),
    (("--app", "dask", "-n", "3", "x"), b"-n cannot be used with --app"),
    (("--app", "ray", "--role", "a=b", "x"), b"both define the servers that run next to the program"),
    (("--role", "a", "x"), b"it has no command"),
    (("--app-args", "x", "x"), b"--app-args needs --app"),
])
def test_invalid_app_flags_are_rejected(local, words, what):
    done = local.run(*words)
    assert done.code == 2 and what in done.err, done


def test_a_program_without_interpreter_is_rejected(local):
    done = local.run("--app", "dask", "sleep", "1")
    assert done.code == 122 and b"IVY-P035" in done.err and b"--python" in done.err, done


@pytest.fixture
def models(local):
    """A PYTHONPATH with stand-ins for vLLM and SGLang."""
    for module in ("vllm/entrypoints/cli/main", "sglang/launch_server"):
        folder = os.path.dirname(module)
        os.makedirs(os.path.join(local.directory, folder))
        while folder:
            local.file(f"{folder}/__init__.py", "")
            folder = os.path.dirname(folder)
        local.file(f"{module}.py", f"import runpy\nrunpy.run_path({script(local, 'model_server.py')!r})\n")
    return f"PYTHONPATH={local.directory}"


@pytest.mark.parametrize("app", ["vllm", "sglang"])
def test_a_server_of_models_with_a_client(local, models, app):
    model = "org/model" if app == "vllm" else "--model-path org/model"
    done = local.run(*TWO_HOSTS, "--app", app, "--app-args", f"{model} --tensor-parallel-size 4", "-x",
                     models, "--python", PYTHON, example("ask_model.py"))
    assert done.code == 0, done
    answer = json.loads(re.search(r"answer (\{.*\})", done.out.decode())[1])
    assert answer == {"model": "org/model", "nodes": "2", "ranks": False, "tensor_parallel": 4}, done


def test_a_model_server_stops_on_ctrl_c(local, models):
    job = local.start(*TWO_HOSTS, "--app", "vllm", "-x", models, "--python", PYTHON, "org/model")
    job.wait_for(rb"serving")
    job.signal(signal.SIGINT)
    done = job.finish()
    assert done.code in (130, -signal.SIGINT), done


@pytest.mark.long
def test_dask(local):
    done = local.run(*TWO_HOSTS, "--nproc_per_node", "2", "--app", "dask", "--python", python_of("apps"),
                     example("dask_sum.py"), limit=120)
    assert done.code == 0 and b"workers 4 total 328350" in done.out, done


@pytest.mark.long
def test_ray(local):
    done = local.run(*TWO_HOSTS, "--app", "ray", "--app-args", "--num-cpus 2", "--python", python_of("ray"),
                     example("ray_sum.py"), limit=240)
    assert done.code == 0 and b"nodes 2 total 2470" in done.out, done


# Directories that may contain files of an app's job even when all of its processes have ended.
PLACES = ("/tmp", "/dev/shm", "/var/tmp")
CLUSTERS = (("dask", "apps", "dask_sum.py"), ("ray", "ray", "ray_sum.py"))


def files():
    """Returns the files of apps. Names of multiprocessing's semaphores contain the job's id, so that ivyrun can remove them when
    their creator was killed."""
    return {f"{place}/{name}" for place in PLACES for name in os.listdir(place)
            if re.match(r"ray|dask|plasma|sem\.mp-[0-9a-f]{32}-", name)}


def listened_on(processes):
    """Returns the ports on which these processes listen."""
    inodes = set()
    for process in processes:
        folder = f"/proc/{process.pid}/fd"
        with contextlib.suppress(OSError):
            inodes |= {os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


def is_free(port):
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True


def processes_of(local, name):
    """Returns the processes of one of the test's jobs, which have a variable of their job."""
    mark = f"IVYTEST_CLUSTER={name}".encode()
    return [process for process in local.processes() if mark in process.environment]


@pytest.mark.long
@pytest.mark.parametrize("apps", ["dask", "ray", "dask, ray"])
def test_concurrent_clusters_leave_nothing(local, apps):
    """Two clusters of Dask, two of Ray, or two of both share the hosts. One random process of each is killed with -9: a server
    or its child, app-run, the supervisor or its warden, or ivyrun."""
    before = files()
    waits = local.file("waits.py", "import sys, time\nexec(open(sys.argv[1]).read())\ntime.sleep(1200)\n")
    jobs = {}
    for number in range(2):
        for app, environment, name in (cluster for cluster in CLUSTERS if cluster[0] in apps):
            mark = f"IVYTEST_CLUSTER={app}{number}"
            flags = "--start-timeout", f"{seconds(600):g}s", "--app", app, "-x", mark
            jobs[f"{app}{number}"] = local.start(*TWO_HOSTS, *flags, "--python", python_of(environment), waits,
                                                 example(name), env=dict([mark.split("=")]))
    for job in jobs.values():
        job.wait_for(rb"total", limit=600)
    ports = listened_on(local.processes())
    assert len(ports) > len(jobs), ports
    if "dask" in apps:
        assert any("/sem.mp-" in name for name in files() - before)
    for name, job in jobs.items():
        victim = random.choice(processes_of(local, name))
        print(name, "victim", victim.pid, victim.words()[:150])
        os.kill(victim.pid, signal.SIGKILL)
        time.sleep(1)
        if job.process.poll() is None:
            job.signal(signal.SIGTERM)
        done = job.finish(limit=120)
        assert done.code != 0, done
        # A supervisor that has lost its launcher waits for it until its lease expires.
        wait_until(lambda name=name: not processes_of(local, name), 90, f"the processes of {name} to end")
    wait_until(lambda: not files() - before, 20, "files to be removed")
    wait_until(lambda: all(is_free(port) for port in ports), 20, "ports to be free")


@pytest.mark.long
@pytest.mark.parametrize("app, environment, name, says", [
    ("dask", "apps", "dask_sum.py", b"workers 4 total 328350"), ("ray", "ray", "ray_sum.py", b"nodes 2 total 2470")])
def test_on_hosts(hosts, app, environment, name, says):
    """The servers on two hosts reached by SSH connect over the network."""
    path = hosts.file(name, open(example(name), encoding="utf-8").read())
    with on_hosts(environment) as python:
        done = hosts.run("-H", "node1,node2", "--nproc_per_node", "2", "--start-timeout", "600s", "--app", app,
                         "--python", python, path, limit=300)
    assert done.code == 0 and says in done.out, done


@pytest.mark.long
def test_by_agents(agents):
    agents.start(1, 2)
    path = agents.launcher.file("dask_sum.py", open(example("dask_sum.py"), encoding="utf-8").read())
    with on_hosts("apps") as python:
        done = agents.launcher.run("-H", "node1,node2", "--nproc_per_node", "2", "--transport", "agent", "--app",
                                   "dask", "--python", python, path, limit=300)
    assert done.code == 0 and b"workers 4 total 328350" in done.out, done
