// Handles the events of hosts: the second half of class Job.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdio>

#include "launcher/job/job.h"
#include "launcher/report/folded_ranks.h"
#include "launcher/screen/control_filter.h"
#include "launcher/slurm/allocation_watch.h"
#include "proto/contract/log.h"
#include "proto/os/clock.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// A host has failed to come up: the others get this long, so that one message lists all that
// failed.
constexpr milliseconds kGatherFailures{3'000};
// Events of all hosts that wait until the last host has answered a launcher that takes the job
// over.
constexpr std::size_t kMaxDeferredBytes = 256u << 20;

std::string step_of(LinkFailure failure) {
  switch (failure) {
    case LinkFailure::kUnresolved:
      return "name lookup";
    case LinkFailure::kUnreachable:
      return "connecting";
    case LinkFailure::kRefused:
      return "connecting";
    case LinkFailure::kHostKey:
      return "checking the host key";
    case LinkFailure::kAuthentication:
      return "logging in";
    case LinkFailure::kBootstrap:
      return "starting the supervisor";
    case LinkFailure::kNoSuchJob:
      return "finding the job again";
    case LinkFailure::kBroken:
      return "starting the supervisor";
  }
  return "";
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// Numeric addresses differ from host to host where the trouble is the same: "10.0.0.7" and
// "(fd77::7)" are left out.
std::string without_addresses(const std::string& text) {
  std::string kept;
  std::string word;
  const auto flush = [&](const std::string& separator) {
    const auto dots = std::count(word.begin(), word.end(), '.');
    const auto colons = std::count(word.begin(), word.end(), ':');
    const bool is_address = word.find_first_not_of("0123456789abcdef.:()[]") == std::string::npos &&
                            (dots == 3 || colons >= 2);
    kept += is_address ? "its address" : word;
    kept += separator;
    word.clear();
  };
  for (const char c : text) {
    if (c == ' ' || c == '\n' || c == ',') {
      flush(std::string(1, c));
    } else {
      word += c;
    }
  }
  flush("");
  return kept;
}

}  // namespace

HostSession::Handlers Job::session_handlers(std::size_t index) {
  HostSession::Handlers handlers;
  handlers.up = [this, index](const LinkUp& up) { host_up(index, up); };
  handlers.event = [this, index](const Event& event) { on_event(index, event); };
  handlers.output = [this, index](const link::OutputChunk& chunk) { on_output(index, chunk); };
  handlers.failed = [this, index](const LinkDown& down) { host_failed(index, down); };
  handlers.lost = [this, index](HostLoss loss, const RemoteText& message) {
    host_lost(index, loss, message);
  };
  handlers.progress = [this, index](const RemoteText& text) {
    hosts_[index].doing = text;
    log::debug(hosts_[index].name + ": " + text.line());
  };
  handlers.input_room = [this] {
    if (stdin_feed_) stdin_feed_->resume();
  };
  return handlers;
}

void Job::host_up(std::size_t index, const LinkUp& up) {
  hosts_[index].up = up;
  if (takeover_ != 0) return;
  hosts_[index].session->send(hello_for(index));
}

void Job::host_failed(std::size_t index, const LinkDown& down) {
  if (hosts_to_take_over_ != 0) return resume_failed(index, down);
  hosts_[index].failure = down;
  hosts_[index].lost = true;
  log::debug(hosts_[index].name + ": " + down.message.line());
  if (state_ != JobState::kConnecting) return check_reported();
  if (host_is_dispensable(index)) {
    let_go(index, step_of(down.failure), down.message);
    return check_greeted();
  }
  const bool all_known = std::all_of(hosts_.begin(), hosts_.end(), [](const HostRecord& host) {
    return host.facts.has_value() || host.failure.has_value();
  });
  if (all_known) return hosts_did_not_come_up("");
  gather_timer_.expires_after(kGatherFailures);
  gather_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && state_ == JobState::kConnecting) hosts_did_not_come_up("");
  });
}

