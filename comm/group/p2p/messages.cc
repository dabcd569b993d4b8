// SPDX-License-Identifier: Apache-2.0
#include "comm/group/p2p/messages.h"

#include <chrono>
#include <utility>

#include "comm/group/p2p/message_display.h"

namespace ivy::comm {

PointToPoint& Messages::open() {
  const std::lock_guard lock(mutex_);
  if (messages_ != nullptr) return *messages_;
  PointToPointOptions options;
  options.communicator = ranks_.name();
  options.self = ranks_.rank();
  options.member_of.assign(ranks_.members().size(), -1);
  std::int32_t member = 0;
  for (const std::int32_t rank : ranks_.local_ranks()) {
    options.member_of[static_cast<std::size_t>(rank)] = member++;
  }
  options.peers = ranks_.tcp_peers();
  if (!job_.machine().has_processor_each) options.spin = std::chrono::microseconds(0);
  options.handler = &handler_;
  row_.emplace(job_.rows(), ranks_.name());
  if (*row_) {
    options.board = std::make_unique<MessageDisplay>(row_->slot(), row_->number(), ranks_.name());
  }
  messages_ = std::make_unique<PointToPoint>(
      std::move(options), local_, job_.connections(),
      job_.make_failure_detector(ranks_.name(), ranks_.members(), ranks_.rank()));
  // A failure that was found before this state existed could not break it; do it now.
  if (const MaybeFailure found = failure_.get()) messages_->break_with(*found);
  return *messages_;
}

Outcome Messages::finish_sends() {
  PointToPoint* messages = nullptr;
  {
    const std::lock_guard lock(mutex_);
    messages = messages_.get();
  }
  return messages != nullptr ? messages->finish_sends() : Outcome();
}

void Messages::break_with(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (messages_ != nullptr) messages_->break_with(failure);
}

void Messages::close() {
  std::unique_ptr<PointToPoint> messages;
  {
    const std::lock_guard lock(mutex_);
    messages = std::move(messages_);
  }
  messages.reset();
  row_.reset();
}

}  // namespace ivy::comm
