// The requests of ivyctl to a job, and how the job goes into the background: the third part of
// class Job.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <set>

#include "launcher/hang/rank_names.h"
#include "launcher/job/job.h"
#include "launcher/job/job_end.h"
#include "launcher/job/job_record.h"
#include "launcher/screen/log_files.h"
#include "proto/contract/log.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// A job that ends sooner needs no socket, and a start is not slowed down by one.
constexpr milliseconds kSocketDelay{150};
// A job whose hosts do not come up must be found too.
constexpr std::int64_t kSocketLatestNs = 1'000'000'000;
// Bytes of a command line that are shown to users.
constexpr std::size_t kCommandBytes = 4096;

std::string first_line_of(const std::string& text) {
  constexpr std::string_view kName = "ivyrun: ";
  const std::string line = text.substr(0, text.find('\n'));
  return line.starts_with(kName) ? line.substr(kName.size()) : line;
}

}  // namespace

std::unique_ptr<Output> Job::make_output() {
  Output::Handlers handlers;
  handlers.consumed = [this](int host_index, std::uint64_t bytes) {
    const auto host = static_cast<std::size_t>(host_index);
    if (hosts_[host].session) hosts_[host].session->grant(bytes);
  };
  const bool is_detached = request_.detachment != nullptr;
  if (!is_detached) {
    handlers.closed = [this] {
      end_by_launcher(
          LauncherReason::kOutputClosed, 0,
          Diagnostic{.severity = Severity::kNote,
                     .id = "IVY-O001",
                     .what = "stdout was closed by the reader (for example `| head`); job stopped",
                     .exit_code = kExitOutputClosed});
      apply(JobEvent::kTimeUp);
    };
  }
  auto output = std::make_unique<Output>(
      loop_, options_, job_id_, is_detached ? OutputTarget::kBackground : OutputTarget::kConsole,
      std::move(handlers));
  if (is_detached && request_.record) output->go_on_with_files();
  return output;
}

void Job::schedule_job_socket() {
  using std::chrono::system_clock;
  if (opened_unix_ms_ == 0)
    opened_unix_ms_ =
        std::chrono::duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
  if (options_.dry_run) return;
  socket_timer_.expires_after(kSocketDelay);
  socket_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || state_ == JobState::kDone) return;
    const bool is_starting = state_ == JobState::kConnecting || state_ == JobState::kChecking;
    if (is_starting && monotonic_ns() - opened_at_ns_ < kSocketLatestNs)
      return schedule_job_socket();
    open_job_socket();
  });
}

void Job::open_job_socket() {
  if (job_socket_ || concluded_) return;
  const Result<void> opened = listen_for_ivyctl();
  // The job runs as well without it.
  if (!opened.ok())
    output_->say("ivyrun: note: ivyctl will not find this job: " + opened.error().message + "\n");
}

Result<void> Job::listen_for_ivyctl() {
  JobSocket::Handlers handlers;
  handlers.describe = [this] { return description(); };
  handlers.signal = [this](int signal) { return signal_by_request(signal); };
  handlers.stop = [this](const ctl::StopJob& stop) { return stop_by_request(stop); };
  handlers.describe_store = [this] { return store_description(); };
  handlers.describe_operations = [this](std::function<void(const std::string&)> done) {
    news_.ask_operations(std::move(done));
  };
  handlers.describe_stacks = [this](const ctl::DescribeStacks& request,
                                    std::function<void(const std::string&)> done) {
    evidence_.describe(request, std::move(done));
  };
  Result<std::unique_ptr<JobSocket>> opened = JobSocket::open(loop_, job_id_, std::move(handlers));
  if (!opened.ok()) return opened.error();
  job_socket_ = std::move(opened).value();
  Output::Listener listener;
  listener.bytes = [this](int rank, int stream, std::string_view bytes, bool end) {
    job_socket_->output(rank, stream, bytes, end);
  };
  listener.message = [this](std::string_view text) { job_socket_->message(text); };
  output_->listen(std::move(listener));
  return {};
}

