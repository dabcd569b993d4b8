// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/stage_cache.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <utility>
#include <vector>

#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy::stage {
namespace {

constexpr std::size_t kCopyBytes = 1u << 20;
constexpr mode_t kPermissions = 07777;

Error failed(const std::string& what, int why) {
  Error error = errno_error(
      why == ENOSPC || why == EDQUOT ? Code::kResourceExhausted : Code::kUnavailable, what, why);
  if (error.code == Code::kResourceExhausted)
    error.fix = "free some space there, or choose another directory: --stage-to DIR";
  return error;
}

std::string hex(std::string_view bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Creates a directory and those above it, with mode 0700.
Result<void> make_directories(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct stat status {};
    // Tried first, because mkdir() on an automounted parent may fail with another error.
    if (stat(part.c_str(), &status) != 0 && mkdir(part.c_str(), 0700) != 0 && errno != EEXIST)
      return failed("create " + part, errno);
    if (end == std::string::npos) return {};
  }
}

// Returns the time of the last boot, in seconds since 1970; 0 if unknown.
std::int64_t boot_time() {
  const std::string text = read_file("/proc/stat", 1u << 20).value_or("");
  const std::size_t at = text.find("\nbtime ");
  return at == std::string::npos ? 0 : std::strtoll(text.c_str() + at + 7, nullptr, 10);
}

std::optional<std::string> digest_of(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return std::nullopt;
  Sha256 hash;
  std::string buffer(kCopyBytes, '\0');
  ssize_t count = 0;
  while ((count = read(fd.get(), buffer.data(), buffer.size())) > 0)
    hash.add({buffer.data(), static_cast<std::size_t>(count)});
  if (count < 0) return std::nullopt;
  return hash.digest();
}

bool is_safe(const std::string& path) {
  if (path.empty() || path.front() == '/' || path.find('\0') != std::string::npos) return false;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = path.find('/', begin);
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == std::string::npos) return true;
    begin = end + 1;
  }
}

// Copies all bytes. Returns 0 or an errno.
int copy_bytes(int from, int to, std::uint64_t size) {
  std::uint64_t done = 0;
  while (done < size) {
    const ssize_t count = copy_file_range(from, nullptr, to, nullptr, size - done, 0);
    if (count > 0) done += static_cast<std::uint64_t>(count);
    if (count > 0 || (count < 0 && errno == EINTR)) continue;
    if (count == 0) return EIO;  // The object is shorter than its size.
    if (errno == ENOSPC || errno == EDQUOT) return errno;
    break;  // Not supported here.
  }
  std::string buffer(done < size ? kCopyBytes : 0, '\0');
  while (done < size) {
    const ssize_t count = pread(from, buffer.data(), buffer.size(), static_cast<off_t>(done));
    if (count <= 0) return count == 0 ? EIO : errno;
    if (!write_all(to, {buffer.data(), static_cast<std::size_t>(count)})) return errno;
    done += static_cast<std::uint64_t>(count);
  }
  return 0;
}

// Something that evict() may remove.
struct Evictable {
  std::int64_t used_s = 0;
  std::uint64_t bytes = 0;
  std::string path;
  bool is_tree = false;
};

std::uint64_t bytes_below(const std::string& path) {
  std::uint64_t bytes = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator each(path, error);
  for (; !error && each != std::filesystem::recursive_directory_iterator(); each.increment(error)) {
    struct stat status {};
    if (lstat(each->path().c_str(), &status) == 0)
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  return bytes;
}

void add_file(const std::string& path, std::vector<Evictable>& all) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  all.push_back(
      {status.st_mtim.tv_sec, static_cast<std::uint64_t>(status.st_blocks) * 512, path, false});
}

// Removes a tree unless its job runs.
bool remove_tree(const std::string& tree) {
  const std::string lock_path = tree + ".lock";
  const Descriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return false;
  std::error_code error;
  // Read-only directories of the tree would keep their entries.
  std::filesystem::recursive_directory_iterator each(tree, error);
  for (; !error && each != std::filesystem::recursive_directory_iterator(); each.increment(error)) {
    struct stat status {};
    if (lstat(each->path().c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
        (status.st_mode & S_IRWXU) != S_IRWXU)
      chmod(each->path().c_str(), (status.st_mode & kPermissions) | S_IRWXU);
  }
  std::filesystem::remove_all(tree, error);
  if (!error) unlink(lock_path.c_str());
  return !error;
}

// Returns the shared part to which a path belongs; null for the job's own part.
const StageShared* shared_part(const StageManifest& manifest, const std::string& path) {
  for (const StageShared& shared : manifest.shared())
    if (path.starts_with(shared.path()) && path.substr(shared.path().size()).starts_with('/'))
      return &shared;
  return nullptr;
}

}  // namespace

