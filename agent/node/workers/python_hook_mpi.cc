#include "agent/node/workers/python_hook_mpi.h"

namespace ivy {
namespace {

// _join: the servers' answers are those of roles/mpi_exec.cc. What mpi4py is linked to is only
// known when it is loaded, so both servers are asked; that one of them cannot serve matters only if
// no world comes of it. _spec_behind() and _has_other_launcher() are python_hook.cc's.
constexpr std::string_view kMpiHook = R"(def _mpi_connect(name):
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


# A world of one in a job of several does the whole work in each worker, and ends well.
def _mpi_check(module, wrong):
    import os
    if not module.Is_initialized() or module.Is_finalized():
        return
    size = module.COMM_WORLD.Get_size()
    if str(size) == os.environ.get("IVY_WORLD_SIZE"):
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
            is_ours = os.environ.get("IVY_MPI") == str(os.getpid())
            if not is_ours and _has_other_launcher():
                return None
            spec = _spec_behind(_Mpi, name, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader, is_ours)
            return spec

    class _Loader:
        def __init__(self, loader, has_joined):
            self._loader = loader
            self._has_joined = has_joined
            self._wrong = []

        def __getattr__(self, name):
            return getattr(self._loader, name)

        # Not find_spec: a library may only ask whether the module is there.
        def create_module(self, spec):
            if not self._has_joined:
                self._wrong = _mpi_join()
            return self._loader.create_module(spec)

        def exec_module(self, module):
            self._loader.exec_module(module)
            try:
                _mpi_check(module, self._wrong)
            except Exception:
                pass

    sys.meta_path.insert(0, _Mpi)


)";

}  // namespace

std::string_view python_hook_mpi() { return kMpiHook; }

}  // namespace ivy
