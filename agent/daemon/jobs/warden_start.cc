// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs/warden_start.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <vector>

#include "agent/node/spawn/job_directory.h"
#include "proto/contract/core_limit.h"
#include "proto/os/descriptor.h"
#include "proto/os/process.h"
#include "proto/os/spawn_setup.h"

namespace ivy {
namespace {

constexpr int kTransportFd = 3;

// Variables that the service manager or the login set for the agent only. A worker that used them
// would notify the wrong service.
constexpr std::array<std::string_view, 21> kAgentsOwn = {"NOTIFY_SOCKET",
                                                         "WATCHDOG_*",
                                                         "LISTEN_*",
                                                         "JOURNAL_STREAM",
                                                         "INVOCATION_ID",
                                                         "MANAGERPID",
                                                         "MAINPID",
                                                         "SYSTEMD_EXEC_PID",
                                                         "FDSTORE",
                                                         "MEMORY_PRESSURE_*",
                                                         "RUNTIME_DIRECTORY",
                                                         "STATE_DIRECTORY",
                                                         "CACHE_DIRECTORY",
                                                         "LOGS_DIRECTORY",
                                                         "CONFIGURATION_DIRECTORY",
                                                         "CREDENTIALS_DIRECTORY",
                                                         "SSH_*",
                                                         "GRPC_*",
                                                         "IVY_AGENT_*",
                                                         "IVY_NODE_*",
                                                         "XDG_SESSION_*"};

std::vector<std::string> arguments_of(const WardenRequest& request) {
  std::vector<std::string> arguments = {"ivy-node",       "warden",
                                        "--job",          request.key.job_id,
                                        "--host",         std::to_string(request.key.host),
                                        "--transport-fd", std::to_string(kTransportFd),
                                        "--transport",    "relay",
                                        "--record",       request.record};
  if (!request.cgroup.empty()) {
    arguments.emplace_back("--cgroup");
    arguments.push_back(request.cgroup);
  }
  return arguments;
}

Result<pid_t> spawn_warden(const WardenRequest& request, int transport) {
  SpawnSetup setup;
  setup.copy(transport, kTransportFd);
  for (const int fd : {0, 1, 2}) setup.open_null(fd);
  setup.close_from(kTransportFd + 1);
  setup.set_signals_and_session();
  std::vector<std::string> arguments = arguments_of(request);
  std::vector<std::string> environment;
  for (const EnvVariable& variable : request.environment)
    environment.push_back(variable.name + "=" + variable.value);
  const std::string program = request.directory + "/ivy-node";
  pid_t pid = -1;
  const UsersCoreLimit inherited;  // The job's workers get it back.
  const int error = posix_spawn(&pid, program.c_str(), &setup.actions, &setup.attributes,
                                exec_array(arguments).data(), exec_array(environment).data());
  if (error != 0) return errno_error(Code::kUnavailable, "start " + program, error);
  return pid;
}

}  // namespace

Result<StartedWarden> start_warden(const WardenRequest& request) {
  // Jobs must start even if the unit's empty cgroups have been removed.
  if (!request.cgroup.empty()) mkdir(request.cgroup.c_str(), 0755);
  DescriptorPair ends = make_stream_pair();
  if (!ends) return errno_error(Code::kUnavailable, "socketpair", errno);
  const pid_t pid = IVY_TRY(spawn_warden(request, ends.second.get()));
  fcntl(ends.first.get(), F_SETFL, O_NONBLOCK);
  return StartedWarden{pid, Descriptor(open_pidfd(pid)), std::move(ends.first)};
}

Result<int> connect_to_job(const JobKey& key) {
  const JobDirectory directory = IVY_TRY(find_job_directory(key.job_id, key.host));
  return connect_to_command_socket(directory, SOCK_NONBLOCK);
}

Environment environment_for_jobs(const Environment& own) {
  Environment kept;
  for (const EnvVariable& variable : own) {
    const auto matches = [&variable](std::string_view pattern) {
      return env_pattern_matches(pattern, variable.name);
    };
    if (std::none_of(kAgentsOwn.begin(), kAgentsOwn.end(), matches)) kept.push_back(variable);
  }
  return kept;
}

}  // namespace ivy
