#include "agent/daemon/job_registry.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <ctime>
#include <vector>

#include "agent/node/spawn/job_directory.h"
#include "agent/node/spawn/process_tree.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"
#include "proto/os/user_places.h"

namespace ivy {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

constexpr int kReading = O_NOFOLLOW | O_NONBLOCK;
constexpr char kRecordSuffix[] = ".job";
constexpr char kWardenSuffix[] = ".warden";
constexpr char kEndedSuffix[] = ".ended";
constexpr char kDamagedSuffix[] = ".damaged";
constexpr char kFreshSuffix[] = ".new";  // As write_whole() has it.
constexpr char kFreshWardenSuffix[] = ".warden.new";
constexpr char kDraining[] = "draining";
// A warden that was started when its agent died takes a moment to show.
constexpr milliseconds kFirstLooks{100};
constexpr int kLooksBeforeGivenUp = 10;
// How often a job is checked whose warden is gone while a process still holds its directory.
constexpr milliseconds kLaterLooks{500};
constexpr std::chrono::hours kTidyEvery{1};

Error write_error(const std::string& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  Error refused =
      errno_error(is_full ? Code::kResourceExhausted : Code::kUnavailable, "write " + path, error);
  if (is_full) refused.fix = "make room in the agent's state directory";
  return refused;
}

Result<void> replace_file(const std::string& path, std::string_view text) {
  if (write_whole(path, text)) return {};
  return write_error(path, errno);
}

// The key in a file name JOB-HOST; nothing when it is no such name.
std::optional<JobKey> key_of(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  if (name.size() <= kJobIdDigits + 1 || name[kJobIdDigits] != '-') return std::nullopt;
  JobKey key{std::string(name.substr(0, kJobIdDigits)), 0};
  const std::string_view host = name.substr(kJobIdDigits + 1);
  const auto parsed = std::from_chars(host.data(), host.data() + host.size(), key.host);
  if (!is_job_id(key.job_id) || parsed.ec != std::errc() ||
      parsed.ptr != host.data() + host.size()) {
    return std::nullopt;
  }
  return key;
}

bool is_that_process(const WardenRecord& warden) {
  ProcessStat process;
  return read_process_stat(warden.pid, process) && process.start_time == warden.start_time &&
         !has_ended(process);
}

// True while warden or supervisor lives: they hold the lock of their directory.
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
  std::optional<pid_t> child;     // A warden that we have started and reap.
  std::optional<int> child_exit;  // How it ended, when it was ours.
  boost::asio::posix::stream_descriptor pidfd;
  boost::asio::steady_timer timer;
  boost::asio::steady_timer stop_timer;
  int looks = 0;
  bool is_over = false;
};

JobRegistry::JobRegistry(boost::asio::io_context& loop, std::string directory, Handlers handlers)
    : loop_(loop),
      directory_(std::move(directory)),
      handlers_(std::move(handlers)),
      syncing_(directory_),
      hour_(loop) {}

JobRegistry::~JobRegistry() {
  for (auto& [key, job] : jobs_) job->is_over = true;
  if (lock_fd_ >= 0) close(lock_fd_);
}

Result<std::unique_ptr<JobRegistry>> JobRegistry::make(boost::asio::io_context& loop,
                                                       std::string directory, Handlers handlers) {
  std::unique_ptr<JobRegistry> registry(
      new JobRegistry(loop, std::move(directory), std::move(handlers)));
  IVY_CHECK(registry->take_directory());
  registry->read_directory();
  registry->remove_old_tombstones();
  registry->wait_for_an_hour();
  return registry;
}

Result<void> JobRegistry::take_directory() {
  if (mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST)
    return errno_error(Code::kUnavailable, "mkdir " + directory_, errno);
  struct stat status {};
  if (lstat(directory_.c_str(), &status) != 0)
    return errno_error(Code::kUnavailable, directory_, errno);
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    return Error{
        Code::kPermissionDenied,
        directory_ + " is not a directory that only uid " + std::to_string(geteuid()) + " may use",
        "chmod 700 it, or name another state directory"};
  }
  const std::string path = directory_ + "/lock";
  lock_fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_fd_ < 0) return write_error(path, errno);
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    std::string pid = read_file(path, 32, kReading).value_or("");
    while (!pid.empty() && pid.back() == '\n') pid.pop_back();
    return Error{Code::kUnavailable,
                 "another agent (pid " + (pid.empty() ? "unknown" : pid) + ") uses " + directory_,
                 "end it first, or name another state directory"};
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  // Only for the message above; on a full disk that message names no pid.
  if (ftruncate(lock_fd_, 0) == 0) write_all(lock_fd_, pid);
  return {};
}

