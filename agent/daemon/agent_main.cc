// ivy-agent: the long-running agent of a host, and the verbs that administer it and its
// certificates.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
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

// Runs what the command line asks for.
struct Runner {
  const Environment& environment;

  int operator()(const ServeCommand& command) const { return run_serve(command, environment); }
  int operator()(const DrainCommand& command) const { return run_drain(command, environment); }
  int operator()(const StatusCommand& command) const { return run_status(command, environment); }
  int operator()(const TextCommand& command) const { return print_text(command.text); }
  int operator()(const CaInitArguments& command) const { return print_text(ca_init(command)); }
  int operator()(const HostCertificateArguments& command) const {
    return print_text(make_host_certificate(command));
  }
  int operator()(const UserCertificateArguments& command) const {
    return print_text(make_user_certificate(command));
  }
  int operator()(const RenewArguments& command) const {
    return print_text(renew_certificate(command));
  }
  int operator()(const RevokeArguments& command) const {
    return print_text(revoke_certificates(command));
  }
  int operator()(const ListCertificatesArguments& command) const {
    return print_text(list_certificates(command));
  }
};

int run(int argc, char** argv) {
  // gRPC must not react to the forks that start supervisors: each child executes a program at once.
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
