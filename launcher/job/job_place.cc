// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/job_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/own_directory.h"
#include "proto/os/user_places.h"

namespace ivy {
namespace {

// A younger directory without a lock may belong to a launcher that has not locked it yet.
constexpr std::time_t kSettledSeconds = 10;
// Margin of a record's date: a job that waits for a launcher is not removed because the clock was
// put forward.
constexpr std::time_t kClockStep = 24 * 60 * 60;
constexpr int kLockTries = 20;  // make_job_place() tries the lock this often, with pauses.
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

std::vector<FoundJob> look_into(const std::string& parent) {
  std::vector<FoundJob> found;
  if (!is_own_directory(parent)) return found;
  for (const std::string& name : names_in(parent)) {
    FoundJob job;
    job.place.job_id = name;
    job.place.path = parent + "/" + name;
    if (is_job_id(job.place.job_id) && is_own_directory(job.place.path))
      found.push_back(std::move(job));
  }
  for (FoundJob& job : found) {
    const Descriptor lock = lock_directory(job.place.path);
    job.is_alive = !lock;
    job.has_record = !has_ended_before(job.place.record(), std::time(nullptr));
  }
  return found;
}

void remove_dead_places(const std::string& parent) {
  for (const FoundJob& job : look_into(parent)) {
    if (job.is_alive || !is_settled(job.place.path)) continue;
    if (!has_ended_before(job.place.record(), std::time(nullptr) - kClockStep)) continue;
    if (const Descriptor lock = lock_directory(job.place.path)) remove_files(job.place.path);
  }
}

Result<JobPlace> make_in(const std::string& parent, const std::string& job_id) {
  IVY_CHECK(make_own_directory(parent));
  remove_dead_places(parent);
  JobPlace place;
  place.job_id = job_id;
  place.path = parent + "/" + job_id;
  IVY_CHECK(make_own_directory(place.path));
  // ivyctl holds the lock for a moment to see whether the launcher runs; a launcher keeps it.
  for (int tries = 0; place.lock_fd < 0 && tries < kLockTries; ++tries) {
    if (tries > 0) usleep(kLockPauseMicroseconds);
    place.lock_fd = lock_directory(place.path).release();
  }
  if (place.lock_fd < 0)
    return Error{Code::kAlreadyExists, "this job already has a launcher: " + place.path};
  unlink(place.socket().c_str());
  return place;
}

}  // namespace

Result<JobPlace> make_job_place(const std::string& job_id) {
  std::string reasons;
  for (const std::string& parent : job_parents()) {
    Result<JobPlace> made = make_in(parent, job_id);
    if (made.ok() || made.error().code == Code::kAlreadyExists) return made;
    reasons += (reasons.empty() ? "" : "; ") + made.error().message;
  }
  return Error{Code::kUnavailable, "no directory for the job socket: " + reasons,
               "make one of these directories writable, or set XDG_RUNTIME_DIR"};
}

bool restore_job_place(JobPlace& place) {
  if (place.lock_fd < 0) return false;
  if (!is_still_there(place.lock_fd, place.path)) {
    Descriptor lock = make_again(place.path);
    if (!lock) return false;
    const Descriptor removed(std::exchange(place.lock_fd, lock.release()));
  }
  struct stat status {};
  return lstat(place.socket().c_str(), &status) != 0;
}

void remove_job_place(JobPlace& place) {
  if (place.lock_fd < 0) return;
  const Descriptor lock(std::exchange(place.lock_fd, -1));
  remove_files(place.path);
}

std::vector<FoundJob> find_job_places() {
  std::vector<FoundJob> jobs;
  for (const std::string& parent : job_parents()) {
    remove_dead_places(parent);
    for (FoundJob& job : look_into(parent))
      if (job.is_alive || job.has_record) jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const FoundJob& a, const FoundJob& b) { return a.place.job_id < b.place.job_id; });
  return jobs;
}

}  // namespace ivy
