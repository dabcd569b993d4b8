// SPDX-License-Identifier: Apache-2.0
// In the order of the header: the encoding of frames and payloads; FrameDecoder (bytes to frames,
// after noise before the preamble); SendQueue (unacknowledged, urgent and flow frames);
// ReceiveWindow (duplicates and credit); and Session, which combines them.
#include "proto/wire/session.h"

#include <algorithm>

namespace ivy::session {
namespace {

// Integers are encoded as little endian, whatever the host.
template <class T>
void put(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<char>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff));
}

template <class T>
T get(std::string_view bytes, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i);
  return static_cast<T>(value);
}

// Ends each header, so that a stream that is shifted by a byte is detected immediately.
constexpr std::uint32_t kHeaderMark = 0x59564921;
// Zeros after the type, which align the wide numbers.
constexpr std::size_t kHeaderGap = 6;

Error data_loss(const std::string& what) { return Error{Code::kDataLoss, what}; }

FrameHeader decode_header(std::string_view bytes) {
  FrameHeader header;
  header.length = get<std::uint32_t>(bytes, 0);
  header.type = static_cast<FrameType>(get<std::uint16_t>(bytes, 4));
  header.sequence = get<std::uint64_t>(bytes, 16);
  header.acknowledged = get<std::uint64_t>(bytes, 24);
  header.credit = get<std::uint64_t>(bytes, 32);
  header.sent_at_ns = get<std::uint64_t>(bytes, 40);
  return header;
}

// Returns how many bytes at the end may be the start of a preamble that has not arrived completely.
// Everything before them is noise already: it may be the last output of a remote shell.
std::size_t preamble_begun(std::string_view bytes) {
  std::size_t count = std::min(bytes.size(), kPreamble.size() - 1);
  while (!kPreamble.starts_with(bytes.substr(bytes.size() - count))) --count;
  return count;
}

bool is_sequenced(FrameType type) {
  return type == FrameType::kCommand || type == FrameType::kEvent || is_flow(type);
}

}  // namespace

bool is_flow(FrameType type) { return type == FrameType::kOutput || type == FrameType::kInput; }

std::string encode_header(const FrameHeader& header) {
  std::string out;
  out.reserve(kHeaderBytes);
  put(out, header.length);
  put(out, static_cast<std::uint16_t>(header.type));
  out.append(kHeaderGap, '\0');
  put(out, kHeaderMark);
  put(out, header.sequence);
  put(out, header.acknowledged);
  put(out, header.credit);
  put(out, header.sent_at_ns);
  return out;
}

std::string encode_attach(const AttachRequest& request) {
  std::string out;
  for (const std::string* field : {&request.job_id, &request.token, &request.build}) {
    put(out, static_cast<std::uint16_t>(field->size()));
    out += *field;
  }
  put(out, request.takeover);
  return out;
}

Result<AttachRequest> decode_attach(std::string_view payload) {
  AttachRequest request;
  for (std::string* field : {&request.job_id, &request.token, &request.build}) {
    if (payload.size() < 2) return data_loss("the attach request is truncated");
    const auto length = get<std::uint16_t>(payload, 0);
    payload.remove_prefix(2);
    if (payload.size() < length) return data_loss("the attach request is truncated");
    field->assign(payload.substr(0, length));
    payload.remove_prefix(length);
  }
  if (payload.size() != sizeof request.takeover)
    return data_loss("the attach request has the wrong length");
  request.takeover = get<std::uint32_t>(payload, 0);
  return request;
}

std::string encode_output(const OutputChunk& chunk) {
  std::string out;
  out.reserve(kOutputHeaderBytes + chunk.bytes.size());
  put(out, chunk.generation);
  put(out, chunk.rank);
  put(out, chunk.stream);
  put(out, static_cast<std::uint8_t>(chunk.end ? 1 : 0));
  put(out, std::uint16_t{0});
  out += chunk.bytes;
  return out;
}

Result<OutputChunk> decode_output(std::string_view payload) {
  if (payload.size() < kOutputHeaderBytes) return data_loss("the output frame is truncated");
  OutputChunk chunk;
  chunk.generation = get<std::uint32_t>(payload, 0);
  chunk.rank = get<std::uint32_t>(payload, 4);
  chunk.stream = get<std::uint8_t>(payload, 8);
  chunk.end = get<std::uint8_t>(payload, 9) != 0;
  chunk.bytes = payload.substr(kOutputHeaderBytes);
  if (chunk.stream != 1 && chunk.stream != 2)
    return data_loss("the output frame has an unknown stream");
  return chunk;
}

