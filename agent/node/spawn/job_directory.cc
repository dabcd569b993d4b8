// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/job_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "proto/contract/text.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/listening_socket.h"
#include "proto/os/own_directory.h"
#include "proto/os/process.h"
#include "proto/os/socket_address.h"
#include "proto/os/user_directories.h"
#include "proto/wire/mpi_names.h"

namespace ivy {
namespace {

// A younger directory without a lock may have been created by another warden that has not locked it
// yet.
constexpr std::time_t kSettledSeconds = 10;
// Limit of the recursion, although our own tree has two levels.
constexpr int kMaxDirectoryDepth = 8;
// An agent that checks whether a job is running, or a warden that sweeps, holds the job's lock for
// a moment.
constexpr int kLockTries = 20;
constexpr useconds_t kLockPauseMicroseconds = 1000;

std::string directory_name(const std::string& job_id, std::uint32_t host) {
  return job_id + "-" + std::to_string(host);
}

void remove_tree_at(int parent_fd, const char* name, int depth) {
  Descriptor opened(openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened || depth > kMaxDirectoryDepth) return;
  const OpenDirectory directory(fdopendir(opened.get()));
  if (!directory) return;
  const int fd = opened.release();  // closedir() closes it, so release ownership here.
  while (const dirent* entry = readdir(directory.get())) {
    if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
    if (unlinkat(fd, entry->d_name, 0) == 0) continue;
    if (errno == EISDIR || errno == EPERM) remove_tree_at(fd, entry->d_name, depth + 1);
  }
  unlinkat(parent_fd, name, AT_REMOVEDIR);
}

// Returns the link in the job's directory that points to the scratch directory.
std::string scratch_link(const std::string& job_directory) { return job_directory + "/scratch"; }

// Processes of the job may have redirected the link, so accept its target only if it looks like the
// directory that app-run creates: owned by us, in /tmp, and named after the job.
std::optional<std::string> scratch_of(const std::string& job_directory) {
  std::error_code error;
  const std::string target = std::filesystem::read_symlink(scratch_link(job_directory), error);
  const std::string job = job_directory.substr(job_directory.rfind('/') + 1, kScratchDigits);
  const bool is_named = !error && target.starts_with("/tmp/") && target.rfind('/') == 4 &&
                        target.ends_with("-" + job);
  struct stat status {};
  const bool is_own = is_named && lstat(target.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                      status.st_uid == geteuid();
  return is_own ? std::optional(target) : std::nullopt;
}

// Removes semaphores of Python's multiprocessing, whose names contain the job's because of the
// Python hook: a killed process leaves them behind. No other file in /dev/shm can be attributed to
// the job.
void remove_semaphores(const std::string& job_directory) {
  const std::string own = "sem.mp-" + job_directory.substr(job_directory.rfind('/') + 1) + "-";
  for (const std::string& name : names_in("/dev/shm"))
    if (name.starts_with(own)) unlink(("/dev/shm/" + name).c_str());
}

// Removes segments of the job's PMIx servers. A server removes its own, unless it was killed before
// it could.
void remove_pmix_segments(const std::string& job_directory) {
  const std::string job = job_directory.substr(job_directory.rfind('/') + 1, kJobIdDigits);
  remove_unlocked(pmix_segments_parent("/dev/shm", geteuid()),
                  std::string(kPmixSegments) + job + "-");
}

// NUL-separated arguments.
std::string removal_file(const std::string& job_directory) {
  return job_directory + "/container-removal";
}

// `podman rm` takes a fraction of a second; a daemon that does not answer must not keep the job.
constexpr int kRemovalTimeoutMs = 20'000;

void run_removal_command(const std::string& job_directory) {
  constexpr std::size_t kMaxBytes = 64u << 10;
  const std::optional<std::string> text = read_file(removal_file(job_directory), kMaxBytes);
  if (!text) return;
  std::vector<std::string> words;
  for (const std::string_view word : parts_of(*text, '\0')) words.emplace_back(word);
  if (words.empty()) return;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
  // The warden ignores signals, which its children would inherit.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigfillset(&defaults);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const std::vector<char*> arguments = exec_array(words);
  const int error =
      posix_spawnp(&pid, words[0].c_str(), &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) return;
  const Descriptor pidfd(open_pidfd(pid));
  pollfd waited{pidfd.get(), POLLIN, 0};
  if (poll(&waited, 1, kRemovalTimeoutMs) != 1) kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

void remove_job_tree(const std::string& path) {
  run_removal_command(path);
  remove_semaphores(path);
  remove_pmix_segments(path);
  std::error_code ignored;
  if (const std::optional<std::string> scratch = scratch_of(path))
    std::filesystem::remove_all(*scratch, ignored);
  remove_tree_at(AT_FDCWD, path.c_str(), 0);
}

bool looks_like_job(const std::string& name) {
  return name.size() > kJobIdDigits + 1 && name[kJobIdDigits] == '-' &&
         is_job_id(name.substr(0, kJobIdDigits));
}

bool is_settled(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return false;
  return std::time(nullptr) - status.st_mtime > kSettledSeconds;
}

void remove_if_dead(const std::string& path) {
  if (!is_settled(path)) return;
  if (const Descriptor lock = lock_directory(path)) remove_job_tree(path);
}

// Creates and locks the job's directory in this parent.
Result<JobDirectory> make_in(const std::string& parent, const std::string& name) {
  IVY_CHECK(make_own_directory(parent));
  JobDirectory job;
  job.path = parent + "/" + name;
  remove_if_dead(job.path);
  for (int tries = 0; job.lock_fd < 0 && tries < kLockTries; ++tries) {
    if (tries > 0) usleep(kLockPauseMicroseconds);
    // Repeated for each attempt, because a sweep may have removed the directory as a dead job's.
    IVY_CHECK(make_own_directory(job.path));
    job.lock_fd = lock_directory(job.path).release();
  }
  if (job.lock_fd < 0) {
    return Error{Code::kAlreadyExists, "this job is already running on this host: " + job.path};
  }
  // A dead process leaves its socket behind, which would prevent us from binding ours.
  unlink(job.command_socket().c_str());
  return job;
}

}  // namespace

std::string JobDirectory::error_file(std::uint32_t generation, std::uint32_t rank) const {
  return path + "/error-" + std::to_string(generation) + "-" + std::to_string(rank) + ".json";
}

Result<JobDirectory> make_job_directory(const std::string& job_id, std::uint32_t host) {
  const std::string name = directory_name(job_id, host);
  std::string reasons;
  for (const std::string& parent : job_parents()) {
    Result<JobDirectory> made = make_in(parent, name);
    if (made.ok() || made.error().code == Code::kAlreadyExists) return made;
    reasons += (reasons.empty() ? "" : "; ") + made.error().message;
  }
  return Error{Code::kUnavailable, "cannot create the job's directory: " + reasons,
               "make one of these directories writable, or set XDG_RUNTIME_DIR"};
}

Result<JobDirectory> find_job_directory(const std::string& job_id, std::uint32_t host) {
  for (const std::string& parent : job_parents()) {
    JobDirectory job;
    job.path = parent + "/" + directory_name(job_id, host);
    if (is_own_directory(parent) && is_own_directory(job.path)) return job;
  }
  return Error{Code::kNotFound, "no such job on this host"};
}

void remove_job_directory(const JobDirectory& directory) {
  // The supervisor has removed the directory, and the same job may have been started again; that
  // directory is not ours. But a PMIx server may have been killed since.
  if (directory.lock_fd >= 0 && !still_exists(directory.lock_fd, directory.path))
    return remove_pmix_segments(directory.path);
  remove_job_tree(directory.path);
}

bool restore_job_directory(const JobDirectory& directory, Descriptor& lock) {
  if (still_exists(lock ? lock.get() : directory.lock_fd, directory.path)) return false;
  Descriptor made = make_again(directory.path);
  if (!made) return false;
  lock = std::move(made);
  return true;
}

bool is_missing(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) != 0 && errno == ENOENT;
}

void remove_dead_jobs(const JobDirectory& own) {
  const std::string parent = own.path.substr(0, own.path.rfind('/'));
  for (const std::string& name : names_in(parent))
    if (looks_like_job(name)) remove_if_dead(parent + "/" + name);
}

Result<void> make_scratch(const std::string& job_directory, const std::string& path) {
  // Simulated hosts of one job share it.
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return errno_error(Code::kUnavailable, "mkdir " + path, errno);
  if (symlink(path.c_str(), scratch_link(job_directory).c_str()) != 0 && errno != EEXIST)
    return errno_error(Code::kUnavailable, "symlink " + scratch_link(job_directory), errno);
  if (scratch_of(job_directory)) return {};
  return Error{Code::kPermissionDenied, path + " exists but is not a directory of this user",
               "have it removed"};
}

bool write_removal_command(const std::string& job_directory,
                           const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& word : command) text += word + '\0';
  return command.empty() || write_whole(removal_file(job_directory), text);
}

void forget_removal_command(const std::string& job_directory) {
  unlink(removal_file(job_directory).c_str());
}

Result<int> listen_on_command_socket(const JobDirectory& directory) {
  // Transports connect one at a time, and other users cannot enter the directory.
  constexpr int kBacklog = 64;
  return listen_unix(directory.command_socket(), SOCK_STREAM, kBacklog);
}

Result<int> connect_to_command_socket(const JobDirectory& directory, int socket_flags) {
  const std::string path = directory.command_socket();
  SocketAddress address = unix_address(path);
  if (!address.is_valid())
    return Error{Code::kInvalidArgument, "socket path is too long: " + path,
                 "set XDG_RUNTIME_DIR to a shorter path"};
  Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | socket_flags, 0));
  if (!fd) return errno_error(Code::kUnavailable, "socket", errno);
  if (connect(fd.get(), address.get(), address.size) == 0) return fd.release();
  const bool is_closed = errno == ECONNREFUSED || errno == ENOENT;
  return errno_error(is_closed ? Code::kNotFound : Code::kUnavailable, "connect to " + path, errno);
}

}  // namespace ivy
