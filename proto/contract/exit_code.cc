// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/exit_code.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstring>

namespace ivy {

ExitStatus exit_status_from_wait(int cld_code, int cld_status) {
  if (cld_code == CLD_EXITED) return ExitStatus{.code = cld_status & 0xff, .signal = 0};
  return ExitStatus{.code = 0, .signal = cld_status};
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  if (name == nullptr) return "signal " + std::to_string(signal);
  return std::string("SIG") + name;
}

int signal_number(const std::string& name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (upper.starts_with("SIG")) upper.erase(0, 3);
  for (int candidate = 1; candidate < NSIG; ++candidate) {
    const char* known = sigabbrev_np(candidate);
    if (known != nullptr && upper == known) return candidate;
    if (upper == std::to_string(candidate)) return candidate;
  }
  return 0;
}

std::string describe(const ExitStatus& status) {
  if (status.signal != 0) return signal_name(status.signal);
  return "exit " + std::to_string(status.code);
}

}  // namespace ivy
