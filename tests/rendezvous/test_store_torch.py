"""An unmodified torch as a client of our store: every call of TCPStore that this torch has, at the
store itself and through a host's leaf.

Run with the interpreter whose torch is meant, Debian's or another: IVY_TORCH_PYTHON names it.
"""

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


def has_torch():
    try:
        return subprocess.run([PYTHON, "-c", "import torch"], capture_output=True,
                              timeout=120 * SLOW).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


pytestmark = [
    pytest.mark.skipif(not SERVER.exists(), reason=f"{SERVER} is not built"),
    pytest.mark.skipif(not has_torch(), reason=f"{PYTHON} has no torch"),
]


class Store:
    def __init__(self):
        self.process = subprocess.Popen([SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.native, torch = self.process.stdout.readline().split()
        self.port = int(torch.rsplit(":", 1)[1])

    def begin(self, generation):
        self.process.stdin.write(f"generation {generation}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "begun\n"

    def client(self, *scenes, host="127.0.0.1"):
        done = subprocess.run([PYTHON, CLIENT, host, str(self.port), *scenes], text=True,
                              capture_output=True, timeout=120 * SLOW, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split()


    def end(self):
        self.process.stdin.close()
        assert self.process.wait(10 * SLOW) == 0
        assert "disconnected" not in self.process.stderr.read()


class Leaf(Store):
    """Torch's clients at a leaf, which is the store's only client."""

    def __init__(self, directory):
        super().__init__()
        (directory / "token").write_bytes(b"t" * 32)
        self.leaf = subprocess.Popen(
            [NODE, "rendezvous", "leaf", "--job", "0" * 32, "--token-file", directory / "token",
             "--root", self.native, "--listen", "127.0.0.1:0", "--torch", "[::]:0"],
            stdout=subprocess.PIPE, text=True)
        self.leaf.stdout.readline()
        self.port = int(self.leaf.stdout.readline().rsplit(":", 1)[1])

    def end(self):
        self.leaf.terminate()
        assert self.leaf.wait(10 * SLOW) == 0
        said = self.leaf.stdout.read()
        assert said == "ready\n", said
        super().end()


@pytest.fixture
def store():
    one = Store()
    yield one
    one.end()


@pytest.fixture(params=["store", "leaf"])
def either(request, tmp_path):
    if request.param == "leaf" and not NODE.exists():
        pytest.skip(f"{NODE} is not built")
    one = Store() if request.param == "store" else Leaf(tmp_path)
    yield one
    one.end()


SCENES = ["set_get", "add", "compare_set", "delete", "count", "wait", "wait_timeout",
          "wait_then_use", "wait_for_another", "prefix", "watch", "append", "multi", "queue",
          "list_keys"]


@pytest.mark.parametrize("scene", SCENES)
def test_torch_is_served(either, scene):
    said = either.client(scene)
    if said[-1] == "lacking":
        pytest.skip(f"torch {said[0]} has no such call")
    assert said[-1] == scene


def test_over_ipv6(either):
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    either.client("set_get", host="::1")


def test_a_generation_starts_empty(store):
    store.client("leave_a_key")
    store.begin(1)
    store.client("find_no_key")


def test_process_group(either):
    """Four ranks of an unmodified script: gloo's full mesh over our store."""
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(either.port),
           "WORLD_SIZE": "4", "TORCHELASTIC_USE_AGENT_STORE": "True",
           "TORCHELASTIC_RESTART_COUNT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([PYTHON, CLIENT, "group"], env={**env, "RANK": str(rank)}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
             for rank in range(4)]
    try:
        for rank in ranks:
            out, _ = rank.communicate(timeout=120 * SLOW)
            assert rank.returncode == 0, out
            assert "sum 6.0" in out
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
