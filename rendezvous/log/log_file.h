// One file of log records on the disk (write_ahead_log.h has its bytes), locked by its owner.
// Plain POSIX; writes of records are the commit thread's (commit_thread.h). Thread: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "rendezvous/log/commit_thread.h"
#include "rendezvous/log/write_ahead_log.h"

namespace ivy::store {

// Unavailable, with the text of errno.
Error disk_error(const std::string& what);

class LogFile {
 public:
  LogFile() = default;
  // Opens the file, mode 0600, and locks it. `flags` are those of open() beside O_RDWR, O_CREAT.
  // AlreadyExists: another store has it.
  static Result<LogFile> open(int directory_fd, const std::string& name, int flags);

  bool is_open() const { return static_cast<bool>(file_); }
  int fd() const { return file_.get(); }
  std::uint64_t end() const { return end_; }
  bool is_empty() const { return next_sequence_ == 1; }
  // The file can be closed later than this object ends.
  Descriptor release() { return std::move(file_); }

  // Writes the head, behind which the records begin.
  Result<void> write_head(const LogHead& head);
  // Cuts the file off behind these whole records, and syncs it.
  Result<void> cut(std::uint64_t end, std::uint64_t next_sequence);
  Result<void> sync() const;
  // Reserves room on the disk. Returns false if that is full; true also where the file system
  // cannot reserve.
  bool reserve(std::uint64_t until);
  // Takes the records, which will be written behind all others.
  RecordsToWrite to_write(std::vector<std::string>& records);

 private:
  explicit LogFile(Descriptor file) : file_(std::move(file)) {}

  Descriptor file_;
  std::uint64_t end_ = 0;  // Where the thread's writes end.
  std::uint64_t next_sequence_ = 1;
  std::uint64_t reserved_end_ = 0;
  bool can_reserve_ = true;
};

}  // namespace ivy::store