Result<std::string> cache_root(const std::string& directory, const std::string& home,
                               const std::string& xdg_cache_home) {
  if (directory.starts_with("/")) return directory;
  if (home.empty() || home.front() != '/') {
    if (directory.empty() && xdg_cache_home.starts_with("/"))
      return xdg_cache_home + "/ivyrun/stage";
    return Error{Code::kFailedPrecondition, "this user has no home directory",
                 "choose a directory: --stage-to DIR"};
  }
  if (directory.starts_with("~/")) return home + directory.substr(1);
  if (!directory.empty()) return home + "/" + directory;
  return (xdg_cache_home.starts_with("/") ? xdg_cache_home : home + "/.cache") + "/ivyrun/stage";
}

// -- Objects

Result<IncomingObject> IncomingObject::open(std::string path, std::uint64_t from) {
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return failed("create " + path, errno);
  // Another job of this user on this host may receive the same object: it gets its own file.
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    path += "." + std::to_string(getpid());
    fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return failed("create " + path, errno);
    if (from > 0) return Error{Code::kUnavailable, "another job receives the same file"};
  }
  IncomingObject incoming(std::move(path), std::move(fd));
  std::string buffer(from > 0 ? kCopyBytes : 0, '\0');
  while (incoming.size_ < from) {
    const ssize_t count = read(
        incoming.fd_.get(), buffer.data(),
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), from - incoming.size_)));
    if (count <= 0) return failed("read " + incoming.path_, count == 0 ? EIO : errno);
    incoming.hash_.add({buffer.data(), static_cast<std::size_t>(count)});
    incoming.size_ += static_cast<std::uint64_t>(count);
  }
  if (ftruncate(incoming.fd_.get(), static_cast<off_t>(from)) != 0)
    return failed("truncate " + incoming.path_, errno);
  return incoming;
}

Result<void> IncomingObject::write(std::string_view bytes) {
  if (!write_all(fd_.get(), bytes)) return failed("write " + path_, errno);
  hash_.add(bytes);
  size_ += bytes.size();
  return {};
}

StageCache::StageCache(std::string root, std::string host_name, Descriptor lock)
    : root_(std::move(root)),
      host_name_(std::move(host_name)),
      lock_(std::move(lock)),
      boot_s_(boot_time()) {}

Result<StageCache> StageCache::open(std::string root, std::string host_name) {
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  for (const char* part : {"/objects", "/partial", "/trees"})
    IVY_CHECK(make_directories(root + part));
  struct stat status {};
  if (stat(root.c_str(), &status) != 0) return failed("open " + root, errno);
  if (status.st_uid != geteuid())
    return Error{Code::kFailedPrecondition, root + " belongs to another user",
                 "choose a directory of your own: --stage-to DIR"};
  // The objects and trees are private in any case, because these directories are.
  for (const char* part : {"/objects", "/partial", "/trees"}) chmod((root + part).c_str(), 0700);
  const std::string lock_path = root + "/lock";
  Descriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return failed("create " + lock_path, errno);
  // Waits for another job's evict(), which takes seconds at most. Without locks (some network file
  // systems), jobs only lose the protection from each other's evict().
  while (flock(lock.get(), LOCK_SH) != 0 && errno == EINTR) {
  }
  return StageCache(std::move(root), std::move(host_name), std::move(lock));
}

std::string StageCache::object_path(const StageObject& object) const {
  const std::string digits = hex(object.sha256());
  return root_ + "/objects/" + digits.substr(0, 2) + "/" + digits.substr(2);
}

std::string StageCache::partial_path(const StageObject& object) const {
  return root_ + "/partial/" + hex(object.sha256()) + "." + host_name_;
}

bool StageCache::has(const StageObject& object) {
  const std::string path = object_path(object);
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<std::uint64_t>(status.st_size) != object.size() || status.st_uid != geteuid())
    return false;
  // The content may not have reached the disk before a power failure.
  if (status.st_ctim.tv_sec <= boot_s_ && digest_of(path) != object.sha256()) {
    unlink(path.c_str());
    return false;
  }
  utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return true;
}

std::uint64_t StageCache::partial_bytes(const StageObject& object) const {
  const std::string path = partial_path(object);
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (status.st_ctim.tv_sec > boot_s_ && size < object.size()) return size;
  unlink(path.c_str());
  return 0;
}

