"""A client of the store like torch >= 2.5, which sends its process id. Rank 0 waits forever. With "brief" it first computes
for a long time and then waits for a moment, which is not a stall."""

import os
import socket
import struct
import sys
import time

VALIDATE, SET, WAIT, PING = 0, 1, 6, 13
MAGIC = 0x3C85F7CE


def text(value):
    return struct.pack("<Q", len(value)) + value


rank = int(os.environ["RANK"])
peer = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
peer.sendall(struct.pack("<BI", VALIDATE, MAGIC) + struct.pack("<BI", PING, os.getpid()))
assert struct.unpack("<I", peer.recv(4, socket.MSG_WAITALL))[0] == os.getpid()
brief = sys.argv[1:] == ["brief"]
if brief:
    time.sleep(2.5 if rank == 0 else 3.7)
if rank == 0:
    peer.sendall(struct.pack("<BQ", WAIT, 1) + text(b"late"))
else:
    peer.sendall(struct.pack("<B", SET) + text(b"late" if brief else b"early") + text(b"x"))
print("asked, pid", os.getpid(), flush=True)
if not brief:
    time.sleep(300)
elif rank == 0:
    print("answered", peer.recv(1), flush=True)
