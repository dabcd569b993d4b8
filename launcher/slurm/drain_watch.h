// SPDX-License-Identifier: Apache-2.0
// Follows the nodes of a Slurm job that an administrator, or a health check, drains: Slurm starts
// nothing more on them, and the jobs that run there are expected to leave. Polls sinfo. Nodes that
// were drained before the first poll are not reported.
//
// Thread: the loop's. Lifetime: until the loop has ended, because a query may be in progress.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <string>
#include <string_view>

namespace ivy {

// The drained nodes, with Slurm's reasons.
using DrainedNodes = std::map<std::string, std::string>;
// Parses the output of sinfo -o "%N|%E". Ignores lines of another form.
DrainedNodes parse_drained_nodes(std::string_view output);

// Implemented by HostNotices.
class DrainEvents {
 public:
  virtual void node_drains(const std::string& node, const std::string& reason) = 0;
  // The node has been resumed. reason: as reported before.
  virtual void node_resumes(const std::string& node, const std::string& reason) = 0;

 protected:
  ~DrainEvents() = default;
};

class DrainWatch {
 public:
  static constexpr std::chrono::milliseconds kPeriod{30'000};

  // nodes: a list in Slurm's form.
  DrainWatch(boost::asio::io_context& loop, std::string nodes, DrainEvents& events)
      : loop_(loop), timer_(loop), nodes_(std::move(nodes)), events_(events) {}

  void start(std::chrono::milliseconds period);
  void stop();

 private:
  void query();
  void take(const DrainedNodes& present);

  boost::asio::io_context& loop_;
  boost::asio::steady_timer timer_;
  const std::string nodes_;
  DrainEvents& events_;
  std::chrono::milliseconds period_{kPeriod};
  DrainedNodes drained_;
  bool has_first_ = false;
  bool stopped_ = false;
};

}  // namespace ivy
