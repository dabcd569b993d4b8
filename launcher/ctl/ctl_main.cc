// ivyctl: looks after running jobs, over their launchers' sockets.
#include <csignal>
#include <cstdio>

#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/report/diagnostic.h"
#include "proto/contract/exit_code.h"

namespace ivy {

void ctl_say(const std::string& text) {
  std::fputs(("ivyctl: " + escape_control(text) + "\n").c_str(), stderr);
}

void ctl_complain(const Error& error) {
  ctl_say("error: " + error.message);
  if (error.fix.empty()) return;
  std::fputs(("  fix:   " + escape_control(error.fix) + "\n").c_str(), stderr);
}

namespace {

int run(const CtlOptions& options) {
  switch (options.verb) {
    case CtlVerb::kPs:
      return ctl_ps(options);
    case CtlVerb::kLogs:
      return ctl_logs(options);
    case CtlVerb::kSignal:
      return ctl_signal(options);
    case CtlVerb::kStop:
      return ctl_stop(options);
    case CtlVerb::kAttach:
      return ctl_attach(options);
    case CtlVerb::kWhy:
      return ctl_why(options);
    case CtlVerb::kStack:
      return ctl_stack(options);
  }
  return kExitInternal;
}

}  // namespace
}  // namespace ivy

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  const ivy::Result<ivy::ParsedCtl> parsed = ivy::parse_ctl_command_line({argv + 1, argv + argc});
  if (!parsed.ok()) {
    ivy::ctl_complain(parsed.error());
    return ivy::kExitUsage;
  }
  if (parsed->text_to_print.empty()) return ivy::run(parsed->options);
  std::fputs(parsed->text_to_print.c_str(), parsed->exit_code == 0 ? stdout : stderr);
  return parsed->exit_code;
}
