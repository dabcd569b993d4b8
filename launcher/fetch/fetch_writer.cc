// SPDX-License-Identifier: Apache-2.0
#include "launcher/fetch/fetch_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "launcher/fetch/fetch_names.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/text_columns.h"
#include "proto/os/files.h"
#include "proto/wire/stage_codec.h"

namespace ivy {
namespace {

// Numbers of DIR.N: more are a script that never removes its results.
constexpr int kMaxDirectories = 10'000;

// Errors that later files would have as well.
bool is_final(int error) {
  return error == ENOSPC || error == EDQUOT || error == EROFS || error == EIO || error == EMFILE ||
         error == ENFILE;
}

// An error that ends the fetch, or a problem of this file only.
Error write_error(const std::string& path, int error) {
  return Error{is_final(error) ? Code::kResourceExhausted : Code::kInvalidArgument,
               "cannot write " + path + ": " + strerror(error)};
}

Error broken_protocol(const std::string& what) { return Error{Code::kDataLoss, what}; }

}  // namespace

FetchWriter::FetchWriter(std::vector<FetchTarget> targets, unsigned umask)
    : targets_(std::move(targets)), umask_(umask) {}

void FetchWriter::abandon_all() {
  while (!incoming_.empty()) abandon(incoming_.begin()->first);
}

Result<std::vector<std::string>> FetchWriter::open(std::uint64_t bytes) {
  std::map<std::string, std::set<std::string>> entries;
  std::vector<std::string> order;
  for (const FetchTarget& target : targets_) {
    if (!entries.contains(target.directory)) order.push_back(target.directory);
    entries[target.directory].insert(target.name);
  }
  std::vector<std::string> chosen;
  for (const std::string& directory : order) {
    std::string free;
    for (int number = 1; number <= kMaxDirectories && free.empty(); ++number) {
      const std::string candidate = numbered_directory(directory, number);
      const auto exists = [&](const std::string& name) {
        struct stat status {};
        return lstat((candidate + "/" + name).c_str(), &status) == 0;
      };
      const std::set<std::string>& names = entries[directory];
      if (std::none_of(names.begin(), names.end(), exists)) free = candidate;
    }
    if (free.empty())
      return Error{Code::kResourceExhausted, directory + " has too many numbered neighbours",
                   "remove old results"};
    std::error_code error;
    std::filesystem::create_directories(free, error);
    if (error)
      return Error{Code::kResourceExhausted, "cannot create " + free + ": " + error.message()};
    struct statvfs space {};
    if (statvfs(free.c_str(), &space) == 0 && space.f_blocks > 0) {
      const std::uint64_t available = std::uint64_t{space.f_bavail} * space.f_frsize;
      if (available < bytes)
        return Error{Code::kResourceExhausted,
                     "the files take " + size_text(bytes) + ", but " + free + " has only " +
                         size_text(available) + " left",
                     "free space, choose another directory (--fetch PATTERN:DIR), or fetch fewer "
                     "files"};
    }
    for (FetchTarget& target : targets_)
      if (target.directory == directory) target.directory = free;
    chosen.push_back(free);
  }
  return chosen;
}

Result<FetchWriter::Root*> FetchWriter::root_of(std::uint32_t target) {
  Root& root = roots_[target];
  if (root.fd) return &root;
  const FetchTarget& where = targets_[target];
  const std::string path = where.directory + "/" + where.name;
  // open() has checked that it does not exist, so another job has created it since then.
  if (mkdir(path.c_str(), 0777) != 0) return write_error(path, errno == EEXIST ? EIO : errno);
  root.fd.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!root.fd) return write_error(path, errno);
  return &root;
}

Result<int> FetchWriter::parent_of(Root& root, const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return root.fd.get();
  const std::string wanted = path.substr(0, slash);
  if (root.parent_fd && root.parent == wanted) return root.parent_fd.get();
  Descriptor at;
  std::string_view rest = wanted;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('/'), rest.size());
    const std::string name(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const int from = at ? at.get() : root.fd.get();
    if (mkdirat(from, name.c_str(), 0777) != 0 && errno != EEXIST) return write_error(path, errno);
    Descriptor next(openat(from, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next) return write_error(path, errno);
    at = std::move(next);
  }
  root.parent = wanted;
  root.parent_fd = std::move(at);
  return root.parent_fd.get();
}

