// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/preload_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <string_view>
#include <utility>

#include "proto/contract/python_command.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr std::string_view kScript =
#include "agent/node/supervisor/preload_server.py.inc"
    ;

// Longer than any message of the server.
constexpr std::size_t kMaxMessage = 4096;
constexpr int kCancelPollMs = 50;

// Values that the interpreter and C libraries read when they are loaded. Modules written in Python
// that read other values of a rank are detected by the server.
constexpr std::string_view kReadAtStart =
    "PYTHON* LD_* MALLOC_* GLIBC_* LC_* LANG LANGUAGE TZ OMP_* GOMP_* KMP_* MKL_* OPENBLAS_*";

// Variables whose values differ between attempts. Like those of ranks, they are not set while
// modules are imported.
constexpr std::string_view kOfAttempt =
    "TORCHELASTIC_RESTART_COUNT IVY_GENERATION NCCL_DEBUG_FILE PMI_* PMIX_* OMPI_* IVY_MPI_PLACE";

bool matches_any(std::string_view list, const std::string& name) {
  const std::vector<std::string_view> patterns = words_of(list);
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](std::string_view pattern) { return env_pattern_matches(pattern, name); });
}

const std::string* value_in(const WorkerSpec& worker, const std::string& name) {
  for (const Variable& variable : worker.environment())
    if (variable.name() == name) return &variable.value();
  return nullptr;
}

bool is_equal_in_all(const HostPlan& plan, const Variable& variable) {
  return std::all_of(plan.workers().begin(), plan.workers().end(), [&](const WorkerSpec& worker) {
    const std::string* const value = value_in(worker, variable.name());
    return value != nullptr && *value == variable.value();
  });
}

}  // namespace

Result<PreloadCommand> preload_command(const HostPlan& plan, const Environment& shared,
                                       const std::string& job_directory) {
  PreloadCommand command;
  command.arguments.assign(plan.arguments().begin(), plan.arguments().end());
  command.options = IVY_TRY(python_options(command.arguments));
  command.modules.assign(plan.preload().modules().begin(), plan.preload().modules().end());
  command.folder = job_directory + "/preload";
  command.working_directory = plan.working_directory();
  command.environment = shared;
  std::vector<std::string> varying = {"TORCHELASTIC_RESTART_COUNT", "IVY_GENERATION"};
  std::erase_if(command.environment,
                [](const EnvVariable& variable) { return matches_any(kOfAttempt, variable.name); });
  for (const WorkerSpec& worker : plan.workers()) {
    for (const Variable& variable : worker.environment()) {
      const std::string& name = variable.name();
      if (env_rule(name) != EnvRule::kSet && !matches_any(kOfAttempt, name) &&
          is_equal_in_all(plan, variable)) {
        set_variable(command.environment, name, variable.value());
        continue;
      }
      if (matches_any(kReadAtStart, name))
        return Error{Code::kFailedPrecondition, "have different values of " + name};
      if (std::find(varying.begin(), varying.end(), name) == varying.end()) varying.push_back(name);
      unset_variable(command.environment, name);
    }
  }
  set_variable(command.environment, "IVY_PRELOAD_VARYING", joined(varying, ","));
  // In front: the interpreter must import this sitecustomize and no other.
  const std::string* const path = find_variable(command.environment, "PYTHONPATH");
  set_variable(command.environment, "PYTHONPATH",
               command.folder + (path == nullptr || path->empty() ? "" : ":" + *path));
  return command;
}

bool serves(const PreloadCommand& before, const PreloadCommand& now) {
  return before.arguments == now.arguments && before.modules == now.modules &&
         before.working_directory == now.working_directory && before.environment == now.environment;
}

std::string PreloadServer::modules() const { return joined(command_.modules, ", "); }

// Runs the interpreter with the socket as its standard input. Its first output goes nowhere; the
// script then writes to files.
Result<pid_t> PreloadServer::run(const std::string& executable,
                                 const std::vector<std::string>& arguments,
                                 const std::string& modules, Descriptor& socket) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return errno_error(Code::kUnavailable, "socketpair", errno);
  socket.reset(ends[0]);
  const Descriptor theirs(ends[1]);
  // Pipes, as for workers: Python chooses its buffers by the kind of its standard streams.
  const DescriptorPair output = make_pipe();
  if (!output) return errno_error(Code::kUnavailable, "pipe", errno);
  SpawnRequest request;
  request.arguments = arguments;
  request.executable = executable;
  request.environment = command_.environment;
  for (const EnvVariable& variable : identity_)
    set_variable(request.environment, variable.name, variable.value);
  set_variable(request.environment, "IVY_PRELOAD", modules);
  request.working_directory = command_.working_directory;
  request.stdin_fd = theirs.get();
  request.stdout_fd = output.second.get();
  request.stderr_fd = output.second.get();
  request.limits = command_.limits;
  const SpawnResult spawned = spawn(request);
  if (!spawned.ok())
    return errno_error(Code::kUnavailable, spawned.failure.step, spawned.failure.error);
  const Descriptor unused(spawned.process.pidfd);
  return spawned.process.pid;
}

