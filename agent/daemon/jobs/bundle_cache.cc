// SPDX-License-Identifier: Apache-2.0
// find() searches for a bundle. An upload is an Arrival: accept() reserves disk space, take()
// receives the bytes, and put() checks the hash, unpacks, tries the program and moves the result
// into place.
#include "agent/daemon/jobs/bundle_cache.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "agent/daemon/jobs/bundle_tar.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/os/process.h"
#include "proto/os/spawn_setup.h"

namespace ivy {
namespace {

constexpr std::size_t kMinNameDigits = 24;
constexpr std::size_t kSha256Digits = 64;
constexpr std::size_t kMaxArchitectureBytes = 32;
constexpr char kProgram[] = "ivy-node";
// Time limit of `ivy-node --version`, which takes a millisecond if its file is cached.
constexpr int kTrialMs = 10'000;
// Number of tries if the file is busy (ETXTBSY): a child of another thread may hold the new file
// open for writing until it executes its program.
constexpr int kBusyTries = 50;
constexpr std::chrono::milliseconds kBusyPause{10};

bool is_architecture(std::string_view text) {
  return !text.empty() && text.size() <= kMaxArchitectureBytes &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
             std::string_view::npos;
}

Error write_error(const std::string& what, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return errno_error(is_full ? Code::kResourceExhausted : Code::kUnavailable, what, error);
}

// Works like mkdir -p; existing directories are fine.
Result<void> make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST)
      return write_error("mkdir " + part, errno);
    if (slash == std::string::npos) return {};
  }
}

// Returns true if the directory belongs to our user and is not a link; in /tmp, another user could
// have made it.
bool is_owned(const std::string& parent) {
  struct stat status {};
  return lstat(parent.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid();
}

Result<void> prepare_directory(const std::string& parent) {
  IVY_CHECK(make_directories(parent));
  if (!is_owned(parent)) return Error{Code::kPermissionDenied, parent + " belongs to another user"};
  if (chmod(parent.c_str(), 0700) != 0)
    return errno_error(Code::kUnavailable, "chmod " + parent, errno);
  return {};
}

bool holds_program(const std::string& directory) {
  const std::string program = directory + "/" + kProgram;
  struct stat status {};
  return stat(program.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(program.c_str(), X_OK) == 0;
}

// Removes a directory of unpacked files, which has no subdirectories.
void remove_directory(const std::string& directory) {
  for (const std::string& name : names_in(directory)) unlink((directory + "/" + name).c_str());
  rmdir(directory.c_str());
}

int spawn_trial(const std::string& program, pid_t* pid) {
  SpawnSetup setup;
  for (const int fd : {0, 1, 2}) setup.open_null(fd);
  setup.close_from(3);
  setup.set_signals_and_session();
  char* const arguments[] = {const_cast<char*>(kProgram), const_cast<char*>("--version"), nullptr};
  char* const environment[] = {nullptr};
  return posix_spawn(pid, program.c_str(), &setup.actions, &setup.attributes, arguments,
                     environment);
}

// Runs `ivy-node --version`, which proves that this file runs in this directory.
Result<void> try_program(const std::string& program) {
  pid_t pid = -1;
  int error = ETXTBSY;
  for (int i = 0; i < kBusyTries && error == ETXTBSY; ++i) {
    if (i > 0) std::this_thread::sleep_for(kBusyPause);
    error = spawn_trial(program, &pid);
  }
  if (error == EACCES) return Error{Code::kUnavailable, "programs may not run there"};
  if (error != 0) return errno_error(Code::kUnavailable, "ivy-node does not run", error);
  const Descriptor pidfd(open_pidfd(pid));
  pollfd ended{pidfd.get(), POLLIN, 0};
  if (!pidfd || poll(&ended, 1, kTrialMs) != 1) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return Error{Code::kUnavailable, "ivy-node --version failed there"};
  return {};
}

// Renames the directory. If another upload has put the same bundle there first, keeps that copy, or
// refills it if its ivy-node is missing.
Result<void> move_into_cache(const std::string& fresh, const std::string& final_directory) {
  if (rename(fresh.c_str(), final_directory.c_str()) == 0) return {};
  if (errno != EEXIST && errno != ENOTEMPTY) return write_error(final_directory, errno);
  if (!holds_program(final_directory)) {
    for (const std::string& name : names_in(fresh)) {
      const std::string target = final_directory + "/" + name;
      if (rename((fresh + "/" + name).c_str(), target.c_str()) != 0)
        return write_error(target, errno);
    }
  }
  remove_directory(fresh);
  return {};
}

}  // namespace

bool is_bundle_name(std::string_view text) {
  return text.size() >= kMinNameDigits && text.size() <= kSha256Digits && is_hexadecimal(text);
}

BundleCache::BundleCache(std::vector<std::string> directories)
    : directories_(std::move(directories)) {}

std::string BundleCache::default_directory(const Environment& environment) {
  const std::string* const cache = find_variable(environment, "XDG_CACHE_HOME");
  // The XDG specification says that a relative path counts as unset.
  if (cache != nullptr && cache->starts_with('/')) return *cache + "/ivyrun";
  const std::string* const home = find_variable(environment, "HOME");
  return (home == nullptr ? std::string() : *home) + "/.cache/ivyrun";
}

std::vector<std::string> BundleCache::directories_after(const std::string& best) {
  const std::string name = "/ivyrun-cache-" + std::to_string(geteuid());
  return {best, "/tmp" + name, "/dev/shm" + name};
}

Result<std::string> BundleCache::find(const std::string& bundle,
                                      const std::string& architecture) const {
  if (!is_bundle_name(bundle) || !is_architecture(architecture))
    return Error{Code::kInvalidArgument, "not a valid bundle name: " + bundle.substr(0, 80)};
  for (const std::string& parent : directories_) {
    const std::string directory = parent + "/" + bundle + "-" + architecture;
    if (is_owned(parent) && holds_program(directory)) return directory;
  }
  return Error{Code::kNotFound, "bundle " + bundle + "-" + architecture + " is not on this host"};
}

struct BundleCache::Arrival::Digest {
  Digest() : context(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context, EVP_sha256(), nullptr); }
  ~Digest() { EVP_MD_CTX_free(context); }
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  std::string hexadecimal() {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    EVP_DigestFinal_ex(context, bytes, &length);
    return ivy::hexadecimal({reinterpret_cast<const char*>(bytes), length});
  }
  EVP_MD_CTX* context;
};

