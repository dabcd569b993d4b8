// SPDX-License-Identifier: Apache-2.0
// AppRun::run() is the sequence. start_servers() starts this rank's servers one after the other, on
// other ranks after those of rank 0 (wait_for_first()), and runs the app's readiness command, if it
// has one, until it succeeds (wait_until_complete()). serve() starts the client and waits for the
// end of the app. stop_servers() ends all servers. All waits use pump(), which also handles
// signals.
#include "agent/node/roles/app_run.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "agent/node/roles/app_child.h"
#include "agent/node/spawn/job_directory.h"
#include "agent/node/spawn/spawn.h"
#include "agent/node/workers/worker.h"
#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/wire/job.pb.h"

namespace ivy {
namespace {

constexpr std::int64_t kNanos = 1'000'000'000;
// From TERM to KILL. Less than the launcher's grace period after a failure.
constexpr std::int64_t kGraceNs = 4 * kNanos;
constexpr int kProbeMs = 50;
constexpr int kIdleMs = 1000;
// How much longer than rank 0 the other ranks wait for its servers.
constexpr std::int64_t kFirstMarginNs = 5 * kNanos;
constexpr int kSettleMs = 300;
constexpr std::size_t kMaxPlanBytes = 8u << 20;
constexpr const char* kScratchVariable = "IVY_SCRATCH";

struct AppStart {
  AppPlan plan;
  std::string directory;
  std::string path;
  std::vector<std::string> arguments;
};

Result<AppStart> parse_start(int argc, char** argv) {
  const bool is_complete =
      argc >= 5 && std::string_view(argv[1]) == "--path" && std::string_view(argv[3]) == "--";
  if (!is_complete) return Error{Code::kInvalidArgument, "wrong arguments"};
  AppStart start;
  const std::string file = argv[0];
  const std::optional<std::string> bytes = read_file(file, kMaxPlanBytes);
  if (!bytes) return errno_error(Code::kUnavailable, "read " + file, errno);
  if (!start.plan.ParseFromString(*bytes))
    return Error{Code::kDataLoss, file + " does not contain a plan"};
  start.directory = file.substr(0, file.rfind('/'));
  start.path = argv[2];
  start.arguments.assign(argv + 4, argv + argc);
  return start;
}

std::uint32_t own_rank() {
  const char* const rank = std::getenv("IVY_RANK");
  return rank == nullptr ? 0 : static_cast<std::uint32_t>(std::strtoul(rank, nullptr, 10));
}

// Removes a server's data outside the job's directory, so that another attempt starts without it.
void remove_scratch(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

class AppRun {
 public:
  AppRun(AppStart start, AppStore& store)
      : start_(std::move(start)), plan_(start_.plan), keys_(own_rank(), store) {}

  int run() {
    take_signals();
    const int code = keys_.connect() && start_servers() ? serve() : failure_;
    stop_servers();
    keys_.leave();
    return code;
  }
  int ending_signal() const { return client_signal_; }

 private:
  // Children, TERM and the keys of other ranks are all received through descriptors.
  void take_signals() {
    sigset_t taken;
    sigemptyset(&taken);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT}) sigaddset(&taken, signal);
    sigprocmask(SIG_BLOCK, &taken, nullptr);
    signals_.reset(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
    deadline_ns_ = monotonic_ns() + std::int64_t{plan_.start_seconds()} * kNanos;
  }

  // Waits for events and processes them.
  void pump(int timeout_ms) {
    pollfd watched[] = {{signals_.get(), POLLIN, 0}, {keys_.descriptor(), POLLIN, 0}};
    poll(watched, 2, timeout_ms);
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof info) == sizeof info)
      if (info.ssi_signo != SIGCHLD) take_stop(static_cast<int>(info.ssi_signo));
    for (AppChild& server : servers_) server.collect();
    if (client_) client_->collect();
    keys_.empty_descriptor();
  }

  void take_stop(int signal) {
    stopped_by_ = signal;
    if (client_) client_->send(signal);
  }

  // Returns true if the app must end, and then sets failure_.
  bool check_interrupted() {
    if (stopped_by_ != 0) failure_ = 128 + stopped_by_;
    return stopped_by_ != 0 || keys_.is_lost() || check_lost_server();
  }

