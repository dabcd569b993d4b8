// The line that users see while hosts are not up. Pure; thread: any.
#pragma once

#include <chrono>
#include <string>
#include <vector>

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

}  // namespace ivy
