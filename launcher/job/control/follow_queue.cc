// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/control/follow_queue.h"

#include <algorithm>

#include "launcher/job/control/ctl_wire.h"

namespace ivy {
namespace {

// Size of one Output reply: far below the limit of a message.
constexpr std::size_t kPieceBytes = 64u << 10;

}  // namespace

void FollowQueue::push(std::string frame) {
  bytes_ += frame.size();
  frames_.push_back(std::move(frame));
}

void FollowQueue::reply(const ctl::Reply& reply) {
  if (bytes_ <= kMessageLimitBytes) push(encode_ctl(reply));
}

void FollowQueue::lose(StreamState& state, std::string_view bytes) {
  if (bytes.empty()) return;
  state.lost_lines += static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  state.lost_in_line = bytes.back() != '\n';
}

// Returns the part of the bytes that is sent. Dropping ends at the beginning of a line.
std::string_view FollowQueue::keep_some(StreamState& state, std::string_view bytes) {
  const bool is_full = bytes_ + bytes.size() > kLimitBytes;
  if (!state.is_dropping) {
    if (!is_full) return bytes;
    state.is_dropping = true;
    state.was_cut = state.is_in_line;
    lose(state, bytes);
    return {};
  }
  // Dropping ends once half of the queue was sent; otherwise every second line would be a gap.
  const std::size_t newline = bytes.find('\n');
  const bool is_whole = !state.lost_in_line || newline != std::string_view::npos;
  if (bytes_ > kLimitBytes / 2 || is_full || !is_whole) {
    lose(state, bytes);
    return {};
  }
  const std::size_t rest_of_line = state.lost_in_line ? newline + 1 : 0;
  lose(state, bytes.substr(0, rest_of_line));
  return bytes.substr(rest_of_line);
}

void FollowQueue::push_gap(int rank, int stream, StreamState& state) {
  ctl::Reply reply;
  ctl::Gap& gap = *reply.mutable_gap();
  gap.set_rank(static_cast<std::uint32_t>(rank));
  gap.set_stream(static_cast<std::uint32_t>(stream));
  gap.set_lines(state.lost_lines + (state.lost_in_line ? 1 : 0));
  gap.set_cut(state.was_cut);
  push(encode_ctl(reply));
  state = StreamState{};
}

void FollowQueue::output(int rank, int stream, std::string_view bytes, bool end) {
  StreamState& state = states_[{rank, stream}];
  const std::string_view kept = keep_some(state, bytes);
  const bool continues = !kept.empty() || end;
  if (state.is_dropping && continues) push_gap(rank, stream, state);
  if (!kept.empty()) state.is_in_line = kept.back() != '\n';
  for (std::size_t at = 0; at < kept.size() || (end && at == 0); at += kPieceBytes) {
    ctl::Reply reply;
    ctl::Output& output = *reply.mutable_output();
    output.set_rank(static_cast<std::uint32_t>(rank));
    output.set_stream(static_cast<std::uint32_t>(stream));
    output.set_bytes(std::string(kept.substr(std::min(at, kept.size()), kPieceBytes)));
    output.set_end(end && at + kPieceBytes >= kept.size());
    push(encode_ctl(reply));
  }
}

std::string FollowQueue::take(std::size_t max_bytes) {
  std::string bytes;
  while (!frames_.empty() && (bytes.empty() || bytes.size() < max_bytes)) {
    bytes += frames_.front();
    bytes_ -= frames_.front().size();
    frames_.pop_front();
  }
  return bytes;
}

}  // namespace ivy
