// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/python_hook_mpi.h"

namespace ivy {
namespace {

// _join: the servers' answers are those of roles/mpi_exec.cc. The library to which mpi4py is
// linked is only known when it is loaded, so both servers are queried; the failure of one of them
// matters only if no world results. _spec_behind() and _has_other_launcher() are python_hook.cc's.
constexpr std::string_view kMpiHook = R"py(def _mpi_connect(name):
    import os
    import socket
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.path.join(os.path.dirname(os.environ["IVY_TOKEN_FILE"]), name))
    connection.sendall(b"rank %d\n" % int(os.environ["IVY_RANK"]))
    return connection


def _mpi_join_pmi():
    import fcntl
    import os
    connection = _mpi_connect("pmi.sock")
    kept = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 100)
    connection.close()
    get = os.environ.get
    os.environ.update(
        PMI_FD=str(kept), PMI_RANK=get("IVY_RANK"), PMI_SIZE=get("IVY_WORLD_SIZE"),
        MPI_LOCALRANKID=get("IVY_LOCAL_RANK"), MPI_LOCALNRANKS=get("IVY_LOCAL_WORLD_SIZE"),
        MPIR_CVAR_PMI_VERSION="1")


def _mpi_join_pmix():
    import os
    connection = _mpi_connect("pmix.sock")
    answer = b""
    while True:
        more = connection.recv(65536)
        if not more:
            break
        answer += more
    connection.close()
    pairs = [os.fsdecode(pair) for pair in answer.split(b"\0") if pair]
    if not pairs or pairs[0].startswith("error: "):
        raise OSError(pairs[0][len("error: "):] if pairs else "the PMIx server does not answer")
    for pair in pairs:
        name, _, value = pair.partition("=")
        os.environ[name] = value


# Returns what went wrong.
def _mpi_join():
    import os
    wrong = []
    for what, join in (("PMI-1", _mpi_join_pmi), ("PMIx", _mpi_join_pmix)):
        try:
            join()
        except FileNotFoundError:
            wrong.append(what + ": this host does not serve it")
        except Exception as error:
            wrong.append(what + ": " + str(error))
    os.environ["IVY_MPI"] = str(os.getpid())
    return wrong


# The MPIs that this process has loaded, as they call themselves: [("Open MPI", "4.1.4")].
def _mpi_libraries():
    import ctypes
    import re
    with open("/proc/self/maps") as file:
        paths = {path.group() for path in re.finditer(r"/\S*/lib(mpi|mpich|mpi_abi)\.so\S*", file.read())}
    found = []
    for path in sorted(paths):
        text = ctypes.create_string_buffer(8192)
        ctypes.CDLL(path).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
        match = re.match(r"(Open MPI|MPICH|Intel\(R\) MPI|MVAPICH)[^\d]*([\d.]+)", text.value.decode(errors="replace"))
        if match and match.groups() not in found:
            found.append(match.groups())
    return found


# Before MPI_Init: ranks of different MPIs would wait there, or fail with words of a transport.
def _mpi_compare():
    import os
    own = _mpi_libraries()
    meeting = _Meeting("mpi", "MPI", "MPI_Init")
    if len(own) > 1:
        meeting.say("two-mpis", (
            "warning[IVY-P025]: rank %s has loaded two MPIs: %s\n"
            "  fix:   build every module that the script imports with one of them" % (
                meeting.named(meeting.rank), " and ".join(map(" ".join, own)))))
    if len(own) != 1 or not meeting.has_store:
        return
    mine = " ".join(own[0])
    with meeting.store(meeting.limit) as store:
        store.set(meeting.key(meeting.rank), mine)
        first = mine if meeting.rank == 0 else store.get(meeting.key(0))
    if first.split(".")[0] != mine.split(".")[0]:
        os.write(2, (
            "ivyrun: error[IVY-R013]: MPI's ranks cannot meet: rank %s has %s, and rank %s has %s\n"
            "  fix:   install one version of one MPI for the workers' Python on every host (docs/mpi.md)\n" % (
                meeting.named(meeting.rank), mine, meeting.named(0), first)).encode())
        os._exit(122)


# A world of one in a job of several does the whole work in each worker, and ends well.
def _mpi_check(module, wrong, is_ours):
    import os
    if not module.Is_initialized() or module.Is_finalized():
        return
    size = module.COMM_WORLD.Get_size()
    if size > 1 or not is_ours:
        _agree(_JaxMeeting(), "mpi4py", module.COMM_WORLD.Get_rank(), size)
    if not is_ours or str(size) == os.environ.get("IVY_WORLD_SIZE"):
        return
    library = module.Get_library_version().split("\n")[0].split(",")[0].strip(" \0")
    _stop("ivyrun: error[IVY-P024]: mpi4py was imported, and its MPI (%s) has made a world of %d: "
          "this job has %s workers\n%s"
          "  fix:   use mpi4py with MPICH, Intel MPI, MVAPICH or Open MPI 4.1 or 5 (docs/mpi.md)\n"
          "         --allow-singletons, if each worker is meant to be alone\n"
          % (library, size, os.environ.get("IVY_WORLD_SIZE"),
             "".join("  cause: %s\n" % text for text in wrong)))


def _mpi():
    import os
    import sys
    if os.environ.get("IVY_WORLD_SIZE", "1") == "1" or "IVY_ALLOW_SINGLETONS" in os.environ:
        return

    class _Mpi:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "mpi4py.MPI":
                return None
            has_joined = os.environ.get("IVY_MPI") == str(os.getpid())
            is_ours = has_joined or not _has_other_launcher()
            spec = _spec_behind(_Mpi, name, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader, has_joined, is_ours)
            return spec

    class _Loader:
        def __init__(self, loader, has_joined, is_ours):
            self._loader = loader
            self._has_joined = has_joined
            self._is_ours = is_ours
            self._wrong = []

        def __getattr__(self, name):
            return getattr(self._loader, name)

        # Not find_spec: a library may only ask whether the module is there.
        def create_module(self, spec):
            if self._is_ours and not self._has_joined:
                self._wrong = _mpi_join()
            module = self._loader.create_module(spec)
            try:
                if self._is_ours:
                    _mpi_compare()
            except Exception:
                pass
            return module

        def exec_module(self, module):
            self._loader.exec_module(module)
            try:
                _mpi_check(module, self._wrong, self._is_ours)
            except Exception:
                pass

    sys.meta_path.insert(0, _Mpi)


)py";

}  // namespace

std::string_view python_hook_mpi() { return kMpiHook; }

}  // namespace ivy
