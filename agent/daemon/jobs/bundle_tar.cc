// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs/bundle_tar.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string_view>

#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

using TarReader = std::unique_ptr<archive, decltype(&archive_read_free)>;

constexpr std::size_t kReadBytes = 64u << 10;

Error bad_bundle(const std::string& what) {
  return Error{Code::kDataLoss, "not a bundle: " + what, "build or reinstall ivyrun"};
}

std::string reason_of(archive* tar) {
  const char* const text = archive_error_string(tar);
  return text == nullptr ? "it is damaged" : text;
}

bool is_plain(std::string_view name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.front() != '.' && name.front() != '-' &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

Error cannot_write(const std::string& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return errno_error(is_full ? Code::kResourceExhausted : Code::kUnavailable, path, error);
}

Result<void> check_entry(archive_entry* entry) {
  const char* const name = archive_entry_pathname(entry);
  if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr ||
      archive_entry_is_encrypted(entry) || name == nullptr || !is_plain(name))
    return bad_bundle("it contains something other than regular files");
  const std::int64_t bytes = archive_entry_size(entry);
  if (!archive_entry_size_is_set(entry) || bytes < 0 ||
      static_cast<std::uint64_t>(bytes) > kMaxBundleBytes)
    return bad_bundle("it contains a file that is too large");
  return {};
}

Result<void> unpack_file(archive* tar, archive_entry* entry, const std::string& directory) {
  IVY_CHECK(check_entry(entry));
  const std::string path = directory + "/" + archive_entry_pathname(entry);
  const mode_t mode = (archive_entry_perm(entry) & 0111) != 0 ? 0700 : 0600;
  // O_EXCL: rejects an archive in which a name occurs twice.
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file) return cannot_write(path, errno);
  const auto buffer = std::make_unique<char[]>(kReadBytes);
  la_ssize_t bytes = 0;
  while ((bytes = archive_read_data(tar, buffer.get(), kReadBytes)) > 0) {
    if (!write_all(file.get(), {buffer.get(), static_cast<std::size_t>(bytes)}))
      return cannot_write(path, errno);
  }
  if (bytes < 0) return bad_bundle(reason_of(tar));
  // Some file systems report a full disk only here.
  if (close(file.release()) != 0) return cannot_write(path, errno);
  return {};
}

}  // namespace

Result<void> unpack_bundle(int tar_fd, const std::string& directory) {
  if (lseek(tar_fd, 0, SEEK_SET) != 0)
    return errno_error(Code::kUnavailable, "read the bundle", errno);
  const TarReader tar(archive_read_new(), archive_read_free);
  archive_read_support_format_tar(tar.get());
  archive_read_support_filter_zstd(tar.get());
  if (archive_read_open_fd(tar.get(), tar_fd, kReadBytes) != ARCHIVE_OK)
    return bad_bundle(reason_of(tar.get()));
  std::uint64_t total = 0;
  archive_entry* entry = nullptr;
  int step = ARCHIVE_OK;
  for (std::size_t files = 0; (step = archive_read_next_header(tar.get(), &entry)) == ARCHIVE_OK;
       ++files) {
    total += static_cast<std::uint64_t>(archive_entry_size(entry));
    if (files == kMaxBundleFiles || total > kMaxBundleBytes) return bad_bundle("it is too large");
    IVY_CHECK(unpack_file(tar.get(), entry, directory));
  }
  if (step != ARCHIVE_EOF) return bad_bundle(reason_of(tar.get()));
  // libarchive also takes the end of the file for the end of the archive.
  if (archive_read_header_position(tar.get()) >= archive_filter_bytes(tar.get(), 0))
    return bad_bundle("its end is missing");
  return {};
}

}  // namespace ivy