std::string encode_delay(std::int64_t delay_ns) {
  std::string out;
  put(out, static_cast<std::uint64_t>(delay_ns));
  return out;
}

Result<std::int64_t> decode_delay(std::string_view payload) {
  if (payload.size() != sizeof(std::uint64_t))
    return data_loss("the heartbeat frame has the wrong length");
  return static_cast<std::int64_t>(get<std::uint64_t>(payload, 0));
}

std::string encode_alive(const Alive& alive) {
  std::string out;
  put(out, alive.loop_silent_ns);
  put(out, alive.overdue_ns);
  out += std::string_view(alive.overdue).substr(0, kMaxOverdueBytes);
  return out;
}

Result<Alive> decode_alive(std::string_view payload) {
  constexpr std::size_t kFixedBytes = 16;
  if (payload.size() < kFixedBytes || payload.size() > kFixedBytes + kMaxOverdueBytes)
    return data_loss("the alive frame has the wrong length");
  return Alive{get<std::uint64_t>(payload, 0), get<std::uint64_t>(payload, 8),
               std::string(payload.substr(kFixedBytes))};
}

std::string alive_frame(const Alive& alive, std::uint64_t now_ns) {
  const std::string payload = encode_alive(alive);
  FrameHeader header;
  header.length = static_cast<std::uint32_t>(payload.size());
  header.type = FrameType::kAlive;
  header.sent_at_ns = now_ns;
  return encode_header(header) + payload;
}

void FrameDecoder::reset() {
  buffer_.clear();
  consumed_ = 0;
  noise_.clear();
  noise_bytes_ = 0;
  saw_preamble_ = false;
}

Result<void> FrameDecoder::feed(std::string_view bytes) {
  // Drop consumed bytes before the buffer grows. The cost is amortised, because they are at least
  // half of the buffer.
  if (consumed_ > 0 && consumed_ * 2 >= buffer_.size()) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  buffer_ += bytes;
  if (!saw_preamble_) IVY_CHECK(skip_noise());
  return check_header();
}

Result<void> FrameDecoder::skip_noise() {
  const std::size_t at = buffer_.find(kPreamble);
  const std::size_t noise_end =
      at != std::string::npos ? at : buffer_.size() - preamble_begun(buffer_);
  noise_.append(buffer_, 0, noise_end);
  noise_bytes_ += noise_end;
  if (noise_.size() > kNoiseKeptBytes) noise_.erase(0, noise_.size() - kNoiseKeptBytes);
  buffer_.erase(0, noise_end);
  if (noise_bytes_ > kNoiseMaxBytes)
    return data_loss("received more than 1 MiB before the first frame");
  if (at != std::string::npos) {
    buffer_.erase(0, kPreamble.size());
    saw_preamble_ = true;
  }
  return {};
}

Result<void> FrameDecoder::check_header() {
  if (!saw_preamble_ || buffer_.size() - consumed_ < kHeaderBytes) return {};
  const std::string_view bytes = std::string_view(buffer_).substr(consumed_);
  if (get<std::uint32_t>(bytes, 12) != kHeaderMark) return data_loss("invalid frame header");
  const auto type = get<std::uint16_t>(bytes, 4);
  if (type < 1 || type > 9) return data_loss("frame of unknown type " + std::to_string(type));
  const auto length = get<std::uint32_t>(bytes, 0);
  if (length > max_payload_bytes_)
    return data_loss("frame of " + std::to_string(length) + " bytes, limit " +
                     std::to_string(max_payload_bytes_));
  return {};
}

std::optional<Frame> FrameDecoder::next() {
  const std::string_view bytes = std::string_view(buffer_).substr(consumed_);
  if (!saw_preamble_ || bytes.size() < kHeaderBytes || !check_header().ok()) return std::nullopt;
  Frame frame{decode_header(bytes), {}};
  if (bytes.size() < kHeaderBytes + frame.header.length) return std::nullopt;
  frame.payload = bytes.substr(kHeaderBytes, frame.header.length);
  consumed_ += kHeaderBytes + frame.header.length;
  return frame;
}

