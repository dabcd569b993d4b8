// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/control/launcher_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <utility>

#include "proto/os/files.h"
#include "proto/os/own_directory.h"
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

// A younger directory without a lock may belong to a launcher that has not locked it yet.
constexpr std::time_t kSettledSeconds = 10;
// Tolerance for clock changes: a record is kept this long after its lease end.
constexpr std::time_t kClockTolerance = 24 * 60 * 60;
// ivyctl holds the lock for a moment to see whether the launcher runs; a launcher keeps it. So
// make_launcher_directory() tries it this often, with pauses.
constexpr int kLockTries = 20;
constexpr useconds_t kLockPauseMicroseconds = 1000;

bool is_settled(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 &&
         std::time(nullptr) - status.st_mtime > kSettledSeconds;
}

// Returns the end of the last leases that the launcher has renewed, which is the record's
// modification time (job_record.h). Without a record, no host waits for a launcher: returns the
// oldest time.
std::time_t lease_end(const LauncherDirectory& directory) {
  struct stat record {};
  return lstat(directory.record().c_str(), &record) == 0 ? record.st_mtime
                                                         : std::numeric_limits<std::time_t>::min();
}

void remove_files(const std::string& path) {
  for (const std::string& name : names_in(path)) unlink((path + "/" + name).c_str());
  rmdir(path.c_str());
}

// Returns all launcher directories, stale ones included.
std::vector<FoundJob> scan(const std::string& parent) {
  std::vector<FoundJob> found;
  if (!is_own_directory(parent)) return found;
  for (const std::string& name : names_in(parent)) {
    FoundJob job;
    job.directory.job_id = name;
    job.directory.path = parent + "/" + name;
    if (!is_job_id(name) || !is_own_directory(job.directory.path)) continue;
    // Held only for this iteration: the lock is free if the launcher has exited.
    const Descriptor lock = lock_directory(job.directory.path);
    job.is_alive = !lock;
    // Locking also fails if the launcher has removed the directory in the meantime.
    if (!lock && !is_own_directory(job.directory.path)) continue;
    job.has_record = lease_end(job.directory) > std::time(nullptr);
    found.push_back(std::move(job));
  }
  return found;
}

Result<LockedLauncherDirectory> make_in(const std::string& parent, const std::string& job_id) {
  IVY_CHECK(make_own_directory(parent));
  LockedLauncherDirectory directory;
  directory.job_id = job_id;
  directory.path = parent + "/" + job_id;
  IVY_CHECK(make_own_directory(directory.path));
  for (int tries = 0; !directory.lock && tries < kLockTries; ++tries) {
    if (tries > 0) usleep(kLockPauseMicroseconds);
    directory.lock = lock_directory(directory.path);
  }
  if (!directory.lock)
    return Error{Code::kAlreadyExists, "this job already has a launcher: " + directory.path};
  unlink(directory.socket().c_str());
  return directory;
}

}  // namespace

Result<LockedLauncherDirectory> make_launcher_directory(const std::string& job_id) {
  std::string reasons;
  for (const std::string& parent : job_parents()) {
    Result<LockedLauncherDirectory> made = make_in(parent, job_id);
    if (made.ok() || made.error().code == Code::kAlreadyExists) return made;
    reasons += (reasons.empty() ? "" : "; ") + made.error().message;
  }
  return Error{Code::kUnavailable, "no directory for the job socket: " + reasons,
               "make one of these directories writable, or set XDG_RUNTIME_DIR"};
}

bool restore_launcher_directory(LockedLauncherDirectory& directory) {
  if (!directory.lock) return false;
  if (!still_exists(directory.lock.get(), directory.path)) {
    Descriptor lock = make_again(directory.path);
    if (!lock) return false;
    directory.lock = std::move(lock);
  }
  struct stat status {};
  return lstat(directory.socket().c_str(), &status) != 0;
}

void remove_launcher_directory(LockedLauncherDirectory& directory) {
  if (!directory.lock) return;
  remove_files(directory.path);
  // Released last, so that no other process finds the directory unlocked.
  directory.lock.reset();
}

void remove_stale_launcher_directories() {
  for (const std::string& parent : job_parents()) {
    for (const FoundJob& job : scan(parent)) {
      if (job.is_alive || !is_settled(job.directory.path)) continue;
      if (lease_end(job.directory) > std::time(nullptr) - kClockTolerance) continue;
      if (const Descriptor lock = lock_directory(job.directory.path))
        remove_files(job.directory.path);
    }
  }
}

std::vector<FoundJob> find_launcher_directories() {
  std::vector<FoundJob> jobs;
  for (const std::string& parent : job_parents())
    for (FoundJob& job : scan(parent))
      if (job.is_alive || job.has_record) jobs.push_back(std::move(job));
  std::sort(jobs.begin(), jobs.end(), [](const FoundJob& a, const FoundJob& b) {
    return a.directory.job_id < b.directory.job_id;
  });
  return jobs;
}

}  // namespace ivy
