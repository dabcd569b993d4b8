// The store's log on the disk: DIRECTORY/JOB.wal (write_ahead_log.h has its bytes). Opening it
// replays it; from then on the engine's changes are recorded, written and synced in batches. A
// change may be acknowledged when committed() has reached the recorded() of its moment.
//
// A log that has grown well beyond its contents is rewritten beside the old one, a piece with each
// batch, and replaces it by a rename, so the file is always whole.
//
// The disk: room is reserved ahead of what is recorded, so a disk that fills up is noticed while a
// write can still be refused (has_room). Where the file system cannot reserve (some network file
// systems), a full disk is an error like any other: final, and returned by collect(). Only synced
// records count as committed.
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
#include "proto/os/descriptor.h"
#include "rendezvous/engine/engine.h"
#include "rendezvous/engine/journal.h"
#include "rendezvous/log/commit_thread.h"
#include "rendezvous/log/log_file.h"
#include "rendezvous/log/log_rewrite.h"
#include "rendezvous/log/write_ahead_log.h"

namespace ivy::store {

class WalFile : public Journal {
 public:
  // Replays the log into the engine, which is new, and becomes its journal. AlreadyExists: another
  // process has the log; DataLoss: the file is no log of this job; Unavailable: the disk. A torn
  // end is cut off. Damage before the end is cut off too, with a new epoch, because acknowledged
  // changes may be missing.
  static Result<std::unique_ptr<WalFile>> open(const std::string& directory,
                                               const std::string& job_id, Engine& engine);
  ~WalFile() override;

  // kEpochBytes; the same since the first process.
  const std::string& epoch() const { return epoch_; }
  // A line for the program's log about what was found; empty if there was nothing.
  const std::string& found() const { return found_; }
  bool is_new() const { return is_new_; }

  bool has_room(std::size_t bytes, Use use) override;
  void record(std::string effects) override;

  std::uint64_t recorded() const { return recorded_; }
  std::uint64_t committed() const { return committed_; }
  // Bytes that are recorded and not yet on the disk.
  std::size_t pending_bytes() const { return pending_bytes_ + batch_.bytes; }

  // Hands the recorded changes to the thread if it is idle. Call it after every turn of the loop.
  void commit();
  // collect() takes the thread's finished batch; call it when this descriptor is readable. An error
  // is final.
  int ready_fd() const { return thread_->ready_fd(); }
  Result<void> collect();
  // Returns a line about a failed rewrite of the log, once; otherwise an empty text.
  std::string take_note() { return std::exchange(note_, {}); }

 private:
  // What is out with the commit thread.
  struct Batch {
    bool is_out = false;
    std::size_t bytes = 0;
    std::uint64_t recorded = 0;  // recorded(), when it went out.
  };

  WalFile(std::string directory, std::string job_id, Engine& engine);
  Result<void> recover();
  Result<LogReader::End> replay(std::uint64_t& good_end, std::uint64_t& next_sequence);
  void begin_rewrite();
  void give_up_rewrite(const Error& error);
  std::string rewrite_name() const { return name_ + ".new"; }

  const std::string directory_;
  const std::string job_id_;
  const std::string name_;
  Engine& engine_;
  Descriptor directory_fd_;
  LogFile log_;
  LogRewrite rewrite_;
  std::string epoch_;
  std::string found_;
  std::string note_;
  bool is_new_ = false;
  std::unique_ptr<CommitThread> thread_;
  std::vector<std::string> pending_;
  std::size_t pending_bytes_ = 0;  // The heads of the records are counted.
  std::uint64_t recorded_ = 0;
  std::uint64_t committed_ = 0;
  Batch batch_;
};

}  // namespace ivy::store
