"""Finds its peers in the job's store with torch's protocol, but without torch, prints its place in the job, and runs until a
file exists.

    meet_peers.py FILE
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
    env = os.environ
    world = int(env["WORLD_SIZE"])
    with socket.create_connection((env["MASTER_ADDR"], int(env["MASTER_PORT"]))) as store:
        store.sendall(VALIDATE)

        def add(key, number):
            store.sendall(b"\4" + text(key) + struct.pack("<q", number))
            reply = b""
            while len(reply) < 8:
                piece = store.recv(8 - len(reply))
                assert piece, "the store closed the connection"
                reply += piece
            return struct.unpack("<q", reply)[0]

        add(b"/peers", 1)
        while add(b"/peers", 0) < world:
            time.sleep(0.02)
        print(f"attempt {env['TORCHELASTIC_RESTART_COUNT']} ({env['IVY_GENERATION']}): rank {env['RANK']} of "
              f"{world}, local {env['LOCAL_RANK']}, node {env['GROUP_RANK']} of {env['GROUP_WORLD_SIZE']}, "
              f"met {add(b'/peers', 0)} at {env['MASTER_ADDR']}", flush=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.02)
    return 0


sys.exit(main())