void JobRegistry::read_directory() {
  DIR* const directory = opendir(directory_.c_str());
  if (directory == nullptr) return;
  std::vector<std::string> names;
  while (const dirent* entry = readdir(directory)) names.emplace_back(entry->d_name);
  closedir(directory);
  for (const std::string& name : names) {
    const std::string path = directory_ + "/" + name;
    struct stat status {};
    if (name == kDraining) {
      is_draining_ = true;
    } else if (const auto ended = key_of(name, kEndedSuffix)) {
      if (lstat(path.c_str(), &status) == 0) tombstones_[*ended].ended_at = status.st_mtime;
    } else if (name.ends_with(kRecordSuffix)) {
      read_job(name);
    }
  }
  // An agent or a warden died while it wrote this file. For a job that is listed it may be its
  // living warden's, which is about to record how the job ended: then it is removed with the job.
  for (const std::string& name : names) {
    if (!name.ends_with(kFreshSuffix)) continue;
    const auto warden = key_of(name, kFreshWardenSuffix);
    if (!warden || !jobs_.contains(*warden)) unlink((directory_ + "/" + name).c_str());
  }
}

Result<void> JobRegistry::set_draining(bool is_draining) {
  is_draining_ = is_draining;
  const std::string path = directory_ + "/" + kDraining;
  if (is_draining) IVY_CHECK(replace_file(path, ""));
  if (!is_draining && unlink(path.c_str()) != 0 && errno != ENOENT)
    return errno_error(Code::kUnavailable, "remove " + path, errno);
  sync_directory(directory_);
  return {};
}

void JobRegistry::read_job(const std::string& name) {
  const std::string path = directory_ + "/" + name;
  const auto key = key_of(name, kRecordSuffix);
  const std::optional<std::string> text = read_file(path, kMaxJobRecordBytes + 1, kReading);
  const Result<JobRecord> record =
      text ? parse_job_record(*text)
           : Result<JobRecord>(errno_error(Code::kNotFound, "read " + path, errno));
  if (!key || !record.ok() || JobKey{record->job_id, record->host} != *key) {
    handlers_.warn(
        path + " is set aside: " + (record.ok() ? "it names another job" : record.error().message));
    rename(path.c_str(), (path + kDamagedSuffix).c_str());
    return;
  }
  const auto job = std::make_shared<Job>(loop_);
  job->key = *key;
  job->record = *record;
  jobs_[*key] = job;
}

std::string JobRegistry::path_of(const JobKey& key, const char* suffix) const {
  return directory_ + "/" + key.job_id + "-" + std::to_string(key.host) + suffix;
}

std::string JobRegistry::warden_record(const JobKey& key) const {
  return path_of(key, kWardenSuffix);
}

std::string JobRegistry::boot_id() {
  const std::string text = read_file("/proc/sys/kernel/random/boot_id", 64).value_or("");
  return text.substr(0, text.find('\n'));
}

const JobRecord* JobRegistry::find(const JobKey& key) const {
  const auto found = jobs_.find(key);
  return found == jobs_.end() ? nullptr : &found->second->record;
}

bool JobRegistry::has_ended_here(const JobKey& key) const { return tombstones_.contains(key); }

std::vector<JobKey> JobRegistry::jobs() const {
  std::vector<JobKey> keys;
  for (const auto& [key, job] : jobs_) keys.push_back(key);
  return keys;
}

Result<void> JobRegistry::add(const JobRecord& record) {
  const JobKey key{record.job_id, record.host};
  IVY_ASSERT(!jobs_.contains(key));
  if (jobs_.size() >= kMaxJobs)
    return Error{Code::kResourceExhausted,
                 "this agent keeps " + std::to_string(kMaxJobs) + " jobs already"};
  unlink(warden_record(key).c_str());
  const std::string path = path_of(key, kRecordSuffix);
  IVY_CHECK(replace_file(path, encode_job_record(record)));
  syncing_.sync(path);
  const auto job = std::make_shared<Job>(loop_);
  job->key = key;
  job->record = record;
  jobs_[key] = job;
  return {};
}

void JobRegistry::forget(const JobKey& key) {
  jobs_.erase(key);
  unlink(path_of(key, kRecordSuffix).c_str());
  unlink(warden_record(key).c_str());
}

void JobRegistry::started(const JobKey& key, pid_t pid, int pidfd) {
  const JobPointer job = jobs_.at(key);
  job->child = pid;
  if (pidfd < 0) return look_again(job, kLaterLooks);
  watch(job, pidfd);
}

void JobRegistry::stop(const JobKey& key) {
  const auto found = jobs_.find(key);
  if (found != jobs_.end()) stop_soon(found->second, 0);
}

