// SPDX-License-Identifier: Apache-2.0
// The job's directory on a host, mode 0700: command socket, token, error files. Its path is derived
// from job id and host number only, so that a relay finds the supervisor after a reconnect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// The directory and paths in it. HostFacts contains the directory, because the launcher puts paths
// below it into workers' variables.
struct JobDirectory {
  std::string path;  // Ends in ivyrun-UID/JOBID-HOST, since jobs and hosts may share a parent.
  int lock_fd = -1;  // Held by the creator: locked while the warden or the supervisor runs.
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

// Creates the first possible directory of job_parents() (proto/os/user_directories.h) and the job's
// directory in it, both with mode 0700. Rejects links and directories of other users. Returns
// AlreadyExists if the job is already running on this host.
Result<JobDirectory> make_job_directory(const std::string& job_id, std::uint32_t host);
// Returns the existing directory, or NotFound.
Result<JobDirectory> find_job_directory(const std::string& job_id, std::uint32_t host);
// Removes the directory with its contents, the job's scratch directory, and files in /dev/shm of
// the job's Python processes and dead PMIx servers. If the directory was removed or created again
// after `directory` was locked, removes only the files of dead PMIx servers.
void remove_job_directory(const JobDirectory& directory);
// Creates the directory again, with its lock, if it has been removed, for example by a cleaner of
// /tmp. `lock` keeps the lock, and is empty before the first time. Returns true if it was created.
bool restore_job_directory(const JobDirectory& directory, Descriptor& lock);
// Returns true if the job's directory does not exist at this path.
bool is_missing(const std::string& path);
// Removes sibling directories whose warden and supervisor have both exited (their lock is free).
// The warden calls this while the supervisor starts, so that no start waits for it.
void remove_dead_jobs(const JobDirectory& own);

// Number of digits of the job's id at the end of its scratch directory's name.
inline constexpr std::size_t kScratchDigits = 8;
// Creates /tmp/NAME-DIGITS, for files that need shorter paths than the job's directory allows. It
// is removed with that directory, even if its creator was killed.
Result<void> make_scratch(const std::string& job_directory, const std::string& path);

// Records a command that removes the job's container. If the directory is removed before
// forget_removal_command(), because the process that keeps the container was killed, the command
// runs first. Does nothing if the command is empty. Returns false if it cannot be written.
bool write_removal_command(const std::string& job_directory,
                           const std::vector<std::string>& command);
void forget_removal_command(const std::string& job_directory);

// Returns a Unix stream socket: bound, listening, close-on-exec, non-blocking.
Result<int> listen_on_command_socket(const JobDirectory& directory);
// Returns a connected, close-on-exec descriptor. With SOCK_NONBLOCK in `socket_flags` it is
// non-blocking, and a stopped supervisor with a full backlog does not block the caller.
Result<int> connect_to_command_socket(const JobDirectory& directory, int socket_flags = 0);

}  // namespace ivy
