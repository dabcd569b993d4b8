"""Counts its peers in the job's store with torch's protocol, but without torch. Then rank 0 fails in every attempt except
the last one, when all have been counted.

    count_in_store.py ATTEMPTS
"""

import os
import socket
import struct
import sys
import time

VALIDATE = b"\0" + struct.pack("<I", 0x3C85F7CE)


def text(value):
    return struct.pack("<Q", len(value)) + value


def main():
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    world = int(os.environ["WORLD_SIZE"])
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as store:
        store.sendall(VALIDATE)

        def add(key, number):
            store.sendall(b"\4" + text(key) + struct.pack("<q", number))
            reply = b""
            while len(reply) < 8:
                piece = store.recv(8 - len(reply))
                assert piece, "the store closed the connection"
                reply += piece
            return struct.unpack("<q", reply)[0]

        mine = add(b"/peers", 1)
        deadline = time.monotonic() + 20
        while add(b"/peers", 0) < world and time.monotonic() < deadline:
            time.sleep(0.02)
        print(f"attempt {attempt}: I am number {mine} of {add(b'/peers', 0)}", flush=True)
        if attempt + 1 == int(sys.argv[1]):
            return 0
        # The others keep their connections open until they are stopped.
        time.sleep(0.3 if os.environ["RANK"] == "0" else 600)
        return 5


sys.exit(main())
