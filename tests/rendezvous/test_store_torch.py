# SPDX-License-Identifier: Apache-2.0
"""An unmodified torch as a client of our store: every call of TCPStore that this torch has, at the
store itself.

Run with the interpreter whose torch is meant, Debian's or another: IVY_TORCH_PYTHON names it.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

BUILD = pathlib.Path(os.environ.get("IVY_BIN", "build/bin")).resolve().parent
SERVER = BUILD / "children" / "ivy_test_store"
NODE = BUILD / "bin" / "ivy-node"
PYTHON = os.environ.get("IVY_TORCH_PYTHON", "/usr/bin/python3")
SLOW = int(os.environ.get("IVY_TEST_SLOW", "1"))
CLIENT = pathlib.Path(__file__).parent / "torch_store.py"


pytestmark = pytest.mark.skipif(not SERVER.exists(), reason=f"{SERVER} is not built")


class Torch:
    """One interpreter that has imported torch, which takes seconds; every client is a child of it."""

    def __init__(self):
        self.process = subprocess.Popen([PYTHON, "-B", CLIENT, "serve"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.version = self.process.stdout.readline().strip()  # Empty: this interpreter has none.

    def run(self, clients):
        """Clients side by side, each [arguments, variables]: (exit code, output) of each."""
        self.process.stdin.write(json.dumps({"seconds": 120 * SLOW, "clients": clients}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(10 * SLOW)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def torch():
    try:
        one = Torch()
    except OSError as error:
        pytest.skip(f"{PYTHON}: {error}")
    try:
        if not one.version:
            pytest.skip(f"{PYTHON} has no torch")
        yield one
    finally:
        one.end()


class Store:
    def __init__(self, torch):
        self.torch = torch
        self.process = subprocess.Popen([SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.native, address = self.process.stdout.readline().split()
        self.port = int(address.rsplit(":", 1)[1])

    def begin(self, generation):
        self.process.stdin.write(f"generation {generation}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "begun\n"

    def client(self, *scenes, host="127.0.0.1"):
        [(code, output)] = self.torch.run([[[host, str(self.port), *scenes], {}]])
        assert code == 0, output
        return output.split()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(10 * SLOW) == 0
        assert "disconnected" not in self.process.stderr.read()


@pytest.fixture
def store(torch):
    one = Store(torch)
    yield one
    one.end()


SCENES = ["set_get", "add", "compare_set", "delete", "count", "wait", "wait_timeout",
          "wait_then_use", "write_and_leave", "wait_for_another", "prefix", "watch", "append", "multi", "queue",
          "list_keys"]


@pytest.mark.parametrize("scene", SCENES)
def test_torch_is_served(store, scene):
    said = store.client(scene)
    if said[-1] == "lacking":
        pytest.skip(f"torch {said[0]} has no such call")
    assert said[-1] == scene


def test_over_ipv6(store):
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    store.client("set_get", host="::1")


def test_a_generation_starts_empty(store):
    store.client("leave_a_key")
    store.begin(1)
    store.client("find_no_key")


def test_process_group(store):
    """Four ranks of an unmodified script: gloo's full mesh over our store."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
                   "WORLD_SIZE": "4", "TORCHELASTIC_USE_AGENT_STORE": "True",
                   "TORCHELASTIC_RESTART_COUNT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [[["group"], {**environment, "RANK": str(rank)}] for rank in range(4)]
    for code, output in store.torch.run(ranks):
        assert code == 0, output
        assert "sum 6.0" in output


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
