// SPDX-License-Identifier: Apache-2.0
// ivyctl: shows and controls running jobs through the sockets of their launchers.
#include <csignal>
#include <cstdio>

#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "proto/contract/exit_code.h"
#include "proto/os/process.h"

int main(int argc, char** argv) {
  ivy::unblock_inherited_signals();
  std::signal(SIGPIPE, SIG_IGN);
  const ivy::Result<ivy::ParsedCtl> parsed = ivy::parse_ctl_command_line({argv + 1, argv + argc});
  if (!parsed.ok()) {
    ivy::ctl_fail(parsed.error());
    return ivy::kExitUsage;
  }
  if (parsed->text_to_print.empty()) return parsed->run(parsed->options);
  std::fputs(parsed->text_to_print.c_str(), parsed->exit_code == 0 ? stdout : stderr);
  return parsed->exit_code;
}
