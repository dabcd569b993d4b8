// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs/state_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <set>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"
#include "proto/os/own_directory.h"
#include "proto/os/process.h"
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

// Limit of the paths that wait for an fsync while a disk hangs; the kernel writes further files
// back later.
constexpr std::size_t kMaxWaiting = 1024;
// Eight for each of the agent's jobs (JobRegistry::kMaxJobs).
constexpr std::size_t kMaxFileTasks = 8192;
constexpr int kReading = O_NOFOLLOW | O_NONBLOCK;
constexpr char kRecordSuffix[] = ".job";
constexpr char kWardenSuffix[] = ".warden";
constexpr char kEndedSuffix[] = ".ended";
constexpr char kDamagedSuffix[] = ".damaged";
constexpr char kFreshSuffix[] = ".new";  // The suffix that write_whole() uses.
constexpr char kFreshWardenSuffix[] = ".warden.new";
constexpr char kDraining[] = "draining";

Error state_error(const std::string& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  Error rejected =
      errno_error(is_full ? Code::kResourceExhausted : Code::kUnavailable, "write " + path, error);
  if (is_full) rejected.fix = "free some space in the agent's state directory";
  return rejected;
}

Result<void> replace_file(const std::string& path, std::string_view text) {
  if (write_whole(path, text)) return {};
  return state_error(path, errno);
}

// Parses the key from the file name JOB-HOST plus `suffix`; returns nothing for any other name.
std::optional<JobKey> key_of(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  if (name.size() <= kJobIdDigits + 1 || name[kJobIdDigits] != '-') return std::nullopt;
  const std::string job_id(name.substr(0, kJobIdDigits));
  const auto host = to_number<std::uint32_t>(name.substr(kJobIdDigits + 1));
  return is_job_id(job_id) && host ? std::optional(JobKey{job_id, *host}) : std::nullopt;
}

