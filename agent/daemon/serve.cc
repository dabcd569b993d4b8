// SPDX-License-Identifier: Apache-2.0
// run_serve() checks the user, enters the agent's cgroup, and runs a Serving: start() builds the
// parts in the order of their construction, run() runs the loop, tick() is called every second,
// stop() begins the shutdown and leave() ends the loop. README.md has the same as "Three walks".
#include "agent/daemon/serve.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "agent/daemon/agent_admin.h"
#include "agent/daemon/agent_metrics.h"
#include "agent/daemon/agent_service.h"
#include "agent/daemon/jobs/bundle_cache.h"
#include "agent/daemon/jobs/unit_cgroup.h"
#include "agent/daemon/net/agent_credentials.h"
#include "agent/daemon/net/agent_log.h"
#include "agent/daemon/net/agent_server.h"
#include "agent/daemon/net/authorization.h"
#include "proto/contract/build.h"
#include "proto/contract/core_limit.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/os/blocking.h"
#include "proto/os/clock.h"
#include "proto/os/process.h"
#include "proto/os/systemd_notify.h"

namespace ivy {
namespace {

using boost::asio::io_context;
using boost::system::error_code;

constexpr auto kTick = std::chrono::seconds(1);
// The wait for a file system after which it is logged as stalled.
constexpr auto kFirstOverdue = std::chrono::seconds(4);
// Time limit of an answer from our own service.
constexpr auto kCheckTime = std::chrono::seconds(5);
// Calls end by themselves when the service has stopped; the others are cancelled after this time,
// and calls that do not end even then must not hold up a restart.
constexpr auto kCallTimeout = std::chrono::milliseconds(800);
constexpr auto kLeaveTimeout = std::chrono::milliseconds(1700);

// Formats a status for sd_notify(3). Escapes newlines, which would start another assignment.
std::string status_line(const std::string& status) {
  return "STATUS=" + agent_log::escaped(status);
}

// Global, because the thread that ends the process if something hangs may outlive Serving.
std::atomic<int> exit_code = 0;

class Serving final : public AgentReports {
 public:
  Serving(std::string user, UnitCgroup cgroup, std::string metrics_file)
      : user_(std::move(user)),
        cgroup_(std::move(cgroup)),
        signals_(loop_),
        tick_(loop_),
        metrics_(std::move(metrics_file)) {}
  ~Serving() override {
    set_authorization_policy(nullptr);
    agent_log::name_suspects(nullptr);
  }

  Result<void> start(const ServeCommand& command, const Environment& environment);
  // Runs until the end; returns the exit code.
  int run();

 private:
  void audit(const std::string& line) override { agent_log::notice(line); }
  void warn(const std::string& text) override { agent_log::warning(text); }
  void status(const std::string& jobs) override;

  Result<void> load_certificates(const ServeCommand& command, const Environment& environment);
  Result<void> make_service(const ServeCommand& command, const Environment& environment);
  void install_authorization(const ServeCommand& command);
  Result<void> open_server(const ServeCommand& command);
  void log_addresses() const;
  void wait_for_signal();
  void tick();
  void tick_later();
  void log_overdue();
  void write_metrics();
  void check_self();
  void on_self_checked(const grpc::Status& status);
  void stop(const std::string& why);
  void leave();

  std::string user_;
  UnitCgroup cgroup_;
  io_context loop_{1};
  // The pool that reads the certificates' files. The service has a separate one.
  BlockingPool files_{
      [this](std::function<void()> done) { boost::asio::post(loop_, std::move(done)); },
      {.threads = 1, .stuck_threads = 0}};
  boost::asio::signal_set signals_;
  boost::asio::steady_timer tick_;
  AgentMetricsFile metrics_;
  std::string logged_metrics_failure_;  // A failure is logged once.
  TcpConnections connections_;
  HandshakeLimiter handshakes_{{}, &connections_};
  std::unique_ptr<AgentCredentials> credentials_;  // Null if only the Unix socket is served.
  std::unique_ptr<AgentService> service_;
  std::unique_ptr<AgentServer> server_;

  std::string jobs_ = "serves";  // Such as "3 jobs", once the service has reported it.
  bool ready_ = false;
  bool stopping_ = false;
  std::chrono::nanoseconds logged_overdue_{0};  // Length of the wait that was logged last.