void Job::hosts_did_not_come_up(const std::string& what) {
  struct Group {
    LinkDown down;        // The failure of the group's first host.
    std::string pattern;  // Its message without its name: what the others of the group say as well.
    std::vector<std::string> names;
  };
  std::vector<Group> groups;
  for (const HostRecord& host : hosts_) {
    const bool is_here = state_ == JobState::kChecking ? host.checked : host.facts.has_value();
    if (!host.failure && is_here) continue;
    // Its connection works, but is slow.
    const bool is_sending = host.doing.find("sending ivy-node") != std::string::npos;
    const LinkDown down = host.failure.value_or(LinkDown{
        LinkFailure::kUnreachable, "no answer yet, still at: " + host.doing,
        is_sending ? "allow more time: --start-timeout 10m (each host gets ivy-node once)"
        : is_carried_by_slurm(options_, host.host)
            ? "it must reach this machine: --iface NAME and --port-range A-B choose where it is "
              "awaited\nor allow more: --start-timeout"
            : "try: ssh -o BatchMode=yes " + host.name + " true, or allow more: --start-timeout"});
    const std::string pattern =
        without_addresses(replace_all(down.message.lines(), host.name, "%h"));
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.pattern == pattern && group.down.failure == down.failure;
    });
    if (same != groups.end()) {
      same->names.push_back(host.name);
    } else {
      groups.push_back(Group{down, pattern, {host.name}});
    }
  }
  std::vector<Diagnostic> diagnostics;
  for (const Group& group : groups) {
    const std::string names = fold_host_names(group.names);
    Diagnostic diagnostic;
    diagnostic.id = "IVY-H003";
    diagnostic.what = std::to_string(group.names.size()) + " of " + std::to_string(hosts_.size()) +
                      (hosts_.size() == 1 ? " host" : " hosts") + " did not come up" +
                      (what.empty() ? "" : " " + what);
    if (may_shrink())
      diagnostic.what += "; " + range_text() + " needs " + std::to_string(least_members());
    diagnostic.where = names + ", " + step_of(group.down.failure);
    diagnostic.cause = group.down.message.lines();
    if (group.names.size() > 1) diagnostic.cause = replace_all(group.pattern, "%h", names);
    diagnostic.fix = group.down.fix;
    diagnostic.exit_code = kExitHostsNotUp;
    diagnostics.push_back(std::move(diagnostic));
  }
  if (!diagnostics.empty()) refuse(std::move(diagnostics), LauncherReason::kHostsNotUp);
}

void Job::host_lost(std::size_t index, HostLoss loss, const RemoteText& message) {
  HostRecord& host = hosts_[index];
  host.lost = true;
  if (host.reported) {
    // It has already reported, so this attempt is complete; only later ones must do without it.
    if (may_shrink()) host.gone = GoneMember{host.name, "", message};
    return check_reported();
  }
  Diagnostic diagnostic;
  diagnostic.id = loss == HostLoss::kHost ? "IVY-R006" : "IVY-R007";
  diagnostic.what = loss == HostLoss::kHost ? "host " + host.name + " was lost"
                                            : "the supervisor on host " + host.name + " was lost";
  diagnostic.where = host.name;
  diagnostic.cause = message.lines();
  std::vector<std::uint32_t> ranks;
  for (const WorkerRecord& worker : workers_)
    if (worker.host == index && !worker.ended)
      ranks.push_back(static_cast<std::uint32_t>(worker.end.rank));
  // They may have ended well before the connection was lost.
  if (loss == HostLoss::kHost && !ranks.empty())
    diagnostic.cause += "\nwhether " + std::string(ranks.size() == 1 ? "its rank " : "its ranks ") +
                        folded_ranks(ranks) + " ended well, or at all, is not known";
  diagnostic.fix = loss == HostLoss::kHost
                       ? host.name +
                             "'s workers stop by themselves when the lease expires; check the "
                             "host and its network"
                       : "its workers were ended by its warden; the kernel log of the host may say "
                         "who ended it";
  diagnostic.exit_code = kExitHostLost;
  LauncherEnd end;
  end.reason =
      loss == HostLoss::kHost ? LauncherReason::kHostLost : LauncherReason::kSupervisorLost;
  end.diagnostic = diagnostic;
  end.at_ns = host.session->last_heard_ns();
  if (lose_member(index, end, diagnostic.what + ": " + message.line())) return;
  const bool first = launcher_end_.reason == LauncherReason::kNone;
  if (may_shrink() && first) diagnostic.cause += "\n" + members_text() + ": less than are needed";
  if (first && state_ != JobState::kDone)
    output_->say("ivyrun: " + diagnostic.what + ": " + message.line() + "\n");
  // Another reason is the cause; what is not known about this host has to be said all the same.
  if (!first)
    unclean_.push_back(host.name + ": " + message.line() +
                       "; nobody knows whether its workers have ended");
  end_by_launcher(
      loss == HostLoss::kHost ? LauncherReason::kHostLost : LauncherReason::kSupervisorLost, 0,
      std::move(diagnostic));
  // It was lost when it fell silent, not when the lease was over: what peers did in between
  // follows.
  if (first && loss == HostLoss::kHost) launcher_end_.at_ns = host.session->last_heard_ns();
  news_.ranks_lost(
      index, ranks,
      loss == HostLoss::kHost ? comm_status::RankState::kHostLost : comm_status::RankState::kDied);
  apply(JobEvent::kHostLost);
  check_reported();
}

