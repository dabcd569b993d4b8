// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/ctl_verbs.h"

#include <cstdio>

#include "proto/contract/remote_text.h"

namespace ivy {

void ctl_note(const std::string& text) {
  std::fputs(("ivyctl: " + escape_control(text) + "\n").c_str(), stderr);
}

int ctl_fail(const Error& error, int exit_code) {
  ctl_note("error: " + error.message);
  if (!error.fix.empty())
    std::fputs(("  fix:   " + escape_control(error.fix) + "\n").c_str(), stderr);
  return exit_code;
}

int ctl_print(const Result<std::string>& text) {
  if (!text.ok()) return ctl_fail(text.error());
  std::printf("%s\n", escape_control(*text).c_str());
  return std::fflush(stdout) == 0 ? 0 : kCtlFailed;
}

}  // namespace ivy
