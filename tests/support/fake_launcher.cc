// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_launcher.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "agent/node/spawn/job_directory.h"
#include "proto/contract/build.h"
#include "proto/os/clock.h"
#include "tests/support/eventually.h"

namespace ivy::test {
namespace {

using Clock = std::chrono::steady_clock;

// More frequent than a real launcher's, so that tests can use short leases.
constexpr std::chrono::milliseconds kHeartbeat{250};

std::string random_job_id() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string id;
  for (int i = 0; i < 32; ++i) id.push_back(kDigits[random() % 16]);
  return id;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0) pids.push_back(pid);
  }
  return pids;
}

// Returns a field after the command's name in /proc/PID/stat: 0 is the state, 1 the parent.
std::string stat_field(pid_t pid, int index) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  for (int i = 0; i <= index; ++i) fields >> field;
  return field;
}

}  // namespace

FakeLauncher::FakeLauncher(const Options& options)
    : options_(options), job_id_(random_job_id()), token_(32, 't'), session_(options.window_bytes) {
  std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    ADD_FAILURE() << "socketpair: " << errno;
    return;
  }
  spawn_node(ends[1]);
  ::close(ends[1]);
  attach(ends[0]);
  if (options_.way == Way::kRelay) out_ = "IVYOPEN 1 new " + job_id_ + " 0\n";
}

void FakeLauncher::spawn_node(int link_fd) {
  node_pid_ = fork();
  if (node_pid_ != 0) return;
  dup2(link_fd, 3);
  // dup2() onto the same number would keep the close-on-exec flag.
  fcntl(3, F_SETFD, 0);
  if (options_.way == Way::kRelay) {
    dup2(3, STDIN_FILENO);
    dup2(3, STDOUT_FILENO);
    ::close(3);
    execl(IVY_NODE_BINARY, IVY_NODE_BINARY, "relay", nullptr);
    _exit(127);
  }
  const char* kind = options_.peer == LinkPeer::kLauncher ? "local" : "relay";
  execl(IVY_NODE_BINARY, IVY_NODE_BINARY, "warden", "--job", job_id_.c_str(), "--host", "0",
        "--transport-fd", "3", "--transport", kind, nullptr);
  _exit(127);
}

FakeLauncher::~FakeLauncher() {
  drop_link();
  if (node_pid_ > 0) {
    const pid_t supervisor = supervisor_pid();
    if (supervisor > 0) kill(supervisor, SIGKILL);
    if (!wait_for_node()) ADD_FAILURE() << "ivy-node outlives its supervisor";
  }
  EXPECT_TRUE(eventually([&] { return job_processes().empty(); }))
      << "a process of the job is left";
  EXPECT_TRUE(eventually([&] { return !find_job_directory(job_id_, 0).ok(); }))
      << "the job directory is left";
  for (const pid_t pid : job_processes()) kill(pid, SIGKILL);
}

void FakeLauncher::attach(int fd) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
  fd_ = fd;
  out_.clear();
  rejection_.clear();
  session_.link_up();
  const std::string build = options_.build.empty() ? std::string(build_name()) : options_.build;
  session_.send_handshake(session::FrameType::kAttach,
                          session::encode_attach({job_id_, token_, build}));
  // On the job's first link commands follow Attach immediately; later ones wait for the
  // answer.
  if (session_.received_sequence() == 0) {
    EXPECT_TRUE(session_.attached(0).ok());
  }
  next_heartbeat_ = Clock::now() + kHeartbeat;
}

// ---- commands ------------------------------------------------------------------------------

void FakeLauncher::send(const Command& command) {
  EXPECT_TRUE(session_.send(session::FrameType::kCommand, command.SerializeAsString()).ok());
  write_some();
}

Hello FakeLauncher::hello() const {
  Hello hello;
  hello.set_working_directory("/");
  hello.set_program("/bin/sh");
  hello.set_lease_ms(options_.lease_ms);
  hello.set_grace_ms(options_.grace_ms);
  return hello;
}

HostFacts FakeLauncher::send_hello(const Hello& hello) {
  Command command;
  *command.mutable_hello() = hello;
  send(command);
  HostFacts facts;
  const auto answered = [&] {
    return std::any_of(events_.begin(), events_.end(),
                       [](const Event& event) { return event.has_hello_ok(); });
  };
  EXPECT_TRUE(wait(answered)) << "no HelloOk";
  for (const Event& event : events_)
    if (event.has_hello_ok()) facts = event.hello_ok().facts();
  return facts;
}

