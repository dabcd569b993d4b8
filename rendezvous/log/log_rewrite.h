// The rewrite of a log that has grown well beyond its contents: a second file beside it that gets a
// snapshot of the store, a piece with each batch, and every change of what the snapshot has passed.
// When it is whole it replaces the log by a rename. Thread: the loop's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"
#include "rendezvous/log/log_file.h"

namespace ivy::store {

class LogRewrite {
 public:
  bool is_under_way() const { return file_.is_open(); }
  bool is_due(std::uint64_t log_bytes, std::uint64_t store_bytes) const {
    return !is_under_way() && log_bytes > not_before_bytes_ &&
           is_worth_compacting(log_bytes, store_bytes);
  }
  // The file must not exist.
  Result<void> begin(int directory_fd, const std::string& name, const LogHead& head);
  // Notes one record of the log. Returns false if a new generation has begun in it, which makes the
  // rewrite useless.
  bool record(const std::string& effects);
  // Returns the next piece for the commit thread, and whether it is the last one, with which the
  // file replaces the log (`room_bytes` must be free behind it).
  RecordsToWrite next_piece(const Engine& engine, std::uint64_t room_bytes, bool& replaces_log);
  // After a batch has come back: whether it was for the present rewrite.
  bool is_for(const RecordsToWrite& work) const { return is_under_way() && work.fd == file_.fd(); }
  // The last piece has left, though it could not replace the log.
  bool has_no_room() const { return cursor_.done(); }
  LogFile take();
  // Removes the file. The log must grow beyond `not_before_bytes` before the next attempt.
  void give_up(int directory_fd, const std::string& name, std::uint64_t not_before_bytes);
  // Closes the files of abandoned rewrites. The commit thread must be idle: until then a number
  // must not be reused.
  void close_former() { former_.clear(); }

 private:
  LogFile file_;
  SnapshotCursor cursor_;
  std::vector<std::string> pending_;
  bool is_replacing_ = false;  // The last piece has left: changes are recorded behind it.
  std::vector<Descriptor> former_;
  std::uint64_t not_before_bytes_ = 0;
};

}  // namespace ivy::store