Result<void> SendQueue::push(FrameType type, std::string payload) {
  IVY_ASSERT(payload.size() <= kMaxPayloadBytes);
  if (control_bytes_ + payload.size() > kMaxUnacknowledgedBytes)
    return Error{Code::kResourceExhausted, "too many bytes await the peer's acknowledgement"};
  control_bytes_ += payload.size();
  control_.push_back({type, 0, std::move(payload)});
  return {};
}

void SendQueue::push_flow(FrameType type, std::string payload) {
  IVY_ASSERT(is_flow(type) && payload.size() <= kMaxPayloadBytes);
  flow_bytes_queued_ += payload.size();
  flow_.push_back({type, 0, std::move(payload)});
}

void SendQueue::raise_credit(std::uint64_t bytes) { peer_credit_ = std::max(peer_credit_, bytes); }

std::uint64_t SendQueue::flow_room() const {
  const std::uint64_t used = flow_bytes_sent_ + flow_bytes_queued_;
  return peer_credit_ > used ? peer_credit_ - used : 0;
}

bool SendQueue::flow_allowed() const {
  return !flow_.empty() && flow_bytes_sent_ + flow_.front().payload.size() <= peer_credit_;
}

Result<void> SendQueue::acknowledge(std::uint64_t sequence) {
  if (sequence >= next_sequence_)
    return data_loss("the peer acknowledged a frame that was never sent");
  while (!unacknowledged_.empty() && unacknowledged_.front().sequence <= sequence) {
    const StoredFrame& stored = unacknowledged_.front();
    if (!is_flow(stored.type)) control_bytes_ -= stored.payload.size();
    unacknowledged_.pop_front();
    if (resend_index_ > 0) --resend_index_;
  }
  const std::uint64_t oldest =
      unacknowledged_.empty() ? next_sequence_ : unacknowledged_.front().sequence;
  if (sequence + 1 < oldest)
    return data_loss("the peer requested a frame that was already dropped");
  return {};
}

bool SendQueue::has_next() const {
  return resend_index_ < unacknowledged_.size() || !control_.empty() || flow_allowed();
}

const StoredFrame* SendQueue::take_next() {
  if (!has_next()) return nullptr;
  if (resend_index_ < unacknowledged_.size()) return &unacknowledged_[resend_index_++];
  std::deque<StoredFrame>& queue = control_.empty() ? flow_ : control_;
  if (control_.empty()) {
    flow_bytes_sent_ += queue.front().payload.size();
    flow_bytes_queued_ -= queue.front().payload.size();
  }
  queue.front().sequence = next_sequence_++;
  unacknowledged_.push_back(std::move(queue.front()));
  queue.pop_front();
  resend_index_ = unacknowledged_.size();
  return &unacknowledged_.back();
}

std::vector<OutputChunk> SendQueue::begin_again() {
  SendQueue fresh;
  for (std::deque<StoredFrame>* queue : {&unacknowledged_, &flow_})
    for (StoredFrame& stored : *queue)
      if (is_flow(stored.type)) fresh.push_flow(stored.type, std::move(stored.payload));
  *this = std::move(fresh);
  std::vector<OutputChunk> chunks;
  for (const StoredFrame& stored : flow_) {
    const Result<OutputChunk> chunk = decode_output(stored.payload);
    if (chunk.ok()) chunks.push_back(*chunk);
  }
  return chunks;
}

Result<bool> ReceiveWindow::take(const FrameHeader& header) {
  if (header.sequence <= sequence_) return false;
  if (header.sequence != sequence_ + 1) return data_loss("a frame is missing");
  sequence_ = header.sequence;
  bytes_since_ack_ += kHeaderBytes + header.length;
  return true;
}

void ReceiveWindow::write_into(FrameHeader& header) {
  header.acknowledged = sequence_;
  header.credit = granted_;
  bytes_since_ack_ = 0;
  granted_sent_ = granted_;
}

bool ReceiveWindow::ack_due() const {
  // A quarter of the window, so that a sender that keeps up never has to wait for credit.
  return granted_ - granted_sent_ >= std::max<std::uint64_t>(window_bytes_ / 4, 1) ||
         bytes_since_ack_ >= 64u << 10;
}