HostPlan FakeLauncher::shell_plan(int count, const std::string& script) const {
  HostPlan plan;
  plan.add_arguments("/bin/sh");
  plan.add_arguments("-c");
  plan.add_arguments(script);
  plan.set_working_directory("/");
  plan.set_world_size(static_cast<std::uint32_t>(count));
  for (int rank = 0; rank < count; ++rank) {
    WorkerSpec* worker = plan.add_workers();
    worker->set_rank(static_cast<std::uint32_t>(rank));
    worker->set_local_rank(static_cast<std::uint32_t>(rank));
    Variable* variable = worker->add_environment();
    variable->set_name("RANK");
    variable->set_value(std::to_string(rank));
  }
  return plan;
}

void FakeLauncher::start(const HostPlan& plan) {
  Command command;
  *command.mutable_start()->mutable_plan() = plan;
  send(command);
}

void FakeLauncher::stop(std::uint32_t grace_ms) {
  Command command;
  command.mutable_stop()->set_grace_ms(grace_ms);
  send(command);
}

void FakeLauncher::send_signal(int signal, std::initializer_list<std::uint32_t> ranks) {
  Command command;
  command.mutable_signal_workers()->set_signal(signal);
  for (const std::uint32_t rank : ranks) command.mutable_signal_workers()->add_ranks(rank);
  send(command);
}

void FakeLauncher::send_input(std::string bytes) {
  session_.send_flow(session::FrameType::kInput, std::move(bytes));
  write_some();
}

void FakeLauncher::finish() {
  Command command;
  command.mutable_finish();
  send(command);
}

// ---- link -------------------------------------------------------------------------------

void FakeLauncher::drop_link() {
  if (fd_ < 0) return;
  ::close(fd_);
  fd_ = -1;
  session_.link_down();
}

void FakeLauncher::hang_up() { drop_link(); }

int FakeLauncher::copy_of_link() const { return fcntl(fd_, F_DUPFD_CLOEXEC, 0); }

void FakeLauncher::half_close() { shutdown(fd_, SHUT_WR); }

void FakeLauncher::reattach() {
  drop_link();
  const Result<JobDirectory> directory = find_job_directory(job_id_, 0);
  if (!directory.ok()) {
    ADD_FAILURE() << directory.error().message;
    return;
  }
  const Result<int> fd = connect_to_command_socket(*directory);
  if (!fd.ok()) {
    ADD_FAILURE() << fd.error().message;
    return;
  }
  attach(*fd);
  write_some();
}

void FakeLauncher::resume_granting() {
  is_granting_ = true;
  session_.grant(std::exchange(ungranted_bytes_, 0));
  write_some();
}

// ---- received events -------------------------------------------------------------------------

bool FakeLauncher::wait(const std::function<bool()>& condition,
                        std::chrono::milliseconds deadline) {
  const Clock::time_point end = Clock::now() + scaled_time(deadline);
  while (!condition()) {
    if (Clock::now() >= end) return false;
    serve_once(std::chrono::milliseconds(20));
  }
  return true;
}

void FakeLauncher::serve(std::chrono::milliseconds duration) {
  const Clock::time_point end = Clock::now() + duration;
  while (Clock::now() < end) serve_once(std::chrono::milliseconds(10));
}

void FakeLauncher::serve_once(std::chrono::milliseconds longest) {
  if (!is_silent_ && Clock::now() >= next_heartbeat_) {
    next_heartbeat_ = Clock::now() + kHeartbeat;
    session_.send_heartbeat();
  }
  write_some();
  const int reads = is_reading_ ? POLLIN : 0;
  pollfd poller{fd_, static_cast<short>(out_.empty() ? reads : reads | POLLOUT), 0};
  poll(&poller, 1, static_cast<int>(longest.count()));
  if (fd_ >= 0 && is_reading_) read_some();
}

void FakeLauncher::write_some() {
  while (fd_ >= 0) {
    if (out_.empty()) out_ = session_.take_bytes(monotonic_ns(), 256u << 10);
    if (out_.empty()) return;
    const ssize_t count = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (count <= 0) return;
    out_.erase(0, static_cast<std::size_t>(count));
  }
}