// Without this test, an interpreter that does not import our file would run the user's program as a
// rank that does not exist.
Result<void> PreloadServer::test_interpreter(const std::string& executable,
                                             const std::function<bool()>& is_cancelled) {
  std::vector<std::string> arguments = command_.options;
  arguments.insert(arguments.end(), {"-c", ""});
  Descriptor socket;
  IVY_TRY(run(executable, arguments, "", socket));
  const auto answer = read_message(socket.get(), is_cancelled);
  if (!answer.ok() && answer.error().code == Code::kCancelled) return answer.error();
  if (answer.ok() && *answer == "hook") return {};
  return Error{
      Code::kFailedPrecondition,
      executable + " " + (answer.ok() ? *answer : "does not import sitecustomize from PYTHONPATH")};
}

Result<std::string> PreloadServer::read_message(int socket,
                                                const std::function<bool()>& is_cancelled) const {
  for (;;) {
    if (is_cancelled() || is_ended_) return Error{Code::kCancelled, "the start was cancelled"};
    pollfd waited{socket, POLLIN, 0};
    if (poll(&waited, 1, kCancelPollMs) <= 0) continue;
    std::array<char, kMaxMessage> text{};
    const ssize_t count = recv(socket, text.data(), text.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count > 0) return std::string(text.data(), static_cast<std::size_t>(count));
    return Error{Code::kUnavailable, "the process that imports them has exited"};
  }
}

Result<void> PreloadServer::prepare(const std::string& executable,
                                    const std::function<bool()>& is_cancelled,
                                    const BlockingPool::Label& label) {
  if (failure_) return *failure_;
  if (is_ready_) return {};
  label.set("the import of " + modules() + " (--preload)");
  const auto attempt = [&]() -> Result<void> {
    if (!socket_) {
      if ((mkdir(command_.folder.c_str(), 0700) != 0 && errno != EEXIST) ||
          !write_whole(command_.folder + "/sitecustomize.py", kScript))
        return errno_error(Code::kUnavailable, "write " + command_.folder, errno);
      IVY_CHECK(test_interpreter(executable, is_cancelled));
      Descriptor socket;
      pid_ = IVY_TRY(run(executable, command_.arguments, joined(command_.modules, ","), socket));
      socket_ = std::move(socket);
    }
    const std::string answer = IVY_TRY(read_message(socket_.get(), is_cancelled));
    constexpr std::string_view kRefused = "refused ";
    if (answer.starts_with(kRefused))
      return Error{Code::kFailedPrecondition, answer.substr(kRefused.size())};
    is_ready_ = true;
    return {};
  };
  const Result<void> done = attempt();
  if (!done.ok() && done.error().code != Code::kCancelled) failure_ = done.error();
  return done;
}

Result<void> PreloadServer::fork(std::vector<ForkedWorker>& workers,
                                 const std::function<bool()>& is_cancelled) {
  if (failure_) return *failure_;
  Result<void> done;
  for (std::size_t at = 0; at < workers.size() && done.ok(); at += kMaxForkedAtOnce) {
    const std::size_t count = std::min(kMaxForkedAtOnce, workers.size() - at);
    done = fork_workers(socket_.get(), std::span(workers).subspan(at, count), is_cancelled);
  }
  if (!done.ok() && done.error().code != Code::kCancelled)
    failure_ = Error(done.error()).context("the process that has imported them");
  return done;
}

void PreloadServer::reaped(pid_t pid) {
  pid_t expected = pid;
  if (pid > 0) pid_.compare_exchange_strong(expected, 0);
}

void PreloadServer::end() {
  is_ended_ = true;
  siginfo_t info{};
  // Only a child that has not been reaped keeps its pid.
  if (const pid_t pid = pid_;
      pid > 0 && waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0)
    kill(pid, SIGKILL);
}

}  // namespace ivy