Result<void> FetchWriter::begin_file(std::size_t host, const FetchFile& file, Incoming& incoming) {
  if (file.target() >= targets_.size() || targets_[file.target()].host != host)
    return broken_protocol("it sent a file for another host's directory");
  if (const Result<void> valid = check_fetched_path(file.path()); !valid.ok())
    return broken_protocol("it sent the name " + RemoteText(file.path()).line() + " with " +
                           valid.error().message);
  Root* const root = IVY_TRY(root_of(file.target()));
  incoming.temporary = ".ivyrun-part." + std::to_string(++files_);
  incoming.fd.reset(openat(root->fd.get(), incoming.temporary.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!incoming.fd) return write_error(file.path(), errno);
  return {};
}

Result<void> FetchWriter::finish_file(Incoming& incoming) {
  const FetchFile& file = incoming.file;
  Root& root = roots_[file.target()];
  const int parent = IVY_TRY(parent_of(root, file.path()));
  fchmod(incoming.fd.get(), file.mode() & 0777 & ~umask_);
  constexpr std::int64_t kSecond = 1'000'000'000;
  const timespec modified{file.mtime_ns() / kSecond, file.mtime_ns() % kSecond};
  const timespec times[2] = {{0, UTIME_OMIT}, modified};
  futimens(incoming.fd.get(), times);
  // Some file systems report a full disk only here.
  if (close(incoming.fd.release()) != 0) return write_error(file.path(), errno);
  const std::string name = file.path().substr(file.path().rfind('/') + 1);
  if (renameat(root.fd.get(), incoming.temporary.c_str(), parent, name.c_str()) != 0)
    return write_error(file.path(), errno);
  return {};
}

Result<void> FetchWriter::take(std::size_t host, const FetchPart& part, Written& written) {
  Incoming& incoming = incoming_[host];
  // A problem of this file only: the rest of it is ignored.
  const auto settle = [&](const Result<void>& result) -> Result<void> {
    if (result.ok()) return {};
    if (incoming.fd || !incoming.temporary.empty()) {
      if (const auto root = roots_.find(incoming.file.target());
          root != roots_.end() && root->second.fd)
        unlinkat(root->second.fd.get(), incoming.temporary.c_str(), 0);
      incoming.fd.reset();
      incoming.temporary.clear();
    }
    if (result.error().code != Code::kInvalidArgument) return result.error();
    written.problems.push_back({incoming.file.path(), result.error().message});
    return {};
  };
  if (part.has_file()) {
    if (incoming.is_open) return broken_protocol("it sent a file inside another one");
    incoming = Incoming();
    incoming.file = part.file();
    incoming.is_open = true;
    IVY_CHECK(settle(begin_file(host, part.file(), incoming)));
  }
  if (!incoming.is_open) return broken_protocol("it sent a part of no file");
  incoming.received += part.size();
  if (part.size() > stage::kBlockBytes || incoming.received > incoming.file.size() ||
      part.last() != (incoming.received == incoming.file.size()) ||
      (part.size() == 0 && !part.last()))
    return broken_protocol("it sent parts that do not match the size of their file");
  if (incoming.fd) {
    const auto write_part = [&]() -> Result<void> {
      std::string unpacked;
      if (part.is_compressed()) {
        Result<std::string> plain = stage::decompressed(part.bytes(), part.size());
        if (!plain.ok()) return broken_protocol("it sent data that cannot be decompressed");
        unpacked = std::move(*plain);
      } else if (part.bytes().size() != part.size()) {
        return broken_protocol("it sent a part with a wrong size");
      }
      const std::string_view bytes = part.is_compressed() ? unpacked : part.bytes();
      if (!write_all(incoming.fd.get(), bytes)) return write_error(incoming.file.path(), errno);
      return {};
    };
    IVY_CHECK(settle(write_part()));
  }
  written.bytes += part.size();
  if (!part.last()) return {};
  incoming.is_open = false;
  if (!incoming.fd) return {};
  const Result<void> finished = finish_file(incoming);
  if (finished.ok()) {
    ++written.files;
    written.file_bytes += incoming.file.size();
    incoming.temporary.clear();
  }
  return settle(finished);
}

void FetchWriter::abandon(std::size_t host) {
  const auto found = incoming_.find(host);
  if (found == incoming_.end()) return;
  Incoming& incoming = found->second;
  if (!incoming.temporary.empty())
    if (const auto root = roots_.find(incoming.file.target());
        root != roots_.end() && root->second.fd)
      unlinkat(root->second.fd.get(), incoming.temporary.c_str(), 0);
  incoming_.erase(found);
}

}  // namespace ivy
