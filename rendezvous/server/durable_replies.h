// Keeps replies back until the log on the disk has what they speak of (wal_file.h). Without a log
// it keeps nothing. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"
#include "rendezvous/log/held_replies.h"
#include "rendezvous/log/wal_file.h"
#include "rendezvous/server/alive.h"

namespace ivy::store {

class DurableReplies {
 public:
  struct Handlers {
    // The disk has what these replies depend on. If it has caught up, clients that were not read
    // may be read again.
    std::function<void(Replies&, bool has_caught_up)> released;
    // The log cannot be written any more. The replies are those that were kept back, as errors.
    std::function<void(const Error&, Replies&)> lost;
    std::function<void(const std::string&)> log;
  };

  DurableReplies(boost::asio::io_context& loop, Handlers handlers)
      : disk_ready_(loop), handlers_(std::move(handlers)) {}

  // Replays the log of this job, or begins one, at this generation. FailedPrecondition: the log is
  // of a later one.
  Result<void> keep_in(const std::string& directory, const std::string& job_id, Engine& engine,
                       std::uint32_t generation);
  // The store's epoch is that of its log.
  const std::string& epoch() const { return wal_->epoch(); }
  // Takes the replies if they must wait; otherwise they may leave now.
  bool hold(Replies& replies);
  // Hands the changes of this turn to the disk.
  void commit();
  // True if so much waits for the disk that no client should be read.
  bool is_behind() const;
  void close();

 private:
  void wait();
  void on_disk();

  std::unique_ptr<WalFile> wal_;  // Null if there is no log.
  HeldReplies held_;
  boost::asio::posix::stream_descriptor disk_ready_;
  const Handlers handlers_;
  Alive alive_;
};

}  // namespace ivy::store
