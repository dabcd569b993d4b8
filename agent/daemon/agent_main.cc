// SPDX-License-Identifier: Apache-2.0
// ivy-agent: the long-running agent of a host, and the verbs that administer it and its
// certificates.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "agent/daemon/agent_admin.h"
#include "agent/daemon/options.h"
#include "agent/daemon/serve.h"
#include "proto/contract/exit_code.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

int print_text(const Result<std::string>& text) {
  if (!text.ok()) return print_error(text.error());
  std::fputs(text->c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : kExitFailed;
}

// Becomes ivy-agent-cert, which is installed beside this program. Returns only on failure.
int run_certificate_script(const std::vector<std::string>& words) {
  std::vector<std::string> arguments{"ivy-agent-cert"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string beside = (self.parent_path() / arguments.front()).string();
  execv(beside.c_str(), exec_array(arguments).data());
  execvp(arguments.front().c_str(), exec_array(arguments).data());
  return print_error(Error{Code::kNotFound,
                           "ivy-agent-cert, the script that makes certificates, is neither at " +
                               beside + " nor on the PATH",
                           "install it from the same package as ivy-agent"});
}

// Runs the command that the command line specifies.
struct Runner {
  const Environment& environment;

  int operator()(const ServeCommand& command) const { return run_serve(command, environment); }
  int operator()(const DrainCommand& command) const { return run_drain(command, environment); }
  int operator()(const StatusCommand& command) const { return run_status(command, environment); }
  int operator()(const TextCommand& command) const { return print_text(command.text); }
  int operator()(const CertificateCommand& command) const {
    return run_certificate_script(command.words);
  }
};

int run(int argc, char** argv) {
  // gRPC must not react to the forks that start supervisors: children exec immediately.
  setenv("GRPC_ENABLE_FORK_SUPPORT", "0", 1);
  const Environment environment = environment_of(environ);
  const Result<AgentCommand> command =
      parse_agent_command(std::vector<std::string>(argv + 1, argv + argc), environment, geteuid());
  if (!command.ok()) return print_error(command.error());
  return std::visit(Runner{environment}, *command);
}

}  // namespace
}  // namespace ivy

int main(int argc, char** argv) {
  ivy::unblock_inherited_signals();
  return ivy::run(argc, argv);
}