  // A Facts call over our own socket, such as a launcher makes.
  struct SelfCheck {
    grpc::ClientContext context;
    agent::v1::FactsRequest request;
    agent::v1::FactsReply reply;
  };
  std::unique_ptr<agent::v1::Agent::Stub> own_calls_;
  std::weak_ptr<SelfCheck> self_check_;
  bool is_checking_ = false;
  std::chrono::milliseconds check_interval_{10'000};
  std::chrono::steady_clock::time_point next_check_{};
};

Result<void> Serving::start(const ServeCommand& command, const Environment& environment) {
  IVY_CHECK(load_certificates(command, environment));
  IVY_CHECK(make_service(command, environment));
  install_authorization(command);
  IVY_CHECK(open_server(command));
  own_calls_ = calls_over_unix(command.socket_path);
  if (const auto interval = watchdog_interval())
    check_interval_ = std::min(
        check_interval_, std::chrono::duration_cast<std::chrono::milliseconds>(*interval) / 3);
  log_addresses();
  if (command.insecure_loopback)
    agent_log::warning("--insecure-loopback: every user of this host can run programs as " + user_);
  return {};
}

Result<void> Serving::load_certificates(const ServeCommand& command,
                                        const Environment& environment) {
  if (command.listen.empty() && command.certificates.empty()) return {};
  const CertificateFiles files = IVY_TRY(find_certificates(command.certificates, environment));
  credentials_ = IVY_TRY(AgentCredentials::load(files, user_, handshakes_));
  agent_log::info("certificate " + credentials_->description() + " of " + files.directory);
  credentials_->log_expiry();
  return {};
}

// Takes over the jobs of an earlier agent.
Result<void> Serving::make_service(const ServeCommand& command, const Environment& environment) {
  AgentServiceOptions options;
  options.state_directory = command.state_directory;
  options.bundle_directory = BundleCache::default_directory(environment);
  options.jobs_cgroup = cgroup_.jobs;
  options.containment = cgroup_.description;
  options.version = std::string(version());
  options.environment = environment;
  options.credentials = credentials_.get();
  service_ = IVY_TRY(AgentService::make(loop_, std::move(options), *this));
  return {};
}

void Serving::install_authorization(const ServeCommand& command) {
  auto policy = std::make_shared<AuthorizationPolicy>();
  policy->user = user_;
  policy->credentials = credentials_.get();
  policy->handshakes = &handshakes_;
  policy->plaintext_loopback = command.insecure_loopback.has_value();
  set_authorization_policy(policy);
  agent_log::name_suspects(&handshakes_);
}

Result<void> Serving::open_server(const ServeCommand& command) {
  AgentServerOptions options;
  options.socket_path = command.socket_path;
  options.listen = command.listen;
  options.insecure_loopback = command.insecure_loopback;
  server_ = IVY_TRY(AgentServer::start(loop_, *service_, credentials_.get(), handshakes_, options));
  return {};
}

void Serving::log_addresses() const {
  agent_log::info("version " + std::string(version()) + " serves user " + user_ + " on " +
                  joined(server_->addresses(), ", "));
  agent_log::info("containment: " + cgroup_.description);
  if (credentials_ == nullptr)
    agent_log::info("launchers of other hosts are not served; --listen ADDR:PORT would serve them");
}

int Serving::run() {
  leave_no_core();
  std::signal(SIGPIPE, SIG_IGN);
  signals_.add(SIGTERM);
  signals_.add(SIGINT);
  signals_.add(SIGHUP);
  wait_for_signal();
  tick();
  for (;;) {
    try {
      loop_.run();
      return exit_code;
    } catch (const std::exception& error) {
      // Most likely memory or kernel resources ran out. Jobs outlive an agent: the next one starts
      // with a clean state, and this one still shuts down cleanly.
      agent_log::error(std::string("unexpected error: ") + error.what());
      exit_code = kExitFailed;
      if (!stopping_) stop("this error");
    }
  }
}

void Serving::wait_for_signal() {
  signals_.async_wait([this](const error_code& error, int signal) {
    if (error) return;
    if (signal != SIGHUP) return stop(signal_name(signal));
    if (credentials_ != nullptr) credentials_->reread(files_, true);
    wait_for_signal();
  });
}

void Serving::tick() {
  if (stopping_) return;
  if (credentials_ != nullptr) {
    credentials_->reread(files_, false);
    credentials_->log_expiry();
  }
  handshakes_.expire(steady_now());
  log_overdue();
  write_metrics();
  agent_log::log_suppressed();
  check_self();
  tick_later();
}

void Serving::tick_later() {
  tick_.expires_after(kTick);
  tick_.async_wait([this](const error_code& stopped) {
    if (!stopped) tick();
  });
}

void Serving::log_overdue() {
  const auto overdue = files_.overdue();
  if (!overdue) {
    logged_overdue_ = {};
    return;
  }
  if (overdue->age < std::max<std::chrono::nanoseconds>(kFirstOverdue, 2 * logged_overdue_)) return;
  logged_overdue_ = overdue->age;
  agent_log::warning(
      "certificates: waiting for " + overdue->name + ", " +
      std::to_string(std::chrono::duration_cast<std::chrono::seconds>(overdue->age).count()) +
      " s; the previous ones stay in use");
}

void Serving::write_metrics() {
  const std::string failure = metrics_.take_failure();
  if (!failure.empty() && failure != logged_metrics_failure_) agent_log::warning(failure);
  if (!failure.empty()) logged_metrics_failure_ = failure;
  if (metrics_.is_due(steady_now()))
    metrics_.write(agent_metrics_text(service_->facts(), service_->jobs()));
}

// Calls our own service: an answer proves that the acceptor, gRPC's threads and the loop work.
// Makes only one call at a time.
void Serving::check_self() {
  const auto now = steady_now();
  if (now < next_check_) return;
  next_check_ = now + check_interval_;
  if (std::exchange(is_checking_, true)) return;
  // Kept alive until the answer, because gRPC uses it, even after this object is destroyed.
  auto check = std::make_shared<SelfCheck>();
  check->context.set_deadline(system_now() + kCheckTime);
  check->context.set_wait_for_ready(true);
  self_check_ = check;
  own_calls_->async()->Facts(
      &check->context, &check->request, &check->reply, [this, check](grpc::Status status) {
        boost::asio::post(loop_, [this, status] { on_self_checked(status); });
      });
}

void Serving::on_self_checked(const grpc::Status& status) {
  is_checking_ = false;
  if (stopping_) return;
  if (!status.ok()) {
    agent_log::error("the agent's own service does not respond on its socket: " +
                     status.error_message());
    return;
  }
  notify_service_manager("WATCHDOG=1");
  if (ready_) return;
  ready_ = true;
  agent_log::info("ready");
  notify_service_manager("READY=1\n" + status_line(jobs_));
}

void Serving::status(const std::string& jobs) {
  jobs_ = jobs;
  if (ready_ && !stopping_) notify_service_manager(status_line(jobs_));
}

void Serving::stop(const std::string& why) {
  stopping_ = true;
  agent_log::info("stopping: " + why + "; running jobs wait for the next agent");
  notify_service_manager("STOPPING=1\n" + status_line("stops"));
  server_->stop_accepting();
  service_->stop();
  if (const auto check = self_check_.lock()) check->context.TryCancel();
  tick_.cancel();
  // Ends the process even if something hangs, so that a restart need not wait.
  std::thread([this] {
    std::this_thread::sleep_for(kLeaveTimeout);
    agent_log::warning("exiting although some calls have not finished in time");
    _exit(exit_code);
  }).detach();
  // Shuts down on a thread, because the loop must keep running for calls to end.
  std::thread([this] {
    server_->shut_down(kCallTimeout);
    boost::asio::post(loop_, [this] { leave(); });
  }).detach();
}

// Ends the loop. Waits for the answer to our own last call, which arrives on gRPC's thread and
// needs the loop.
void Serving::leave() {
  if (!is_checking_) return loop_.stop();
  tick_.expires_after(std::chrono::milliseconds(5));
  tick_.async_wait([this](const error_code&) { leave(); });
}

}  // namespace

int run_serve(const ServeCommand& command, const Environment& environment) {
  agent_log::start();
  if (geteuid() == 0) {
    agent_log::error(
        "cannot run as root: every user who may launch jobs here would become root; start it as "
        "the user that it serves, such as `systemctl start ivy-agent@alice`");
    return kExitUsage;
  }
  const passwd* const account = getpwuid(geteuid());
  std::string user = command.user_name;
  if (user.empty() && account != nullptr) user = account->pw_name;
  if (user.empty()) {
    agent_log::error("user id " + std::to_string(geteuid()) +
                     " has no name: choose the user whose launchers are served with --user-name");
    return kExitUsage;
  }
  // Every launcher and every job needs descriptors.
  raise_descriptor_limit();
  // Must precede gRPC's threads, because it forks.
  const UnitCgroup cgroup = enter_unit_cgroup();
  Serving serving(user, cgroup, command.metrics_file);
  const Result<void> started = serving.start(command, environment);
  if (!started.ok()) {
    const Error& error = started.error();
    agent_log::error("cannot serve: " + error.message +
                     (error.fix.empty() ? "" : "; " + error.fix));
    return error.code == Code::kInvalidArgument || error.code == Code::kNotFound ||
                   error.code == Code::kFailedPrecondition
               ? kExitUsage
               : kExitFailed;
  }
  const int exit_code = serving.run();
  agent_log::log_suppressed();
  agent_log::info("stopped");
  return exit_code;
}

}  // namespace ivy
