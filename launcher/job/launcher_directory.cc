// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/launcher_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/own_directory.h"
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

// A younger directory without a lock may belong to a launcher that has not locked it yet.
constexpr std::time_t kSettledSeconds = 10;
// Margin of a record's date: a job that waits for a launcher is not removed because the clock was
// put forward.
constexpr std::time_t kClockStep = 24 * 60 * 60;
constexpr int kLockTries = 20;  // make_launcher_directory() tries the lock this often, with pauses.
constexpr useconds_t kLockPauseMicroseconds = 1000;

bool is_settled(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 &&
         std::time(nullptr) - status.st_mtime > kSettledSeconds;
}

// True if the leases of the record's job ended before this time: the date of a record is the
// end of the last leases that its launcher has renewed (job_record.h).
bool has_ended_before(const std::string& record, std::time_t when) {
  struct stat status {};
  return lstat(record.c_str(), &status) != 0 || status.st_mtime <= when;
}

void remove_files(const std::string& path) {
  for (const std::string& name : names_in(path))
    if (name[0] != '.') unlink((path + "/" + name).c_str());
  rmdir(path.c_str());
}

std::vector<FoundJob> scan(const std::string& parent) {
  std::vector<FoundJob> found;
  if (!is_own_directory(parent)) return found;
  for (const std::string& name : names_in(parent)) {
    FoundJob job;
    job.directory.job_id = name;
    job.directory.path = parent + "/" + name;
    if (is_job_id(job.directory.job_id) && is_own_directory(job.directory.path))
      found.push_back(std::move(job));
  }
  for (FoundJob& job : found) {
    const Descriptor lock = lock_directory(job.directory.path);
    job.is_alive = !lock;
    job.has_record = !has_ended_before(job.directory.record(), std::time(nullptr));
  }
  return found;
}

void remove_stale_directories(const std::string& parent) {
  for (const FoundJob& job : scan(parent)) {
    if (job.is_alive || !is_settled(job.directory.path)) continue;
    if (!has_ended_before(job.directory.record(), std::time(nullptr) - kClockStep)) continue;
    if (const Descriptor lock = lock_directory(job.directory.path))
      remove_files(job.directory.path);
  }
}

Result<LauncherDirectory> make_in(const std::string& parent, const std::string& job_id) {
  IVY_CHECK(make_own_directory(parent));
  remove_stale_directories(parent);
  LauncherDirectory directory;
  directory.job_id = job_id;
  directory.path = parent + "/" + job_id;
  IVY_CHECK(make_own_directory(directory.path));
  // ivyctl holds the lock for a moment to see whether the launcher runs; a launcher keeps it.
  for (int tries = 0; directory.lock_fd < 0 && tries < kLockTries; ++tries) {
    if (tries > 0) usleep(kLockPauseMicroseconds);
    directory.lock_fd = lock_directory(directory.path).release();
  }
  if (directory.lock_fd < 0)
    return Error{Code::kAlreadyExists, "this job already has a launcher: " + directory.path};
  unlink(directory.socket().c_str());
  return directory;
}

}  // namespace

Result<LauncherDirectory> make_launcher_directory(const std::string& job_id) {
  std::string reasons;
  for (const std::string& parent : job_parents()) {
    Result<LauncherDirectory> made = make_in(parent, job_id);
    if (made.ok() || made.error().code == Code::kAlreadyExists) return made;
    reasons += (reasons.empty() ? "" : "; ") + made.error().message;
  }
  return Error{Code::kUnavailable, "no directory for the job socket: " + reasons,
               "make one of these directories writable, or set XDG_RUNTIME_DIR"};
}

bool restore_launcher_directory(LauncherDirectory& directory) {
  if (directory.lock_fd < 0) return false;
  if (!still_exists(directory.lock_fd, directory.path)) {
    Descriptor lock = make_again(directory.path);
    if (!lock) return false;
    const Descriptor removed(std::exchange(directory.lock_fd, lock.release()));
  }
  struct stat status {};
  return lstat(directory.socket().c_str(), &status) != 0;
}

void remove_launcher_directory(LauncherDirectory& directory) {
  if (directory.lock_fd < 0) return;
  const Descriptor lock(std::exchange(directory.lock_fd, -1));
  remove_files(directory.path);
}

std::vector<FoundJob> find_launcher_directories() {
  std::vector<FoundJob> jobs;
  for (const std::string& parent : job_parents()) {
    remove_stale_directories(parent);
    for (FoundJob& job : scan(parent))
      if (job.is_alive || job.has_record) jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const FoundJob& a, const FoundJob& b) {
    return a.directory.job_id < b.directory.job_id;
  });
  return jobs;
}

}  // namespace ivy
