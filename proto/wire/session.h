// SPDX-License-Identifier: Apache-2.0
// The session layer between a launcher and one host's supervisor: a pair of Sessions that outlives
// the links under it.
//
//   launcher                                             supervisor
//   preamble, Attach{job, token, build}  ------------->  checks the token
//                                        <-------------  preamble, Attached
//   Command, Input frames                ------------->
//                                        <-------------  Event, Output frames
//   Heartbeat every second               <------------>  Heartbeat every second
//
// Every frame carries {sequence, acknowledged, credit, sender's monotonic time, type, length}.
// Sequenced frames are kept until the peer has acknowledged them and are sent again on the next
// link, so a reconnect neither loses nor duplicates anything. Flow frames (Output, Input) are
// sent only within the bytes that the receiver has granted; all other frames overtake waiting flow
// frames.
//
// Pure: takes bytes and times, returns bytes and frames. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::session {

enum class FrameType : std::uint16_t {
  kAttach = 1,  // launcher -> supervisor, unsequenced, first on every link: encode_attach()
  kAttached =
      2,  // supervisor -> launcher, unsequenced, answers Attach: empty, or a rejection's text
  kCommand = 3,  // launcher -> supervisor: ivy.Command (job.proto)
  kEvent = 4,    // supervisor -> launcher: ivy.Event (job.proto)
  kOutput = 5,   // supervisor -> launcher, flow: OutputChunk
  kInput = 6,    // launcher -> supervisor, flow: bytes of rank 0's standard input; empty = its end
  kHeartbeat = 7,  // both ways, unsequenced, every second: empty, or encode_delay()
  kAck = 8,        // both ways, unsequenced, when acknowledgement or credit must not wait: empty
  kAlive = 9,      // both ways, unsequenced, from a heartbeat's thread: encode_alive()
};

// Printed by a supervisor (and sent by a launcher) before its first frame on a link. Bytes
// before it are noise from a login shell and are skipped.
inline constexpr std::string_view kPreamble =
    "\x01IVYLINK\x01"
    "0001\n";

inline constexpr std::size_t kHeaderBytes = 48;
// Largest payload: enough for a Start message for 512 workers with 1 MiB of arguments and
// environment.
inline constexpr std::size_t kMaxPayloadBytes = 8u << 20;
// Largest payload before the peer has authenticated with Attach (ids, token, build name).
inline constexpr std::size_t kMaxAttachBytes = 512;
// Limit of noise kept for messages (the last bytes before the preamble), and of all noise.
inline constexpr std::size_t kNoiseKeptBytes = 4096;
inline constexpr std::size_t kNoiseMaxBytes = 1u << 20;
// Limit of unacknowledged sequenced bytes, in addition to the granted flow bytes.
inline constexpr std::size_t kMaxUnacknowledgedBytes = 64u << 20;

struct FrameHeader {
  std::uint32_t length = 0;  // Bytes of the payload that follows.
  FrameType type = FrameType::kAck;
  std::uint64_t sequence = 0;      // 1, 2, 3... per direction; 0 for unsequenced frames.
  std::uint64_t acknowledged = 0;  // Highest sequence received so far from the peer.
  std::uint64_t credit = 0;        // Flow payload bytes granted to the peer since the job started.
  std::uint64_t sent_at_ns = 0;    // CLOCK_MONOTONIC of the sender.
};

struct Frame {
  FrameHeader header;
  std::string payload;
};

// Splits bytes into frames. Errors are final; drop the link.
class FrameDecoder {
 public:
  // Drops all input and waits for the preamble again.
  void reset();
  // Sets the largest payload to accept from now on.
  void limit_payload(std::size_t max_bytes) { max_payload_bytes_ = max_bytes; }
  // Appends bytes. Fails with DataLoss for a bad header, an oversized frame or too much noise.
  Result<void> feed(std::string_view bytes);
  // Returns the next complete frame, or nothing.
  std::optional<Frame> next();
  // Returns the last kNoiseKeptBytes before the preamble.
  const std::string& noise() const { return noise_; }

 private:
  Result<void> skip_noise();
  Result<void> check_header();
  std::string buffer_;
  std::size_t consumed_ = 0;
  std::string noise_;
  std::size_t noise_bytes_ = 0;
  bool saw_preamble_ = false;
  std::size_t max_payload_bytes_ = kMaxPayloadBytes;
};

std::string encode_header(const FrameHeader& header);

struct AttachRequest {
  std::string job_id;
  std::string token;  // The job's secret, 32 bytes.
  std::string build;  // The launcher's build, which must equal the supervisor's.
  // Number of the launcher of this job. The first one has 0; each launcher that takes over from a
  // dead one increments it. A supervisor starts a new session for a higher number and rejects a
  // lower one.
  std::uint32_t takeover = 0;
};
std::string encode_attach(const AttachRequest& request);
Result<AttachRequest> decode_attach(std::string_view payload);

