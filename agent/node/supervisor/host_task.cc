// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/host_task.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "agent/node/spawn/server_child.h"
#include "proto/os/own_program.h"

namespace ivy {
namespace {

constexpr std::size_t kTaskReadBytes = 64u << 10;
// Output that the launcher has not acknowledged.
constexpr std::uint64_t kMaxUnreadOutput = 1u << 20;
constexpr std::chrono::milliseconds kTaskReadRetry{10};
// Launchers keep less than this in transit (stage_window in launcher/stage).
constexpr std::size_t kMaxTaskInput = 32u << 20;

// The first argument of ivy-node.
const char* task_role(HostTask task) {
  switch (task) {
    case TASK_STAGE:
      return "stage";
    case TASK_FETCH:
      return "fetch";
    case TASK_CHECK:
      return "check";
    case TASK_PROGRESS:
      return "progress";
    case TASK_DRILL:
      return "drill";
    default:
      return "unknown";
  }
}

}  // namespace

HostTaskProcess::HostTaskProcess(SupervisorContext& context, CommandChannel& channel, HostTask task)
    : context_(context),
      channel_(channel),
      task_(task),
      pipe_(context.loop),
      read_timer_(context.loop) {}

Result<void> HostTaskProcess::take(const TaskInput& input) {
  const bool is_new_run = std::exchange(has_run_ended_, input.end());
  if (is_new_run && pid_ == 0 && !input.bytes().empty()) start();
  if (!pipe_.is_open()) return {};  // It has exited, and the launcher will read that.
  if (input_bytes_ + input.bytes().size() > kMaxTaskInput)
    return Error{Code::kResourceExhausted, "too much input for a task"};
  input_bytes_ += input.bytes().size();
  if (!input.bytes().empty()) input_.push_back(input.bytes());
  input_ends_ |= input.end();
  write_some();
  return {};
}

void HostTaskProcess::start() {
  input_ends_ = is_waiting_writable_ = false;
  input_.clear();
  input_begin_ = input_bytes_ = 0;
  DescriptorPair ends = make_stream_pair();
  pid_t child = -1;
  if (ends) {
    ServerChild server{node_program(), {"ivy-node", task_role(task_)}, {}, context_.is_in_step()};
    server.descriptors = {{ends.second.get(), STDIN_FILENO}, {ends.second.get(), STDOUT_FILENO}};
    child = start_server(std::move(server), &exec_error_);
  }
  if (child < 0) {
    input_ends_ = true;
    TaskOutput output;
    output.set_ended(true);
    output.set_why(errno_error(Code::kUnavailable, "it could not be started", errno).message);
    return send(std::move(output));
  }
  pid_ = child;
  context_.containment->spare(child);
  fcntl(ends.first.get(), F_SETFL, O_NONBLOCK);
  pipe_.assign(ends.first.release());
  wait_readable();
}

void HostTaskProcess::write_some() {
  while (!is_waiting_writable_ && !input_.empty()) {
    const std::string& first = input_.front();
    const ssize_t count = ::send(pipe_.native_handle(), first.data() + input_begin_,
                                 first.size() - input_begin_, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) {
      // It has exited or is about to; reaped() reports that.
      input_.clear();
      input_bytes_ = input_begin_ = 0;
      return;
    }
    if (count < 0) {
      is_waiting_writable_ = true;
      pipe_.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                       [this](const boost::system::error_code& error) {
                         is_waiting_writable_ = false;
                         if (!error) write_some();
                       });
      return;
    }
    input_begin_ += static_cast<std::size_t>(count);
    input_bytes_ -= static_cast<std::size_t>(count);
    if (input_begin_ < first.size()) continue;
    input_.pop_front();
    input_begin_ = 0;
  }
  if (input_.empty() && input_ends_) shutdown(pipe_.native_handle(), SHUT_WR);
}

void HostTaskProcess::wait_readable() {
  pipe_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [this](const boost::system::error_code& error) {
                     if (!error) read_some();
                   });
}

void HostTaskProcess::read_later() {
  read_timer_.expires_after(kTaskReadRetry);
  read_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) read_some();
  });
}

void HostTaskProcess::read_some() {
  if (!pipe_.is_open()) return;
  if (channel_.session().waiting_control_bytes() > kMaxUnreadOutput) return read_later();
  std::string bytes(kTaskReadBytes, '\0');
  const ssize_t count = read(pipe_.native_handle(), bytes.data(), bytes.size());
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return;  // See reaped().
  if (count > 0) {
    bytes.resize(static_cast<std::size_t>(count));
    TaskOutput output;
    output.set_bytes(std::move(bytes));
    send(std::move(output));
  }
  wait_readable();
}

void HostTaskProcess::reaped(pid_t pid, int wait_status) {
  if (pid_ == 0 || pid != pid_) return;
  pid_ = 0;
  TaskOutput output;
  // Its last message may be unread. A process that fails writes little.
  std::string rest(kTaskReadBytes, '\0');
  const ssize_t count = read(pipe_.native_handle(), rest.data(), rest.size());
  if (count > 0) output.set_bytes(rest.substr(0, static_cast<std::size_t>(count)));
  output.set_ended(true);
  output.set_why(server_end("ivy-node " + std::string(task_role(task_)), wait_status, exec_error_));
  boost::system::error_code ignored;
  read_timer_.cancel();
  pipe_.close(ignored);
  input_ends_ = true;
  input_.clear();
  send(std::move(output));
}

void HostTaskProcess::spare_again() const {
  if (pid_ != 0) context_.containment->spare(pid_);
}

void HostTaskProcess::send(TaskOutput output) {
  output.set_task(task_);
  Event event;
  *event.mutable_task_output() = std::move(output);
  context_.events.send(event);
}

Result<void> HostTasks::take(const TaskInput& input) {
  switch (input.task()) {
    case TASK_STAGE:
      return stage.take(input);
    case TASK_FETCH:
      return fetch.take(input);
    case TASK_CHECK:
      return check.take(input);
    case TASK_PROGRESS:
      return progress.take(input);
    case TASK_DRILL:
      return drill.take(input);
    default:
      return Error{Code::kDataLoss, "input for an unknown task"};
  }
}

void HostTasks::reaped(pid_t pid, int wait_status) {
  stage.reaped(pid, wait_status);
  fetch.reaped(pid, wait_status);
  check.reaped(pid, wait_status);
  progress.reaped(pid, wait_status);
  drill.reaped(pid, wait_status);
}

void HostTasks::spare_again() const {
  stage.spare_again();
  fetch.spare_again();
  check.spare_again();
  progress.spare_again();
  drill.spare_again();
}

}  // namespace ivy
