// SPDX-License-Identifier: Apache-2.0
// Records the reports of one link, and runs the loop until a condition holds.
#pragma once

#include <sys/wait.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/links/host_link.h"
#include "tests/support/eventually.h"

namespace ivy {

// For messages of failing tests.
inline std::ostream& operator<<(std::ostream& out, const RemoteText& text) {
  return out << text.line();
}

struct LinkProbe final : HostLinkEvents {
  std::optional<LinkUp> up;
  std::string bytes;
  int drained = 0;
  std::optional<LinkDown> down;
  std::vector<std::string> progress;

  void link_up(HostLink&, const LinkUp& value) override { up = value; }
  void link_bytes(HostLink&, std::string_view value) override { bytes.append(value); }
  void link_drained(HostLink&) override { ++drained; }
  void link_down(HostLink&, const LinkDown& value) override { down = value; }
  void link_progress(HostLink&, const LinkStep& step) override {
    progress.push_back(step.whole_text().line());
  }
  void link_stuck(HostLink&, const std::string&) override {}

  bool printed(const std::string& text) const {
    for (const std::string& line : progress) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }
  std::string event_text() const {
    std::string text;
    for (const std::string& line : progress) text += line + "\n";
    if (down) text += "down: " + down->message.line() + " | " + down->fix + "\n";
    return text + "bytes: " + bytes.substr(0, 300);
  }
};

// Runs the loop until the condition holds; returns false if it does not within the limit.
inline bool run_until(boost::asio::io_context& loop, const std::function<bool()>& condition,
                      std::chrono::seconds limit = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + test::scaled_time(limit);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    loop.restart();
    loop.run_one_for(std::chrono::milliseconds(50));
  }
  return true;
}

// Returns true once every child of this process was reaped.
inline bool has_no_children() {
  siginfo_t info{};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == -1 && errno == ECHILD;
}

}  // namespace ivy
