# SPDX-License-Identifier: Apache-2.0
"""One scene with torch's TCPStore as a pure client: HOST PORT SCENE. Prints torch's version and the
scene, or "lacking" where this torch has no such call.

"serve" instead: prints torch's version, then takes lines of JSON, {"seconds": limit, "clients":
[[arguments, variables], ...]}, runs each client in a child of its own and answers with one line,
[[exit code, output], ...]. Importing torch takes seconds, a child of who has done it nothing."""

import datetime
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback

import torch
import torch.distributed as dist


def connect(timeout=30):
    return dist.TCPStore(sys.argv[1], int(sys.argv[2]), 1, False,
                         timeout=datetime.timedelta(seconds=timeout))


def set_get(store):
    store.set("k", "value")
    assert store.get("k") == b"value"
    store.set("k", "x" * 1_000_000)
    assert len(store.get("k")) == 1_000_000


def add(store):
    assert [store.add("n", 5), store.add("n", -7), store.add("n", 0)] == [5, -2, -2]
    assert store.get("n") == b"-2"


def compare_set(store):
    assert store.compare_set("c", "unexpected", "1") == b"unexpected"
    assert store.compare_set("c", "", "1") == b"1"
    assert store.compare_set("c", "0", "2") == b"1"
    assert store.compare_set("c", "1", "2") == b"2"


def delete(store):
    store.set("d", "1")
    assert store.delete_key("d") and not store.delete_key("d")


def count(store):
    before = store.num_keys()
    store.set("one more", "")
    assert store.num_keys() == before + 1


def wait(store):
    store.set("a", "")
    store.set("b", "")
    store.wait(["a", "b"], datetime.timedelta(seconds=10))


def wait_timeout(store):
    begin = time.monotonic()
    try:
        store.wait(["never"], datetime.timedelta(milliseconds=300))
    except RuntimeError:
        assert time.monotonic() - begin < 20
        return
    raise AssertionError("it did not time out")


def wait_then_use(store):
    """After a timeout, on the same connection."""
    wait_timeout(store)
    store.set("after", "1")
    assert store.get("after") == b"1"
    assert not store.delete_key("never") and store.num_keys() == 2


def write_and_leave(store):
    """Who writes twice and goes at once has written twice: others wait for both."""
    for i in range(20):
        other = connect()
        other.set(f"first {i}", "1")
        other.set(f"second {i}", "2")
        del other
        assert store.get(f"second {i}") == b"2"


def wait_for_another(store):
    other = connect()
    timer = threading.Timer(0.3, lambda: other.set("late", "here"))
    timer.start()
    assert store.get("late") == b"here"
    timer.join()


def prefix(store):
    dist.PrefixStore("p", store).set("k", "1")
    assert store.get("p/k") == b"1"


def watch(store):
    seen = []
    event = threading.Event()

    def changed(before, after):
        seen.append((before, after))
        event.set()

    store.watch_key("w", changed)
    store.set("w", "1")
    assert event.wait(20)
    assert seen[0][1] == "1", seen


def append(store):
    store.append("ap", "1")
    store.append("ap", "2")
    assert store.get("ap") == b"12"


def multi(store):
    store.multi_set(["m1", "m2"], ["1", "2"])
    assert store.multi_get(["m2", "m1"]) == [b"2", b"1"]


def queue(store):
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    assert store.queue_len("q") == 2
    assert [store.queue_pop("q"), store.queue_pop("q")] == [b"1", b"2"]


def list_keys(store):
    store.set("listed", "1")
    assert "listed" in store.list_keys()


def leave_a_key(store):
    store.set("left", "1")


def find_no_key(store):
    assert not store.check(["left"]) if hasattr(store, "check") else store.num_keys() == 1


def group():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor)
    print("sum", tensor.item())
    dist.destroy_process_group()


def run_scenes():
    if sys.argv[1] == "group":
        return group()
    methods = {"watch": "watch_key", "append": "append", "multi": "multi_set",
               "queue": "queue_push", "list_keys": "list_keys"}
    for scene in sys.argv[3:]:
        store = connect()
        print(torch.__version__)
        if not hasattr(store, methods.get(scene, "set")):
            print("lacking")
            continue
        globals()[scene](store)
        print(scene)
    return None


def start_client(arguments, variables, seconds, output):
    pid = os.fork()
    if pid != 0:
        return pid
    code = 1
    try:
        signal.alarm(seconds)  # One that hangs is ended, with code -SIGALRM.
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.environ.update(variables)
        sys.argv[1:] = arguments
        run_scenes()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def serve():
    print(torch.__version__, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        outputs = [tempfile.TemporaryFile() for _ in request["clients"]]
        started = [start_client(*client, request["seconds"], output)
                   for client, output in zip(request["clients"], outputs)]
        results = []
        for pid, output in zip(started, outputs):
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output.seek(0)
            results.append([code, output.read().decode(errors="replace")])
            output.close()
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        run_scenes()
