// SPDX-License-Identifier: Apache-2.0
// The process that stands for a rank on the control socket, and how it ended. It is the worker, our
// child, or a process below it, whose end we learn from its pidfd and later, perhaps, how it came.
// Thread: the loop's. Lifetime: a shared pointer's; pending waits do not keep it.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "agent/node/supervisor/control_connections.h"
#include "proto/contract/exit_code.h"
#include "proto/os/descriptor.h"
#include "proto/wire/status_page.h"

namespace ivy {

// The status of a rank whose process has ended so, or, without an exit, nobody knows how.
comm_status::RankStatus ended_status(const std::optional<ExitStatus>& exit, pid_t pid);

class AttachedProcess : public std::enable_shared_from_this<AttachedProcess> {
 public:
  struct Handlers {
    // Reads what the process has sent and is still unread: a Leave may be among it.
    std::function<void()> read_rest;
    // The process has ended without leaving; called again when it becomes known how.
    std::function<void(const comm_status::RankStatus&)> ended;
  };

  AttachedProcess(boost::asio::io_context& loop, std::uint32_t rank, bool is_our_child,
                  const ControlConnections::Pointer& connection);

  std::uint32_t rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  // Its end is reported by its parent's reaping, which is ours.
  bool is_our_child() const { return is_our_child_; }
  bool has_left() const { return left_at_ns_ != 0; }
  bool has_ended() const { return has_ended_; }
  bool is_watched() const { return is_our_child_ || pidfd_.is_open(); }
  // True if a failure that has just happened has reached it: it is attached, or was a moment ago
  // (the call that fails may be ivy_init, which detaches with its error).
  bool is_informed(std::uint64_t now_ns) const;
  ControlConnections::Pointer connection() const { return connection_.lock(); }

  // For a process that is not our child; does nothing without a descriptor.
  void watch(Descriptor pidfd, Handlers handlers);
  void leave(std::uint64_t now_ns);
  void set_ended() { has_ended_ = true; }
  // It was reaped by us, as an orphan.
  void set_exit(const ExitStatus& exit) { exit_ = exit; }
  // Returns its status if its exit is visible but was not reported yet.
  std::optional<comm_status::RankStatus> unreported_end();

 private:
  void look_for_exit(std::size_t attempt);

  const std::uint32_t rank_;
  const pid_t pid_;
  const bool is_our_child_;
  const std::weak_ptr<ControlConnection> connection_;
  Handlers handlers_;
  std::uint64_t left_at_ns_ = 0;
  bool has_ended_ = false;
  boost::asio::posix::stream_descriptor pidfd_;
  boost::asio::steady_timer timer_;
  std::optional<ExitStatus> exit_;
};

}  // namespace ivy
