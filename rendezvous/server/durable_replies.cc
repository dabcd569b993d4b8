#include "rendezvous/server/durable_replies.h"

#include <unistd.h>

namespace ivy::store {
namespace {

// Limits the changes that are not on the disk yet, and the replies that wait for them: a disk that
// is slower than its clients must not fill the memory.
constexpr std::size_t kMaxUncommittedBytes = 64u << 20;

}  // namespace

Result<void> DurableReplies::keep_in(const std::string& directory, const std::string& job_id,
                                     Engine& engine, std::uint32_t generation) {
  wal_ = IVY_TRY(WalFile::open(directory, job_id, engine));
  if (!wal_->found().empty()) handlers_.log("the log in " + directory + " holds " + wal_->found());
  Replies none;
  if (!wal_->is_new() && engine.generation() > generation) {
    return Error{Code::kFailedPrecondition, "the log in " + directory + " is of generation " +
                                                std::to_string(engine.generation()) +
                                                ", this store of " + std::to_string(generation)};
  }
  // A new log must also record its generation.
  if (wal_->is_new() || engine.generation() < generation) engine.begin_generation(generation, none);
  disk_ready_.assign(dup(wal_->ready_fd()));
  wait();
  return {};
}

bool DurableReplies::hold(Replies& replies) {
  if (wal_ == nullptr || (held_.empty() && wal_->recorded() == wal_->committed())) return false;
  held_.hold(wal_->recorded(), replies);
  return true;
}

void DurableReplies::commit() {
  if (wal_ != nullptr) wal_->commit();
}

bool DurableReplies::is_behind() const {
  return wal_ != nullptr &&
         (wal_->pending_bytes() > kMaxUncommittedBytes || held_.bytes() > kMaxUncommittedBytes);
}

void DurableReplies::close() {
  boost::system::error_code ignored;
  disk_ready_.close(ignored);
  alive_.end();
}

void DurableReplies::wait() {
  disk_ready_.async_wait(boost::asio::posix::stream_descriptor::wait_read, alive_.guard([this] {
    on_disk();
    if (!alive_.has_ended()) wait();
  }));
}

void DurableReplies::on_disk() {
  const bool was_behind = is_behind();
  const Result<void> committed = wal_->collect();
  if (!committed.ok()) {
    const Error& lost = committed.error();
    Replies failed = held_.fail(
        Error{lost.code, lost.message + ": whether the request was served is not known"});
    return handlers_.lost(lost, failed);
  }
  if (const std::string note = wal_->take_note(); !note.empty()) handlers_.log(note);
  Replies released = held_.release(wal_->committed());
  handlers_.released(released, was_behind && !is_behind());
}

}  // namespace ivy::store