  // Returns true if a server has failed. Reports it, unless it was stopped.
  bool check_lost_server() {
    for (const AppChild& server : servers_) {
      if (!server.has_failed()) continue;
      // A stop, or the app's end, may reach the servers before or after this process.
      pump(kSettleMs);
      if (stopped_by_ != 0 || keys_.has_ended()) return true;
      server.print_exit(plan_.name());
      failure_ = kExitFailed;
      return true;
    }
    return false;
  }

  bool make_scratches() {
    for (const AppServer& server : plan_.servers())
      for (const Variable& variable : server.environment()) {
        if (variable.name() != kScratchVariable) continue;
        const Result<void> made = make_scratch(start_.directory, variable.value());
        if (made.ok()) continue;
        std::fprintf(stderr, "ivyrun: error[IVY-R018]: %s cannot be started: %s; %s\n",
                     server.role().c_str(), made.error().message.c_str(), made.error().fix.c_str());
        return false;
      }
    return true;
  }

  bool start_servers() {
    if (!make_scratches()) return false;
    if (!keys_.is_first() && !wait_for_first()) return false;
    bool is_announced = !keys_.is_first();
    for (int i = 0; i < plan_.servers_size(); ++i) {
      const AppServer& server = plan_.servers(i);
      // All servers that other hosts wait for are ready.
      if (!server.is_first() && !std::exchange(is_announced, true)) keys_.announce_ready();
      if (!start_server(server)) return false;
    }
    if (!is_announced) keys_.announce_ready();
    return plan_.ready_command_size() == 0 || wait_until_complete();
  }

  bool wait_for_first() {
    keys_.watch_ready();
    while (!keys_.first_is_ready()) {
      pump(kIdleMs);
      if (check_interrupted()) return false;
      // The first rank gives up earlier and reports the reason, unless it is stopped.
      if (monotonic_ns() > deadline_ns_ + kFirstMarginNs)
        return give_up("the servers of rank 0 did not become ready");
    }
    return true;
  }

  bool start_server(const AppServer& server) {
    servers_.emplace_back(server, start_.directory);
    if (!servers_.back().start(service_environment(server.environment()))) {
      failure_ = kExitFailed;
      return false;
    }
    while (!servers_.back().check_ready()) {
      pump(kProbeMs);
      if (check_interrupted()) return false;
      if (monotonic_ns() > deadline_ns_)
        return give_up(server.role() + " did not become ready at " + server.ready_address());
    }
    return true;
  }

  // A failed command is repeated: processes on other hosts may not have joined yet.
  bool wait_until_complete() {
    AppServer command;
    command.set_role("readiness");
    *command.mutable_arguments() = plan_.ready_command();
    while (true) {
      AppChild check(command, start_.directory);
      if (!check.start(service_environment(plan_.client_environment()))) return false;
      while (!check.has_ended()) {
        pump(kIdleMs);
        check.collect();
        if (check_interrupted()) {
          check.kill_group(SIGKILL);
          return false;
        }
        if (monotonic_ns() > deadline_ns_) {
          check.kill_group(SIGKILL);
          return give_up("the readiness command did not exit");
        }
      }
      check.reap();  // There may be many.
      if (check.has_succeeded()) return true;
      if (monotonic_ns() > deadline_ns_)
        return give_up("not all processes joined: " + check.last_line());
      pump(4 * kProbeMs);
    }
  }

  bool give_up(const std::string& what) {
    std::fprintf(stderr,
                 "ivyrun: error[IVY-R019]: %s: %s within %u s (--start-timeout)\n"
                 "  fix:   its output is below; --start-timeout TIME allows more\n",
                 plan_.name().c_str(), what.c_str(), plan_.start_seconds());
    for (const AppChild& server : servers_) server.show_last_lines();
    failure_ = kExitFailed;
    return false;
  }

  // Returns this rank's exit code.
  int serve() {
    if (plan_.has_client() && !start_client()) return failure_;
    if (!keys_.is_first() && !plan_.every_rank_is_client()) keys_.watch_end();
    while (true) {
      if (client_ && client_->has_ended()) return end_of_client();
      if (!client_ && keys_.is_first() && !servers_.empty() && servers_.front().has_ended())
        return end_of_first_server();
      const bool is_over = check_interrupted();
      if (keys_.has_ended()) return 0;
      if (is_over) return wait_for_stopped_client();
      pump(kIdleMs);
    }
  }

