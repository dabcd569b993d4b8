// SPDX-License-Identifier: Apache-2.0
#include "agent/node/segments/segment_table.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "agent/node/segments/shared_memory.h"
#include "proto/contract/text_columns.h"
#include "proto/os/available_memory.h"
#include "proto/os/descriptor.h"

namespace ivy {
namespace {

// About 10 ms of the loop's time.
constexpr std::uint64_t kStepBytes = 16u << 20;

Error too_little_memory(const control::Segment& segment, const std::string& why) {
  return {Code::kResourceExhausted,
          mebibytes(segment.bytes) + " of shared memory for \"" + segment.name + "\": " + why};
}

}  // namespace

struct SegmentTable::Entry {
  control::Segment segment;
  Descriptor fd;
  std::uint64_t reserved = 0;
  bool is_ready = false;
  bool is_forgotten = false;  // No longer in the table; a pending step does nothing.
  std::set<std::uint32_t> given;
  std::vector<std::pair<std::uint32_t, Answer>> requesters;
};

void SegmentTable::request(const control::Segment& segment, std::uint32_t slot,
                           std::uint32_t local_size, Answer answer) {
  if (segment.members > local_size)
    return answer(Error{Code::kInvalidArgument, "a segment for " + std::to_string(segment.members) +
                                                    " local ranks; this host has " +
                                                    std::to_string(local_size)},
                  0);
  const auto found = entries_.find(segment.name);
  if (found != entries_.end()) {
    const std::shared_ptr<Entry> entry = found->second;
    const control::Segment& first = entry->segment;
    if (first.bytes != segment.bytes || first.members != segment.members) {
      return answer(
          Error{Code::kInvalidArgument,
                "segment \"" + segment.name + "\": requested with " +
                    std::to_string(segment.bytes) + " bytes for " +
                    std::to_string(segment.members) + " ranks, and by another rank with " +
                    std::to_string(first.bytes) + " bytes for " + std::to_string(first.members)},
          0);
    }
    entry->requesters.emplace_back(slot, std::move(answer));
    if (entry->is_ready) answer_all(entry);
    return;
  }
  if (entries_.size() >= kMaxWaiting)
    return answer(Error{Code::kResourceExhausted,
                        std::to_string(kMaxWaiting) + " segments wait for ranks to fetch them"},
                  0);
  const std::uint64_t available = segment.reserve ? available_memory_bytes() : ~std::uint64_t{0};
  if (segment.bytes > available)
    return answer(too_little_memory(segment, mebibytes(available) + " are available"), 0);
  Result<int> fd = make_shared_memory("ivy-" + segment.name, segment.bytes);
  if (!fd.ok()) return answer(fd.error(), 0);
  const auto entry = std::make_shared<Entry>();
  entry->segment = segment;
  entry->fd.reset(*fd);
  entry->requesters.emplace_back(slot, std::move(answer));
  entries_.emplace(segment.name, entry);
  reserve_step(entry);
}

void SegmentTable::reserve_step(const std::shared_ptr<Entry>& entry) {
  if (entry->is_forgotten) return;
  const std::uint64_t left = entry->segment.reserve ? entry->segment.bytes - entry->reserved : 0;
  if (left == 0) {
    entry->is_ready = true;
    return answer_all(entry);
  }
  const std::uint64_t step = std::min(left, kStepBytes);
  const int error = reserve_shared_memory(entry->fd.get(), entry->reserved, step);
  // Some memory file systems cannot reserve pages; they are then allocated when touched.
  if (error != 0 && error != EOPNOTSUPP)
    return reject_all(
        entry, too_little_memory(entry->segment,
                                 errno_error(Code::kResourceExhausted, "reserve", error).message));
  entry->reserved += error == EOPNOTSUPP ? left : step;
  boost::asio::post(loop_, [this, entry] { reserve_step(entry); });
}

void SegmentTable::answer_all(const std::shared_ptr<Entry>& entry) {
  for (const auto& [slot, answer] : std::exchange(entry->requesters, {})) {
    answer(entry->fd.get(), entry->segment.bytes);
    entry->given.insert(slot);
  }
  if (entry->given.size() < entry->segment.members) return;
  entry->is_forgotten = true;
  entries_.erase(entry->segment.name);
}

void SegmentTable::reject_all(const std::shared_ptr<Entry>& entry, const Error& error) {
  entry->is_forgotten = true;
  entries_.erase(entry->segment.name);
  for (const auto& [slot, answer] : std::exchange(entry->requesters, {})) answer(error, 0);
}

void SegmentTable::clear() {
  for (const auto& [name, entry] : std::exchange(entries_, {})) entry->is_forgotten = true;
}

}  // namespace ivy
