// SPDX-License-Identifier: Apache-2.0
// Messages about hosts that are not up: one line while hosts are awaited, and diagnostics when some
// could not be reached. Hosts with the same step or failure share one message, because many hosts
// of a cluster often share one problem. Pure; thread: any.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/links/host_link.h"
#include "launcher/report/diagnostic.h"
#include "proto/contract/remote_text.h"

namespace ivy {

// A host that has not answered yet.
struct WaitingHost {
  std::string name;
  LinkStep doing;  // Its present step.
};

// Returns the line that is shown while hosts are awaited: "hosts 29/32 up after 12 s, waiting for
// node[07,19] (ssh: connecting), node31 (sending ivy-node)". Hosts at the same step are folded into
// one entry, several transfers with the lowest and the highest percentage and the sum of the rates.
// At most four entries are written.
std::string waiting_line(std::size_t up, std::size_t total, std::chrono::seconds elapsed,
                         const std::vector<WaitingHost>& waiting);

// A host that did not come up, and why.
struct FailedHost {
  std::string name;
  LinkDown down;
};

// Returns the step at which a connection failed, for messages: "connecting", "logging in".
std::string step_of(LinkFailure failure);

// Returns one diagnostic for each kind of failure: hosts whose messages are equal apart from their
// names and addresses share it. total: all hosts of the job. circumstance: appended to "2 of 4
// hosts could not be reached", such as " in time" or "; --nnodes 2:4 needs 2".
std::vector<Diagnostic> host_failures(const std::vector<FailedHost>& failed, std::size_t total,
                                      const std::string& circumstance);

}  // namespace ivy
