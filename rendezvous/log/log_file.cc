#include "rendezvous/log/log_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ivy::store {
namespace {

// Reserved ahead of what is recorded, so that reserving is rare.
constexpr std::uint64_t kReserveBytes = 4u << 20;

}  // namespace

Error disk_error(const std::string& what) { return errno_error(Code::kUnavailable, what, errno); }

Result<LogFile> LogFile::open(int directory_fd, const std::string& name, int flags) {
  LogFile made(Descriptor(
      openat(directory_fd, name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600)));
  struct stat opened {};
  struct stat there {};
  if (!made.is_open()) return disk_error("open it");
  if (fstat(made.fd(), &opened) != 0) return disk_error("look at it");
  if (!S_ISREG(opened.st_mode))
    return Error{Code::kInvalidArgument, "it is no regular file", "name another directory"};
  if (flock(made.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return disk_error("lock it");
    return Error{Code::kAlreadyExists, "another store uses it",
                 "end that one first, or name another directory"};
  }
  // Its former owner may have replaced it before we had the lock.
  if (fstatat(directory_fd, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0 ||
      there.st_ino != opened.st_ino)
    return Error{Code::kAlreadyExists, "another store has just replaced it"};
  return made;
}

Result<void> LogFile::write_head(const LogHead& head) {
  const std::string bytes = encode_log_head(head);
  if (pwrite(fd(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return disk_error("write its head");
  if (end_ == 0) end_ = reserved_end_ = kLogHeadBytes;
  return {};
}

Result<void> LogFile::sync() const {
  if (fdatasync(fd()) == 0) return {};
  return disk_error("sync");
}

Result<void> LogFile::cut(std::uint64_t end, std::uint64_t next_sequence) {
  if (ftruncate(fd(), static_cast<off_t>(end)) != 0) return disk_error("cut it off");
  end_ = reserved_end_ = end;
  next_sequence_ = next_sequence;
  return {};
}

bool LogFile::reserve(std::uint64_t until) {
  if (!can_reserve_ || until <= reserved_end_) return true;
  for (const std::uint64_t wanted : {until + kReserveBytes, until}) {
    int failed = 0;
    do {
      failed = fallocate(fd(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(reserved_end_),
                         static_cast<off_t>(wanted - reserved_end_));
    } while (failed != 0 && errno == EINTR);
    if (failed == 0) {
      reserved_end_ = wanted;
      return true;
    }
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) continue;
    can_reserve_ = false;
    return true;
  }
  return false;
}

RecordsToWrite LogFile::to_write(std::vector<std::string>& records) {
  RecordsToWrite work{fd(), end_, next_sequence_, std::exchange(records, {})};
  for (const std::string& record : work.records) end_ += kRecordHeadBytes + record.size();
  next_sequence_ += work.records.size();
  return work;
}

}  // namespace ivy::store