void JobRegistry::stop_soon(const JobPointer& job, int looks) {
  if (job->is_over || signal_supervisor(job->key)) return;
  if (looks == kLooksBeforeGivenUp)
    return handlers_.warn("job " + job->key.job_id +
                          ": its supervisor cannot be found to be stopped");
  job->stop_timer.expires_after(kFirstLooks);
  job->stop_timer.async_wait([this, job, looks](const error_code& error) {
    if (!error && !job->is_over) stop_soon(job, looks + 1);
  });
}

bool JobRegistry::signal_supervisor(const JobKey& key) const {
  const auto warden = read_warden(key);
  if (!warden || !is_that_process(*warden)) return false;
  // The warden ignores signals; its supervisor ends the job in order on SIGTERM.
  for (const ProcessStat& process : read_all_processes()) {
    if (process.parent == warden->pid && process.name == "ivy-supervisor")
      return signal_process(process.pid, process.start_time, SIGTERM);
  }
  return false;
}

std::optional<WardenRecord> JobRegistry::read_warden(const JobKey& key) const {
  const std::optional<std::string> text = read_file(warden_record(key), 256, kReading);
  return text ? parse_warden_record(*text) : std::nullopt;
}

void JobRegistry::look_at_all() {
  for (const JobKey& key : jobs()) look_at(jobs_.at(key));
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
  error_code ignored;
  siginfo_t info{};
  // It is not our child when an earlier agent started it; then there is nothing to reap.
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(job->pidfd.native_handle()), &info,
             WEXITED | WNOHANG) == 0 &&
      info.si_pid != 0 && job->child == info.si_pid) {
    job->child_exit = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  }
  job->pidfd.close(ignored);
  look_at(job);
}

// Decides whether the job lives, and what to wait for next.
void JobRegistry::look_at(const JobPointer& job) {
  if (job->record.boot_id != boot_id()) return end(job, "host rebooted");
  const auto warden = read_warden(job->key);
  if (warden && warden->exit_code) return end(job, outcome_of(*warden->exit_code));
  // The descriptor is opened first: if pid and start time match after that, it refers to the
  // warden.
  const int pidfd = warden ? open_pidfd(warden->pid) : -1;
  if (pidfd >= 0 && is_that_process(*warden)) return watch(job, pidfd);
  if (pidfd >= 0) close(pidfd);
  // There is no warden, or it was killed: then its supervisor ends what is left.
  if (is_directory_held(job->key)) return look_again(job, kLaterLooks);
  if (++job->looks < kLooksBeforeGivenUp) return look_again(job, kFirstLooks);
  if (warden) return end(job, "its warden was killed");
  end(job, job->child_exit ? outcome_of(*job->child_exit) : "it never started");
}

void JobRegistry::look_again(const JobPointer& job, milliseconds pause) {
  job->timer.expires_after(pause);
  job->timer.async_wait([this, job](const error_code& error) {
    if (!error && !job->is_over) look_at(job);
  });
}

void JobRegistry::end(const JobPointer& job, const std::string& outcome) {
  job->is_over = true;
  const JobKey key = job->key;
  const std::int64_t now = wall_s();
  // The line comes before the tombstone: an agent that dies between the two logs it twice rather
  // than never.
  handlers_.audit(audit_line(job->record, now, outcome));
  bury(key, now);
  jobs_.erase(key);
  handlers_.ended(key);
}

// Renames the record to a tombstone, which needs no room on a full disk.
void JobRegistry::bury(const JobKey& key, std::int64_t ended_at) {
  const std::string ended = path_of(key, kEndedSuffix);
  if (rename(path_of(key, kRecordSuffix).c_str(), ended.c_str()) == 0)
    utimensat(AT_FDCWD, ended.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  unlink(warden_record(key).c_str());
  unlink(path_of(key, kFreshWardenSuffix).c_str());
  tombstones_[key].ended_at = ended_at;
  if (tombstones_.size() > kMaxTombstones) remove_old_tombstones();
}

void JobRegistry::remove_old_tombstones() {
  const std::int64_t now = wall_s();
  std::vector<std::pair<std::int64_t, JobKey>> by_age;
  for (const auto& [key, tombstone] : tombstones_) {
    // A clock that was set back makes a tombstone young, not old.
    const std::int64_t age = now - tombstone.ended_at;
    by_age.emplace_back(age < 0 ? 0 : age, key);
  }
  std::sort(by_age.begin(), by_age.end());
  for (std::size_t i = 0; i < by_age.size(); ++i) {
    if (i < kMaxTombstones && by_age[i].first <= kTombstoneSeconds) continue;
    unlink(path_of(by_age[i].second, kEndedSuffix).c_str());
    tombstones_.erase(by_age[i].second);
  }
}

void JobRegistry::wait_for_an_hour() {
  hour_.expires_after(kTidyEvery);
  hour_.async_wait([this](const error_code& error) {
    if (error) return;
    remove_old_tombstones();
    wait_for_an_hour();
  });
}

}  // namespace ivy
