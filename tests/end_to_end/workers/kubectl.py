# SPDX-License-Identifier: Apache-2.0
"""A stand-in for `kubectl exec -i POD -- COMMAND...`: a pod is a network namespace. A file POD.FAULT in the directory
FAULTS makes it fail in that way; the file is removed before. `noise` acts before the command starts, and `cut`, `garbage`,
`stall` and `killed` later."""

import os
import selectors
import signal
import subprocess
import sys

FAULTS = os.environ["FAULTS"]
POLL_S = 0.05


def has_fault(pod, name):
    try:
        os.unlink(f"{FAULTS}/{pod}.{name}")
    except FileNotFoundError:
        return False
    return True


def fail(pod, child):
    """Fails as a file requests, with messages of kubectl 1.32."""
    if has_fault(pod, "cut"):
        child.kill()
        print("error: error reading from error stream: next reader: unexpected EOF", file=sys.stderr)
        sys.exit(1)
    if has_fault(pod, "killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if has_fault(pod, "garbage"):
        os.write(1, b"W1130 08:00:00.000000 proxy: stream reset\n")
    while os.path.exists(f"{FAULTS}/{pod}.stall"):
        signal.pause()  # Waits until it is killed.


def pump(pod, child):
    ends = {0: child.stdin.fileno(), child.stdout.fileno(): 1}
    selector = selectors.DefaultSelector()
    for end in ends:
        selector.register(end, selectors.EVENT_READ)
    while True:
        fail(pod, child)
        for key, _ in selector.select(POLL_S):
            data = os.read(key.fd, 1 << 16)
            if not data and key.fd != 0:
                return
            if not data:
                selector.unregister(0)
                child.stdin.close()
            while data:
                data = data[os.write(ends[key.fd], data):]


def main():
    verb, interactive, pod, marker, *command = sys.argv[1:]
    assert (verb, interactive, marker) == ("exec", "-i", "--"), sys.argv
    if not os.path.exists(f"/run/netns/{pod}"):
        print(f'Error from server (NotFound): pods "{pod}" not found', file=sys.stderr)
        sys.exit(1)
    print('Defaulted container "trainer" out of: trainer, sidecar', file=sys.stderr, flush=True)
    if has_fault(pod, "noise"):
        print("Welcome to the pod.\nYou have mail.", flush=True)
    child = subprocess.Popen(["ip", "netns", "exec", pod, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pump(pod, child)
    code = child.wait()
    if code != 0:
        print(f"command terminated with exit code {code}", file=sys.stderr)
    sys.exit(code and 1)


main()