void Job::on_hello_ok(std::size_t index, const HelloOk& hello) {
  HostRecord& host = hosts_[index];
  if (host.facts || host.failure) return;
  const std::string& trouble = hello.facts().job_directory_error();
  if (!trouble.empty()) {
    // The supervisor lives and is told to end; to the user this host did not come up.
    const std::string& directory = hello.facts().job_directory();
    // The job's own directory goes with the job: what is full is the place where all of them are.
    return host_failed(index, LinkDown{LinkFailure::kBootstrap, trouble,
                                       "make room in " + directory.substr(0, directory.rfind('/')) +
                                           " on " + host.name});
  }
  host.facts = hello.facts();
  check_greeted();
}

void Job::check_greeted() {
  if (state_ != JobState::kConnecting) return;
  std::size_t failed = 0;
  for (const HostRecord& host : hosts_) {
    if (!host.facts && !host.failure && !host.gone) return;
    if (host.failure && !host.gone) ++failed;
  }
  if (failed > 0) return hosts_did_not_come_up("");
  if (looks_up_master_) return;
  gather_timer_.cancel();
  apply(JobEvent::kAllGreeted);
}

// --master-addr may be a name: it is looked up while the hosts are dialled. Names that the plan
// knows from the hosts themselves need no name server.
void Job::look_up_master() {
  const std::string& name = options_.master_addr;
  if (name.empty() || name == "localhost" || name == hosts_.front().name ||
      parse_address(name, 0).is_valid())
    return;
  looks_up_master_ = true;
  look_up_name(carriers_, name, [this](const Result<std::vector<std::string>>& addresses) {
    looks_up_master_ = false;
    if (addresses.ok()) {
      master_addresses_ = *addresses;
    } else {
      master_addr_error_ = addresses.error().message;
    }
    check_greeted();
  });
}

void Job::on_address_checked(std::size_t index, const AddressChecked& checked) {
  HostRecord& host = hosts_[index];
  const bool is_asked = state_ == JobState::kChecking || state_ == JobState::kRestarting;
  // An answer about an earlier first host, which is gone.
  const bool is_old =
      checked.address() != plan_.master_address || checked.port() != plan_.master_port;
  if (host.checked || !is_asked || is_old) return;
  host.checked = true;
  host.interface = checked.interface();
  if (!checked.reachable()) {
    if (cannot_reach(index, checked.error())) return;
    Diagnostic diagnostic;
    diagnostic.id = "IVY-H010";
    diagnostic.what = "host " + host.name + " cannot reach " + plan_.hosts.front().name + " at " +
                      plan_.master_address + " port " + std::to_string(plan_.master_port);
    diagnostic.where = host.name + ", checking the address that workers will be given";
    diagnostic.cause = checked.error();
    diagnostic.fix =
        "open the firewall between them, or name ports with --port-range A-B,\n"
        "or choose another network with --iface NAME or --master-addr ADDRESS";
    diagnostic.exit_code = kExitRefused;
    return refuse({std::move(diagnostic)}, LauncherReason::kRefused);
  }
  check_checked();
}

void Job::check_checked() {
  if (state_ == JobState::kRestarting) return check_restart();
  if (state_ != JobState::kChecking) return;
  const bool all = std::all_of(hosts_.begin(), hosts_.end(), [](const HostRecord& record) {
    return record.checked && !record.opens_store;
  });
  if (all) apply(JobEvent::kAllChecked);
}

