"""A client that connects without permission or too often.

  stranger.py say ADDRESS PORT HEX [PAUSE]   sends these bytes (one by one, with a pause), waits for the end
  stranger.py tls ADDRESS PORT CA [CERT KEY] makes a handshake with that certificate, waits for the end
  stranger.py crowd COUNT ADDRESS PORT       opens COUNT connections: half of them silent, half of them in
  stranger.py crowd COUNT PATH               the middle of a hello; holds them until standard input ends

Prints "closed after N.N s" or "there", then "gone".
"""

import contextlib
import os
import resource
import select
import socket
import ssl
import sys
import time

PATIENCE = 60


def connect(address, port):
    connection = socket.create_connection((address, int(port)), timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def await_end(connection, started):
    with contextlib.suppress(OSError):
        while connection.recv(4096):
            pass
    print(f"closed after {time.monotonic() - started:.2f} s", flush=True)


def say(address, port, text, pause="0"):
    started = time.monotonic()
    connection = connect(address, port)
    data = bytes.fromhex(text)
    with contextlib.suppress(OSError):
        if float(pause) == 0:
            connection.sendall(data)
        else:
            for byte in data:
                connection.send(bytes([byte]))
                time.sleep(float(pause))
    await_end(connection, started)


def tls(address, port, authority, certificate=None, key=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_ecdh_curve("prime256v1")
    context.set_alpn_protocols(["h2"])
    # The server's name is not checked here.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_verify_locations(authority)
    if certificate:
        context.load_cert_chain(certificate, key)
    started = time.monotonic()
    try:
        await_end(context.wrap_socket(connect(address, port)), started)
    except OSError as error:
        print(f"closed after {time.monotonic() - started:.2f} s: {error}", flush=True)


def crowd(count, *place):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(count) + 64, int(count) + 64))
    held = []
    for number in range(int(count)):
        one = socket.socket(socket.AF_INET if len(place) == 2 else socket.AF_UNIX)
        # A connection that is rejected or not answered counts as tried.
        with contextlib.suppress(OSError):
            one.settimeout(5)
            one.connect((place[0], int(place[1])) if len(place) == 2 else place[0])
            if number % 2:
                one.send(b"\x16\x03\x01\x02\x00\x01")
        held.append(one)
    print("there", flush=True)
    while not select.select([sys.stdin], [], [], 1)[0]:
        # Slow senders: one byte a second.
        for one in held[1::2]:
            with contextlib.suppress(OSError):
                one.send(b"\x01")
    os.read(0, 1)
    for one in held:
        one.close()
    print("gone", flush=True)


{"say": say, "tls": tls, "crowd": crowd}[sys.argv[1]](*sys.argv[2:])
