// SPDX-License-Identifier: Apache-2.0
// The job's own 0700 directory on a host: command socket, token, error files. Its path follows from
// job id and host number alone, so that a relay reaches the supervisor after a reconnect.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// Paths below the job directory; the launcher passes them to the workers.

struct JobDirectory {
  std::string path;  // Ends in ivyrun-UID/JOBID-HOST: jobs and hosts share a place.
  int lock_fd = -1;  // The maker holds it: locked while the warden or the supervisor lives.
  std::string command_socket() const { return path + "/command.sock"; }
  std::string control_socket() const { return path + "/control.sock"; }
  std::string pmi_socket() const { return path + "/pmi.sock"; }
  std::string pmix_socket() const { return path + "/pmix.sock"; }
  std::string pmix_directory(std::uint32_t generation) const {
    return path + "/pmix/" + std::to_string(generation) + "/server";
  }
  std::string token_file() const { return path + "/token"; }
  std::string error_file(std::uint32_t generation, std::uint32_t rank) const;
};

// Makes the first of job_parents() (proto/os/user_places.h) that can be made and the job's own
// directory in it, both 0700 and ours: a directory of another user, or a link, is refused.
// AlreadyExists when that job lives on this host.
Result<JobDirectory> make_job_directory(const std::string& job_id, std::uint32_t host);
// Returns the existing one; NotFound if it does not exist.
Result<JobDirectory> find_job_directory(const std::string& job_id, std::uint32_t host);
// Removes it with all that is in it, its scratch, and what the job's Python processes and its dead
// PMIx servers have left in /dev/shm; not one that has been made again since `directory` was
// locked.
void remove_job_directory(const JobDirectory& directory);
// Makes the directory again, with its lock, if it has been removed: something else may clean /tmp
// while the job runs. `lock` keeps the lock, and is empty before the first time. True if it did.
bool restore_job_directory(const JobDirectory& directory, Descriptor& lock);
// True if there is nothing at this path of the job's directory.
bool is_missing(const std::string& path);
// Removes the directories beside this one whose warden and supervisor are both dead (their lock is
// free). No start waits for it: the warden does it while the supervisor starts.
void remove_dead_jobs(const JobDirectory& own);

// How many digits of the job's id end the name of its scratch.
inline constexpr std::size_t kScratchDigits = 8;
// Makes /tmp/NAME-DIGITS, a place for what needs shorter paths than those below the job's
// directory. It is removed with that directory, also when the maker was killed.
Result<void> make_scratch(const std::string& job_directory, const std::string& path);

// A Unix stream socket, bound and listening, close-on-exec, non-blocking. Returns its descriptor.
Result<int> listen_on_command_socket(const JobDirectory& directory);
// A connected, close-on-exec, blocking descriptor.
// `socket_flags` such as SOCK_NONBLOCK: a supervisor that is stopped, with a full backlog, would
// stop the caller as well.
Result<int> connect_to_command_socket(const JobDirectory& directory, int socket_flags = 0);

}  // namespace ivy