BundleCache::Arrival::Arrival(const BundleCache& cache, BundleOffer offer)
    : cache_(cache), offer_(std::move(offer)), digest_(std::make_unique<Digest>()) {}

BundleCache::Arrival::~Arrival() = default;

// Opens the file for the tar and unlinks it immediately, so that it disappears however this process
// exits.
Result<void> BundleCache::Arrival::open_in(const std::string& parent) {
  IVY_CHECK(prepare_directory(parent));
  file_ = parent + "/.bundle.XXXXXX";
  fd_.reset(mkostemp(file_.data(), O_CLOEXEC));
  if (!fd_) return write_error(parent, errno);
  unlink(file_.c_str());
  const int error = reserve_space(fd_.get(), 0, offer_.bytes);
  if (error == 0) return {};
  fd_.reset();
  return write_error("reserve " + std::to_string(offer_.bytes) + " bytes in " + parent, error);
}

Result<std::unique_ptr<BundleCache::Arrival>> BundleCache::accept(const BundleOffer& offer) const {
  utsname machine{};
  uname(&machine);
  if (!is_bundle_name(offer.bundle) || offer.sha256.size() != kSha256Digits ||
      !is_hexadecimal(offer.sha256))
    return Error{Code::kInvalidArgument, "the bundle has no valid name or SHA-256"};
  if (offer.architecture != machine.machine)
    return Error{Code::kInvalidArgument, std::string("this host is ") + machine.machine +
                                             ", but the bundle is for another architecture"};
  if (offer.bytes == 0 || offer.bytes > kMaxBundleBytes)
    return Error{Code::kResourceExhausted, "a bundle of " + std::to_string(offer.bytes) +
                                               " bytes is too large: the limit is " +
                                               std::to_string(kMaxBundleBytes) + " bytes"};
  std::unique_ptr<Arrival> arrival(new Arrival(*this, offer));
  std::string reasons;
  Code code = Code::kUnavailable;
  for (const std::string& parent : directories_) {
    const Result<void> opened = arrival->open_in(parent);
    if (opened.ok()) return arrival;
    if (opened.error().code == Code::kResourceExhausted) code = Code::kResourceExhausted;
    reasons += (reasons.empty() ? "" : "; ") + opened.error().message;
  }
  return Error{code, "cannot store the bundle: " + reasons,
               "free some space in one of these directories"};
}

Result<void> BundleCache::Arrival::take(std::string_view bytes) {
  if (bytes.size() > offer_.bytes - bytes_)
    return Error{Code::kDataLoss, "the bundle is larger than announced"};
  EVP_DigestUpdate(digest_->context, bytes.data(), bytes.size());
  bytes_ += bytes.size();
  if (!write_all(fd_.get(), bytes)) return write_error("write " + file_, errno);
  return {};
}

Result<std::string> BundleCache::Arrival::put_in(const std::string& parent) {
  IVY_CHECK(prepare_directory(parent));
  std::string fresh = parent + "/.new.XXXXXX";
  if (mkdtemp(fresh.data()) == nullptr) return write_error(parent, errno);
  const std::string final_directory = parent + "/" + offer_.bundle + "-" + offer_.architecture;
  const auto install = [&]() -> Result<void> {
    IVY_CHECK(unpack_bundle(fd_.get(), fresh));
    IVY_CHECK(try_program(fresh + "/" + kProgram));
    IVY_CHECK(move_into_cache(fresh, final_directory));
    if (!holds_program(final_directory))
      return Error{Code::kInternal, "ivy-node is missing after it was installed"};
    return {};
  };
  const Result<void> installed = install();
  if (installed.ok()) return final_directory;
  remove_directory(fresh);
  return installed.error().context(parent);
}

Result<std::string> BundleCache::Arrival::put() {
  if (bytes_ != offer_.bytes || digest_->hexadecimal() != offer_.sha256)
    return Error{Code::kDataLoss,
                 "the received bundle does not match its announced size or SHA-256"};
  // Another upload may have put it there while ours was received.
  Result<std::string> existing = cache_.find(offer_.bundle, offer_.architecture);
  if (existing.ok()) return existing;
  std::string reasons;
  for (const std::string& parent : cache_.directories_) {
    Result<std::string> put = put_in(parent);
    if (put.ok() || put.error().code == Code::kDataLoss) return put;
    reasons += (reasons.empty() ? "" : "; ") + put.error().message;
  }
  return Error{Code::kUnavailable,
               "the bundle cannot run from any of these directories: " + reasons,
               "make one of these directories writable, on a file system without noexec"};
}

}  // namespace ivy
