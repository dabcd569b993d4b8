// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/check.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "agent/devices/discovery.h"
#include "agent/node/roles/check_load.h"
#include "agent/node/spawn/process_tree.h"
#include "agent/node/spawn/spawn.h"
#include "agent/node/supervisor/host_health.h"
#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/own_program.h"
#include "proto/wire/check.pb.h"
#include "proto/wire/stage_codec.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Output of a command that is kept, from its end.
constexpr std::size_t kKeptOutput = 64u << 10;
// The launcher needs only the last lines of a command that has passed, from thousands of hosts.
constexpr std::size_t kSentIfPassed = 4u << 10;
// Processes that SIGKILL does not end, because the kernel does not let them, are left behind after
// this time.
constexpr milliseconds kKillLimit{3'000};
constexpr milliseconds kKillPause{5};
constexpr std::string_view kSocketPrefix = "unix:";

constexpr std::string_view kServiceScript =
#include "agent/node/roles/check_service.py.inc"
    ;

// The last bytes of a command's output.
class KeptOutput {
 public:
  // Reads everything that has arrived. Returns true at the end of the output.
  bool read_from(int fd) {
    char buffer[16'384];
    for (;;) {
      const ssize_t count = read(fd, buffer, sizeof buffer);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return count == 0;
      total_ += static_cast<std::uint64_t>(count);
      text_.append(buffer, static_cast<std::size_t>(count));
      if (text_.size() > 2 * kKeptOutput) text_.erase(0, text_.size() - kKeptOutput);
    }
  }
  void move_to(CheckedCommand& result) {
    const bool has_passed = result.exit_code() == 0 && !result.was_late();
    const std::size_t kept = has_passed ? kSentIfPassed : kKeptOutput;
    if (text_.size() > kept) text_.erase(0, text_.size() - kept);
    result.set_dropped_bytes(total_ - text_.size());
    result.set_output(std::move(text_));
  }

 private:
  std::string text_;
  std::uint64_t total_ = 0;
};

class HostCheck {
 public:
  // Returns false if the launcher has sent an invalid message.
  bool run();

 private:
  // Waits for the next order. Returns nothing at the end of the input, or after an invalid order.
  std::optional<CheckOrder> next_order();
  // Reads the input that has arrived. Returns false at its end.
  bool read_input();
  bool check_all();
  void check_space();
  void count_devices();
  bool run_command(int index);
  bool run_process(SpawnRequest request, CheckedCommand& result);
  Result<SpawnRequest> request_for(const std::string& command) const;
  void measure_load();
  void listen();
  void kill_descendants();
  void started(const std::string& what) {
    CheckReply reply;
    reply.set_started(what);
    send(reply);
  }
  void send(const CheckReply& reply) {
    write_all(STDOUT_FILENO, stage::framed(reply.SerializeAsString()));
  }
  milliseconds left() const {
    return std::max(milliseconds(0),
                    std::chrono::duration_cast<milliseconds>(deadline_ - steady_now()));
  }

  CheckBegin begin_;
  steady_clock::time_point deadline_;
  stage::MessageSplitter orders_;
  bool is_valid_ = true;
  std::optional<StreamMeter> meter_;
  CheckReady ready_;
};

bool HostCheck::read_input() {
  char bytes[16'384];
  ssize_t count = 0;
  do count = read(STDIN_FILENO, bytes, sizeof bytes);
  while (count < 0 && errno == EINTR);
  if (count <= 0) return false;
  orders_.feed(std::string_view(bytes, static_cast<std::size_t>(count)));
  return true;
}

std::optional<CheckOrder> HostCheck::next_order() {
  for (;;) {
    const Result<std::optional<std::string>> message = orders_.next();
    CheckOrder order;
    if (!message.ok() || (*message && !order.ParseFromString(**message))) {
      is_valid_ = false;
      return std::nullopt;
    }
    if (*message) return order;
    if (!read_input()) return std::nullopt;
  }
}

bool HostCheck::run() {
  // The supervisor's end closes the input, after which the commands have to be killed first.
  prctl(PR_SET_PDEATHSIG, 0);
  // Processes that a command leaves behind become children of this one.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::optional<CheckOrder> order = next_order();
  if (!order || !order->has_begin()) return false;
  begin_ = std::move(*order->mutable_begin());
  deadline_ = steady_now() + milliseconds(begin_.limit_ms());
  if (check_all()) {
    CheckReply reply;
    *reply.mutable_ready() = ready_;
    send(reply);
    while ((order = next_order()) && order->has_stream() && meter_) {
      *reply.mutable_streamed() = meter_->measure(order->stream());
      send(reply);
    }
  }
  kill_descendants();
  return is_valid_;
}

// Returns false if the input has ended.
bool HostCheck::check_all() {
  check_space();
  if (begin_.count_devices()) count_devices();
  for (int index = 0; index < begin_.commands_size(); ++index)
    if (!run_command(index)) return false;
  if (begin_.load_ms() > 0) measure_load();
  listen();
  return true;
}

// A file system that does not respond stops the process here; the launcher's limit then names it.
void HostCheck::check_space() {
  const std::string& directory = begin_.hello().working_directory();
  started("the file system of " + directory);
  CheckReply reply;
  CheckSpace& space = *reply.mutable_space();
  if (access(directory.c_str(), X_OK) != 0)
    space.set_directory_error(errno_error(Code::kNotFound, directory, errno).message);
  add_space(directory, *space.mutable_health());
  send(reply);
}

void HostCheck::count_devices() {
  started("its accelerators");
  boost::asio::io_context loop{1};
  Discovery discovery(loop, program_directory() + "/ivy-probe");
  CheckReply reply;
  discovery.describe(begin_.hello(),
                     [&reply](const HostFacts& facts) { *reply.mutable_devices() = facts; });
  loop.run();
  send(reply);
}

Result<SpawnRequest> HostCheck::request_for(const std::string& command) const {
  const Hello& hello = begin_.hello();
  SpawnRequest request;
  request.environment = environment_of(environ);
  for (const Variable& variable : begin_.environment())
    set_variable(request.environment, variable.name(), variable.value());
  if (!hello.search_path().empty()) set_variable(request.environment, "PATH", hello.search_path());
  request.working_directory = hello.working_directory();
  request.own_session = true;
  if (!command.starts_with(kSocketPrefix)) {
    request.executable = "/bin/sh";
    request.arguments = {"sh", "-c", command};
    return request;
  }
  const std::string* const path = find_variable(request.environment, "PATH");
  const std::string& python = begin_.interpreter().empty() ? "python3" : begin_.interpreter();
  request.executable = IVY_TRY(find_executable(python, path != nullptr ? *path : kDefaultSearchPath,
                                               request.working_directory, nullptr));
  const double seconds = std::max(0.1, static_cast<double>(left().count()) / 1e3 - 0.2);
  request.arguments = {python, "-c", std::string(kServiceScript),
                       command.substr(kSocketPrefix.size()), std::to_string(seconds)};
  return request;
}

// Returns false if the input has ended.
bool HostCheck::run_command(int index) {
  const std::string& command = begin_.commands(index);
  CheckReply reply;
  CheckedCommand& result = *reply.mutable_command();
  result.set_index(static_cast<std::uint32_t>(index));
  bool continues = true;
  if (left().count() == 0) {
    result.set_was_late(true);
    result.set_error("it was not started: the checks before it took the whole time");
  } else {
    started("--check '" + command + "'");
    const Result<SpawnRequest> request = request_for(command);
    if (request.ok())
      continues = run_process(*request, result);
    else
      result.set_error(request.error().message);
  }
  send(reply);
  return continues;
}

// Returns false if the input has ended.
bool HostCheck::run_process(SpawnRequest request, CheckedCommand& result) {
  DescriptorPair output = make_pipe();
  if (!output) {
    result.set_error(errno_error(Code::kUnavailable, "pipe", errno).message);
    return true;
  }
  fcntl(output.first.get(), F_SETFL, O_NONBLOCK);
  request.stdout_fd = request.stderr_fd = output.second.get();
  const SpawnResult spawned = spawn(request);
  output.second.reset();
  if (!spawned.ok()) {
    result.set_error(errno_error(Code::kUnavailable,
                                 spawned.failure.step + " " + spawned.failure.path,
                                 spawned.failure.error)
                         .message);
    return true;
  }
  const Descriptor process(spawned.process.pidfd);
  KeptOutput kept;
  bool continues = true;
  bool is_closed = false;
  for (bool has_exited = false; !has_exited && continues && !result.was_late();) {
    pollfd waited[] = {{process.get(), POLLIN, 0},
                       {STDIN_FILENO, POLLIN, 0},
                       {is_closed ? -1 : output.first.get(), POLLIN, 0}};
    const int count = poll(waited, 3, static_cast<int>(left().count()) + 1);
    if (count < 0 && errno != EINTR) break;
    is_closed = is_closed || kept.read_from(output.first.get());
    has_exited = (waited[0].revents & POLLIN) != 0;
    if (waited[1].revents != 0) continues = read_input();
    result.set_was_late(!has_exited && left().count() == 0);
  }
  int status = 0;
  const auto wait_from = steady_now();
  // After it has exited, the kernel may need a moment until it can be reaped.
  if (continues && !result.was_late())
    while (waitpid(spawned.process.pid, &status, WNOHANG) == 0 &&
           steady_now() < wait_from + milliseconds(100))
      std::this_thread::sleep_for(milliseconds(1));
  result.set_exit_code(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  kill_descendants();
  kept.read_from(output.first.get());
  kept.move_to(result);
  return continues;
}

// Kills everything below this process until nothing is left, also what runs in the background.
void HostCheck::kill_descendants() {
  ContainmentRequest request;
  request.job_id = "-";  // Of no process.
  request.supervisor = request.warden = getpid();
  ProcessTree tree(request);
  const steady_clock::time_point end = steady_now() + kKillLimit;
  for (;;) {
    pid_t reaped = 0;
    while ((reaped = waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    // For a subreaper, no child means no descendant.
    if ((reaped < 0 && errno == ECHILD) || steady_now() > end) return;
    tree.kill_all();
    std::this_thread::sleep_for(kKillPause);
  }
}

void HostCheck::measure_load() {
  const milliseconds duration = std::min(milliseconds(begin_.load_ms()), left());
  if (duration.count() == 0) return;
  started("arithmetic on its processors");
  CheckReply reply;
  reply.set_operations_per_s(measure_arithmetic(duration));
  send(reply);
}

void HostCheck::listen() {
  if (begin_.listen_address().empty()) return;
  Result<StreamMeter> meter =
      StreamMeter::open(begin_.listen_address(), static_cast<std::uint16_t>(begin_.port_low()),
                        static_cast<std::uint16_t>(begin_.port_high()), begin_.key());
  if (!meter.ok()) return ready_.set_listen_error(meter.error().message);
  meter_.emplace(std::move(meter).value());
  ready_.set_port(meter_->port());
}

}  // namespace

int run_check() { return HostCheck().run() ? 0 : kExitFailed; }

}  // namespace ivy
