"""All ranks synchronize in the store, as clients of torch. Then the first attempt fails. Its keys must not exist in the
second attempt."""

import os
import socket
import struct
import sys

SET, ADD, CHECK, WAIT = 1, 4, 5, 6


def text(value):
    return struct.pack("<Q", len(value)) + value


def ask(request, count):
    peer.sendall(request)
    return peer.recv(count, socket.MSG_WAITALL)


attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
peer = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 20)
peer.sendall(b"\0\xce\xf7\x85\x3c")
left = ask(bytes([CHECK]) + struct.pack("<Q", 1) + text(b"/of attempt 0"), 1) == b"\0"
assert not (attempt == 1 and left), "a key of the last attempt is here"
met = struct.unpack("<q", ask(bytes([ADD]) + text(b"/met") + struct.pack("<q", 1), 8))[0]
assert met <= 4, met
if met == 4:
    peer.sendall(bytes([SET]) + text(b"/all") + text(b"1"))
assert ask(bytes([WAIT]) + struct.pack("<Q", 1) + text(b"/all"), 1) == b"\0"
if attempt == 1:
    print("attempt 1: 4 met, nothing was left", flush=True)
    sys.exit(0)
peer.sendall(bytes([SET]) + text(b"/of attempt 0") + text(b"1"))
ask(bytes([CHECK]) + struct.pack("<Q", 1) + text(b"/of attempt 0"), 1)
sys.exit(3 if met == 4 else 0)