void Job::on_store_opened(std::size_t index, const StoreOpened& opened) {
  HostRecord& host = hosts_[index];
  host.opens_store = false;
  if (opened.error().empty()) return check_checked();
  Diagnostic diagnostic;
  diagnostic.id = "IVY-H011";
  diagnostic.what = "the job's store cannot listen";
  diagnostic.where = host.name + ", " + plan_.master_address;
  diagnostic.cause = opened.error();
  const auto says = [&](int error) {
    return opened.error().find(std::strerror(error)) != std::string::npos;
  };
  diagnostic.fix = says(EADDRNOTAVAIL)
                       ? "--master-addr with an address that " + host.name + " has, or leave it out"
                   : says(EADDRINUSE)
                       ? "--master-port with a port that is free there, or leave it out"
                       : "--no-store: rank 0's framework then listens on MASTER_PORT";
  if (opened.error().starts_with("the store's log")) {
    diagnostic.what = "the job's store cannot keep a log";
    diagnostic.fix = "name a directory that can be written on the first host: --wal DIR";
  }
  diagnostic.exit_code = kExitRefused;
  refuse({std::move(diagnostic)}, LauncherReason::kRefused);
}

void Job::on_store_lost(std::size_t index, const StoreLost& lost) {
  Diagnostic diagnostic;
  diagnostic.id = "IVY-R008";
  diagnostic.what = "the job's store on host " + hosts_[index].name + " was lost";
  diagnostic.where = hosts_[index].name;
  diagnostic.cause = lost.why();
  diagnostic.fix =
      "the kernel log of the host may say who ended it;\n"
      "--no-store runs without one: rank 0's framework then serves on MASTER_PORT";
  diagnostic.exit_code = kExitHostLost;
  if (launcher_end_.reason == LauncherReason::kNone && state_ != JobState::kDone)
    output_->say("ivyrun: " + diagnostic.what + ": " + RemoteText(lost.why()).line() + "\n");
  end_by_launcher(LauncherReason::kStoreLost, 0, std::move(diagnostic));
  apply(JobEvent::kHostLost);
}

void Job::on_event(std::size_t index, const Event& event) {
  if (hosts_to_take_over_ != 0 && !event.has_taken_over()) {
    // More than any job has to say: this host cannot be taken over, and the job is left as it is.
    deferred_bytes_ += event.ByteSizeLong();
    if (deferred_bytes_ > kMaxDeferredBytes)
      return give_up_resuming("host " + hosts_[index].name + " has more to say than fits (" +
                              std::to_string(kMaxDeferredBytes >> 20) + " MiB)");
    deferred_events_.emplace_back(index, event);
    if (hosts_[index].events_to_take_over > 0 && --hosts_[index].events_to_take_over == 0)
      host_answered();
    return;
  }
  switch (event.kind_case()) {
    case Event::kTakenOver:
      return on_taken_over(index, event.taken_over());
    case Event::kHelloOk:
      return on_hello_ok(index, event.hello_ok());
    case Event::kAddressChecked:
      return on_address_checked(index, event.address_checked());
    case Event::kStoreOpened:
      return on_store_opened(index, event.store_opened());
    case Event::kStoreLost:
      return on_store_lost(index, event.store_lost());
    case Event::kGenerationBegun:
      return on_generation_begun(event.generation_begun());
    case Event::kStarted: {
      const Started& started = event.started();
      WorkerRecord* const worker = worker_of(index, started.generation(), started.rank());
      if (worker != nullptr) worker_started(*worker, started.pid());
      return;
    }
    case Event::kStartFailed:
      return on_start_failed(index, event.start_failed());
    case Event::kExited:
      return on_exited(index, event.exited());
    case Event::kReport:
      return on_report(index, event.report());
    case Event::kNote:
      return on_note(index, event.note());
    case Event::kNews:
      return news_.on_news(index, event.news());
    case Event::kOperations:
      return news_.on_operations(index, event.operations());
    case Event::kStalled:
      if (worker_of(index, event.stalled().generation(), event.stalled().rank()) != nullptr)
        say_stall("an operation of rank " + std::to_string(event.stalled().rank()) +
                      " takes longer than --stall-timeout",
                  "");
      return;
    case Event::kEvidencePart:
      return evidence_.on_part(index, event.evidence_part());
    case Event::kSignalled:
      if (request_.allocation_end != nullptr)
        request_.allocation_end->received(event.signalled().signal(), SignalSource::kStep, true);
      return;
    case Event::KIND_NOT_SET:
      return;
  }
}

