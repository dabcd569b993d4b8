// A new launcher for a job whose launcher is dead: the fourth part of class Job.
//
//   record -> plan, files -> every host: Attach{takeover} -> TakenOver, then what has happened
//   meanwhile -> as if it had been the launcher all along
//
// A host that cannot be reached makes it give up and leave the job as it is; a host that has no
// supervisor any more is lost.
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "launcher/job/job.h"
#include "launcher/job/job_record.h"
#include "proto/contract/build.h"
#include "proto/contract/log.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kRenewEvery{5};

std::int64_t unix_ms() {
  return std::chrono::duration_cast<milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void Job::write_record() {
  if (!job_socket_) return;
  const Result<void> written = save_record();
  if (!written.ok())
    output_->say("ivyrun: warning: this job will not outlive its launcher: " +
                 written.error().message + "\n");
}

Result<void> Job::save_record() {
  ctl::JobRecord record;
  record.set_build(std::string(build_name()));
  record.set_job_id(job_id_);
  record.set_token(token_);
  record.set_takeover(takeover_);
  record.set_generation(generation_);
  record_hosts(request_.hosts, record);
  record_plan(plan_, record);
  record.set_opened_unix_ms(opened_unix_ms_);
  record.set_started_unix_ms(unix_ms() - (monotonic_ns() - job_started_at_ns_) / 1'000'000);
  record.set_started_in(request_.started_in);
  record_options(options_, *record.mutable_options());
  return write_job_record(job_socket_->place(), record);
}

void Job::renew_record() {
  record_timer_.expires_after(kRenewEvery);
  record_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || !job_socket_) return;
    renew_job_record(job_socket_->place(),
                     lease() + options_.shutdown_timeout.value_or(milliseconds(0)));
    renew_record();
  });
}

void Job::resume_job() {
  const ctl::JobRecord& record = *request_.record;
  takeover_ = record.takeover() + 1;
  restore_plan(record);
  const Result<void> listening = listen_for_ivyctl();
  if (!listening.ok() && listening.error().code == Code::kAlreadyExists)
    return leave_to_the_other();
  if (!listening.ok()) return give_up_resuming(listening.error().message);
  output_->begin(generation_, places(), max_attempts(), [this](const Result<void>& begun) {
    if (concluded_) return;
    if (!begun.ok()) return give_up_resuming(begun.error().message);
    // Before anybody hears of the new number: what comes after us must be newer still.
    const Result<void> written = save_record();
    if (!written.ok()) return give_up_resuming(written.error().message);
    hosts_to_take_over_ = request_.hosts.size();
    open_sessions();
    start_timers();
  });
}

void Job::restore_plan(const ctl::JobRecord& record) {
  state_ = JobState::kRunning;
  generation_ = record.generation();
  opened_unix_ms_ = record.opened_unix_ms();
  started_at_ns_ = monotonic_ns() - time_since_start(record).count() * 1'000'000;
  // When this attempt has begun is not known; the clock of --timeout is the job's.
  job_started_at_ns_ = started_at_ns_;
  counted_restarts_ = static_cast<int>(generation_);
  plan_ = recorded_plan(record);
  hosts_.resize(request_.hosts.size());
  // The previous launcher has checked that they reach the first one.
  for (HostRecord& host : hosts_) host.checked = true;
  store_host_ = plan_.hosts.front().host_index;
  store_generation_ = generation_;
  for (std::size_t index = 0; index < plan_.hosts.size(); ++index)
    hosts_[plan_.hosts[index].host_index].plan_index = static_cast<int>(index);
  make_worker_records();
}

void Job::on_taken_over(std::size_t index, const TakenOver& taken) {
  const int max_restarts = static_cast<int>(taken.max_restarts());
  if (max_restarts > restarts_.max_restarts())
    restarts_ = RestartPolicy(restart_limits(max_restarts));
  HostRecord& host = hosts_[index];
  host.missed_start = host.plan_index >= 0 && taken.generation() + 1 == generation_;
  std::uint64_t lacking = 0;
  for (const StreamPosition& position : taken.streams()) {
    const int rank = static_cast<int>(position.rank());
    WorkerRecord* const worker = worker_of(index, taken.generation(), position.rank());
    if (worker == nullptr) continue;
    if (options_.log_to != LogPlace::kNode)
      lacking += output_->continue_at(rank, static_cast<int>(position.stream()), position.bytes());
    if (position.ended()) --worker->open_streams;
  }
  if (lacking > 0)
    output_->say("ivyrun: warning: " + hosts_[index].name + ": " + std::to_string(lacking) +
                 " bytes of output are missing in the files: the launcher before had taken them "
                 "and did not get to write them\n");
  hosts_[index].events_to_take_over = taken.events();
  if (taken.events() == 0) host_answered();
}

void Job::resume_failed(std::size_t index, const LinkDown& down) {
  if (down.failure != LinkFailure::kNoSuchJob)
    return give_up_resuming("host " + hosts_[index].name + ": " + down.message);
  hosts_[index].failure = down;
  host_answered();
}

void Job::host_answered() {
  if (hosts_to_take_over_ == 0 || --hosts_to_take_over_ > 0) return;
  output_->say("ivyrun: launcher pid " + std::to_string(getpid()) + " has taken the job over\n");
  const auto deferred = std::exchange(deferred_events_, {});
  for (const auto& [index, event] : deferred) on_event(index, event);
  for (std::size_t index = 0; index < hosts_.size(); ++index)
    if (hosts_[index].failure)
      host_lost(index, HostLoss::kSupervisor, hosts_[index].failure->message);
  for (HostRecord& host : hosts_)
    if (std::exchange(host.missed_start, false)) host.session->send(start_again());
  check_reported();
  // A job that has ended meanwhile, or is about to, is summed up in the foreground.
  if (state_ == JobState::kRunning && workers_running_ > 0) leave_foreground();
}

// Ends this launcher before it has ordered anything: the hosts wait for another one.
void Job::give_up_resuming(const RemoteText& why) {
  output_->say("ivyrun: error: job " + job_id_.substr(0, 12) + " cannot be taken over: " +
               why.line() + "\n  it is left as it is; its hosts end it when the lease is over\n");
  end_without_the_job();
}

// Ends this launcher: the faster one owns the job's directory and everything in it.
void Job::leave_to_the_other() {
  output_->say("ivyrun: note: another launcher has just taken job " + job_id_.substr(0, 12) +
               " over: this one is not needed\n");
  end_without_the_job();
}

void Job::end_without_the_job() {
  if (std::exchange(concluded_, true)) return output_->limit_finish(milliseconds(100));
  for (HostRecord& host : hosts_)
    if (host.session) host.session->close();
  start_timer_.cancel();
  timeout_timer_.cancel();
  if (job_socket_) job_socket_->keep_place();
  boost::asio::post(loop_, [this] { output_->finish([this] { over_(kExitHostsNotUp, 0); }); });
}

}  // namespace ivy
