// SPDX-License-Identifier: Apache-2.0
// The agent's reports to its administrator. Called on the loop. Implemented by Serving
// (agent/daemon/serve.cc).
#pragma once

#include <string>

namespace ivy {

class AgentReports {
 public:
  virtual ~AgentReports() = default;
  virtual void audit(const std::string& line) = 0;   // One line per job, at its end.
  virtual void warn(const std::string& text) = 0;    // A warning for the log.
  virtual void status(const std::string& text) = 0;  // "3 jobs", for the service manager.
};

}  // namespace ivy