ctl::JobDescription Job::description() const {
  ctl::JobDescription job;
  job.set_job_id(job_id_);
  job.set_pid(getpid());
  job.set_state(name(state_));
  describe_hosts(plan_, job);
  if (plan_.hosts.empty())
    for (const HostRecord& host : hosts_) job.add_hosts()->set_name(host.name);
  job.set_world_size(static_cast<std::uint32_t>(plan_.world_size));
  job.set_running(static_cast<std::uint32_t>(workers_running_));
  job.set_ended(static_cast<std::uint32_t>(workers_.size() - workers_running_));
  job.set_since_unix_ms(opened_unix_ms_);
  std::size_t room = kCommandBytes;
  for (const std::string& word : options_.command) {
    if (word.size() > room) break;
    room -= word.size();
    job.add_command(word);
  }
  job.set_working_directory(options_.working_directory);
  if (!options_.log_dir.empty() && options_.log_to != LogPlace::kNode && started_at_ns_ != 0) {
    const std::string folder = log_folder(options_.log_dir, job_id_, generation_);
    job.set_log_directory(folder.starts_with('/') ? folder : request_.started_in + "/" + folder);
  }
  job.set_generation(generation_);
  job.set_max_attempts(static_cast<std::uint32_t>(max_attempts()));
  job.set_detached(request_.detachment != nullptr);
  if (outlives_launcher()) job.set_lease_ms(static_cast<std::uint32_t>(lease().count()));
  return job;
}

// The addresses of a host as the store on another host sees its clients.
std::set<std::string> Job::addresses_of(const HostRecord& host) {
  std::set<std::string> addresses;
  if (host.facts)
    for (const Address& address : host.facts->addresses())
      if (!address.loopback()) addresses.insert(address.address());
  if (host.up && !host.up->peer_address.empty()) addresses.insert(host.up->peer_address);
  return addresses;
}

Result<ctl::StoreDescription> Job::store_description() const {
  if (options_.no_store || (plan_.store_port == 0 && !plan_.hosts.empty()))
    return Error{Code::kFailedPrecondition, "this job has no store of ivyrun's",
                 "start it without --no-store: only the store knows who waits for whom"};
  if (workers_.empty())
    return Error{Code::kFailedPrecondition,
                 std::string("no workers run now; the job is ") + name(state_)};
  ctl::StoreDescription store;
  store.set_job_id(job_id_);
  const bool is_ipv6 = plan_.master_address.find(':') != std::string::npos;
  store.set_address((is_ipv6 ? "[" + plan_.master_address + "]" : plan_.master_address) + ":" +
                    std::to_string(plan_.store_port));
  store.set_token(token_);
  store.set_generation(generation_);
  store.set_no_python_hook(options_.no_python_hook);
  const std::set<std::string> of_store = addresses_of(hosts_[plan_.hosts.front().host_index]);
  for (const PlannedHost& planned : plan_.hosts) {
    ctl::StorePeer& peer = *store.add_hosts();
    peer.set_name(planned.name);
    const std::set<std::string> addresses = addresses_of(hosts_[planned.host_index]);
    for (const std::string& address : addresses) peer.add_addresses(address);
    const bool is_first = &planned == &plan_.hosts.front();
    if (is_first) peer.add_addresses(plan_.master_address);
    // Pretended hosts are one machine.
    peer.set_reaches_by_loopback(is_first || addresses == of_store);
    for (const PlannedWorker& worker : planned.workers) {
      const WorkerRecord& record = workers_[static_cast<std::size_t>(worker.rank)];
      ctl::StoreWorker& said = *peer.add_workers();
      said.set_rank(static_cast<std::uint32_t>(worker.rank));
      said.set_pid(record.end.pid);
      said.set_ended(record.ended);
    }
  }
  return store;
}

void Job::on_note(std::size_t index, const Note& note) {
  constexpr std::string_view kStore = "store: ";
  const std::string lead = note.warning() ? "ivyrun: warning: " : "ivyrun: note: ";
  const Result<ctl::StoreDescription> store = store_description();
  const bool is_stall = note.warning() && note.text().starts_with(kStore) && store.ok();
  if (!is_stall)
    return output_->say(lead + hosts_[index].name + ": " + RemoteText(note.text()).line() + "\n");
  say_stall("nothing has moved in the job's store",
            RemoteText(explain_ranks(note.text().substr(kStore.size()), *store)).lines());
}

// Prints what has stalled, what the ranks are doing, and `more`: the wait graph of the store.
void Job::say_stall(const std::string& what, const std::string& more) {
  news_.ask_operations([this, what, more](const std::string& operations) {
    if (concluded_) return;
    std::string text = "ivyrun: warning: " + what + "; who waits for whom:\n";
    if (!operations.empty()) text += indented(operations) + "\n";
    if (!more.empty()) text += indented(more) + "\n";
    output_->say(text);
    evidence_.stalled();
  });
}

JobNews::Handlers Job::news_handlers() {
  JobNews::Handlers handlers;
  handlers.send = [this](std::size_t index, const Command& command) {
    if (!hosts_[index].session->is_open()) return false;
    hosts_[index].session->send(command);
    return true;
  };
  handlers.name = [this](std::size_t index) { return hosts_[index].name; };
  return handlers;
}