Job::WorkerRecord* Job::worker_of(std::size_t index, std::uint32_t generation, std::uint32_t rank) {
  if (generation != generation_) return nullptr;
  if (rank < workers_.size() && workers_[rank].host == index) return &workers_[rank];
  log::debug(hosts_[index].name + " speaks of rank " + std::to_string(rank) + ", which it has not");
  return nullptr;
}

void Job::on_start_failed(std::size_t index, const StartFailed& failed) {
  WorkerRecord* const found = worker_of(index, failed.generation(), failed.rank());
  if (found == nullptr || found->ended) return;
  WorkerRecord& worker = *found;
  const RelatedTime time = hosts_[index].session->relate(failed.at_ns());
  worker.end.at_ns = time.at_ns;
  worker.end.clock_error_ns = time.error_ns;
  worker.end.exec_failure =
      errno_error(Code::kNotFound, RemoteText(failed.step()).line(), failed.error()).message +
      (failed.path().empty() ? "" : ": " + RemoteText(failed.path()).line());
  worker.end.status.code = failed.error() == ENOENT ? kExitNotFound : kExitNotExecutable;
  worker.open_streams = 0;
  news_.on_start_failed(index, failed.rank());
  worker_ended(worker);
}

void Job::on_exited(std::size_t index, const Exited& exited) {
  WorkerRecord* const found = worker_of(index, exited.generation(), exited.rank());
  if (found == nullptr || found->ended) return;
  WorkerRecord& worker = *found;
  const RelatedTime time = hosts_[index].session->relate(exited.at_ns());
  worker.end.pid = exited.pid();
  worker.end.status = ExitStatus{.code = exited.code(), .signal = exited.signal()};
  worker.end.core_dumped = exited.core_dumped();
  worker.end.out_of_memory = exited.out_of_memory();
  worker.end.after_stop = exited.after_stop();
  worker.end.at_ns = time.at_ns;
  worker.end.clock_error_ns = time.error_ns;
  worker.end.error_file = exited.error_file();
  news_.on_exited(index, exited);
  worker_ended(worker);
}

void Job::worker_ended(WorkerRecord& worker) {
  worker.ended = true;
  --workers_running_;
  log::debug("rank " + std::to_string(worker.end.rank) + " ended: " + describe(worker.end.status));
  const bool is_no_failure = ended_by_notice(worker) || worker.end.after_stop;
  if (!worker.end.status.success() && !is_no_failure) apply(JobEvent::kWorkerFailed);
  if (workers_running_ == 0) apply(JobEvent::kAllEnded);
  check_reported();
}

void Job::on_output(std::size_t index, const link::OutputChunk& chunk) {
  WorkerRecord* const worker = worker_of(index, chunk.generation, chunk.rank);
  if (worker == nullptr) return hosts_[index].session->grant(chunk.bytes.size());
  evidence_.output_came();
  if (output_may_be_cut_) {
    hosts_[index].session->grant(chunk.bytes.size());
  } else {
    output_->worker_bytes(static_cast<int>(chunk.rank), chunk.stream, chunk.bytes, chunk.end);
  }
  if (!chunk.end) return;
  --worker->open_streams;
  check_reported();
}

void Job::on_generation_begun(const GenerationBegun& begun) {
  if (begun.generation() != generation_ + 1) return;
  store_begins_ = false;
  check_restart();
}

