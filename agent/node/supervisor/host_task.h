// SPDX-License-Identifier: Apache-2.0
// A task of this host that works on files of the user: a role of ivy-node as a child of the
// supervisor, which only copies bytes between it and the launcher (TaskInput, TaskOutput in
// job.proto). Its process is started by the first bytes, and runs until it exits or the supervisor
// does. After the last input of one run, the next bytes start another one. It is outside the
// workers' containment, like the store.
//
// Thread: the supervisor's loop, which never waits for it. Lifetime: the arguments must outlive it;
// the process dies with the supervisor.
#pragma once

#include <sys/types.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <string>

#include "agent/node/supervisor/command_channel.h"
#include "agent/node/supervisor/supervisor_context.h"
#include "proto/os/descriptor.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class HostTaskProcess {
 public:
  HostTaskProcess(SupervisorContext& context, CommandChannel& channel, HostTask task);
  HostTaskProcess(const HostTaskProcess&) = delete;
  HostTaskProcess& operator=(const HostTaskProcess&) = delete;

  // Fails with ResourceExhausted if the launcher sends more than the process has read, beyond a
  // limit that launchers respect.
  Result<void> take(const TaskInput& input);
  // The supervisor has reaped a child; does nothing unless it is this process.
  void reaped(pid_t pid, int wait_status);
  // Excludes the process from a containment that was newly created.
  void spare_again() const;
  bool is_running() const { return pid_ != 0; }

 private:
  void start();
  void write_some();
  void wait_readable();
  void read_some();
  void read_later();
  void send(TaskOutput output);

  SupervisorContext& context_;
  CommandChannel& channel_;
  const HostTask task_;
  boost::asio::posix::stream_descriptor pipe_;  // Standard input and output of the process.
  boost::asio::steady_timer read_timer_;
  std::deque<std::string> input_;  // Not yet accepted by the process.
  std::size_t input_begin_ = 0;    // In the first element.
  std::size_t input_bytes_ = 0;
  bool is_waiting_writable_ = false;
  bool input_ends_ = false;
  bool has_run_ended_ = true;  // The launcher has sent the last input of the run, or none of it.
  Descriptor exec_error_;
  pid_t pid_ = 0;
};

// The tasks of a host.
struct HostTasks {
  HostTasks(SupervisorContext& context, CommandChannel& channel)
      : stage(context, channel, TASK_STAGE),
        fetch(context, channel, TASK_FETCH),
        check(context, channel, TASK_CHECK),
        progress(context, channel, TASK_PROGRESS),
        drill(context, channel, TASK_DRILL) {}

  Result<void> take(const TaskInput& input);
  void reaped(pid_t pid, int wait_status);
  void spare_again() const;

  HostTaskProcess stage;
  HostTaskProcess fetch;
  HostTaskProcess check;
  HostTaskProcess progress;
  HostTaskProcess drill;
};

}  // namespace ivy
