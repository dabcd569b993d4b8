#include "agent/daemon/state_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"
#include "proto/os/own_directory.h"
#include "proto/os/user_places.h"

namespace ivy {
namespace {

// Paths that may wait while a disk hangs; further ones are left to the kernel.
constexpr std::size_t kMaxWaiting = 1024;
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
  Error refused =
      errno_error(is_full ? Code::kResourceExhausted : Code::kUnavailable, "write " + path, error);
  if (is_full) refused.fix = "make room in the agent's state directory";
  return refused;
}

Result<void> replace_file(const std::string& path, std::string_view text) {
  if (write_whole(path, text)) return {};
  return state_error(path, errno);
}

// The key in a file name JOB-HOST; nothing when it is no such name.
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

StateDirectory::~StateDirectory() {
  syncing_.stop();
  syncing_.join();
}

Result<void> StateDirectory::take() {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  if (const Result<void> made = make_own_directory(path_); !made.ok()) {
    Error refused = made.error();
    refused.message = "state directory " + refused.message;
    refused.fix +=
        (refused.fix.empty() ? "" : ", or ") + std::string("choose another place with --state");
    return refused;
  }
  const std::string path = path_ + "/lock";
  lock_.reset(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) return state_error(path, errno);
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    std::string pid = read_file(path, 32, kReading).value_or("");
    while (!pid.empty() && pid.back() == '\n') pid.pop_back();
    return Error{Code::kUnavailable,
                 "another agent (pid " + (pid.empty() ? "unknown" : pid) + ") uses " + path_,
                 "end it first, or name another state directory"};
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  // Only for the message above; on a full disk that message names no pid.
  if (ftruncate(lock_.get(), 0) == 0) write_all(lock_.get(), pid);
  return {};
}

std::vector<JobRecord> StateDirectory::read(const std::function<void(const std::string&)>& warn) {
  const std::vector<std::string> names = names_in(path_);
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
        jobs.push_back(*std::move(job));
        continue;
      }
      warn(path + " is set aside: " + reason);
      rename(path.c_str(), (path + kDamagedSuffix).c_str());
    }
  }
  // An agent or a warden died while it wrote this file. For a job that is listed it may be its
  // living warden's, which is about to record how the job ended: then it is removed with the job.
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
  reason = record.ok() ? "it names another job" : record.error().message;
  if (!key || !record.ok() || JobKey{record->job_id, record->host} != *key) return std::nullopt;
  return *record;
}

Result<void> StateDirectory::set_draining(bool is_draining) {
  is_draining_ = is_draining;
  const std::string path = path_ + "/" + kDraining;
  if (is_draining) IVY_CHECK(replace_file(path, ""));
  if (!is_draining && unlink(path.c_str()) != 0 && errno != ENOENT)
    return errno_error(Code::kUnavailable, "remove " + path, errno);
  sync_at(path_, O_DIRECTORY);
  return {};
}

std::string StateDirectory::path_of(const JobKey& key, const char* suffix) const {
  return path_ + "/" + key.job_id + "-" + std::to_string(key.host) + suffix;
}

std::string StateDirectory::warden_record(const JobKey& key) const {
  return path_of(key, kWardenSuffix);
}

std::optional<WardenRecord> StateDirectory::read_warden(const JobKey& key) const {
  const std::optional<std::string> text = read_file(warden_record(key), 256, kReading);
  return text ? parse_warden_record(*text) : std::nullopt;
}

Result<void> StateDirectory::add(const JobRecord& record) {
  const JobKey key{record.job_id, record.host};
  unlink(warden_record(key).c_str());
  const std::string path = path_of(key, kRecordSuffix);
  IVY_CHECK(replace_file(path, encode_job_record(record)));
  sync_soon(path);
  return {};
}

void StateDirectory::forget(const JobKey& key) {
  unlink(path_of(key, kRecordSuffix).c_str());
  unlink(warden_record(key).c_str());
}

void StateDirectory::mark_ended(const JobKey& key, std::int64_t ended_at) {
  const std::string ended = path_of(key, kEndedSuffix);
  if (rename(path_of(key, kRecordSuffix).c_str(), ended.c_str()) == 0)
    utimensat(AT_FDCWD, ended.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  unlink(warden_record(key).c_str());
  unlink(path_of(key, kFreshWardenSuffix).c_str());
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
  for (std::size_t i = 0; i < by_age.size(); ++i) {
    if (i < kMaxTombstones && by_age[i].first <= kTombstoneSeconds) continue;
    unlink(path_of(by_age[i].second, kEndedSuffix).c_str());
    tombstones_.erase(by_age[i].second);
  }
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
