// The one thread that the store has beside its loop: it writes a batch of log records and waits for
// the disk. Meanwhile the loop keeps serving and gathers the next batch (group commit). The thread
// touches nothing but the batch.
//
// Thread: submit and take are the loop's. Lifetime: the destructor waits for the batch under way.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy::store {

// Records for one file, in order.
struct RecordsToWrite {
  int fd = -1;
  std::uint64_t offset = 0;
  std::uint64_t first_sequence = 1;
  std::vector<std::string> records;
};

struct CommitBatch {
  RecordsToWrite log;     // Synced when the batch comes back.
  RecordsToWrite second;  // For the log that is being rewritten; not synced before it is ready.
  // True: the second file then replaces the log.
  bool replaces_log = false;
  int directory_fd = -1;
  std::string log_name;
  std::string second_name;

  std::optional<Error> lost;         // The batch may not be on the disk: final.
  std::optional<Error> second_lost;  // The second file is unusable; the log is unaffected.
};

class CommitThread {
 public:
  // Fails with Internal if no thread can be started.
  static Result<std::unique_ptr<CommitThread>> start();
  ~CommitThread();

  // Hands over one batch; call it again only after take() has returned that batch.
  void submit(CommitBatch batch);
  // Returns the finished batch, or nothing if there is none. Empties ready_fd().
  std::optional<CommitBatch> take();
  // Readable when a batch is done.
  int ready_fd() const { return ready_.get(); }

 private:
  explicit CommitThread(Descriptor ready) : ready_(std::move(ready)) {}
  void run();

  const Descriptor ready_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CommitBatch> submitted_;
  std::optional<CommitBatch> done_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace ivy::store
