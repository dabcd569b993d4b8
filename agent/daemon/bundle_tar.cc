#include "agent/daemon/bundle_tar.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ivy {
namespace {

// Where the parts of a ustar header are (POSIX.1-2017, pax).
constexpr std::size_t kNameAt = 0, kNameBytes = 100;
constexpr std::size_t kModeAt = 100, kModeBytes = 8;
constexpr std::size_t kSizeAt = 124, kSizeBytes = 12;
constexpr std::size_t kChecksumAt = 148, kChecksumBytes = 8;
constexpr std::size_t kTypeAt = 156;
constexpr std::size_t kMagicAt = 257;
constexpr std::size_t kPrefixAt = 345;

Error refused(const std::string& what) {
  return Error{Code::kDataLoss, "not a bundle: " + what, "build or install ivyrun again"};
}

std::string_view text_field(std::string_view block, std::size_t at, std::size_t bytes) {
  const std::string_view field = block.substr(at, bytes);
  return field.substr(0, field.find('\0'));
}

// Octal digits up to a blank or NUL; leading blanks are allowed.
std::optional<std::uint64_t> number_field(std::string_view block, std::size_t at,
                                          std::size_t bytes) {
  std::string_view field = text_field(block, at, bytes);
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  field = field.substr(0, field.find(' '));
  std::uint64_t value = 0;
  if (field.empty()) return std::nullopt;
  for (const char digit : field) {
    if (digit < '0' || digit > '7') return std::nullopt;
    value = value * 8 + static_cast<std::uint64_t>(digit - '0');
  }
  return value;
}

std::uint64_t checksum_of(std::string_view block) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const bool is_checksum = i >= kChecksumAt && i < kChecksumAt + kChecksumBytes;
    sum += is_checksum ? ' ' : static_cast<unsigned char>(block[i]);
  }
  return sum;
}

bool is_plain(std::string_view name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.front() != '.' && name.front() != '-' &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

// False at the end of the file.
Result<bool> read_block(int fd, std::array<char, kTarBlockBytes>& block) {
  std::size_t have = 0;
  while (have < block.size()) {
    const ssize_t count = read(fd, block.data() + have, block.size() - have);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_error(Code::kUnavailable, "read the bundle", errno);
    if (count == 0) break;
    have += static_cast<std::size_t>(count);
  }
  if (have == 0) return false;
  if (have < block.size()) return refused("it ends within a block");
  return true;
}

Error cannot_write(const std::string& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return errno_error(is_full ? Code::kResourceExhausted : Code::kUnavailable, path, error);
}

Result<void> copy_file(int tar_fd, int fd, const std::string& path, std::uint64_t bytes) {
  std::array<char, kTarBlockBytes> block;
  for (std::uint64_t left = bytes; left > 0;) {
    if (!IVY_TRY(read_block(tar_fd, block))) return refused("it ends within a file");
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(left, block.size()));
    std::size_t written = 0;
    while (written < count) {
      const ssize_t step = write(fd, block.data() + written, count - written);
      if (step < 0 && errno == EINTR) continue;
      if (step < 0) return cannot_write(path, errno);
      written += static_cast<std::size_t>(step);
    }
    left -= count;
  }
  return {};
}

Result<void> unpack_file(int tar_fd, const std::string& directory, const TarEntry& entry) {
  const std::string path = directory + "/" + entry.name;
  const mode_t mode = entry.is_executable ? 0700 : 0600;
  // O_EXCL: a name that comes twice is refused.
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd < 0) return cannot_write(path, errno);
  Result<void> copied = copy_file(tar_fd, fd, path, entry.bytes);
  if (close(fd) != 0 && copied.ok()) copied = cannot_write(path, errno);
  return copied;
}

}  // namespace

Result<std::optional<TarEntry>> parse_tar_header(std::string_view block) {
  if (block.size() != kTarBlockBytes) return refused("a header of another size");
  if (block.find_first_not_of('\0') == std::string_view::npos) return std::optional<TarEntry>();
  if (number_field(block, kChecksumAt, kChecksumBytes) != checksum_of(block))
    return refused("a header's checksum is wrong");
  if (block.substr(kMagicAt, 5) != "ustar") return refused("a header that is not ustar's");
  const char type = block[kTypeAt];
  const auto bytes = number_field(block, kSizeAt, kSizeBytes);
  const auto mode = number_field(block, kModeAt, kModeBytes);
  TarEntry entry;
  entry.name = text_field(block, kNameAt, kNameBytes);
  if ((type != '0' && type != '\0') || block[kPrefixAt] != '\0' || !is_plain(entry.name))
    return refused("it holds more than plain files");
  if (!bytes || !mode || *bytes > kMaxBundleBytes) return refused("a file of a forbidden size");
  entry.bytes = *bytes;
  entry.is_executable = (*mode & 0111) != 0;
  return std::optional<TarEntry>(entry);
}

Result<void> unpack_bundle(int tar_fd, const std::string& directory) {
  if (lseek(tar_fd, 0, SEEK_SET) != 0)
    return errno_error(Code::kUnavailable, "read the bundle", errno);
  std::array<char, kTarBlockBytes> block;
  std::uint64_t total = 0;
  for (std::size_t files = 0; IVY_TRY(read_block(tar_fd, block)); ++files) {
    const auto entry = IVY_TRY(parse_tar_header(std::string_view(block.data(), block.size())));
    if (!entry) return {};
    total += entry->bytes;
    if (files == kMaxBundleFiles || total > kMaxBundleBytes) return refused("it is too large");
    IVY_CHECK(unpack_file(tar_fd, directory, *entry));
  }
  return refused("it has no end");
}

}  // namespace ivy