Result<IncomingObject> StageCache::begin(const StageObject& object, std::uint64_t from) {
  return IncomingObject::open(partial_path(object), from);
}

Result<void> StageCache::finish(const StageObject& object, IncomingObject& incoming) {
  if (incoming.size() != object.size() || incoming.digest() != object.sha256()) {
    unlink(incoming.path().c_str());
    return Error{Code::kDataLoss, "its content differs from its hash"};
  }
  const std::string path = object_path(object);
  if (rename(incoming.path().c_str(), path.c_str()) == 0) return {};
  IVY_CHECK(make_directories(path.substr(0, path.rfind('/'))));
  if (rename(incoming.path().c_str(), path.c_str()) == 0) return {};
  return failed("rename " + incoming.path(), errno);
}

// -- Trees

bool StageCache::clones() {
  if (clones_) return *clones_;
  const std::string from = root_ + "/partial/clone-test." + std::to_string(getpid());
  const std::string to = from + ".to";
  const Descriptor source(::open(from.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const Descriptor target(::open(to.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  clones_ = source && target && write_all(source.get(), "test") &&
            ioctl(target.get(), FICLONE, source.get()) == 0;
  unlink(from.c_str());
  unlink(to.c_str());
  return *clones_;
}

std::uint64_t StageCache::tree_bytes(const StageManifest& manifest) {
  if (clones()) return 0;
  std::uint64_t bytes = 0;
  for (const StageEntry& entry : manifest.entries()) {
    const StageShared* const shared = shared_part(manifest, entry.path());
    if (shared != nullptr && access((root_ + "/trees/" + shared->name()).c_str(), F_OK) == 0)
      continue;
    if (S_ISREG(entry.mode())) bytes += manifest.objects(static_cast<int>(entry.object())).size();
  }
  return bytes;
}

std::uint64_t StageCache::free_bytes() const {
  struct statvfs space {};
  if (statvfs(root_.c_str(), &space) != 0) return ~std::uint64_t{0};
  return static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
}

Result<void> StageCache::copy_object(const StageObject& object, const StageEntry& entry,
                                     const std::string& path) {
  const Descriptor to(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!to) return failed("create " + path, errno);
  if (object.size() > 0) {
    const std::string source = object_path(object);
    const Descriptor from(::open(source.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!from) return failed("open " + source, errno);
    if (!clones() || ioctl(to.get(), FICLONE, from.get()) != 0)
      if (const int why = copy_bytes(from.get(), to.get(), object.size()); why != 0)
        return failed(
            "write " + entry.path() + " in " + path.substr(0, path.size() - entry.path().size()),
            why);
  }
  const std::array<timespec, 2> times{
      timespec{0, UTIME_NOW}, timespec{static_cast<time_t>(entry.mtime_ns() / 1'000'000'000),
                                       static_cast<long>(entry.mtime_ns() % 1'000'000'000)}};
  if (fchmod(to.get(), (entry.mode() & kPermissions) | S_IRUSR) != 0)
    return failed("change the mode of " + path, errno);
  futimens(to.get(), times.data());
  return {};
}

// Fills a tree with the entries of a shared part, or with all others if `part` is null.
Result<void> StageCache::fill(const std::string& tree, const StageManifest& manifest,
                              const StageShared* part) {
  std::string last_parent;
  for (const StageEntry& entry : manifest.entries()) {
    if (!is_safe(entry.path())) return Error{Code::kDataLoss, "the manifest has an unsafe path"};
    if (shared_part(manifest, entry.path()) != part) continue;
    const std::string path =
        tree + "/" + entry.path().substr(part == nullptr ? 0 : part->path().size() + 1);
    const std::string parent = path.substr(0, path.rfind('/'));
    if (parent != last_parent) IVY_CHECK(make_directories(parent));
    last_parent = parent;
    if (S_ISDIR(entry.mode())) {
      if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return failed("create " + path, errno);
    } else if (S_ISLNK(entry.mode())) {
      if (symlink(entry.link().c_str(), path.c_str()) != 0) return failed("create " + path, errno);
    } else {
      IVY_CHECK(copy_object(manifest.objects(static_cast<int>(entry.object())), entry, path));
    }
  }
  if (part != nullptr) return {};
  for (const StageShared& shared : manifest.shared()) {
    const std::string path = tree + "/" + shared.path();
    const std::string target = IVY_TRY(shared_tree(shared, manifest));
    IVY_CHECK(make_directories(path.substr(0, path.rfind('/'))));
    if (symlink(target.c_str(), path.c_str()) != 0) return failed("create " + path, errno);
  }
  return {};
}

// Returns the tree of a shared part, and holds its lock. Makes it if no earlier job has.
Result<std::string> StageCache::shared_tree(const StageShared& shared,
                                            const StageManifest& manifest) {
  if (!is_safe(shared.path()) || !is_safe(shared.name()) ||
      shared.name().find('/') != std::string::npos)
    return Error{Code::kDataLoss, "the manifest has an unsafe path"};
  const std::string tree = root_ + "/trees/" + shared.name();
  const std::string lock_path = tree + ".lock";
  Descriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return failed("create " + lock_path, errno);
  // Only the job that makes the tree holds the lock exclusively; the others wait for it here.
  constexpr useconds_t kPauseUs = 50'000;
  while (flock(lock.get(), LOCK_SH) == 0) {
    if (access(tree.c_str(), F_OK) == 0) break;
    if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
      if (access(tree.c_str(), F_OK) == 0) continue;
      const std::string unfinished = root_ + "/trees/." + shared.name() + ".new";
      std::error_code ignored;
      std::filesystem::remove_all(unfinished, ignored);
      if (mkdir(unfinished.c_str(), 0700) != 0) return failed("create " + unfinished, errno);
      const Result<void> filled = fill(unfinished, manifest, &shared);
      if (filled.ok() && rename(unfinished.c_str(), tree.c_str()) == 0) continue;
      const int why = errno;
      std::filesystem::remove_all(unfinished, ignored);
      if (!filled.ok()) return filled.error();
      return failed("rename " + unfinished, why);
    }
    flock(lock.get(), LOCK_UN);
    usleep(kPauseUs);
  }
  futimens(lock.get(), nullptr);  // The time of its last use, for evict().
  shared_locks_.push_back(std::move(lock));
  return tree;
}

Result<std::string> StageCache::make_tree(const std::string& name, const StageManifest& manifest) {
  const std::string tree = root_ + "/trees/" + name;
  const std::string lock_path = tree + ".lock";
  tree_lock_.reset(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!tree_lock_) return failed("create " + lock_path, errno);
  flock(tree_lock_.get(), LOCK_EX | LOCK_NB);
  const std::string unfinished = root_ + "/trees/." + name + ".new";
  std::error_code ignored;
  std::filesystem::remove_all(unfinished, ignored);
  if (mkdir(unfinished.c_str(), 0700) != 0) return failed("create " + unfinished, errno);
  const Result<void> filled = fill(unfinished, manifest, nullptr);
  if (filled.ok() && rename(unfinished.c_str(), tree.c_str()) == 0) return tree;
  const int why = errno;
  std::filesystem::remove_all(unfinished, ignored);
  unlink(lock_path.c_str());
  if (!filled.ok()) return filled.error();
  return failed("rename " + unfinished, why);
}

// -- Eviction

void StageCache::evict(std::uint64_t max_bytes, std::uint64_t max_age_s) {
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) return;
  std::vector<Evictable> all;
  for (const std::string& first : names_in(root_ + "/objects"))
    for (const std::string& rest : names_in(root_ + "/objects/" + first))
      add_file(root_ + "/objects/" + first + "/" + rest, all);
  for (const std::string& name : names_in(root_ + "/partial"))
    add_file(root_ + "/partial/" + name, all);
  for (const std::string& name : names_in(root_ + "/trees")) {
    if (name.ends_with(".lock")) continue;
    const std::string tree = root_ + "/trees/" + name;
    struct stat status {};
    // The lock's time is that of the job's start; without a lock, the tree was never finished.
    const bool has_lock = lstat((tree + ".lock").c_str(), &status) == 0;
    all.push_back({has_lock ? status.st_mtim.tv_sec : 0, bytes_below(tree), tree, true});
  }
  std::sort(all.begin(), all.end(),
            [](const Evictable& a, const Evictable& b) { return a.used_s < b.used_s; });
  std::uint64_t bytes = 0;
  for (const Evictable& each : all) bytes += each.bytes;
  const std::int64_t now_s = wall_s();
  for (const Evictable& each : all) {
    const bool is_old = now_s - each.used_s > static_cast<std::int64_t>(max_age_s);
    if (!is_old && bytes <= max_bytes) break;
    const bool is_removed = each.is_tree ? remove_tree(each.path) : unlink(each.path.c_str()) == 0;
    if (is_removed) bytes -= std::min(bytes, each.bytes);
  }
  flock(lock_.get(), LOCK_SH);
}

}  // namespace ivy::stage