void sync_at(const std::string& path, int flags) {
  const Descriptor fd(open(path.c_str(), flags | O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (fd) fsync(fd.get());
}

}  // namespace

// Counts the tasks that have not run yet, for the destructor.
struct StateDirectory::Unfinished {
  std::mutex mutex;
  std::condition_variable none_left;
  std::size_t tasks = 0;

  void change(std::ptrdiff_t by) {
    const std::lock_guard lock(mutex);
    tasks += static_cast<std::size_t>(by);
    if (tasks == 0) none_left.notify_all();
  }
};

StateDirectory::StateDirectory(boost::asio::io_context& loop, std::string path,
                               AgentReports& reports)
    : path_(std::move(path)),
      reports_(reports),
      unfinished_(std::make_shared<Unfinished>()),
      files_([&loop](std::function<void()> done) { boost::asio::post(loop, std::move(done)); },
             // One thread, never replaced: the order of the tasks matters.
             {.threads = 1, .stuck_threads = 0, .queued = kMaxFileTasks}) {}

StateDirectory::~StateDirectory() {
  {
    std::unique_lock lock(unfinished_->mutex);
    unfinished_->none_left.wait_for(lock, kLastWrites, [this] { return unfinished_->tasks == 0; });
  }
  syncing_.stop();
  syncing_.join();
}

template <class Work, class Done>
void StateDirectory::later(Work work, Done done) {
  unfinished_->change(1);
  // Also counts down for a task that is dropped without having run.
  const std::shared_ptr<void> finished(nullptr, [all = unfinished_](void*) { all->change(-1); });
  files_.run(
      "the file system of " + path_, BlockingPool::kNoDeadline,
      [work = std::move(work), finished]() mutable { return work(); }, std::move(done));
}

Result<void> StateDirectory::take() {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  if (const Result<void> made = make_own_directory(path_); !made.ok()) {
    Error rejected = made.error();
    rejected.message = "state directory " + rejected.message;
    rejected.fix += (rejected.fix.empty() ? "" : ", or ") +
                    std::string("choose another directory with --state");
    return rejected;
  }
  const std::string path = path_ + "/lock";
  lock_.reset(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) return state_error(path, errno);
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    std::string pid = read_file(path, 32, kReading).value_or("");
    while (!pid.empty() && pid.back() == '\n') pid.pop_back();
    return Error{Code::kUnavailable,
                 "another agent (pid " + (pid.empty() ? "unknown" : pid) + ") uses " + path_,
                 "stop it first, or choose another state directory"};
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  // Only for the message above; on a full disk that message names no pid.
  if (ftruncate(lock_.get(), 0) == 0) write_all(lock_.get(), pid);
  return {};
}

std::vector<JobRecord> StateDirectory::read() {
  const std::vector<std::string> names = names_in(path_);
  const std::string machine = own_host_name();
  std::vector<JobRecord> jobs;
  std::set<JobKey> keys;
  for (const std::string& name : names) {
    const std::string path = path_ + "/" + name;
    struct stat status {};
    if (name == kDraining) {
      is_draining_ = true;
    } else if (const auto ended = key_of(name, kEndedSuffix)) {
      if (lstat(path.c_str(), &status) == 0) tombstones_[*ended] = status.st_mtime;
    } else if (name.ends_with(kRecordSuffix)) {
      std::string reason;
      if (std::optional<JobRecord> job = read_job(name, reason)) {
        keys.insert({job->job_id, job->host});
        // A record of another host that shares the directory, on a file system without shared
        // locks.
        if (!job->machine.empty() && job->machine != machine) continue;
        jobs.push_back(*std::move(job));
        continue;
      }
      reports_.warn(path + " was renamed and is ignored: " + reason);
      rename(path.c_str(), (path + kDamagedSuffix).c_str());
    }
  }
  // Removes files that an agent or a warden was writing when it died. A job that is listed may have
  // a running warden that is just recording the job's end: its file is removed with the job.
  for (const std::string& name : names) {
    if (!name.ends_with(kFreshSuffix)) continue;
    const auto warden = key_of(name, kFreshWardenSuffix);
    if (!warden || !keys.contains(*warden)) unlink((path_ + "/" + name).c_str());
  }
  return jobs;
}

std::optional<JobRecord> StateDirectory::read_job(std::string_view name,
                                                  std::string& reason) const {
  const std::string path = path_ + "/" + std::string(name);
  const auto key = key_of(name, kRecordSuffix);
  const std::optional<std::string> text = read_file(path, kMaxJobRecordBytes + 1, kReading);
  const Result<JobRecord> record =
      text ? parse_job_record(*text)
           : Result<JobRecord>(errno_error(Code::kNotFound, "read " + path, errno));
  reason = record.ok() ? "it belongs to another job" : record.error().message;
  if (!key || !record.ok() || JobKey{record->job_id, record->host} != *key) return std::nullopt;
  return *record;
}

void StateDirectory::set_draining(bool is_draining) {
  is_draining_ = is_draining;
  const auto write = [directory = path_, is_draining]() -> Result<void> {
    const std::string path = directory + "/" + kDraining;
    if (is_draining) IVY_CHECK(replace_file(path, ""));
    if (!is_draining && unlink(path.c_str()) != 0 && errno != ENOENT)
      return errno_error(Code::kUnavailable, "remove " + path, errno);
    sync_at(directory, O_DIRECTORY);
    return {};
  };
  later(write, [this, is_draining](const Result<void>& written) {
    if (!written.ok())
      reports_.warn(std::string("drain") + (is_draining ? "" : " --undo") +
                    " has effect only until this agent exits: " + written.error().message);
  });
}

std::string StateDirectory::path_of(const JobKey& key, const char* suffix) const {
  return path_ + "/" + key.job_id + "-" + std::to_string(key.host) + suffix;
}

std::string StateDirectory::warden_record(const JobKey& key) const {
  return path_of(key, kWardenSuffix);
}

void StateDirectory::read_warden(const JobKey& key,
                                 std::function<void(const std::optional<WardenRecord>&)> done) {
  const auto read = [path = warden_record(key)]() -> Result<std::optional<WardenRecord>> {
    const std::optional<std::string> text = read_file(path, 256, kReading);
    return text ? parse_warden_record(*text) : std::optional<WardenRecord>();
  };
  later(read, [done = std::move(done)](const Result<std::optional<WardenRecord>>& record) {
    done(record.ok() ? *record : std::nullopt);
  });
}

void StateDirectory::add(const JobRecord& record, std::function<void(const Result<void>&)> done) {
  const JobKey key{record.job_id, record.host};
  const std::string path = path_of(key, kRecordSuffix);
  const auto write = [path, warden = warden_record(key),
                      text = encode_job_record(record)]() -> Result<void> {
    unlink(warden.c_str());
    return replace_file(path, text);
  };
  later(write, [this, path, done = std::move(done)](const Result<void>& written) {
    if (written.ok()) sync_soon(path);
    done(written);
  });
}

void StateDirectory::forget(const JobKey& key) {
  const auto remove = [record = path_of(key, kRecordSuffix),
                       warden = warden_record(key)]() -> Result<void> {
    unlink(record.c_str());
    unlink(warden.c_str());
    return {};
  };
  later(remove, [](const Result<void>&) {});
}

void StateDirectory::mark_ended(const JobKey& key, std::int64_t ended_at) {
  const auto rename_record = [record = path_of(key, kRecordSuffix),
                              ended = path_of(key, kEndedSuffix), warden = warden_record(key),
                              fresh = path_of(key, kFreshWardenSuffix)]() -> Result<void> {
    if (rename(record.c_str(), ended.c_str()) == 0)
      utimensat(AT_FDCWD, ended.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
    unlink(warden.c_str());
    unlink(fresh.c_str());
    return {};
  };
  later(rename_record, [](const Result<void>&) {});
  tombstones_[key] = ended_at;
  if (tombstones_.size() > kMaxTombstones) remove_old_tombstones();
}

void StateDirectory::remove_old_tombstones() {
  const std::int64_t now = wall_s();
  std::vector<std::pair<std::int64_t, JobKey>> by_age;
  // A clock that was set back makes a tombstone young, not old.
  for (const auto& [key, ended_at] : tombstones_)
    by_age.emplace_back(std::max<std::int64_t>(0, now - ended_at), key);
  std::sort(by_age.begin(), by_age.end());
  std::vector<std::string> old;
  for (std::size_t i = 0; i < by_age.size(); ++i) {
    if (i < kMaxTombstones && by_age[i].first <= kTombstoneSeconds) continue;
    old.push_back(path_of(by_age[i].second, kEndedSuffix));
    tombstones_.erase(by_age[i].second);
  }
  if (old.empty()) return;
  const auto remove = [old = std::move(old)]() -> Result<void> {
    for (const std::string& path : old) unlink(path.c_str());
    return {};
  };
  later(remove, [](const Result<void>&) {});
}

void StateDirectory::sync_soon(const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMaxWaiting) return;
    waiting_.push_back(path);
    // An earlier call has posted sync_waiting() already.
    if (waiting_.size() > 1) return;
  }
  boost::asio::post(syncing_, [this] { sync_waiting(); });
}

void StateDirectory::sync_waiting() {
  std::vector<std::string> paths;
  {
    const std::lock_guard lock(mutex_);
    paths = std::exchange(waiting_, {});
  }
  for (const std::string& path : paths) sync_at(path, O_NONBLOCK);
  sync_at(path_, O_DIRECTORY);
}

}  // namespace ivy
