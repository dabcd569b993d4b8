# SPDX-License-Identifier: Apache-2.0
# The fork server of --preload (preload_server.h). It is the workers' own command line, in which Python imports this
# file as `sitecustomize` before it runs the program. So this process imports the modules and forks the workers, and a
# worker only has to return from this file: the interpreter then runs the program in the usual way, with the usual
# __main__, sys.path, sys.flags and tracebacks.
#
# Standard input is a socket to the supervisor (SOCK_SEQPACKET). The first message is "hook" in a test that the
# interpreter imports this file, which runs with IVY_PRELOAD empty; otherwise "ready", or "refused MODULE: REASON". Each
# request of the supervisor is one message with the descriptors of fork_workers(), see there. Every way out other than
# return_as_worker() is os._exit(): if this process ever returned, it would run the program as a rank that does not exist.

import os
import sys


# -- Imports

# Environment while modules are imported. Notes which of the variables that differ between ranks are read, because the
# reader would keep a value that is wrong in most workers.
def watch_environment(varying):
    import collections.abc
    readers = {}
    own_files = {__file__, os.__file__, collections.abc.Mapping.get.__code__.co_filename}

    class Watched(type(os.environ)):
        def __getitem__(self, name):
            if name in varying:
                frame = sys._getframe(1)
                while frame is not None and frame.f_code.co_filename in own_files:
                    frame = frame.f_back
                reader = frame.f_globals.get("__name__", "?") if frame is not None else "?"
                if reader != "sitecustomize":
                    readers.setdefault(name, reader)
            return super().__getitem__(name)
    plain = type(os.environ)
    os.environ.__class__ = Watched
    return readers, lambda: setattr(os.environ, "__class__", plain)


def thread_count():
    return len(os.listdir("/proc/self/task"))


# Returns what a fork would not survive, or an empty text.
def obstacle_of(readers):
    for name, reader in readers.items():
        return "%s reads %s, which differs between the workers" % (reader, name)
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + descriptor)
        except OSError:
            continue
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/neuron", "/dev/infiniband/")):
            return "it opens the device " + target
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "cuda", None) is not None and torch.cuda.is_initialized():
        return "it initializes CUDA"
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and getattr(bridge, "_backends", None):
        return "it initializes JAX's devices"
    if "mpi4py.MPI" in sys.modules:
        return "it initializes MPI"
    if thread_count() > 1:
        # Libraries such as OpenBLAS stop their threads before a fork, and start them again when they need them.
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    if thread_count() > 1:
        import threading
        names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        return "it starts threads" + (" (%s)" % ", ".join(names[:4]) if names else "")
    return ""


# Returns the directory that Python will put in front of sys.path when it runs the program; None if it adds none.
def program_directory():
    if getattr(sys.flags, "safe_path", False):
        return None
    program = sys.argv[0] if sys.argv else ""
    if program in ("-m", "-c"):
        return os.getcwd() if program == "-m" else ""
    return program if os.path.isdir(program) else os.path.dirname(os.path.realpath(program))


def import_modules(names, varying):
    import importlib
    directory = program_directory()
    if directory is not None:
        sys.path.insert(0, directory)
    readers, restore = watch_environment(varying)
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            refuse(name, "%s: %s" % (type(error).__name__, error))
        why = obstacle_of(readers)
        if why:
            refuse(name, why)
    restore()
    if directory is not None:
        sys.path.remove(directory)


def refuse(module, why):
    text = "refused %s: %s" % (module, " ".join(str(why).split()))
    SOCKET.send(text.encode("utf-8", "replace")[:2000])
    os._exit(1)


# -- Forks

# Receives the descriptors of one message, and the text of its first one.
def receive():
    import array
    sizes = array.array("i")
    data, ancillary, _, _ = SOCKET.recvmsg(64, 253 * sizes.itemsize)
    for _level, _kind, content in ancillary:
        sizes.frombytes(content[:len(content) - len(content) % sizes.itemsize])
    return data, list(sizes)


# A request: the first descriptor is a file with the workers' fields, each with a zero byte at its end. The second one
# receives a record for each worker and closes when all are ready to run. From the third one each worker reads a byte
# before it runs the program; if it reads the end of the file, it exits. The fourth one is "cgroup.procs" of the job's
# cgroup, if there is one. The standard descriptors of each worker follow.
class Request:
    def __init__(self, descriptors):
        self.descriptors = descriptors
        self.report, self.gate = descriptors[1:3]
        size = os.fstat(descriptors[0]).st_size
        self.fields = iter(os.pread(descriptors[0], size, 0).split(b"\0"))
        self.own_session = self.number() != 0
        self.supervisor = self.number()
        has_cgroup = self.number() != 0
        self.cgroup = descriptors[3] if has_cgroup else None
        standard = descriptors[4 if has_cgroup else 3:]
        self.workers = [self.worker(standard[3 * i:3 * i + 3]) for i in range(self.number())]

    def number(self):
        return int(next(self.fields))

    def worker(self, standard):
        cores = [int(text) for text in next(self.fields).split()]
        node = self.number()
        environment = [next(self.fields) for _ in range(self.number())]
        return cores, node, environment, standard


# Step numbers are those of ChildStep in spawn_child.h.
GROUP, CGROUP, BIND, STDIN, CHDIR = 0, 1, 2, 3, 6
CREATED = -1


def report(request, index, step, error):
    import struct
    os.write(request.report, struct.pack("=iiii", index, os.getpid(), step, error))


