// The store's log on the disk: DIRECTORY/JOB.wal (write_ahead_log.h has its bytes). Opening it does
// once more what it says; from then on the engine's changes are recorded, written and synced in
// batches. A change may be acknowledged when committed() has reached the recorded() of its moment.
//
// A log that has grown well beyond what it stands for is written anew beside the old one, a piece
// with each batch, and takes its place by a rename: the file is never in between.
//
// The disk: room is reserved ahead of what is recorded, so a disk that fills up is noticed while a
// write can still be refused (has_room). Where reserving is unknown (some network file systems) a
// full disk is an error as any other: final, and told by collect(). Nothing that was not synced is
// ever called committed.
//
// Thread: the loop's; the disk is waited for in a thread of its own (commit_thread.h).
// Lifetime: the engine outlives it; the destructor waits for the batch under way.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"
#include "rendezvous/engine/journal.h"
#include "rendezvous/log/commit_thread.h"
#include "rendezvous/log/write_ahead_log.h"

namespace ivy::store {

class WalFile : public Journal {
 public:
  // Replays the log into the engine, which is new, and becomes its journal. AlreadyExists: another
  // process has the log; DataLoss: the file is no log of this job; Unavailable: the disk.
  // A torn end is cut off. Damage before the end is cut off too, and the epoch is new then: what
  // was acknowledged may be missing.
  static Result<std::unique_ptr<WalFile>> open(const std::string& directory,
                                               const std::string& job_id, Engine& engine);
  ~WalFile() override;

  // kEpochBytes: kept from the first process on.
  const std::string& epoch() const { return epoch_; }
  // What was found, for the log: empty where there was nothing.
  const std::string& found() const { return found_; }
  bool is_new() const { return is_new_; }

  bool has_room(std::size_t bytes, Use use) override;
  void record(std::string effects) override;

  std::uint64_t recorded() const { return recorded_; }
  std::uint64_t committed() const { return committed_; }
  // Recorded, and not yet on the disk.
  std::size_t pending_bytes() const { return pending_bytes_ + batch_bytes_; }

  // Hands what was recorded to the thread, when it is idle. After every turn of the loop.
  void commit();
  // When this descriptor is readable: takes what the thread has done. An error is final.
  int ready_fd() const { return thread_->ready_fd(); }
  Result<void> collect();
  // A line about writing the log anew that failed, once; or empty.
  std::string take_note() { return std::exchange(note_, {}); }

 private:
  struct File {
    int fd = -1;
    std::uint64_t end = 0;  // Of what was given to the thread.
    std::uint64_t next_sequence = 1;
    std::uint64_t reserved_end = 0;
  };
  enum class Anew { kNo, kWriting, kReplacing };

  WalFile(std::string directory, std::string name, Engine& engine);
  Result<void> open_file();
  Result<void> lock(int fd) const;
  Result<void> recover(const std::string& job_id);
  Result<LogReader::End> replay(std::uint64_t& good_end);
  Result<void> write_head(File& file, const std::string& job_id) const;
  bool reserve(File& file, std::uint64_t until);
  void begin_anew();
  void give_up_anew(const Error& error);
  static RecordsToWrite work_of(File& file, std::vector<std::string>& records);
  Error in_words(const Error& error) const;

  const std::string directory_;
  const std::string name_;
  Engine& engine_;
  int directory_fd_ = -1;
  File log_;
  std::string job_id_;
  std::string epoch_;
  std::string found_;
  std::string note_;
  bool is_new_ = false;
  bool can_reserve_ = true;
  std::unique_ptr<CommitThread> thread_;

  std::vector<std::string> pending_;
  std::size_t pending_bytes_ = 0;  // With heads of records.
  std::uint64_t recorded_ = 0;
  std::uint64_t committed_ = 0;
  bool batch_out_ = false;
  std::size_t batch_bytes_ = 0;
  std::uint64_t batch_recorded_ = 0;  // recorded_, when it went out.

  Anew anew_ = Anew::kNo;
  File second_;
  SnapshotCursor cursor_;
  std::vector<std::string> second_pending_;
  std::vector<int> former_;  // Of attempts that were given up; closed when the thread is idle.
  std::uint64_t anew_not_before_bytes_ = 0;  // After a failure: the log must have grown first.
};

}  // namespace ivy::store
