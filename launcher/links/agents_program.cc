#include "launcher/links/agents_program.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "launcher/links/carrier.h"
#include "proto/agent_config.h"

namespace ivy {
namespace {

constexpr const char* kFix = "build or install it beside ivyrun";

bool is_this_program(const std::string& path) {
  struct stat own {};
  struct stat other {};
  return stat("/proc/self/exe", &own) == 0 && stat(path.c_str(), &other) == 0 &&
         own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

}  // namespace

bool may_use_agents(const Options& options, const std::vector<Host>& hosts,
                    const Environment& environment) {
  if (options.transport == TransportChoice::kAgent) return true;
  if (options.transport != TransportChoice::kAuto) return false;
  const bool is_alone = std::all_of(hosts.begin(), hosts.end(), [&](const Host& host) {
    return host.port != 0 || host.fake || is_carried_locally(options, host) ||
           is_carried_by_slurm(options, host);
  });
  if (is_alone) return false;
  const Result<std::optional<AgentConfig>> config = load_agent_config(environment);
  return config.ok() && config->has_value();
}

std::string agents_program_path() { return program_directory() + "/ivyrun-agents"; }

Error become_agents_program(char* const* argv) {
  const std::string path = agents_program_path();
  // By path it would be this file, by name a copy of it.
  if (is_this_program(path)) {
    return Error{Code::kInvalidArgument, path + " is ivyrun itself, without agents", kFix};
  }
  execv(path.c_str(), argv);
  Error failure = errno_error(Code::kNotFound, path, errno);
  failure.fix = kFix;
  return failure;
}

void take_the_name_of_ivyrun() { prctl(PR_SET_NAME, "ivyrun"); }

}  // namespace ivy