// A piece of a worker's output. Chunks of one (rank, stream) are in the order in which they were
// read.
struct OutputChunk {
  std::uint32_t generation = 0;
  std::uint32_t rank = 0;
  std::uint8_t stream = 1;  // 1 standard output, 2 standard error.
  bool end = false;         // End of this stream; `bytes` is empty.
  std::string_view bytes;   // Points into the payload given to decode_output().
};
inline constexpr std::size_t kOutputHeaderBytes = 12;
std::string encode_output(const OutputChunk& chunk);
Result<OutputChunk> decode_output(std::string_view payload);

// Encodes the smallest delay of the peer's frames that the sender has seen: the time of receipt on
// its own clock minus their time stamps. The launcher uses it to relate the hosts' clocks.
std::string encode_delay(std::int64_t delay_ns);
Result<std::int64_t> decode_delay(std::string_view payload);

// Heartbeat of a process whose loop hangs, or of a supervisor with an overdue task. The thread that
// sends it has no access to the session, so acknowledgement and credit are 0 and ignored.
struct Alive {
  std::uint64_t loop_silent_ns = 0;  // Time since the loop last ran its timers; 0 if it is on time.
  std::uint64_t overdue_ns = 0;      // Age of the oldest overdue task; 0 if there is none.
  std::string overdue;               // Its name: "the file system of /home".
};
inline constexpr std::size_t kMaxOverdueBytes = 512;  // Limit of the name; longer names are cut.
std::string encode_alive(const Alive& alive);
Result<Alive> decode_alive(std::string_view payload);
// Returns the complete frame, including its header.
std::string alive_frame(const Alive& alive, std::uint64_t now_ns);

// The payload of a frame that was not sent, or not acknowledged yet.
struct StoredFrame {
  FrameType type;
  std::uint64_t sequence;  // 0 until the frame is sent.
  std::string payload;
};

// Sequenced frames of one direction: queued, sent (flow frames only within the peer's credit), and
// kept until the peer has acknowledged them, for retransmission on the next link.
class SendQueue {
 public:
  // Fails with ResourceExhausted beyond kMaxUnacknowledgedBytes.
  Result<void> push(FrameType type, std::string payload);
  // Queues a flow frame, which waits for the peer's credit.
  void push_flow(FrameType type, std::string payload);
  // Sets the flow bytes that the peer has granted since the job started; a lower number has no
  // effect.
  void raise_credit(std::uint64_t bytes);
  std::uint64_t flow_room() const;
  // Fails with DataLoss if the peer acknowledges a frame that was never sent, or one that was
  // dropped.
  Result<void> acknowledge(std::uint64_t sequence);
  // Schedules all unacknowledged frames for retransmission.
  void send_again() { resend_index_ = 0; }
  bool has_next() const;
  // Returns the next frame to send and counts it as sent, or null if none is due. The frame is
  // valid until the next call.
  const StoredFrame* take_next();
  // Restarts for another peer with the unacknowledged flow frames, and returns these. The views are
  // valid until the next call.
  std::vector<OutputChunk> begin_again();
  bool is_empty() const { return unacknowledged_.empty() && control_.empty() && flow_.empty(); }
  // Returns the unacknowledged payload bytes of control frames.
  std::uint64_t control_bytes() const { return control_bytes_; }

 private:
  bool flow_allowed() const;

  std::deque<StoredFrame> control_;         // Not sent yet; needs no credit.
  std::deque<StoredFrame> flow_;            // Not sent yet; waits for credit.
  std::deque<StoredFrame> unacknowledged_;  // Sent at least once, in sequence order.
  std::size_t resend_index_ = 0;            // Frames from this index on are sent again.
  std::uint64_t next_sequence_ = 1;
  std::uint64_t flow_bytes_sent_ = 0;  // Since the job started, each byte counted once.
  std::uint64_t flow_bytes_queued_ = 0;
  std::uint64_t control_bytes_ = 0;
  std::uint64_t peer_credit_ = 0;
};

// The receive state of one side: the sequence received, and the flow bytes granted to the peer.
class ReceiveWindow {
 public:
  explicit ReceiveWindow(std::uint64_t window_bytes)
      : granted_(window_bytes), window_bytes_(window_bytes) {}