JobEvidence::Handlers Job::evidence_handlers() {
  JobEvidence::Handlers handlers;
  handlers.send = [this](std::size_t index, const Command& command) {
    if (!hosts_[index].session || !hosts_[index].session->is_open()) return false;
    hosts_[index].session->send(command);
    return true;
  };
  handlers.hosts = [this] {
    std::vector<JobEvidence::HostPart> parts;
    for (const PlannedHost& planned : plan_.hosts) {
      parts.push_back({planned.host_index, planned.name, {}});
      for (const PlannedWorker& worker : planned.workers)
        parts.back().ranks.push_back(static_cast<std::uint32_t>(worker.rank));
    }
    return parts;
  };
  handlers.is_running = [this] { return state_ == JobState::kRunning && !concluded_; };
  handlers.watchdog_abort = [this] {
    WatchdogAbort answer = WatchdogAbort::kNo;
    for (const WorkerRecord& worker : workers_) {
      if (!worker.ended || worker.end.status.success()) continue;
      WorkerEnd end = worker.end;
      end.stderr_tail = output_->stderr_tail(end.rank);
      if (was_aborted_by_watchdog(end)) return WatchdogAbort::kYes;
      if (was_abort(end.status) && worker.open_streams > 0) answer = WatchdogAbort::kNotKnownYet;
    }
    return answer;
  };
  handlers.say = [this](const std::string& text) {
    if (!concluded_) output_->say(text);
  };
  return handlers;
}

Result<void> Job::signal_by_request(int signal) {
  if (signal < 1 || signal >= NSIG)
    return Error{Code::kInvalidArgument, "there is no signal " + std::to_string(signal)};
  if (state_ != JobState::kRunning && state_ != JobState::kStopping)
    return Error{Code::kFailedPrecondition,
                 std::string("no workers run now; the job is ") + name(state_)};
  forward_signal(signal);
  return {};
}

Result<void> Job::stop_by_request(const ctl::StopJob& stop) {
  if (state_ == JobState::kDone) return {};
  if (!has_sessions())
    return Error{Code::kUnavailable, "this launcher is about to take the job over", "try again"};
  if (stop.has_grace()) requested_grace_ = milliseconds(stop.grace_ms());
  end_by_launcher(LauncherReason::kInterrupted, SIGTERM,
                  Diagnostic{.severity = Severity::kNote,
                             .id = "IVY-R003",
                             .what = "stopped by ivyctl",
                             .exit_code = 128 + SIGTERM});
  if (stop.now()) {
    output_->say("ivyrun: ivyctl: killing the workers\n");
    while (state_ != JobState::kKilling && state_ != JobState::kDone) apply(JobEvent::kInterrupted);
    return {};
  }
  const bool is_ending = state_ == JobState::kStopping || state_ == JobState::kKilling ||
                         state_ == JobState::kConfirming;
  if (!is_ending) apply(JobEvent::kInterrupted);
  // A second stop may only shorten the grace.
  if (is_ending && state_ == JobState::kStopping && stop.has_grace())
    stop_workers(*requested_grace_, "asked to stop");
  if (!is_ending && state_ == JobState::kStopping)
    output_->say("ivyrun: ivyctl: " + stopping_text() + "\n");
  return {};
}

void Job::tell_end(const Outcome& outcome, std::function<void()> told) {
  socket_timer_.cancel();
  record_timer_.cancel();
  if (!job_socket_) return told();
  output_->listen({});
  ctl::JobEnd end;
  end.set_exit_code(outcome.exit_code);
  end.set_cause(first_line_of(summary_text_));
  const bool is_in_background = request_.detachment != nullptr && request_.detachment->has_left();
  const ctl::JobDescription last = description();
  // For "ivyctl logs" and "ivyctl why" afterwards; the rest of what a job in the foreground had to
  // say stands on its terminal.
  if (is_in_background || !last.log_directory().empty())
    remember_end(job_socket_->place(),
                 {job_id_, outcome.exit_code, end.cause(), last.SerializeAsString()});
  job_socket_->end(end, std::move(told));
}

void Job::worker_started(WorkerRecord& worker, int pid) {
  if (worker.end.pid == 0) ++workers_started_;
  worker.end.pid = pid;
  if (workers_started_ == workers_.size() && takeover_ == 0) leave_foreground();
}

void Job::leave_foreground() {
  // A job that is about to end does so in the foreground.
  if (request_.detachment == nullptr || request_.detachment->has_left() || concluded_) return;
  // A user who reads the parent's notice may call ivyctl at once, so the socket must exist.
  open_job_socket();
  if (outlives_launcher()) {
    write_record();
    renew_record();
  }
  if (job_socket_) job_socket_->keep_unheard();
  output_->leave([this](int log_fd) { request_.detachment->leave(log_fd); });
}

}  // namespace ivy