void FakeLauncher::read_some() {
  char buffer[64 << 10];
  const ssize_t count = ::read(fd_, buffer, sizeof buffer);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return drop_link();
  std::string_view bytes(buffer, static_cast<std::size_t>(count));
  // receive() returns Attached alone; a call without bytes returns the frames after it.
  for (bool again = true; again; bytes = {}) {
    again = false;
    const Result<std::vector<session::Frame>> frames = session_.receive(bytes);
    if (!frames.ok()) {
      ADD_FAILURE() << "broken session: " << frames.error().message;
      return drop_link();
    }
    for (const session::Frame& frame : *frames) {
      if (frame.header.type == session::FrameType::kAttached) {
        again = true;
        rejection_ = frame.payload;
        if (rejection_.empty()) {
          EXPECT_TRUE(session_.attached(frame.header.acknowledged).ok());
        }
      }
      take(frame);
    }
  }
  write_some();
}

void FakeLauncher::take(const session::Frame& frame) {
  if (frame.header.type == session::FrameType::kEvent) {
    Event event;
    EXPECT_TRUE(event.ParseFromString(frame.payload));
    events_.push_back(event);
  } else if (frame.header.type == session::FrameType::kOutput) {
    const Result<session::OutputChunk> chunk = session::decode_output(frame.payload);
    ASSERT_TRUE(chunk.ok());
    // Keeps only the output of a restarted group's newest attempt.
    if (std::exchange(generation_, chunk->generation) != chunk->generation) {
      output_.clear();
      ended_.clear();
    }
    const StreamKey key{chunk->rank, chunk->stream};
    EXPECT_FALSE(ended_.contains(key)) << "output after its end";
    output_bytes_ += chunk->bytes.size();
    if (is_keeping_output_) output_[key] += chunk->bytes;
    if (chunk->end) ended_.insert(key);
    ungranted_bytes_ += frame.payload.size();
    if (is_granting_) session_.grant(std::exchange(ungranted_bytes_, 0));
  }
}

std::optional<int> FakeLauncher::wait_for_node(std::chrono::milliseconds deadline) {
  int status = 0;
  const auto ended = [&] {
    serve_once(std::chrono::milliseconds(5));
    return waitpid(node_pid_, &status, WNOHANG) == node_pid_;
  };
  if (!eventually(ended, deadline)) return std::nullopt;
  node_pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

const Exited* FakeLauncher::exited(std::uint32_t rank) const {
  for (const Event& event : events_)
    if (event.has_exited() && event.exited().rank() == rank) return &event.exited();
  return nullptr;
}

const Started* FakeLauncher::started(std::uint32_t rank) const {
  for (const Event& event : events_)
    if (event.has_started() && event.started().rank() == rank) return &event.started();
  return nullptr;
}

const StartFailed* FakeLauncher::start_failed(std::uint32_t rank) const {
  for (const Event& event : events_)
    if (event.has_start_failed() && event.start_failed().rank() == rank)
      return &event.start_failed();
  return nullptr;
}

const Report* FakeLauncher::report() const {
  for (const Event& event : events_)
    if (event.has_report()) return &event.report();
  return nullptr;
}

std::size_t FakeLauncher::exits() const {
  return static_cast<std::size_t>(std::count_if(
      events_.begin(), events_.end(), [](const Event& event) { return event.has_exited(); }));
}

std::string FakeLauncher::output(std::uint32_t rank, int stream) const {
  const auto found = output_.find({rank, stream});
  return found == output_.end() ? std::string() : found->second;
}

bool FakeLauncher::output_ended(std::uint32_t rank, int stream) const {
  return ended_.contains({rank, stream});
}

pid_t FakeLauncher::supervisor_pid() const {
  for (const pid_t pid : all_processes())
    if (stat_field(pid, 1) == std::to_string(node_pid_) &&
        read_file("/proc/" + std::to_string(pid) + "/comm") == "ivy-supervisor\n")
      return pid;
  return -1;
}

std::string FakeLauncher::worker_state(std::uint32_t rank) const {
  return stat_field(started(rank)->pid(), 0);
}

std::vector<pid_t> FakeLauncher::job_processes() const {
  std::vector<pid_t> found;
  for (const pid_t pid : all_processes()) {
    const std::string state = stat_field(pid, 0);
    if (state.empty() || state == "Z" || state == "X") continue;
    const std::string environment = read_file("/proc/" + std::to_string(pid) + "/environ");
    if (environment.find("IVY_JOB_ID=" + job_id_) != std::string::npos) found.push_back(pid);
  }
  return found;
}

}  // namespace ivy::test