  void begin_again() { *this = ReceiveWindow(window_bytes_); }
  void grant(std::uint64_t bytes) { granted_ += bytes; }
  // Returns true for a new sequenced frame. Fails with DataLoss if an earlier one is missing.
  Result<bool> take(const FrameHeader& header);
  // Call if the frames after this one were not used: they will be sent again.
  void return_to(std::uint64_t sequence) { sequence_ = sequence; }
  // Writes acknowledgement and credit into the header of a frame about to be sent.
  void write_into(FrameHeader& header);
  // Returns whether acknowledgement or credit should be sent soon.
  bool ack_due() const;
  std::uint64_t sequence() const { return sequence_; }

 private:
  std::uint64_t sequence_ = 0;  // The highest received sequence.
  std::uint64_t granted_;
  std::uint64_t granted_sent_ = 0;
  std::uint64_t window_bytes_;
  std::uint64_t bytes_since_ack_ = 0;
};

// One end of the session. The owner moves bytes between it and the current link.
class Session {
 public:
  // `window_bytes` is the number of flow bytes that the peer may send before it gets more credit.
  explicit Session(std::uint64_t window_bytes);

  // Call when a new link is connected. Drops half-received bytes and queues the preamble; the
  // owner then calls send_handshake(). Sequenced frames wait for attached().
  void link_up();
  // Queues the next unsequenced frame of the handshake (kAttach or kAttached).
  void send_handshake(FrameType type, std::string payload);
  // Call when the peer has authenticated and has received everything up to `acknowledged`. Sends
  // the remaining frames (again). A launcher on the first link of a job calls attached(0)
  // immediately to save a round trip. Fails with DataLoss if the peer acknowledges a frame that was
  // never sent or was dropped.
  Result<void> attached(std::uint64_t acknowledged);
  void link_down();

  // Replaces the peer with another one, which starts at the first sequence. Drops the receive state
  // and all control frames, and queues the unacknowledged flow frames again. Returns these, in
  // order; the views are valid until the next call. Supervisor only.
  std::vector<OutputChunk> take_over();

  // Queues a frame that does not wait for credit. Fails with ResourceExhausted beyond
  // kMaxUnacknowledgedBytes.
  Result<void> send(FrameType type, std::string payload) {
    return sends_.push(type, std::move(payload));
  }
  // Queues a flow frame, which is sent when the peer's credit allows. Flow frames keep their order.
  void send_flow(FrameType type, std::string payload) {
    sends_.push_flow(type, std::move(payload));
  }
  // Returns the flow bytes that can still be produced without waiting in this process.
  std::uint64_t flow_room() const { return sends_.flow_room(); }
  // Queues a heartbeat. If it is empty, any earlier frame replaces it.
  void send_heartbeat(std::string payload = {}) {
    heartbeat_due_ = true;
    heartbeat_ = std::move(payload);
  }
  // Raises the peer's credit by the flow payload bytes that the owner has processed.
  void grant(std::uint64_t bytes) { receives_.grant(bytes); }
  // Returns the next bytes for the link: complete frames, at least one if any is due, stopping
  // after max_bytes.
  std::string take_bytes(std::uint64_t now_ns, std::size_t max_bytes);
  bool has_bytes() const;

  // Returns new frames, in order. An Attach or Attached is always the last of a batch: call
  // attached() and then receive({}) for the frames after it. Duplicates, empty heartbeats and
  // acknowledgements are not returned. After an error (DataLoss), drop the link.
  Result<std::vector<Frame>> receive(std::string_view bytes);
  const FrameDecoder& decoder() const { return decoder_; }
  FrameDecoder& decoder() { return decoder_; }
  // Returns whether the peer has acknowledged every sequenced frame.
  bool all_acknowledged() const { return sends_.is_empty(); }
  // Returns the unacknowledged payload bytes of control frames. A sender that splits a large
  // message waits for this to fall before it sends the next piece.
  std::uint64_t waiting_control_bytes() const { return sends_.control_bytes(); }
  std::uint64_t received_sequence() const { return receives_.sequence(); }
  // Returns the time stamp of the peer's last frame, on the peer's clock, or 0 before the first
  // one.
  std::uint64_t last_stamp_ns() const { return last_stamp_ns_; }
  bool is_attached() const { return attached_; }

 private:
  void append_frame(std::string& out, const StoredFrame& frame, std::uint64_t now_ns);
  Result<void> take_frames(std::vector<Frame>& fresh);

  FrameDecoder decoder_;
  bool preamble_due_ = false;
  bool attached_ = false;
  bool heartbeat_due_ = false;
  std::string heartbeat_;  // The heartbeat's payload.
  std::uint64_t last_stamp_ns_ = 0;
  std::deque<StoredFrame> handshake_;
  // Received with this link's handshake; not trusted yet.
  std::uint64_t handshake_credit_ = 0;
  SendQueue sends_;
  ReceiveWindow receives_;
};

bool is_flow(FrameType type);

}  // namespace ivy::session
