"""Prints LINES numbered lines of different lengths in pieces of any length: chatty.py LINES.

Each line is "RANK NUMBER CHECK TEXT"; CHECK is the CRC of TEXT, so that a torn or mixed line shows.
"""

import os
import random
import sys
import zlib

rank = int(os.environ["RANK"])
chance = random.Random(rank)
pending = bytearray()


def write(limit):
    while len(pending) > limit:
        piece = chance.randrange(1, 5000)
        written = os.write(1, pending[:piece])
        del pending[:written]


for number in range(int(sys.argv[1])):
    text = bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randrange(1, 300)))
    pending += b"%d %d %d %s\n" % (rank, number, zlib.crc32(text), text)
    write(20000)
write(0)