  bool start_client() {
    AppServer program;
    program.set_role("client");
    for (const std::string& word : start_.arguments) program.add_arguments(word);
    program.set_is_shown(true);
    client_.emplace(program, start_.directory);
    Environment environment = plan_.every_rank_is_client()
                                  ? environment_of(environ)
                                  : service_environment(plan_.client_environment());
    for (const Variable& variable : plan_.client_environment())
      set_variable(environment, variable.name(), variable.value());
    if (client_->start(environment, start_.path)) return true;
    failure_ = kExitNotExecutable;
    return false;
  }

  int end_of_client() {
    const int code = client_->exit_code();
    client_signal_ = client_->signal();
    if (code != 0) return code;
    if (!plan_.every_rank_is_client()) {
      keys_.announce_end();
      return 0;
    }
    keys_.announce_done();
    if (!keys_.is_first()) return 0;
    // Other ranks may still use servers that run only on this rank's host.
    keys_.watch_done(plan_.ranks());
    while (!keys_.all_are_done() && !keys_.is_lost() && stopped_by_ == 0) pump(kIdleMs);
    return 0;
  }

  int end_of_first_server() {
    const AppChild& server = servers_.front();
    client_signal_ = server.signal();
    if (server.exit_code() == 0) keys_.announce_end();
    return server.exit_code();
  }

  // A script that handles TERM may take its time; the supervisor's KILL ends it.
  int wait_for_stopped_client() {
    if (stopped_by_ == 0 && client_) client_->kill_group(SIGTERM);
    const std::int64_t end = monotonic_ns() + kGraceNs;
    while (client_ && !client_->has_ended() && (stopped_by_ != 0 || monotonic_ns() < end))
      pump(kProbeMs);
    if (stopped_by_ == 0) return failure_ == 0 ? kExitFailed : failure_;
    if (client_) client_signal_ = client_->signal();
    return client_ ? client_->exit_code() : 128 + stopped_by_;
  }

  void stop_servers() {
    if (client_ && !client_->has_ended()) client_->kill_group(SIGKILL);
    const std::int64_t end = monotonic_ns() + kGraceNs;
    // Servers are stopped in reverse order of their start.
    for (auto server = servers_.rbegin(); server != servers_.rend(); ++server) {
      server->kill_group(SIGTERM);
      while (!server->has_ended() && monotonic_ns() < end) pump(kProbeMs);
    }
    // Processes left in their groups may still clean up after the servers have exited, such as
    // Python's process that unlinks multiprocessing semaphores.
    const auto is_left = [](AppChild& server) { return server.reap(); };
    while (std::ranges::any_of(servers_, is_left) && monotonic_ns() < end) pump(kProbeMs);
    for (AppChild& server : servers_) server.kill_group(SIGKILL);
    for (const AppServer& server : plan_.servers())
      for (const Variable& variable : server.environment())
        if (variable.name() == kScratchVariable) remove_scratch(variable.value());
  }

  const AppStart start_;
  const AppPlan& plan_;
  AppKeys keys_;
  Descriptor signals_;
  std::vector<AppChild> servers_;
  std::optional<AppChild> client_;
  std::int64_t deadline_ns_ = 0;
  int stopped_by_ = 0;
  int client_signal_ = 0;
  int failure_ = kExitFailed;
};

}  // namespace

int run_app(int argc, char** argv, AppStore& store) {
  Result<AppStart> start = parse_start(argc, argv);
  if (!start.ok()) {
    std::fprintf(stderr, "ivy-node app-run: %s\n", start.error().message.c_str());
    return kExitUsage;
  }
  AppRun run(std::move(start).value(), store);
  const int code = run.run();
  if (run.ending_signal() == 0) return code;
  // Re-raise the client's signal, so that the launcher's report names it.
  signal(run.ending_signal(), SIG_DFL);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_UNBLOCK, &all, nullptr);
  raise(run.ending_signal());
  return 128 + run.ending_signal();
}

}  // namespace ivy
