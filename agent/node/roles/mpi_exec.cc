// SPDX-License-Identifier: Apache-2.0
// An MPI library finds its rank and its peers through a descriptor (PMI) or variables (PMIx) that
// it inherits. This program gets them from the servers of its host before it executes the worker's
// program.
#include "agent/node/roles/mpi_exec.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/exit_code.h"
#include "proto/contract/status.h"
#include "proto/contract/text.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

// PMIx's variables take a few kilobytes.
constexpr std::size_t kMaxVariableBytes = 1u << 20;
// The PMI descriptor is above those that programs may expect to be free.
constexpr int kLowestPmiFd = 100;

struct Arguments {
  std::string directory;  // The job's directory, in which this host's servers have their sockets.
  std::string path;       // The program to execute.
  bool use_pmi = false;
  bool use_pmix = false;
  char** program_arguments = nullptr;  // Starts with the program's name; null-terminated.
};

void set_variable(const std::string& name, const std::string& value) {
  setenv(name.c_str(), value.c_str(), 1);
}

// Returns nothing if an argument is unknown or one that is required is missing.
std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  int i = 0;
  for (; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--pmi") {
      arguments.use_pmi = true;
    } else if (word == "--pmix") {
      arguments.use_pmix = true;
    } else if (word == "--directory" && has_value) {
      arguments.directory = argv[++i];
    } else if (word == "--path" && has_value) {
      arguments.path = argv[++i];
    } else {
      return std::nullopt;
    }
  }
  const bool has_program = i + 1 < argc && !arguments.path.empty();
  const bool has_server = arguments.use_pmi || arguments.use_pmix;
  if (!has_program || !has_server || arguments.directory.empty()) return std::nullopt;
  arguments.program_arguments = argv + i + 1;
  return arguments;
}

// Connects and tells the server which rank this is. Fails with kNotFound if there is no socket.
Result<Descriptor> connect_as_rank(const std::string& path) {
  SocketAddress address = unix_address(path);
  if (!address.is_valid()) return Error{Code::kInvalidArgument, path + " is too long for a socket"};
  Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno_error(Code::kResourceExhausted, "create a socket", errno);
  if (connect(fd.get(), address.get(), address.size) != 0) {
    const int error = errno;
    if (error == ENOENT)
      return Error{Code::kNotFound, "this host has no socket " + path.substr(path.rfind('/') + 1)};
    return errno_error(Code::kUnavailable, "connect to " + path, error);
  }
  if (!write_all(fd.get(), "rank " + own_variable("IVY_RANK") + "\n"))
    return errno_error(Code::kUnavailable, "write to " + path, errno);
  return fd;
}

Result<void> join_pmi(const std::string& directory) {
  const Descriptor fd = IVY_TRY(connect_as_rank(directory + "/pmi.sock"));
  // The program inherits this duplicate, so it stays open across the exec.
  const int inherited_fd = fcntl(fd.get(), F_DUPFD, kLowestPmiFd);
  if (inherited_fd < 0)
    return errno_error(Code::kResourceExhausted, "duplicate the descriptor for PMI", errno);
  set_variable("PMI_FD", std::to_string(inherited_fd));
  set_variable("PMI_RANK", own_variable("IVY_RANK"));
  set_variable("PMI_SIZE", own_variable("IVY_WORLD_SIZE"));
  set_variable("MPI_LOCALRANKID", own_variable("IVY_LOCAL_RANK"));
  set_variable("MPI_LOCALNRANKS", own_variable("IVY_LOCAL_WORLD_SIZE"));
  // MPICH 5 cannot choose if PMIx variables are also set.
  set_variable("MPIR_CVAR_PMI_VERSION", "1");
  return {};
}

// Sets the variables that the server returns (agent/pmix/rank_socket.h describes the response).
Result<void> join_pmix(const std::string& directory) {
  const Result<Descriptor> fd = connect_as_rank(directory + "/pmix.sock");
  if (!fd.ok() && fd.error().code == Code::kNotFound)
    return Error{Code::kNotFound,
                 fd.error().message + " (Open MPI needs ivy-pmix next to ivy-node)"};
  if (!fd.ok()) return fd.error();
  const std::optional<std::string> response = read_from(fd->get(), kMaxVariableBytes);
  if (!response) return errno_error(Code::kUnavailable, "read from the PMIx server", errno);
  if (response->empty()) return Error{Code::kUnavailable, "the PMIx server does not answer"};
  std::string_view rest = *response;
  constexpr std::string_view kError = "error: ";
  if (rest.starts_with(kError))
    return Error{Code::kUnavailable, std::string(take_part(rest, '\0').substr(kError.size()))};
  while (!rest.empty()) {
    const std::string_view entry = take_part(rest, '\0');
    const std::size_t equals = entry.find('=');
    if (equals != std::string_view::npos)
      set_variable(std::string(entry.substr(0, equals)), std::string(entry.substr(equals + 1)));
  }
  return {};
}

// Joins through each server that is wanted. It is not known which one the program's library uses,
// so this fails only if all of them failed, and gives each reason.
Result<void> join_world(const Arguments& arguments) {
  std::vector<Result<void>> attempts;
  if (arguments.use_pmi) attempts.push_back(join_pmi(arguments.directory));
  if (arguments.use_pmix) attempts.push_back(join_pmix(arguments.directory));
  std::vector<std::string> reasons;
  for (const Result<void>& attempt : attempts)
    if (!attempt.ok()) reasons.push_back(attempt.error().message);
  if (reasons.size() < attempts.size()) return {};
  return Error{Code::kUnavailable, "cannot join the MPI world: " + joined(reasons, "; ")};
}

void print_error(const std::string& message) {
  std::fprintf(stderr, "ivyrun: error[IVY-R014]: rank %s: %s\n", own_variable("IVY_RANK").c_str(),
               message.c_str());
}

}  // namespace

int run_mpi_exec(int argc, char** argv) {
  const std::optional<Arguments> arguments = parse(argc, argv);
  if (!arguments) {
    std::fprintf(stderr, "ivy-node mpi-exec: wrong arguments\n");
    return kExitUsage;
  }
  const Result<void> world = join_world(*arguments);
  if (!world.ok()) {
    print_error(world.error().message);
    std::fputs("  fix:   --allow-singletons, if each worker should run alone\n", stderr);
    return kExitRejected;
  }
  // The Python hook must not join again in this process: its id says so.
  set_variable("IVY_MPI", std::to_string(getpid()));
  // In a container the name has not been looked up yet.
  execvp(arguments->path.c_str(), arguments->program_arguments);
  const int error = errno;
  print_error("execute " + arguments->path + ": " + std::strerror(error));
  return error == ENOENT ? kExitNotFound : kExitNotExecutable;
}

}  // namespace ivy
