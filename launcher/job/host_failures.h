// SPDX-License-Identifier: Apache-2.0
// Messages about hosts that are not up: while they are awaited, and when they did not come up.
// Pure; thread: any.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/links/host_link.h"
#include "launcher/report/diagnostic.h"
#include "proto/contract/remote_text.h"

namespace ivy {

struct WaitingHost {
  std::string name;
  RemoteText doing;  // "ssh: connecting", "sending ivy-node (3 MB)"...
};

// "hosts 29/32 up after 12 s, waiting for node[07,19] (ssh: connecting), node31 (sending
// ivy-node)". Hosts that do the same are folded; at most four groups are written.
std::string waiting_line(std::size_t up, std::size_t total, std::chrono::seconds elapsed,
                         const std::vector<WaitingHost>& waiting);

struct FailedHost {
  std::string name;
  LinkDown down;
};

// "connecting", "logging in": where the way to a host has ended.
std::string step_of(LinkFailure failure);

// One message for all hosts that failed in the same way, whatever their names and addresses are.
// circumstance: "in time", "; --nnodes 2:4 needs 2", appended to "2 of 4 hosts could not be
// reached".
std::vector<Diagnostic> host_failures(const std::vector<FailedHost>& failed, std::size_t total,
                                      const std::string& circumstance);

}  // namespace ivy
