#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A file system that stalls on command, to simulate a failing NFS or Lustre server.

    stalling_fs.py BACKING MOUNT_POINT FLAG [SECONDS]

Mounts the directory BACKING at MOUNT_POINT through /dev/fuse, without libraries (root only), and prints "ready". While the
file FLAG exists, every request waits until it is removed, or for SECONDS if given. A signal or the end of standard input
unmounts the file system and aborts waiting requests.

In tests, use the context manager Stalling.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import stat
import struct
import subprocess
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2
NO_REPLY = object()


def is_killed(thread):
    try:
        with open(f"/proc/{thread}/status", encoding="ascii", errors="replace") as status:
            pending = [int(line.split()[1], 16) for line in status if line.startswith(("SigPnd:", "ShdPnd:"))]
    except OSError:
        return True
    return any(signals >> (signal.SIGKILL - 1) & 1 for signals in pending)


class StallingFs:
    """The server of the file system. Each request has its own thread, so a waiting request does not block others."""

    def __init__(self, backing, mount_point, flag, seconds):
        self.backing, self.mount_point = os.path.realpath(backing), os.path.realpath(mount_point)
        self.flag, self.seconds = flag, seconds
        self.paths, self.nodes = {1: self.backing}, {self.backing: 1}  # Node number <-> path.
        self.lock = threading.Lock()
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.device},rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions"
        if LIBC.mount(b"stalling", self.mount_point.encode(), b"fuse.stalling", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "mount " + self.mount_point)

    def unmount(self):
        LIBC.umount2(self.mount_point.encode(), MNT_DETACH)
        os.close(self.device)

    def serve(self):
        while True:
            try:
                request = os.read(self.device, 1 << 18)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return
            threading.Thread(target=self.answer, args=(request,), daemon=True).start()

    def answer(self, request):
        _, opcode, unique, node, uid, gid, thread, _ = struct.unpack("<IIQQIIII", request[:40])
        handler = getattr(self, "op_%d" % opcode, None)
        if opcode not in (2, 26, 36, 42):
            self.stall(thread)
        try:
            data = handler(node, request[40:], uid, gid) if handler else self.unknown()
            code = 0
        except OSError as error:
            data, code = b"", error.errno or errno.EIO
        if data is NO_REPLY:
            return
        with contextlib.suppress(OSError):  # The requesting process may have exited.
            os.write(self.device, struct.pack("<IiQ", 16 + len(data), -code, unique) + data)

    def stall(self, thread):
        """Blocks a request while the file system is stalled. Like NFS, releases only a thread that is being killed."""
        end = time.monotonic() + self.seconds
        while os.path.exists(self.flag) and time.monotonic() < end and not is_killed(thread):
            time.sleep(0.02)

    @staticmethod
    def unknown():
        raise OSError(errno.ENOSYS, "")

    # Paths.
    def child(self, node, name):
        return os.path.join(self.paths[node], os.fsdecode(name.split(b"\0")[0]))

    def number(self, path):
        with self.lock:
            if path not in self.nodes:
                self.nodes[path] = len(self.paths) + 1
                self.paths[self.nodes[path]] = path
            return self.nodes[path]

    def forget_path(self, path):
        with self.lock:
            self.nodes.pop(path, None)

    def attributes(self, node):
        info = os.lstat(self.paths[node])
        times = [info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns]
        return struct.pack("<QQQQQQIIIIIIIIII", node, info.st_size, info.st_blocks,
                           *(at // 10**9 for at in times), *(at % 10**9 for at in times),
                           info.st_mode, info.st_nlink, info.st_uid, info.st_gid, info.st_rdev, 4096, 0)

    def entry(self, path):
        os.lstat(path)
        node = self.number(path)
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + self.attributes(node)

    # Requests, by number (linux/fuse.h).
    def op_1(self, node, body, *_):  # LOOKUP
        return self.entry(self.child(node, body))

    def op_2(self, *_):  # FORGET
        return NO_REPLY

    def op_3(self, node, *_):  # GETATTR
        return struct.pack("<QII", 0, 0, 0) + self.attributes(node)

    def op_4(self, node, body, *_):  # SETATTR
        (valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid) = struct.unpack(
            "<IIQQQQQQIIIIIII", body[:84])
        path = self.paths[node]
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(path, size)
        if valid & 0x30:
            info, now = os.stat(path), time.time_ns()
            os.utime(path, ns=(
                now if valid & 128 else atime * 10**9 + atime_ns if valid & 16 else info.st_atime_ns,
                now if valid & 256 else mtime * 10**9 + mtime_ns if valid & 32 else info.st_mtime_ns))
        return self.op_3(node)

    def op_5(self, node, *_):  # READLINK
        return os.fsencode(os.readlink(self.paths[node]))

    def op_6(self, node, body, uid, gid):  # SYMLINK
        name, target = body.split(b"\0")[:2]
        path = self.child(node, name)
        os.symlink(target, path)
        os.lchown(path, uid, gid)
        return self.entry(path)

    def op_9(self, node, body, uid, gid):  # MKDIR
        mode, umask = struct.unpack("<II", body[:8])
        path = self.child(node, body[8:])
        os.mkdir(path, mode & ~umask)
        os.chown(path, uid, gid)
        return self.entry(path)

    def op_10(self, node, body, *_):  # UNLINK
        path = self.child(node, body)
        os.unlink(path)
        self.forget_path(path)
        return b""

    def op_11(self, node, body, *_):  # RMDIR
        path = self.child(node, body)
        os.rmdir(path)
        self.forget_path(path)
        return b""

    def rename(self, node, target, names):
        old, new = names.split(b"\0")[:2]
        source, target = self.child(node, old), self.child(target, new)
        os.rename(source, target)
        with self.lock:
            for path in [known for known in self.nodes if known == source or known.startswith(source + "/")]:
                number = self.nodes.pop(path)
                moved = target + path[len(source):]
                self.nodes[moved], self.paths[number] = number, moved
        return b""

    def op_12(self, node, body, *_):  # RENAME
        return self.rename(node, struct.unpack("<Q", body[:8])[0], body[8:])

    def op_45(self, node, body, *_):  # RENAME2
        return self.rename(node, struct.unpack("<Q", body[:8])[0], body[16:])

    def op_13(self, node, body, *_):  # LINK
        path = self.child(node, body[8:])
        os.link(self.paths[struct.unpack("<Q", body[:8])[0]], path)
        return self.entry(path)

    def op_14(self, node, body, *_):  # OPEN
        flags = struct.unpack("<I", body[:4])[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        handle = os.open(self.paths[node], flags | os.O_CLOEXEC)
        return struct.pack("<QII", handle, 0, 0)

    def op_15(self, node, body, *_):  # READ
        handle, offset, size = struct.unpack("<QQI", body[:20])
        return os.pread(handle, size, offset)

    def op_16(self, node, body, *_):  # WRITE
        handle, offset, size = struct.unpack("<QQI", body[:20])
        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        data = body[40:40 + size]
        written = os.write(handle, data) if flags & os.O_APPEND else os.pwrite(handle, data, offset)
        return struct.pack("<II", written, 0)

    def op_17(self, *_):  # STATFS
        info = os.statvfs(self.backing)
        return struct.pack("<QQQQQIIII24x", info.f_blocks, info.f_bfree, info.f_bavail, info.f_files,
                           info.f_ffree, info.f_bsize, 255, info.f_frsize, 0)

    def op_18(self, node, body, *_):  # RELEASE
        os.close(struct.unpack("<Q", body[:8])[0])
        return b""

    def op_20(self, node, body, *_):  # FSYNC
        os.fsync(struct.unpack("<Q", body[:8])[0])
        return b""

    def op_25(self, *_):  # FLUSH
        return b""

    def op_26(self, node, body, *_):  # INIT
        major, minor, readahead = struct.unpack("<III", body[:12])
        return struct.pack("<IIIIHHII", 7, min(minor, 31), readahead, 0, 12, 9, 1 << 17, 1) + bytes(36)

    def op_27(self, *_):  # OPENDIR
        return struct.pack("<QII", 0, 0, 0)

    def op_28(self, node, body, *_):  # READDIR
        _, offset, size = struct.unpack("<QQI", body[:20])
        names = [".", ".."] + sorted(os.listdir(self.paths[node]))
        out = b""
        for index, name in enumerate(names[offset:], int(offset) + 1):
            raw = os.fsencode(name)
            record = struct.pack("<QQII", self.number(os.path.join(self.paths[node], name)), index,
                                 len(raw), 0) + raw
            record += bytes(-len(record) % 8)
            if len(out) + len(record) > size:
                break
            out += record
        return out

    def op_29(self, *_):  # RELEASEDIR
        return b""

    def op_35(self, node, body, uid, gid):  # CREATE
        flags, mode, umask, _ = struct.unpack("<IIII", body[:16])
        path = self.child(node, body[16:])
        handle = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, mode & ~umask)
        os.fchown(handle, uid, gid)
        return self.entry(path) + struct.pack("<QII", handle, 0, 0)

    def op_36(self, *_):  # INTERRUPT
        return NO_REPLY


def main():
    backing, mount_point, flag = sys.argv[1:4]
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else float("inf")
    file_system = StallingFs(backing, mount_point, flag, seconds)
    threading.Thread(target=file_system.serve, daemon=True).start()
    print("ready", flush=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        select.select([sys.stdin], [], [])
    finally:
        file_system.unmount()


class Stalling:
    """The file system as a context manager.

        with Stalling(tmp / "backing", tmp / "mounted") as home:
            home.stall()      # From now on every request waits...
            home.go_on()      # ...until this call.

    To run it on a test host, pass `prefix` (a command that enters the host), `program` (the path of this file on the host)
    and `outside` (a function that converts a path on the host to one on this machine).
    """

    def __init__(self, backing, mount_point, *, prefix=(), program=os.path.abspath(__file__), outside=str):
        self.backing, self.mount_point = str(backing), str(mount_point)
        flag = self.backing + ".stalls"
        self.flag, self.outside = outside(flag), outside
        self.words = [*prefix, "/usr/bin/python3", "-B", program, self.backing, self.mount_point, flag]
        self.process = None

    def __enter__(self):
        for directory in (self.backing, self.mount_point):
            os.makedirs(self.outside(directory), exist_ok=True)
        self.process = subprocess.Popen(self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n", "the stalling file system did not start"
        return self

    def __exit__(self, *_):
        self.go_on()
        self.process.stdin.close()
        self.process.wait(30)

    def stall(self):
        with open(self.flag, "w", encoding="ascii"):
            pass

    def go_on(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.flag)


if __name__ == "__main__":
    main()
