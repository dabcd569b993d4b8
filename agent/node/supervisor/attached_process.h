// SPDX-License-Identifier: Apache-2.0
// The process that has attached to the control socket as a rank, and its exit status. It is the
// worker (our child) or a process below it: the pidfd of such a process shows that it has exited,
// and its status may become known later. Thread: the loop's. Lifetime: managed by a shared pointer,
// which pending waits do not extend; its owner must outlive it.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "agent/node/supervisor/control_connections.h"
#include "proto/contract/exit_code.h"
#include "proto/os/descriptor.h"
#include "proto/wire/status_page.h"

namespace ivy {

// Returns the status of a rank whose process has exited; without `exit`, its exit status is
// unknown.
comm_status::RankStatus ended_status(const std::optional<ExitStatus>& exit, pid_t pid);

class AttachedProcess;

// Implemented by ControlServer.
class AttachedProcessEvents {
 public:
  // Reads the packets that the rank's process has sent and that are still unread, since one of them
  // may be a Leave.
  virtual void read_rest_of(std::uint32_t rank) = 0;
  // The process has exited without leaving; called again when its exit status becomes known.
  virtual void process_ended(AttachedProcess& attached, const comm_status::RankStatus& status) = 0;

 protected:
  ~AttachedProcessEvents() = default;
};

class AttachedProcess : public std::enable_shared_from_this<AttachedProcess> {
 public:
  AttachedProcess(boost::asio::io_context& loop, AttachedProcessEvents& owner, std::uint32_t rank,
                  bool is_our_child, const ControlConnections::Pointer& connection);

  std::uint32_t rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  // Returns true if the supervisor itself reaps the process, and therefore reports its exit.
  bool is_our_child() const { return is_our_child_; }
  bool has_left() const { return left_at_ns_ != 0; }
  bool has_ended() const { return has_ended_; }
  bool is_watched() const { return is_our_child_ || pidfd_.is_open(); }
  // Returns true if the process knows about a failure that has just happened: it is attached, or
  // was within the last second (the call that fails may be ivy_init, which detaches on an error).
  bool is_informed(std::uint64_t now_ns) const;
  ControlConnections::Pointer connection() const { return connection_.lock(); }

  // Watches a process that is not our child; does nothing without a descriptor.
  void watch(Descriptor pidfd);
  // The process is our child after all: it attached before its start was reported to the loop. The
  // supervisor reports its exit from now on.
  void set_our_child();
  void leave(std::uint64_t now_ns);
  void set_ended() { has_ended_ = true; }
  // Sets the status of an orphan that the supervisor has reaped.
  void set_exit(const ExitStatus& exit) { exit_ = exit; }
  // Returns the status of a process whose exit is visible but was not reported yet.
  std::optional<comm_status::RankStatus> unreported_end();

 private:
  void check_exit(std::size_t attempt);
  void stop_watching();

  AttachedProcessEvents& owner_;
  const std::uint32_t rank_;
  const pid_t pid_;
  bool is_our_child_;
  const std::weak_ptr<ControlConnection> connection_;
  std::uint64_t left_at_ns_ = 0;
  bool has_ended_ = false;
  boost::asio::posix::stream_descriptor pidfd_;
  boost::asio::steady_timer timer_;
  std::optional<ExitStatus> exit_;
};

}  // namespace ivy
