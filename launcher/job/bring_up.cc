// SPDX-License-Identifier: Apache-2.0
// The sections: the coroutine; the hosts' sessions and answers; hosts that did not come up; the
// checks of addresses; the first Start.
#include "launcher/job/bring_up.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "launcher/job/hosts/host_failures.h"
#include "launcher/links/address_lookup.h"
#include "launcher/links/transport_context.h"
#include "launcher/plan/device_plan.h"
#include "launcher/plan/interpreter.h"
#include "launcher/plan/worker_ports.h"
#include "launcher/screen/control_filter.h"
#include "proto/contract/limits.h"
#include "proto/contract/log.h"
#include "proto/os/clock.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Limit of a host's attempt to connect to the first host.
constexpr milliseconds kCheckTimeout{5'000};
// After the first failure of a host, the others get this long, so that one message names all hosts
// that failed.
constexpr milliseconds kGatherFailures{3'000};
// --pick healthiest: hosts that come up this soon after the others become spares.
constexpr milliseconds kSettle{2'000};

ProgramForm program_form(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::kAuto:
      return PROGRAM_AUTO;
    case ProgramKind::kScript:
      return PROGRAM_SCRIPT;
    case ProgramKind::kModule:
      return PROGRAM_MODULE;
    case ProgramKind::kExecutable:
      return PROGRAM_EXECUTABLE;
  }
  return PROGRAM_AUTO;
}

// Requests the notices of --watch-notices from a host.
void add_notices(const Options& options, Hello& hello) {
  hello.set_notice_ms(static_cast<std::uint32_t>(options.notice_time.count()));
  switch (options.watch_notices) {
    case WatchNotices::kSlurm:
    case WatchNotices::kNone:
      return;
    case WatchNotices::kAws:
      hello.set_notice_service("aws");
      break;
    case WatchNotices::kGcp:
      hello.set_notice_service("gcp");
      break;
    case WatchNotices::kAzure:
      hello.set_notice_service("azure");
      break;
    case WatchNotices::kAuto:
      break;
  }
  hello.set_watch_notices(true);
}

// Returns the present step of a host that has not answered Hello.
LinkStep progress_of(const HostRecord& host) {
  if (!host.wait.what.empty()) return "waiting for " + host.wait.what;
  return host.up ? LinkStep("waiting for its answer") : host.doing;
}

}  // namespace

BringUp::BringUp(JobContext& job, JobPlanner& planner, StoreController& store,
                 ProgressReader& progress, RankEvents& ranks, StdinFeed& stdin_feed,
                 HealthGate& gate, JobDrill& drill)
    : job_(job),
      planner_(planner),
      store_(store),
      progress_(progress),
      ranks_(ranks),
      stdin_feed_(stdin_feed),
      gate_(gate),
      drill_(drill),
      staging_(job, *this),
      steps_(job.loop) {}

// ---- The coroutine ------------------------------------------------------------------------------

void BringUp::start(const std::shared_ptr<TransportContext>& transports) {
  staging_.begin();
  look_up_master(transports);
  limit_at_ = steady_now() + job_.options.start_timeout;
  line_at_ = next_line();
  steps_.start(run());
}

void BringUp::cancel() {
  steps_.stop();
  gate_.cancel();
  job_.screen.status_line("");
}

void BringUp::host_left_out() {
  has_left_out_host_ = true;
  notify();
}

Awaitable<void> BringUp::run() {
  const bool are_greeted = co_await greet_hosts();
  if (!are_greeted) co_return;
  job_.phase.apply(JobEvent::kAllGreeted);
  job_.screen.status_line("");
  const bool are_healthy = co_await gate_.pass(steps_, job_.generation);
  if (!are_healthy) co_return;
  limit_at_ = steady_now() + job_.options.start_timeout;
  do {
    const bool is_planned = co_await check_addresses();
    if (!is_planned) co_return;
    co_await progress_.read_start(steps_);
  } while (job_.hosts.plan_is_outdated());
  job_.phase.apply(JobEvent::kAllChecked);
  co_await start_workers();
}

Awaitable<bool> BringUp::greet_hosts() {
  for (;;) {
    limit_slow_hosts();
    const bool is_complete = !awaits_answer();
    if (gather_until_ && (is_complete || steady_now() >= *gather_until_)) {
      fail_unreachable_hosts("");
      co_return false;
    }
    if (is_complete && !looks_up_master_ && !staging_.is_listing()) co_return true;
    if (steady_now() < limit_at_) {
      co_await notified(std::min(limit_at_, gather_until_.value_or(limit_at_)));
    } else if (staging_.is_moving()) {
      // Files take as long as the network needs.
      limit_at_ = steady_now() + job_.options.start_timeout;
    } else if (staging_.is_listing()) {
      staging_.reject_late_listing();
      co_return false;
    } else if (!leave_out_late_hosts()) {
      co_return false;
    }
  }
}

// --pick healthiest: once enough hosts are up, the others have as long again, and at least kSettle.
void BringUp::limit_slow_hosts() {
  if (job_.options.pick != PickChoice::kHealthiest || has_enough_hosts_) return;
  const auto up = std::count_if(job_.hosts.begin(), job_.hosts.end(),
                                [](const HostRecord& host) { return host.facts.has_value(); });
  if (static_cast<std::size_t>(up) < job_.hosts.node_ranks().size()) return;
  has_enough_hosts_ = true;
  const std::chrono::nanoseconds passed(monotonic_ns() - job_.opened_at_ns);
  limit_at_ =
      std::min(limit_at_, steady_now() + std::max<std::chrono::nanoseconds>(passed, kSettle));
}

Awaitable<bool> BringUp::check_addresses() {
  job_.screen.status_line("");
  has_left_out_host_ = false;
  if (!planner_.plan()) co_return false;
  if (!job_.options.dry_run) store_.open_on_first_host();
  order_checks();
  // The loss of a host may have been found while the orders were sent.
  co_await steps_.checkpoint();
  // On a single host, Start follows OpenStore on the same connection, so the answer need not be
  // awaited: the port was reserved, so listening cannot fail.
  const bool awaits_checks = std::any_of(job_.hosts.begin(), job_.hosts.end(),
                                         [](const HostRecord& host) { return !host.checked; });
  while (awaits_checks && !has_left_out_host_ &&
         !(job_.hosts.are_ready() && job_.hosts.have_ready_spares())) {
    if (steady_now() < limit_at_) {
      co_await notified(limit_at_);
    } else if (!leave_out_late_hosts()) {
      co_return false;
    }
  }
  co_return true;
}

Awaitable<void> BringUp::start_workers() {
  job_.screen.status_line("");
  job_.plan.spares = job_.hosts.spare_names();
  for (const Diagnostic& warning : job_.plan.warnings)
    if (!job_.options.quiet) job_.screen.print(render(warning));
  if (!job_.options.doctor &&
      std::any_of(job_.hosts.begin(), job_.hosts.end(),
                  [](const HostRecord& host) { return host.excluded.has_value(); }))
    job_.print("warning: starting with " + job_.hosts.members_text());
  if (job_.hosts.may_lose_hosts())
    job_.spare_hosts = spare_members(job_.hosts.members(), job_.hosts.min_members());
  const bool may_drill = co_await drill_.prepare(steps_);
  if (!may_drill) co_return;
  if (job_.options.dry_run) co_return print_dry_run();
  job_.reports.planned(job_.plan);
  Result<std::vector<HostPlan>> plans = planner_.host_plans();
  if (!plans.ok()) co_return job_.reject_input(plans.error());
  const Result<std::vector<std::string>> lines = planner_.first_lines();
  if (!lines.ok()) co_return job_.reject_input(lines.error());
  using Rejection = std::optional<Diagnostic>;
  const auto open_files = [this](const Arrival<Rejection>& arrive) {
    job_.screen.open_generation(job_.generation, job_.plan, job_.max_attempts(), arrive);
  };
  const Rejection rejection = co_await steps_.wait_posted<Rejection>(open_files);
  if (rejection) co_return job_.reject({*rejection}, LauncherReason::kRejected);
  for (const std::string& line : *lines) job_.print(line);
  send_plans(std::move(plans).value());
}

Awaitable<void> BringUp::notified(Time deadline) {
  if (steady_now() >= line_at_) {
    print_waiting();
    line_at_ = next_line();
  }
  co_await steps_.notified(std::min(deadline, line_at_));
}

// On a terminal the line is redrawn often; elsewhere it is printed after 5, 15 and 30 s, then every
// 30 s.
BringUp::Time BringUp::next_line() const {
  if (job_.screen.output().has_terminal()) return steady_now() + milliseconds(200);
  const std::int64_t elapsed_s = (monotonic_ns() - job_.opened_at_ns) / 1'000'000'000;
  const std::int64_t next_s = elapsed_s < 5 ? 5 : elapsed_s < 15 ? 15 : (elapsed_s / 30 + 1) * 30;
  return steady_now() + std::chrono::seconds(next_s - elapsed_s);
}

void BringUp::print_waiting() {
  const std::int64_t elapsed_ns = monotonic_ns() - job_.opened_at_ns;
  if (elapsed_ns < 900'000'000 || job_.options.quiet) return;
  std::vector<WaitingHost> waiting;
  std::vector<std::string> failed;
  std::size_t up = 0;
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) {
    const HostRecord& host = job_.hosts[index];
    if (host.failure) {
      failed.push_back(host.name());
    } else if (host.facts) {
      ++up;
      if (job_.phase.state() == JobState::kChecking && !host.is_ready())
        waiting.push_back(
            {host.name(), host.opens_store ? awaited_store(host) : awaited_check(host)});
    } else {
      const bool is_staging = host.up && host.wait.what.empty() && staging_.covers(index);
      waiting.push_back(
          {host.name(), is_staging ? LinkStep(staging_.step(index)) : progress_of(host)});
    }
  }
  if (const std::string staging = staging_.progress_line(); !staging.empty()) {
    if (job_.screen.output().has_terminal()) return job_.screen.status_line(staging);
    return job_.print(staging);
  }
  std::string line = waiting_line(up, job_.hosts.size(),
                                  std::chrono::seconds(elapsed_ns / 1'000'000'000), waiting);
  if (looks_up_master_) line += "; looking up --master-addr " + job_.options.master_addr;
  if (!failed.empty()) line += "; failed: " + fold_host_names(failed);
  if (job_.screen.output().has_terminal()) {
    job_.screen.status_line(line);
  } else {
    job_.print(line);
  }
}

// ---- Sessions, and the hosts' answers to Hello --------------------------------------------------

std::unique_ptr<HostSession> BringUp::make_session(
    std::size_t index, const std::shared_ptr<TransportContext>& transports,
    HostSessionEvents& events) const {
  HostRecord& host = job_.hosts[index];
  HostSessionOptions session;
  session.host = static_cast<std::uint32_t>(index);
  // After a takeover, this host's supervisor is reached through a relay, like any other.
  session.on_this_host = host.on_this_host && job_.takeover == 0;
  session.job_id = job_.request.identity.job_id;
  session.token = job_.request.identity.token;
  session.takeover = job_.takeover;
  session.window_bytes = job_.hosts.window_bytes();
  session.lease = job_.options.lease;
  // A user watches the job: not under nohup or a scheduler, and not with --detach.
  session.is_attended = isatty(STDERR_FILENO) != 0 && job_.request.detachment == nullptr;
  session.make_link = [transports, &host](HostLinkEvents& owner, int attempt) {
    return make_link(transports, *host.host, owner, attempt);
  };
  session.heartbeat = &job_.hosts.heartbeat();
  return std::make_unique<HostSession>(job_.loop, session, events);
}

void BringUp::dial(const std::shared_ptr<TransportContext>& transports, HostSessionEvents& events) {
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) {
    HostRecord& host = job_.hosts[index];
    host.on_this_host = uses_local_transport(job_.options, *host.host);
    host.session = make_session(index, transports, events);
  }
  bool needs_agents = false;
  for (HostRecord& host : job_.hosts) {
    const bool waits = may_have_agent(job_.options, *host.host) && !host.on_this_host;
    if (waits) host.doing = "reading agent.toml and its certificates";
    if (!waits) host.session->open();
    needs_agents = needs_agents || waits;
  }
  // Only hosts with agents wait for the files; the others are not kept waiting, because their
  // leases have begun.
  if (needs_agents)
    transports->prepare_agents([this] {
      for (HostRecord& host : job_.hosts) {
        if (!may_have_agent(job_.options, *host.host) || host.on_this_host) continue;
        host.doing = {};
        host.session->open();
      }
    });
}

// Looks up a name in --master-addr while the hosts are dialled. A name that the plan knows from the
// hosts needs no name server.
void BringUp::look_up_master(const std::shared_ptr<TransportContext>& transports) {
  const std::string& name = job_.options.master_addr;
  if (name.empty() || name == "localhost" || name == job_.hosts[0].host->name ||
      parse_address(name, 0).is_valid())
    return;
  looks_up_master_ = true;
  look_up_addresses(transports->loop(), transports->resolvers(), name,
                    [this](const Result<std::vector<std::string>>& addresses) {
                      looks_up_master_ = false;
                      planner_.master_found(addresses);
                      notify();
                    });
}

Container container_of(const Options& options) {
  Container container;
  container.set_image(options.container);
  container.set_runtime(options.container_runtime);
  for (const MountChoice& choice : options.container_mounts) {
    ContainerMount& mount = *container.add_mounts();
    mount.set_source(choice.source);
    mount.set_target(choice.target);
    mount.set_read_only(choice.read_only);
  }
  for (const std::string& word : options.container_args) container.add_arguments(word);
  return container;
}

Command BringUp::hello_for(std::size_t index) const {
  const Options& options = job_.options;
  const Environment& caller = job_.request.caller;
  const auto count = [](milliseconds time) { return static_cast<std::uint32_t>(time.count()); };
  Command command;
  Hello& hello = *command.mutable_hello();
  hello.set_working_directory(options.working_directory);
  hello.set_program(options.command.empty() ? "" : options.command.front());
  if (staging_.covers(index)) {
    hello.set_working_directory(options.dry_run ? "/" : staging_.directory(index));
    hello.set_program(staging_.program());
  }
  hello.set_program_form(program_form(options.program_kind));
  for (const std::string& candidate : interpreter_candidates(options, caller))
    hello.add_interpreters(candidate);
  if (!options.container.empty()) *hello.mutable_container() = container_of(options);
  if (const std::string* path = find_variable(caller, "PATH")) hello.set_search_path(*path);
  if (const std::optional<HostEnvironment> environment = staging_.environment(index)) {
    const std::string bin = environment->directory + "/bin";
    const std::string rest = path_without_environment(caller);
    hello.clear_interpreters();
    hello.add_interpreters(bin + "/python");
    hello.set_search_path(bin + ":" + (rest.empty() ? kDefaultSearchPath : rest));
  }
  // Any host may become the first one.
  hello.set_reserve_port(index == 0 || job_.hosts.may_lose_hosts());
  const PortWish wish = worker_port_wish(options);
  if (wish.each() + wish.more() > 0) *hello.mutable_worker_ports() = wish;
  hello.set_port_low(options.port_low);
  hello.set_port_high(options.port_high);
  hello.set_lease_ms(count(job_.hosts[index].session->lease()));
  hello.set_grace_ms(count(job_.grace(kGraceAfterFailure)));
  hello.set_interface(options.interface);
  hello.set_outlives_launcher(job_.outlives_launcher());
  add_device_request(options, caller, hello);
  if (!options.dry_run) add_notices(options, hello);
  hello.set_examine(options.doctor);
  hello.set_module(options.check_module);
  return command;
}

void BringUp::up(std::size_t index, const LinkUp& up) {
  job_.hosts[index].up = up;
  if (job_.takeover != 0) return;
  if (staging_.covers(index) && !job_.options.dry_run) return staging_.host_up(index);
  job_.hosts.send(index, hello_for(index));
}

void BringUp::task_output(std::size_t index, const TaskOutput& output) {
  if (output.task() == TASK_STAGE) staging_.take_output(index, output);
}

void BringUp::host_staged(std::size_t index) {
  job_.hosts[index].environment = staging_.environment(index);
  if (is_before_start(job_.phase.state())) job_.hosts.send(index, hello_for(index));
}

void BringUp::greeted(std::size_t index, const HelloOk& hello) {
  HostRecord& host = job_.hosts[index];
  if ((host.facts || host.failure) && !host.is_returning) return;
  const std::string& directory_error = hello.facts().job_directory_error();
  if (!directory_error.empty()) {
    // The supervisor runs and will be told to stop; for the user, the host could not be used.
    const std::string& directory = hello.facts().job_directory();
    // The job's own directory is removed with the job, so the message names the directory above.
    return failed(
        index, LinkDown{LinkFailure::kBootstrap, directory_error,
                        "free some space in " + directory.substr(0, directory.rfind('/')) + " on " +
                            host.name()});
  }
  host.facts = hello.facts();
  // The files are not there, so the host has found no program.
  if (job_.options.dry_run && staging_.covers(index)) {
    host.facts->clear_program_error();
    host.facts->set_program_path(staging_.program());
  }
  if (hello.facts().has_health()) {
    const RelatedTime sampled = host.session->relate(hello.facts().health().sampled_ns());
    const std::int64_t since_ns = monotonic_ns() - sampled.at_ns;
    host.clock = {hello.facts().health().wall_ms() * 1'000'000 - (wall_ms() * 1'000'000 - since_ns),
                  sampled.error_ns};
  }
  notify();
}

void BringUp::failed(std::size_t index, const LinkDown& down) {
  HostRecord& host = job_.hosts[index];
  const bool is_dispensable = !job_.has_reason() && job_.hosts.can_do_without(index);
  host.failure = down;
  host.lost = true;
  if (staging_.covers(index)) staging_.forget(index);
  log::debug(host.name() + ": " + down.message.line());
  if (job_.phase.state() != JobState::kConnecting) return job_.phase.check_end();
  if (is_dispensable)
    job_.hosts.exclude(index, {.step = step_of(down.failure),
                               .reason = down.message,
                               .fix = down.fix,
                               .may_return = true});
  else
    gather_until_ = steady_now() + kGatherFailures;
  notify();
}

// Returns true if a host that takes part has neither answered Hello nor failed.
bool BringUp::awaits_answer() const {
  return std::any_of(job_.hosts.begin(), job_.hosts.end(), [](const HostRecord& host) {
    return !host.excluded && !host.facts && !host.failure;
  });
}

// ---- Hosts that did not come up -----------------------------------------------------------------

bool BringUp::leave_out_late_hosts() {
  const bool is_connecting = job_.phase.state() == JobState::kConnecting;
  const auto is_late = [&](const HostRecord& host) {
    return !host.excluded && !(is_connecting ? host.facts.has_value() : host.is_ready());
  };
  // Without a late host, only the address of --master-addr is awaited.
  const bool has_late = std::any_of(job_.hosts.begin(), job_.hosts.end(), is_late);
  std::vector<Member> all = job_.hosts.members();
  for (std::size_t index = 0; index < all.size(); ++index)
    if (is_late(job_.hosts[index])) all[index] = Member::kExcluded;
  if (!has_late || !job_.hosts.may_lose_hosts() ||
      decide_members(all, job_.hosts.min_members(), true) != MemberDecision::kContinue) {
    fail_unreachable_hosts(" in time");
    return false;
  }
  for (std::size_t index = 0; index < all.size(); ++index) {
    const HostRecord& host = job_.hosts[index];
    if (!is_late(host)) continue;
    const RemoteText late = is_connecting ? "still at: " + progress_of(host).whole_text()
                                          : RemoteText("did not check whether it can reach");
    job_.hosts.exclude(index,
                       {.reason = late + (has_enough_hosts_ && is_connecting
                                              ? " when enough others were up (--pick healthiest)"
                                              : " within --start-timeout"),
                        .fix = failure_of(host).fix,
                        .may_return = true});
  }
  has_left_out_host_ = true;
  limit_at_ = steady_now() + job_.options.start_timeout;
  return true;
}

// Returns why a host is not up: its failure, or the step that it has not completed.
LinkDown BringUp::failure_of(const HostRecord& host) const {
  if (host.failure) return *host.failure;
  if (job_.phase.state() == JobState::kChecking)
    return LinkDown{LinkFailure::kBootstrap,
                    host.opens_store ? awaited_store(host) : awaited_check(host),
                    "allow more time: --start-timeout"};
  const bool is_stuck = !host.wait.what.empty();
  const RemoteText doing = is_stuck ? progress_of(host).text : host.doing.whole_text();
  const RemoteText cause =
      doing.empty() ? RemoteText("no response yet") : "no response yet, last step: " + doing;
  const bool has_advice = !is_stuck && !host.doing.fix.empty();
  return LinkDown{LinkFailure::kUnreachable, cause,
                  has_advice ? host.doing.fix : "allow more time: --start-timeout"};
}

std::string BringUp::awaited_store(const HostRecord& host) const {
  return "its store has not confirmed that it listens on " + job_.plan.master_address + " (" +
         host.name() + ")";
}

std::string BringUp::awaited_check(const HostRecord& host) const {
  return host.name() + " has not reported whether it can reach " + job_.plan.hosts.front().name +
         " at " + job_.plan.master_address;
}

Diagnostic BringUp::unresolved_name(const std::string& when) const {
  Diagnostic late;
  late.id = "IVY-H003";
  late.what = "the address of " + job_.options.master_addr + " was not found" + when;
  late.where = "--master-addr";
  late.cause = "the name service of this machine does not respond";
  late.fix = "use --master-addr with a numeric address, or allow more time: --start-timeout";
  late.exit_code = kExitHostsNotUp;
  return late;
}

void BringUp::fail_unreachable_hosts(const std::string& when) {
  const bool is_checking = job_.phase.state() == JobState::kChecking;
  std::vector<FailedHost> failed;
  for (const HostRecord& host : job_.hosts)
    if (host.failure || !(is_checking ? host.is_ready() : host.facts.has_value()))
      failed.push_back({host.name(), failure_of(host)});
  // Every host has answered, and only the name look-up is awaited.
  if (failed.empty()) return job_.reject({unresolved_name(when)}, LauncherReason::kHostsNotUp);
  const std::string needed =
      job_.hosts.may_lose_hosts()
          ? "; " + job_.hosts.range_text() + " needs " + std::to_string(job_.hosts.min_members())
          : "";
  job_.reject(host_failures(failed, job_.hosts.size(), when + needed), LauncherReason::kHostsNotUp);
}

// ---- Checks of addresses ------------------------------------------------------------------------

void BringUp::order_checks() {
  const JobPlan& plan = job_.plan;
  const bool needed = std::any_of(
      plan.hosts.begin(), plan.hosts.end(),
      [&](const PlannedHost& planned) { return !job_.hosts[planned.host_index].on_this_host; });
  for (HostRecord& host : job_.hosts)
    host.checked = !needed || (!host.is_planned() && !host.is_spare);
  if (!needed) return;
  for (std::size_t index = 0; index < job_.hosts.size(); ++index)
    if (!job_.hosts[index].checked) order_check(index);
}

void BringUp::order_check(std::size_t index) {
  Command command;
  CheckAddress& check = *command.mutable_check_address();
  check.set_address(job_.plan.master_address);
  check.set_port(job_.plan.master_port);
  check.set_timeout_ms(kCheckTimeout.count());
  job_.hosts.send(index, command);
}

bool BringUp::address_checked(std::size_t index, const AddressChecked& checked) {
  HostRecord& host = job_.hosts[index];
  const JobState state = job_.phase.state();
  const bool is_asked = state == JobState::kChecking || state == JobState::kRestarting ||
                        (host.is_spare && !is_before_start(state));
  // The answer is about an earlier first host, which was lost.
  const bool is_old =
      checked.address() != job_.plan.master_address || checked.port() != job_.plan.master_port;
  if (host.checked || !is_asked || is_old) return false;
  host.checked = true;
  host.interface = checked.interface();
  if (!checked.reachable()) address_unreachable(index, checked.error());
  return checked.reachable();
}

void BringUp::address_unreachable(std::size_t index, const RemoteText& error) {
  const std::string& name = job_.hosts[index].name();
  const PlannedHost& first = job_.plan.hosts.front();
  const std::string target = first.name + " at " + job_.plan.master_address;
  // A spare of a job that runs, or that is being restarted, is missed by no worker.
  const bool is_idle = job_.hosts[index].is_spare && !is_before_start(job_.phase.state());
  if (index != first.host_index && !job_.has_reason() && job_.hosts.can_do_without(index)) {
    job_.hosts.exclude(index, {.step = "reaching " + target,
                               .reason = error,
                               .fix = "open the firewall between the hosts, or choose open ports: "
                                      "--port-range A-B",
                               .is_about_ports = true,
                               .may_return = true});
    if (is_idle)
      return job_.print(name + " cannot reach " + target + " and is left out: " + error.line());
    return job_.phase.apply_later(JobEvent::kMemberLost);
  }
  Diagnostic diagnostic;
  diagnostic.id = "IVY-H010";
  diagnostic.what =
      "host " + name + " cannot reach " + target + " port " + std::to_string(job_.plan.master_port);
  diagnostic.where = name + ", checking the workers' rendezvous address";
  diagnostic.cause = error.lines();
  diagnostic.fix =
      "open the firewall between them, or choose ports with --port-range A-B,\n"
      "or choose another network with --iface NAME or --master-addr ADDRESS";
  diagnostic.exit_code = kExitRejected;
  job_.reject({std::move(diagnostic)}, LauncherReason::kRejected);
}

// ---- The first Start ----------------------------------------------------------------------------

void BringUp::print_dry_run() {
  for (const std::string& line : {staging_.dry_run_line(), gate_.dry_run_line()})
    if (!line.empty()) job_.print(line);
  const Result<std::string> text = planner_.dry_run();
  if (!text.ok()) return job_.reject_input(text.error());
  if (std::fputs(escape_control(*text).c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    return job_.reject({Diagnostic{.id = "IVY-O003",
                                   .what = std::string("standard output: ") + std::strerror(errno),
                                   .exit_code = kExitInternal}},
                       LauncherReason::kRejected);
  job_.phase.apply_later(JobEvent::kRejected);
}

void BringUp::send_plans(std::vector<HostPlan> plans) {
  if (job_.request.joined != nullptr)
    job_.request.joined->begin_attempt(job_.generation, job_.max_attempts(), job_.plan);
  ranks_.begin();
  job_.started_at_ns = job_.job_started_at_ns = monotonic_ns();
  job_.reports.started(job_.generation, job_.max_attempts(), job_.started_at_ns);
  for (std::size_t index = 0; index < plans.size(); ++index) {
    const std::size_t host = job_.plan.hosts[index].host_index;
    job_.hosts[host].was_started = true;
    job_.hosts.send(host, start_command(std::move(plans[index])));
  }
  Command not_needed;
  not_needed.mutable_stop();
  for (std::size_t index = 0; index < job_.hosts.size(); ++index)
    if (!job_.hosts[index].is_planned() && !job_.hosts[index].excluded &&
        !job_.hosts[index].is_spare)
      job_.hosts.send(index, not_needed);
  stdin_feed_.begin();
}

Command BringUp::start_command(HostPlan plan) const {
  Command command;
  Start& start = *command.mutable_start();
  *start.mutable_plan() = std::move(plan);
  start.set_is_last(job_.is_last_attempt());
  start.set_max_restarts(static_cast<std::uint32_t>(job_.max_restarts));
  // With --grow, hosts may come and go any number of times.
  start.set_last_generation(
      job_.hosts.may_grow() ? UINT32_MAX : static_cast<std::uint32_t>(job_.max_attempts() - 1));
  return command;
}

}  // namespace ivy
