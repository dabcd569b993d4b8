// SPDX-License-Identifier: Apache-2.0
#include "agent/node/container/container_enter.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/node/spawn/spawn.h"
#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

struct Namespace {
  const char* name;
  int kind;
};

// The user namespace first: it grants the permission to join the others.
constexpr Namespace kNamespaces[] = {{"user", CLONE_NEWUSER},
                                     {"mnt", CLONE_NEWNS},
                                     {"net", CLONE_NEWNET},
                                     {"ipc", CLONE_NEWIPC},
                                     {"uts", CLONE_NEWUTS}};

std::string namespace_path(const std::string& process, const char* name) {
  return "/proc/" + process + "/ns/" + name;
}

bool is_own_namespace(const std::string& path, const char* name) {
  struct stat theirs {};
  struct stat own {};
  return stat(path.c_str(), &theirs) == 0 &&
         stat(namespace_path("self", name).c_str(), &own) == 0 && theirs.st_ino == own.st_ino &&
         theirs.st_dev == own.st_dev;
}

struct EnterArguments {
  pid_t pid = 0;
  std::string directory;
  std::string path;
  char** program = nullptr;  // Null-terminated.
};

bool parse_enter(int argc, char** argv, EnterArguments& out) {
  for (int i = 0; i < argc; i += 2) {
    const std::string_view word = argv[i];
    if (word == "--") {
      out.program = argv + i + 1;
      return out.pid > 1 && !out.directory.empty() && out.program[0] != nullptr;
    }
    if (i + 1 == argc) return false;
    if (word == "--pid")
      out.pid = static_cast<pid_t>(std::atoi(argv[i + 1]));
    else if (word == "--directory")
      out.directory = argv[i + 1];
    else if (word == "--path")
      out.path = argv[i + 1];
    else
      return false;
  }
  return false;
}

int fail_to_enter(int code, const std::string& message) {
  std::fprintf(stderr, "ivyrun: error[IVY-R030]: rank %s: %s\n", own_variable("IVY_RANK").c_str(),
               message.c_str());
  return code;
}

}  // namespace

Result<void> enter_container(pid_t pid) {
  const std::string process = std::to_string(pid);
  std::vector<std::pair<Namespace, Descriptor>> to_join;
  for (const Namespace& each : kNamespaces) {
    const std::string path = namespace_path(process, each.name);
    Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd && errno == ENOENT)
      return Error{Code::kNotFound, "the container of this job has been removed"};
    if (!fd) return errno_error(Code::kPermissionDenied, "open " + path, errno);
    if (!is_own_namespace(path, each.name)) to_join.emplace_back(each, std::move(fd));
    // The number may belong to another process by now.
    else if (each.kind == CLONE_NEWNS)
      return Error{Code::kNotFound, "the container of this job has been removed"};
  }
  if (!is_own_namespace(namespace_path(process, "pid"), "pid"))
    return Error{Code::kFailedPrecondition, "the container has a pid namespace of its own",
                 "leave --pid out of --container-args: the supervisor must see the workers"};
  for (const auto& [each, fd] : to_join)
    if (setns(fd.get(), each.kind) != 0)
      return errno_error(Code::kPermissionDenied,
                         std::string("join the container's ") + each.name + " namespace", errno);
  return {};
}

int run_container_hold(int argc, char** argv) {
  if (argc != 1) return kExitUsage;
  // The end of the connection is the only signal: a Ctrl-C on a terminal must not reach workers by
  // removing their container.
  for (const int number : {SIGINT, SIGHUP, SIGPIPE}) signal(number, SIG_IGN);
  SocketAddress address = unix_address(argv[0]);
  const Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!address.is_valid() || !fd || connect(fd.get(), address.get(), address.size) != 0) {
    std::fprintf(stderr, "connect to %s: %s\n", argv[0], std::strerror(errno));
    return kExitInternal;
  }
  std::string variables;
  for (char** each = environ; *each != nullptr; ++each) {
    variables += *each;
    variables += '\0';
  }
  if (!write_all(fd.get(), variables)) return kExitInternal;
  shutdown(fd.get(), SHUT_WR);
  char byte = 0;
  while (read(fd.get(), &byte, 1) < 0 && errno == EINTR) {
  }
  return 0;
}

int run_container_enter(int argc, char** argv) {
  EnterArguments arguments;
  if (!parse_enter(argc, argv, arguments)) {
    std::fprintf(stderr, "ivy-node container-enter: wrong arguments\n");
    return kExitUsage;
  }
  const Result<void> entered = enter_container(arguments.pid);
  if (!entered.ok()) return fail_to_enter(kExitRejected, entered.error().message);
  const std::string& directory = arguments.directory;
  if (chdir(directory.c_str()) != 0)
    return fail_to_enter(kExitNotExecutable,
                         "enter " + directory + " in the container: " + strerror(errno));
  const std::string program = arguments.path.empty() ? arguments.program[0] : arguments.path;
  const std::string search_path = own_variable("PATH");
  int error = 0;
  const Result<std::string> found = find_executable(
      program, search_path.empty() ? kDefaultSearchPath : search_path, directory, &error);
  if (found.ok()) {
    execv(found->c_str(), arguments.program);
    error = errno;
  }
  return fail_to_enter(error == ENOENT ? kExitNotFound : kExitNotExecutable,
                       "execute " + program + " in the container: " + strerror(error));
}

}  // namespace ivy