void Job::on_report(std::size_t index, const Report& report) {
  HostRecord& host = hosts_[index];
  if (host.plan_index >= 0 && report.generation() != generation_) return;
  host.reported = true;
  // A worker that was never started has no streams to wait for.
  for (WorkerRecord& worker : workers_)
    if (worker.host == index && worker.end.pid == 0) worker.open_streams = 0;
  for (const Leftover& leftover : report.leftovers())
    unclean_.push_back(host.name + ": pid " + std::to_string(leftover.pid()) + " (" +
                       RemoteText(leftover.name()).line() +
                       ") cannot be ended: " + RemoteText(leftover.state()).line() + " in " +
                       RemoteText(leftover.waiting_in()).line());
  if (!report.reason().empty()) {
    Diagnostic diagnostic;
    diagnostic.id = "IVY-R007";
    diagnostic.what = "the supervisor on host " + host.name + " ended the job";
    diagnostic.where = host.name;
    diagnostic.cause = report.reason();
    diagnostic.exit_code = kExitHostLost;
    LauncherEnd end{LauncherReason::kSupervisorLost, 0, diagnostic, host.session->last_heard_ns()};
    if (lose_member(index, end,
                    "host " + host.name + " has left: " + RemoteText(report.reason()).line()))
      return;
    end_by_launcher(LauncherReason::kSupervisorLost, 0, std::move(diagnostic));
    apply(JobEvent::kHostLost);
  }
  check_reported();
}

bool Job::all_reported() const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [](const HostRecord& host) { return host.reported || host.lost; });
}

// No process is left that could be stopped.
bool Job::only_output_is_awaited() const {
  const bool is_ending = state_ == JobState::kStopping || state_ == JobState::kConfirming ||
                         state_ == JobState::kKilling;
  return is_ending && all_reported();
}

bool Job::everything_is_here() const {
  if (!all_reported()) return false;
  if (output_may_be_cut_) return true;
  return std::all_of(workers_.begin(), workers_.end(), [this](const WorkerRecord& worker) {
    return worker.open_streams <= 0 || hosts_[worker.host].lost;
  });
}

void Job::check_reported() {
  if (state_ == JobState::kDone || !all_reported()) return;
  if (!everything_is_here()) return await_reader();
  const bool is_over = state_ == JobState::kStopping || state_ == JobState::kConfirming;
  apply(is_over && decide_restart() ? JobEvent::kGroupGone : JobEvent::kAllReported);
}

bool Job::decide_restart() {
  if (restarts_.max_restarts() == 0 && lost_members_.empty()) return false;
  const std::vector<WorkerEnd> ends = worker_ends();
  const bool has_own_reason = launcher_end_.reason != LauncherReason::kNone;
  const LauncherEnd& reason =
      has_own_reason || lost_members_.empty() ? launcher_end_ : lost_members_.front().end;
  const Outcome outcome = judge(ends, reason);
  AttemptFacts facts;
  facts.restarts = counted_restarts_;
  facts.worker_failed = outcome.first.has_value();
  facts.host_lost = !outcome.first && !lost_members_.empty();
  const std::int64_t ended_at_ns = outcome.first ? ends[*outcome.first].at_ns : reason.at_ns;
  if (outcome.first || facts.host_lost)
    facts.lived = std::chrono::duration_cast<milliseconds>(
        std::chrono::nanoseconds(ended_at_ns - started_at_ns_));
  facts.could_not_start = std::any_of(
      ends.begin(), ends.end(), [](const WorkerEnd& end) { return !end.exec_failure.empty(); });
  facts.has_leftovers = !unclean_.empty();
  facts.job_is_ending = has_own_reason || notice_signal_ != 0;
  const RestartDecision decision = restarts_.decide(facts);
  if (!decision.why_not.empty()) output_->say("ivyrun: no restart: " + decision.why_not + "\n");
  if (!decision.restarts) {
    if (facts.host_lost && !has_own_reason) launcher_end_ = lost_members_.front().end;
    if (facts.host_lost) lost_members_.erase(lost_members_.begin());
    return false;
  }
  const std::string missing = missing_for_restart();
  if (!missing.empty()) {
    output_->say("ivyrun: no restart: " + missing + "\n");
    return false;
  }
  if (!facts.host_lost) ++counted_restarts_;
  restart_pause_ = pause_for_lost(decision.pause);
  const int number = static_cast<int>(generation_) + 1;
  attempts_.push_back({number, outcome.first ? attempt_cause(ends[*outcome.first], started_at_ns_)
                                             : lost_text(lost_members_)});
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", static_cast<double>(restart_pause_.count()) / 1e3);
  output_->say("ivyrun: attempt " + std::to_string(number) + " of " +
               std::to_string(max_attempts()) + " failed: " + attempts_.back().cause +
               "; attempt " + std::to_string(number + 1) + " starts in " + seconds + " s\n");
  return true;
}

}  // namespace ivy