Session::Session(std::uint64_t window_bytes) : receives_(window_bytes) {}

void Session::link_up() {
  decoder_.reset();
  preamble_due_ = true;
  attached_ = false;
  heartbeat_due_ = false;
  handshake_.clear();
  handshake_credit_ = 0;
}

void Session::link_down() {
  attached_ = false;
  preamble_due_ = false;
  handshake_.clear();
}

void Session::send_handshake(FrameType type, std::string payload) {
  handshake_.push_back({type, 0, std::move(payload)});
}

Result<void> Session::attached(std::uint64_t acknowledged) {
  IVY_CHECK(sends_.acknowledge(acknowledged));
  sends_.raise_credit(handshake_credit_);
  if (!attached_) sends_.send_again();
  attached_ = true;
  return {};
}

std::vector<OutputChunk> Session::take_over() {
  link_down();
  last_stamp_ns_ = 0;
  receives_.begin_again();
  return sends_.begin_again();
}

bool Session::has_bytes() const {
  if (preamble_due_ || !handshake_.empty()) return true;
  return attached_ && (sends_.has_next() || heartbeat_due_ || receives_.ack_due());
}

void Session::append_frame(std::string& out, const StoredFrame& frame, std::uint64_t now_ns) {
  FrameHeader header;
  header.length = static_cast<std::uint32_t>(frame.payload.size());
  header.type = frame.type;
  header.sequence = frame.sequence;
  header.sent_at_ns = now_ns;
  receives_.write_into(header);
  out += encode_header(header);
  out += frame.payload;
  if (heartbeat_.empty()) heartbeat_due_ = false;
}

std::string Session::take_bytes(std::uint64_t now_ns, std::size_t max_bytes) {
  // Take at least one frame; otherwise an owner that calls this while has_bytes() would spin.
  max_bytes = std::max<std::size_t>(max_bytes, 1);
  std::string out;
  if (preamble_due_) out += kPreamble;
  preamble_due_ = false;
  for (; !handshake_.empty(); handshake_.pop_front()) append_frame(out, handshake_.front(), now_ns);
  if (!attached_) return out;
  while (out.size() < max_bytes) {
    const StoredFrame* const frame = sends_.take_next();
    if (frame == nullptr) break;
    append_frame(out, *frame, now_ns);
  }
  if (heartbeat_due_) {
    const std::string payload = std::exchange(heartbeat_, {});
    append_frame(out, {FrameType::kHeartbeat, 0, payload}, now_ns);
  } else if (receives_.ack_due()) {
    append_frame(out, {FrameType::kAck, 0, {}}, now_ns);
  }
  return out;
}

Result<std::vector<Frame>> Session::receive(std::string_view bytes) {
  IVY_CHECK(decoder_.feed(bytes));
  const std::uint64_t sequence_before = receives_.sequence();
  std::vector<Frame> fresh;
  Result<void> taken = take_frames(fresh);
  // The owner never sees the frames of a failed batch. Without this, the next Attach would
  // acknowledge them, and the peer would never send them again.
  if (!taken.ok()) {
    receives_.return_to(sequence_before);
    return taken.error();
  }
  return fresh;
}

Result<void> Session::take_frames(std::vector<Frame>& fresh) {
  while (std::optional<Frame> frame = decoder_.next()) {
    const FrameHeader& header = frame->header;
    if (is_sequenced(header.type) != (header.sequence != 0))
      return data_loss("the frame's sequence number does not match its type");
    if (header.type == FrameType::kAttach || header.type == FrameType::kAttached) {
      // The credit applies from attached() on; until then the peer has not authenticated.
      handshake_credit_ = header.credit;
      fresh.push_back(std::move(*frame));
      return {};
    }
    if (!attached_) return data_loss("the peer sent a frame before it attached");
    last_stamp_ns_ = header.sent_at_ns;
    if (header.type == FrameType::kAlive) {
      fresh.push_back(std::move(*frame));
      continue;
    }
    IVY_CHECK(sends_.acknowledge(header.acknowledged));
    sends_.raise_credit(header.credit);
    const bool is_report = header.type == FrameType::kHeartbeat && !frame->payload.empty();
    if (IVY_TRY(receives_.take(header)) || is_report) fresh.push_back(std::move(*frame));
  }
  return decoder_.feed({});
}

}  // namespace ivy::session
