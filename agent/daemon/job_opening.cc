#include "agent/daemon/job_opening.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <vector>

#include "agent/node/spawn/job_directory.h"
#include "proto/contract/core_limit.h"
#include "proto/os/descriptor.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

constexpr int kCarrierFd = 3;

// Variables that the service manager, or the login that started the agent, meant for the agent
// alone. A worker that used them would notify the wrong service.
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

// Frees the attributes and file actions of posix_spawn.
class SpawnPlan {
 public:
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnPlan() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

void plan_descriptors(SpawnPlan& plan, int carrier) {
  // Even when source and target are equal this clears close-on-exec.
  posix_spawn_file_actions_adddup2(&plan.actions, carrier, kCarrierFd);
  for (int fd = 0; fd <= 2; ++fd)
    posix_spawn_file_actions_addopen(&plan.actions, fd, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_addclosefrom_np(&plan.actions, kCarrierFd + 1);
}

void plan_signals(SpawnPlan& plan) {
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&plan.attributes, &none);
  posix_spawnattr_setsigdefault(&plan.attributes, &all);
  posix_spawnattr_setflags(&plan.attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

std::vector<std::string> arguments_of(const WardenRequest& request) {
  std::vector<std::string> arguments = {"ivy-node",     "warden",
                                        "--job",        request.key.job_id,
                                        "--host",       std::to_string(request.key.host),
                                        "--carrier-fd", std::to_string(kCarrierFd),
                                        "--carrier",    "relay",
                                        "--record",     request.record};
  if (!request.cgroup.empty()) {
    arguments.emplace_back("--cgroup");
    arguments.push_back(request.cgroup);
  }
  return arguments;
}

Result<pid_t> spawn_warden(const WardenRequest& request, int carrier) {
  SpawnPlan plan;
  plan_descriptors(plan, carrier);
  plan_signals(plan);
  std::vector<std::string> arguments = arguments_of(request);
  std::vector<std::string> environment;
  for (const EnvVariable& variable : request.environment)
    environment.push_back(variable.name + "=" + variable.value);
  const std::string program = request.directory + "/ivy-node";
  pid_t pid = -1;
  const UsersCoreLimit inherited;  // The job's workers shall have it.
  const int error = posix_spawn(&pid, program.c_str(), &plan.actions, &plan.attributes,
                                exec_words(arguments).data(), exec_words(environment).data());
  if (error != 0) return errno_error(Code::kUnavailable, "start " + program, error);
  return pid;
}

}  // namespace

Result<OpenStep> decide_open(const OpenFacts& facts) {
  if (facts.reattach) {
    if (facts.lives) return OpenStep::kAttach;
    return Error{Code::kNotFound, "no such job lives on this host"};
  }
  if (facts.lives) {
    if (facts.same_description) return OpenStep::kAttach;
    return Error{Code::kAlreadyExists, "another job with this id lives on this host"};
  }
  if (facts.has_ended)
    return Error{Code::kAlreadyExists, "this job has ended on this host; it is not started again"};
  if (facts.draining)
    return Error{Code::kUnavailable, "draining: this agent takes no new jobs",
                 "leave this host out, or `ivy-agent drain --undo` on it"};
  return facts.has_bundle ? OpenStep::kStart : OpenStep::kNeedBundle;
}

Result<StartedWarden> start_warden(const WardenRequest& request) {
  // Jobs must start even if the unit's empty cgroups have been removed.
  if (!request.cgroup.empty()) mkdir(request.cgroup.c_str(), 0755);
  DescriptorPair ends = make_stream_pair();
  if (!ends) return errno_error(Code::kUnavailable, "socketpair", errno);
  const pid_t pid = IVY_TRY(spawn_warden(request, ends.theirs.get()));
  fcntl(ends.ours.get(), F_SETFL, O_NONBLOCK);
  return StartedWarden{pid, open_pidfd(pid), ends.ours.release()};
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
