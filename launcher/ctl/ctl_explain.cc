// SPDX-License-Identifier: Apache-2.0
// ivyctl explain: prints the meaning of a message.
#include <cstdio>

#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/report/message_table.h"
#include "proto/contract/exit_code.h"

namespace ivy {

int ctl_explain(const CtlOptions& options) {
  if (options.job.empty()) {
    for (const MessageEntry& entry : message_table())
      std::printf("%s  %s\n", std::string(entry.id).c_str(), std::string(entry.meaning).c_str());
    return std::fflush(stdout) == 0 ? 0 : kCtlFailed;
  }
  const MessageEntry* const entry = find_message(options.job);
  if (entry == nullptr)
    return ctl_fail({Code::kNotFound, "there is no message \"" + options.job + "\"",
                     "ivyctl explain lists them; an ID looks like IVY-H003"},
                    kExitUsage);
  std::fputs(explain_message(*entry).c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : kCtlFailed;
}

}  // namespace ivy