# Forks the workers of a request in a process in between. When that process exits, they become children of the
# supervisor, which is the next subreaper above. Returns True in a worker.
def fork_workers(request):
    between = os.fork()
    if between != 0:
        for descriptor in request.descriptors:
            os.close(descriptor)
        os.waitpid(between, 0)
        return False
    try:
        if request.cgroup is not None:
            os.write(request.cgroup, b"0")
        for index, worker in enumerate(request.workers):
            if os.fork() == 0:
                become_worker(request, index, worker)
                return True
    except OSError as error:
        report(request, -1, CGROUP, error.errno or 0)
    except BaseException:
        pass
    os._exit(0)


# Counterpart of become_worker() in spawn_child.cc, whose limits and working directory this process already has.
def become_worker(request, index, worker):
    import signal
    cores, node, environment, standard = worker
    step = GROUP
    try:
        os.setsid() if request.own_session else os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = BIND
        if cores:
            prefer_memory(node)
            os.sched_setaffinity(0, cores)
        step = STDIN
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number, True)
            step += 1
        admit_debuggers(request.supervisor)
        take_environment(environment)
        step = CHDIR
        os.chdir(DIRECTORY)
        report(request, index, CREATED, 0)
        gate = os.dup(request.gate)
        for descriptor in request.descriptors:
            os.close(descriptor)
        SOCKET.close()
        if os.read(gate, 1) != b"g":
            os._exit(127)
        os.close(gate)
        if index == 0:
            repeat_output()
        return_as_worker()
    except OSError as error:
        report(request, index, step, error.errno or 0)
        os._exit(127)
    except BaseException:
        os._exit(127)


# Errors do not matter: the memory of a process that runs near it is near anyway.
def prefer_memory(node):
    if node < 0:
        return
    import ctypes
    words = (ctypes.c_ulong * (node // 64 + 1))()
    words[node // 64] = 1 << node % 64
    number = {"x86_64": 238, "aarch64": 237}.get(os.uname().machine)
    if number is not None:
        preferred = 1  # MPOL_PREFERRED
        ctypes.CDLL(None).syscall(number, preferred, words, len(words) * 64 + 1)


# As in spawn_child.cc, for Yama's ptrace_scope 1.
def admit_debuggers(supervisor):
    import ctypes
    set_ptracer = 0x59616d61  # PR_SET_PTRACER
    ctypes.CDLL(None).prctl(set_ptracer, ctypes.c_ulong(supervisor), 0, 0, 0)


def take_environment(texts):
    os.environ.clear()
    for text in texts:
        name, _, value = text.partition(b"=")
        os.environb[name] = value


# Opens sys.stdin again: only some workers have a pipe there, and Python has looked what its standard input is.
def open_standard_input():
    import io
    old = sys.stdin
    raw = io.FileIO(0, "r", closefd=False)
    raw.name = "<stdin>"
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(
        io.BufferedReader(raw), encoding=old.encoding, errors=old.errors, line_buffering=old.line_buffering)
    sys.stdin.mode = "r"


# The first worker of the host prints what the modules have printed while they were imported.
def repeat_output():
    for number, path in ((1, "out"), (2, "err")):
        try:
            with open(os.path.join(FOLDER, path), "rb") as file:
                data = file.read(1 << 20)
            while data:
                data = data[os.write(number, data):]
        except OSError:
            pass


def return_as_worker():
    global HOOK
    open_standard_input()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # It was seeded when it was imported. Python seeds `random` after each fork itself.
    start = getattr(HOOK, "_start_forked_worker", None)
    if start is not None:
        start()
    HOOK = None


# -- The server

def serve():
    # Workers need these modules, too; imported here, they cost each of them nothing.
    import array  # noqa: F401
    import ctypes  # noqa: F401
    import gc
    import signal
    import struct  # noqa: F401
    names = [name for name in os.environ.get("IVY_PRELOAD", "").split(",") if name]
    varying = frozenset(os.environ.get("IVY_PRELOAD_VARYING", "").split(","))
    if not names:
        SOCKET.send(b"hook" if sys.version_info >= (3, 8) else b"is older than Python 3.8")
        os._exit(0)
    # Signals to all processes of a scheduler's step, or of a terminal, are meant for the workers.
    signal.pthread_sigmask(signal.SIG_BLOCK, (
        signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2))
    run_next_sitecustomize()
    import_modules(names, varying)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.collect()
    gc.freeze()
    SOCKET.send(b"ready")
    while True:
        data, descriptors = receive()
        if not data:
            os._exit(0)  # The supervisor has exited.
        if fork_workers(Request(descriptors)):
            return


def run_next_sitecustomize():
    global HOOK
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    while FOLDER in sys.path:
        sys.path.remove(FOLDER)
    sys.path_importer_cache.pop(FOLDER, None)
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = HOOK = module
    spec.loader.exec_module(module)


def open_socket():
    import fcntl
    import _socket
    # Above the numbers that programs expect to be free.
    return _socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 100))


def capture_output():
    for number, path in ((1, "out"), (2, "err")):
        descriptor = os.open(os.path.join(FOLDER, path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


HOOK = None  # The sitecustomize that this file hides: usually ivyrun's hook.
FOLDER = os.path.dirname(__file__)
DIRECTORY = os.getcwd()
try:
    SOCKET = open_socket()
    capture_output()
    serve()
except BaseException as error:
    try:
        SOCKET.send(("refused ivyrun: %s: %s" % (type(error).__name__, error)).encode("utf-8", "replace")[:2000])
    finally:
        os._exit(1)
