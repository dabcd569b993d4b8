// SPDX-License-Identifier: Apache-2.0
// The life of a job here: add() records it before its warden starts, started() gives the warden's
// pidfd to watch(), warden_ended() and check() read the warden's last record, decide() concludes
// whether the job still runs, and end() turns the record into a tombstone. A new agent starts with
// check_all(), for the jobs of the previous one.
#include "agent/daemon/jobs/job_registry.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/system/error_code.hpp>
#include <cerrno>
#include <csignal>
#include <vector>

#include "agent/node/spawn/job_directory.h"
#include "agent/node/spawn/process_tree.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

// Interval of the checks for a warden that an earlier agent started just before it exited.
constexpr milliseconds kFirstCheckInterval{100};
constexpr int kMaxChecks = 10;
// Interval of the checks of a job whose warden has exited while a process still holds its
// directory.
constexpr milliseconds kLaterCheckInterval{500};
constexpr std::chrono::hours kCleanupInterval{1};

bool is_that_process(const WardenRecord& warden) {
  ProcessStat process;
  return read_process_stat(warden.pid, process) && process.start_time == warden.start_time &&
         !has_ended(process);
}

// Returns true while the warden or the supervisor runs: both hold the lock of the job's directory.
bool is_directory_held(const JobKey& key) {
  const Result<JobDirectory> directory = find_job_directory(key.job_id, key.host);
  if (!directory.ok()) return false;
  const Descriptor fd(
      open(directory->path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  return fd && flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace

struct JobRegistry::Job {
  explicit Job(boost::asio::io_context& loop) : pidfd(loop), timer(loop), stop_timer(loop) {}
  JobKey key;
  JobRecord record;
  std::optional<pid_t> child;          // The warden, if this agent started it and reaps it.
  std::optional<int> child_exit;       // Its exit code, if this agent reaped it; none if killed.
  std::optional<WardenRecord> warden;  // As it was read last.
  bool is_starting = false;
  boost::asio::posix::stream_descriptor pidfd;
  boost::asio::steady_timer timer;
  boost::asio::steady_timer stop_timer;
  int checks = 0;
  bool is_over = false;
};

JobRegistry::JobRegistry(boost::asio::io_context& loop, std::string directory,
                         AgentReports& reports)
    : loop_(loop),
      directory_(loop, std::move(directory), reports),
      reports_(reports),
      hour_(loop) {}

JobRegistry::~JobRegistry() {
  for (auto& [key, job] : jobs_) job->is_over = true;
}

Result<std::unique_ptr<JobRegistry>> JobRegistry::make(boost::asio::io_context& loop,
                                                       std::string directory,
                                                       AgentReports& reports) {
  std::unique_ptr<JobRegistry> registry(new JobRegistry(loop, std::move(directory), reports));
  IVY_CHECK(registry->directory_.take());
  for (JobRecord& record : registry->directory_.read()) registry->keep(std::move(record));
  registry->directory_.remove_old_tombstones();
  registry->schedule_cleanup();
  return registry;
}

std::string JobRegistry::boot_id() {
  const std::string text = read_file("/proc/sys/kernel/random/boot_id", 64).value_or("");
  return text.substr(0, text.find('\n'));
}

const JobRecord* JobRegistry::find(const JobKey& key) const {
  const auto found = jobs_.find(key);
  return found == jobs_.end() ? nullptr : &found->second->record;
}

std::vector<JobKey> JobRegistry::jobs() const {
  std::vector<JobKey> keys;
  for (const auto& [key, job] : jobs_) keys.push_back(key);
  return keys;
}

void JobRegistry::add(const JobRecord& record, std::function<void(const Result<void>&)> done) {
  const JobKey key{record.job_id, record.host};
  IVY_ASSERT(!jobs_.contains(key));
  if (jobs_.size() >= kMaxJobs)
    return done(Error{Code::kResourceExhausted,
                      "this agent already runs " + std::to_string(kMaxJobs) + " jobs, its limit"});
  keep(record);
  jobs_.at(key)->is_starting = true;
  directory_.add(record, [this, key, done = std::move(done)](const Result<void>& written) {
    if (!written.ok()) jobs_.erase(key);
    done(written);
  });
}

bool JobRegistry::is_starting(const JobKey& key) const {
  const auto found = jobs_.find(key);
  return found != jobs_.end() && found->second->is_starting;
}

void JobRegistry::keep(JobRecord record) {
  const auto job = std::make_shared<Job>(loop_);
  job->key = {record.job_id, record.host};
  job->record = std::move(record);
  jobs_[job->key] = job;
}

void JobRegistry::forget(const JobKey& key) {
  jobs_.at(key)->is_over = true;
  jobs_.erase(key);
  directory_.forget(key);
}

void JobRegistry::started(const JobKey& key, pid_t pid, int pidfd) {
  const JobPointer job = jobs_.at(key);
  job->child = pid;
  job->is_starting = false;
  ProcessStat process;
  if (read_process_stat(pid, process))
    job->warden = WardenRecord{pid, process.start_time, std::nullopt};
  report_status();
  if (pidfd < 0) return check_later(job, kLaterCheckInterval);
  watch(job, pidfd);
}

bool JobRegistry::stop(const JobKey& key, std::optional<milliseconds> grace) {
  const auto found = jobs_.find(key);
  if (found == jobs_.end()) return false;
  const Result<JobDirectory> directory = find_job_directory(key.job_id, key.host);
  const bool is_taken = grace && directory.ok() && change_stop_grace(directory->path, *grace);
  if (directory.ok()) mark_stop(directory->path);
  stop_soon(found->second, 0);
  return is_taken;
}

void JobRegistry::stop_soon(const JobPointer& job, int checks) {
  if (job->is_over || signal_supervisor(*job)) return;
  if (checks == kMaxChecks)
    return reports_.warn("job " + job->key.job_id +
                         ": cannot stop it because its supervisor was not found");
  job->stop_timer.expires_after(kFirstCheckInterval);
  job->stop_timer.async_wait([this, job, checks](const error_code& error) {
    if (!error && !job->is_over) stop_soon(job, checks + 1);
  });
}

bool JobRegistry::signal_supervisor(const Job& job) {
  const std::optional<WardenRecord>& warden = job.warden;
  if (!warden || !is_that_process(*warden)) return false;
  // The warden ignores signals; its supervisor stops the job gracefully on SIGTERM.
  for (const ProcessStat& process : read_all_processes()) {
    if (process.parent == warden->pid && process.name == "ivy-supervisor")
      return signal_process(process.pid, process.start_time, SIGTERM);
  }
  return false;
}

void JobRegistry::check_all() {
  for (const JobKey& key : jobs()) check(jobs_.at(key));
  report_status();
}

void JobRegistry::set_draining(bool is_draining) {
  directory_.set_draining(is_draining);
  report_status();
}

void JobRegistry::report_status() {
  reports_.status((is_draining() ? "draining, " : "") + counted(size(), "job"));
}

void JobRegistry::watch(const JobPointer& job, int pidfd) {
  error_code ignored;
  job->pidfd.close(ignored);
  job->pidfd.assign(pidfd);
  job->pidfd.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        [this, job](const error_code& error) {
                          if (!error && !job->is_over) warden_ended(job);
                        });
}

void JobRegistry::warden_ended(const JobPointer& job) {
  siginfo_t info{};
  // Fails for a warden that an earlier agent started, since it is not our child.
  const bool is_child =
      waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(job->pidfd.native_handle()), &info,
             WEXITED | WNOHANG) == 0;
  if (is_child && info.si_pid == 0) {
    job->timer.expires_after(kReapPause);
    return job->timer.async_wait([this, job](const error_code& error) {
      if (!error && !job->is_over) warden_ended(job);
    });
  }
  if (is_child && job->child == info.si_pid && info.si_code == CLD_EXITED)
    job->child_exit = info.si_status;
  error_code ignored;
  job->pidfd.close(ignored);
  check(job);
}

void JobRegistry::check(const JobPointer& job) {
  if (job->record.boot_id != boot_id()) return end(job, "host rebooted");
  directory_.read_warden(job->key, [this, job](const std::optional<WardenRecord>& warden) {
    if (job->is_over) return;
    job->warden = warden;
    decide(job);
  });
}

void JobRegistry::decide(const JobPointer& job) {
  const std::optional<WardenRecord>& warden = job->warden;
  if (warden && warden->exit_code) return end(job, outcome_of(*warden->exit_code));
  // The descriptor is opened first: if pid and start time match after that, it refers to the
  // warden.
  Descriptor pidfd(warden ? open_pidfd(warden->pid) : -1);
  if (pidfd && is_that_process(*warden)) return watch(job, pidfd.release());
  // There is no warden, or it was killed: then its supervisor ends what is left.
  if (is_directory_held(job->key)) return check_later(job, kLaterCheckInterval);
  if (++job->checks < kMaxChecks) return check_later(job, kFirstCheckInterval);
  // Without its exit code in the file, it was killed, or could not write the file (a full disk).
  if (job->child_exit) return end(job, outcome_of(*job->child_exit));
  end(job, warden || job->child ? "its warden was killed" : "it never started");
}

void JobRegistry::check_later(const JobPointer& job, milliseconds pause) {
  job->timer.expires_after(pause);
  job->timer.async_wait([this, job](const error_code& error) {
    if (!error && !job->is_over) check(job);
  });
}

void JobRegistry::end(const JobPointer& job, const std::string& outcome) {
  job->is_over = true;
  const JobKey key = job->key;
  const std::int64_t now = wall_s();
  // The line comes before the tombstone: an agent that is killed between the two logs it twice
  // rather than never.
  reports_.audit(audit_line(job->record, now, outcome));
  directory_.mark_ended(key, now);
  jobs_.erase(key);
  report_status();
}

void JobRegistry::schedule_cleanup() {
  hour_.expires_after(kCleanupInterval);
  hour_.async_wait([this](const error_code& error) {
    if (error) return;
    directory_.remove_old_tombstones();
    schedule_cleanup();
  });
}

}  // namespace ivy
