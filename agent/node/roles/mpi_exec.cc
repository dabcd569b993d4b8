// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/mpi_exec.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "proto/contract/exit_code.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

// PMIx's variables take a few kilobytes.
constexpr std::size_t kMaxAnswer = 1u << 20;
// Above the descriptors that programs may expect to be free.
constexpr int kLowestFd = 100;

struct MpiExec {
  std::string directory;
  std::string path;
  bool pmi = false;
  bool pmix = false;
  char** arguments = nullptr;
};

void set_variable(const std::string& name, const std::string& value) {
  setenv(name.c_str(), value.c_str(), 1);
}

bool parse(int argc, char** argv, MpiExec& exec) {
  int i = 0;
  for (; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--pmi") {
      exec.pmi = true;
    } else if (word == "--pmix") {
      exec.pmix = true;
    } else if (word == "--directory" && has_value) {
      exec.directory = argv[++i];
    } else if (word == "--path" && has_value) {
      exec.path = argv[++i];
    } else {
      return false;
    }
  }
  exec.arguments = argv + i + 1;
  return i + 1 < argc && !exec.directory.empty() && !exec.path.empty();
}

// Connects and tells the server which rank this is.
Result<Descriptor> connect_as_rank(const std::string& path) {
  SocketAddress address = unix_address(path);
  Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool is_connected =
      fd && address.is_valid() && connect(fd.get(), address.get(), address.size) == 0;
  if (!is_connected && errno == ENOENT)
    return Error{Code::kNotFound, "this host has no socket " + path.substr(path.rfind('/') + 1) +
                                      " (Open MPI needs ivy-pmix next to ivy-node)"};
  if (!is_connected) return errno_error(Code::kUnavailable, "connect to " + path, errno);
  if (!write_all(fd.get(), "rank " + own_variable("IVY_RANK") + "\n"))
    return errno_error(Code::kUnavailable, "write to " + path, errno);
  return fd;
}

Result<void> join_pmi(const std::string& directory) {
  const Descriptor fd = IVY_TRY(connect_as_rank(directory + "/pmi.sock"));
  const int kept = fcntl(fd.get(), F_DUPFD, kLowestFd);
  if (kept < 0)
    return errno_error(Code::kResourceExhausted, "duplicate the descriptor for PMI", errno);
  set_variable("PMI_FD", std::to_string(kept));
  set_variable("PMI_RANK", own_variable("IVY_RANK"));
  set_variable("PMI_SIZE", own_variable("IVY_WORLD_SIZE"));
  set_variable("MPI_LOCALRANKID", own_variable("IVY_LOCAL_RANK"));
  set_variable("MPI_LOCALNRANKS", own_variable("IVY_LOCAL_WORLD_SIZE"));
  // With the variables of PMIx next to these, MPICH 5 would not know which to use.
  set_variable("MPIR_CVAR_PMI_VERSION", "1");
  return {};
}

Result<void> join_pmix(const std::string& directory) {
  const Descriptor fd = IVY_TRY(connect_as_rank(directory + "/pmix.sock"));
  const std::optional<std::string> answer = read_from(fd.get(), kMaxAnswer);
  if (!answer) return errno_error(Code::kUnavailable, "read from the PMIx server", errno);
  if (answer->empty()) return Error{Code::kUnavailable, "the PMIx server does not answer"};
  constexpr std::string_view kError = "error: ";
  if (answer->starts_with(kError))
    return Error{Code::kUnavailable,
                 answer->substr(kError.size(), answer->find('\0') - kError.size())};
  std::string_view rest = *answer;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const std::size_t equals = one.find('=');
    if (equals != std::string_view::npos)
      set_variable(std::string(one.substr(0, equals)), std::string(one.substr(equals + 1)));
  }
  return {};
}

int reject(const std::string& why) {
  std::fprintf(stderr,
               "ivyrun: error[IVY-R014]: rank %s: cannot join the MPI world: %s\n"
               "  fix:   --allow-singletons, if each worker should run alone\n",
               own_variable("IVY_RANK").c_str(), why.c_str());
  return kExitRejected;
}

}  // namespace

int run_mpi_exec(int argc, char** argv) {
  MpiExec exec;
  if (!parse(argc, argv, exec)) {
    std::fprintf(stderr, "ivy-node mpi-exec: wrong arguments\n");
    return kExitUsage;
  }
  const Result<void> pmi = exec.pmi ? join_pmi(exec.directory) : Result<void>();
  const Result<void> pmix = exec.pmix ? join_pmix(exec.directory) : Result<void>();
  const bool has_pmi = exec.pmi && pmi.ok();
  const bool has_pmix = exec.pmix && pmix.ok();
  if (!has_pmi && !has_pmix) return reject(exec.pmi ? pmi.error().message : pmix.error().message);
  // Tells the Python hook that this process itself has its place in the MPI world.
  set_variable("IVY_MPI", std::to_string(getpid()));
  execv(exec.path.c_str(), exec.arguments);
  const int error = errno;
  std::fprintf(stderr, "ivyrun: error[IVY-R014]: rank %s: execute %s: %s\n",
               own_variable("IVY_RANK").c_str(), exec.path.c_str(), std::strerror(error));
  return error == ENOENT ? kExitNotFound : kExitNotExecutable;
}

}  // namespace ivy
