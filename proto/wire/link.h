// The session layer between a launcher and one host's supervisor: one pair of Sessions that
// outlives every carrier under it.
//
//   launcher                                             supervisor
//   preamble, Attach{job, token, build}  ------------->  checks the token
//                                        <-------------  preamble, Attached
//   Command, Input frames                ------------->
//                                        <-------------  Event, Output frames
//   Heartbeat every second               <------------>  Heartbeat every second
//
// Every frame carries {sequence, acknowledged, credit, sender's monotonic time, type,
// length}. Sequenced frames are kept until the peer has acknowledged them and are sent again on the
// next carrier, so a reconnect neither loses nor doubles anything. Flow frames (Output, Input)
// travel only within the bytes that the receiver has granted; all other frames overtake them while
// they wait.
//
// Pure: bytes and times in, bytes and frames out. Thread: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::link {

enum class FrameType : std::uint16_t {
  kAttach = 1,    // launcher -> supervisor, unsequenced, first on every carrier: encode_attach()
  kAttached = 2,  // supervisor -> launcher, unsequenced, answers Attach: empty, or a refusal's text
  kCommand = 3,   // launcher -> supervisor: ivy.Command (job.proto)
  kEvent = 4,     // supervisor -> launcher: ivy.Event (job.proto)
  kOutput = 5,    // supervisor -> launcher, flow: OutputChunk
  kInput = 6,     // launcher -> supervisor, flow: bytes of rank 0's standard input; empty = its end
  kHeartbeat = 7,  // both ways, unsequenced, every second: empty, or encode_delay()
  kAck = 8,        // both ways, unsequenced, when acknowledgement or credit must not wait: empty
  kAlive = 9,      // both ways, unsequenced, from a heartbeat's thread: encode_alive()
};

// Printed by a supervisor (and sent by a launcher) before its first frame on a carrier. What comes
// before it is a login shell's noise and is skipped.
inline constexpr std::string_view kPreamble =
    "\x01IVYLINK\x01"
    "0001\n";

inline constexpr std::size_t kHeaderBytes = 48;
// Largest payload. A Start message for 512 workers with 1 MiB of arguments and environment fits in
// it.
inline constexpr std::size_t kMaxPayloadBytes = 8u << 20;
// Largest payload before the peer has proved itself with Attach (ids, token, build name).
inline constexpr std::size_t kMaxAttachBytes = 512;
// Noise kept for messages (the last bytes before the preamble) and tolerated in all.
inline constexpr std::size_t kNoiseKeptBytes = 4096;
inline constexpr std::size_t kNoiseMaxBytes = 1u << 20;
// Sequenced bytes that may wait for an acknowledgement besides the granted flow bytes.
inline constexpr std::size_t kMaxUnacknowledgedBytes = 64u << 20;

struct FrameHeader {
  std::uint32_t length = 0;  // Bytes of the payload behind it.
  FrameType type = FrameType::kAck;
  std::uint64_t sequence = 0;      // 1, 2, 3... per direction; 0 for unsequenced frames.
  std::uint64_t acknowledged = 0;  // Highest sequence received so far from the peer.
  std::uint64_t credit = 0;        // Flow payload bytes granted to the peer since the job began.
  std::uint64_t sent_at_ns = 0;    // By the sender's CLOCK_MONOTONIC.
};

struct Frame {
  FrameHeader header;
  std::string payload;
};

// Bytes to frames. Errors are final: drop the carrier.
class FrameDecoder {
 public:
  // Forgets everything and waits for the preamble again.
  void reset();
  // Largest payload accepted from now on.
  void limit_payload(std::size_t max_bytes) { max_payload_bytes_ = max_bytes; }
  // Appends bytes. DataLoss for a bad header, an oversized frame or too much noise.
  Result<void> feed(std::string_view bytes);
  // The next whole frame, or nothing.
  std::optional<Frame> next();
  // The last kNoiseKeptBytes that came before the preamble.
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
  std::string build;  // Build of the launcher; launcher and supervisor are always the same build.
  // Which launcher of the job this is: 0 started it, each that takes it over from a dead one counts
  // one more. A supervisor begins anew with a higher number and refuses a lower one.
  std::uint32_t takeover = 0;
};
std::string encode_attach(const AttachRequest& request);
Result<AttachRequest> decode_attach(std::string_view payload);

// One piece of a worker's output. The order within one (rank, stream) is the order of reading.
struct OutputChunk {
  std::uint32_t generation = 0;
  std::uint32_t rank = 0;
  std::uint8_t stream = 1;  // 1 standard output, 2 standard error.
  bool end = false;         // This stream has ended; `bytes` is empty.
  std::string_view bytes;   // Points into the payload given to decode_output().
};
inline constexpr std::size_t kOutputHeaderBytes = 12;
std::string encode_output(const OutputChunk& chunk);
Result<OutputChunk> decode_output(std::string_view payload);

// The sender's smallest delay of frames of the peer: receipt on its own clock less their time
// stamps. The launcher relates the clocks with it.
std::string encode_delay(std::int64_t delay_ns);
Result<std::int64_t> decode_delay(std::string_view payload);

// Heartbeat of a process whose loop hangs, or of a supervisor that has an overdue task. The thread
// that sends it does not know the session, so acknowledgement and credit are 0 and ignored.
struct Alive {
  std::uint64_t loop_silent_ns = 0;  // Time since the loop last ran its timers; 0: it is on time.
  std::uint64_t overdue_ns = 0;      // Age of the oldest overdue task; 0: no task is overdue.
  std::string overdue;               // Its name: "the file system of /home".
};
inline constexpr std::size_t kMaxOverdueBytes = 512;  // Of the name; a longer one is cut.
std::string encode_alive(const Alive& alive);
Result<Alive> decode_alive(std::string_view payload);
// The whole frame with its header.
std::string alive_frame(const Alive& alive, std::uint64_t now_ns);

// A payload that waits for its frame to be sent, or to be acknowledged.
struct StoredFrame {
  FrameType type;
  std::uint64_t sequence;  // 0 until it is sent.
  std::string payload;
};

// One direction's sequenced frames: queued, sent within the peer's credit, and kept until the peer
// has acknowledged them, to be sent again on the next carrier.
class SendQueue {
 public:
  // Fails with ResourceExhausted beyond kMaxUnacknowledgedBytes.
  Result<void> push(FrameType type, std::string payload);
  // A flow frame waits for the peer's credit.
  void push_flow(FrameType type, std::string payload);
  // The peer allows so many flow bytes since the job began; a lower number changes nothing.
  void raise_credit(std::uint64_t bytes);
  std::uint64_t flow_room() const;
  // DataLoss when the peer acknowledges what was never sent, or what is gone.
  Result<void> acknowledge(std::uint64_t sequence);
  // Everything that is not acknowledged is due again.
  void send_again() { resend_index_ = 0; }
  bool has_next() const;
  // The next frame that is due, which then counts as sent; null when none is. It stays valid until
  // the next call.
  const StoredFrame* take_next();
  // Begins anew for another peer with the flow frames that were not acknowledged, and returns them.
  // The views hold until the next call.
  std::vector<OutputChunk> begin_again();
  bool is_empty() const { return unacknowledged_.empty() && control_.empty() && flow_.empty(); }
  // Payload bytes of control frames that the peer has not acknowledged.
  std::uint64_t control_bytes() const { return control_bytes_; }

 private:
  bool flow_allowed() const;

  std::deque<StoredFrame> control_;         // Not yet sent, no credit needed.
  std::deque<StoredFrame> flow_;            // Not yet sent, waits for credit.
  std::deque<StoredFrame> unacknowledged_;  // Sent at least once, in sequence order.
  std::size_t resend_index_ = 0;            // Frames from here on are sent again.
  std::uint64_t next_sequence_ = 1;
  std::uint64_t flow_bytes_sent_ = 0;  // Since the job began, each byte once.
  std::uint64_t flow_bytes_queued_ = 0;
  std::uint64_t control_bytes_ = 0;
  std::uint64_t peer_credit_ = 0;
};

// What one side has received, and how many flow bytes it lets the peer have under way.
class ReceiveWindow {
 public:
  explicit ReceiveWindow(std::uint64_t window_bytes)
      : granted_(window_bytes), window_bytes_(window_bytes) {}

  void begin_again() { *this = ReceiveWindow(window_bytes_); }
  void grant(std::uint64_t bytes) { granted_ += bytes; }
  // True for a sequenced frame that is new. DataLoss when one before it is missing.
  Result<bool> take(const FrameHeader& header);
  // The frames after this one were not used: they will be sent again.
  void return_to(std::uint64_t sequence) { sequence_ = sequence; }
  // Writes the acknowledgement and the credit into a header that is about to be sent.
  void write_into(FrameHeader& header);
  // True when the peer should hear of them soon.
  bool ack_due() const;
  std::uint64_t sequence() const { return sequence_; }

 private:
  std::uint64_t sequence_ = 0;  // The highest one that was received.
  std::uint64_t granted_;
  std::uint64_t granted_sent_ = 0;
  std::uint64_t window_bytes_;
  std::uint64_t bytes_since_ack_ = 0;
};

// One end of the session. The owner moves bytes between it and the current carrier.
class Session {
 public:
  // window_bytes: flow bytes that the peer may have under way to us (granted at the start).
  explicit Session(std::uint64_t window_bytes);

  // A new carrier is connected: forgets half-received bytes, and sends the preamble and, as
  // launcher, Attach. Sequenced frames wait until attached() is called.
  void carrier_up();
  // The next unsequenced frame of the handshake (kAttach or kAttached).
  void send_handshake(FrameType type, std::string payload);
  // The peer has proved itself and has everything up to `acknowledged`: sends the rest (again). A
  // launcher on the first carrier of a job calls attached(0) at once and saves a round trip.
  // DataLoss when it acknowledges what was never sent or what is gone.
  Result<void> attached(std::uint64_t acknowledged);
  void carrier_down();

  // The peer is gone for good and another takes its place, from the first sequence on: forgets what
  // was received and every control frame, and queues again all flow frames that were not
  // acknowledged. Returns these, in order; the views hold until the next call. As supervisor only.
  std::vector<OutputChunk> take_over();

  // Queues a frame that never waits for output. ResourceExhausted beyond kMaxUnacknowledgedBytes.
  Result<void> send(FrameType type, std::string payload) {
    return sends_.push(type, std::move(payload));
  }
  // Queues a flow frame; it leaves when the peer's credit allows. Order among flow frames is kept.
  void send_flow(FrameType type, std::string payload) {
    sends_.push_flow(type, std::move(payload));
  }
  // Flow bytes that the owner may still produce so that nothing waits in this process.
  std::uint64_t flow_room() const { return sends_.flow_room(); }
  // Any frame that leaves earlier replaces an empty heartbeat.
  void send_heartbeat(std::string payload = {}) {
    heartbeat_due_ = true;
    heartbeat_ = std::move(payload);
  }
  // Flow payload bytes that our owner has disposed of: raises the peer's credit.
  void grant(std::uint64_t bytes) { receives_.grant(bytes); }
  // Next bytes for the carrier: whole frames, at least one when any is due, stopping past
  // max_bytes.
  std::string take_bytes(std::uint64_t now_ns, std::size_t max_bytes);
  bool has_bytes() const;

  // Frames that are new, in order. Attach/Attached come out too, always as the last of a batch:
  // call attached() and then receive({}) for the frames after it. Duplicates, empty heartbeats and
  // acknowledgements do not come out. An error (DataLoss) means: drop the carrier.
  Result<std::vector<Frame>> receive(std::string_view bytes);
  const FrameDecoder& decoder() const { return decoder_; }
  FrameDecoder& decoder() { return decoder_; }
  // True when the peer has acknowledged every sequenced frame.
  bool all_acknowledged() const { return sends_.is_empty(); }
  // Payload bytes of control frames that the peer has not acknowledged: a sender of a large message
  // in pieces waits before it sends the next one.
  std::uint64_t waiting_control_bytes() const { return sends_.control_bytes(); }
  std::uint64_t received_sequence() const { return receives_.sequence(); }
  // Time stamp of the peer's last frame, on the peer's clock; 0: none yet.
  std::uint64_t last_stamp_ns() const { return last_stamp_ns_; }
  bool is_attached() const { return attached_; }

 private:
  void append_frame(std::string& out, const StoredFrame& frame, std::uint64_t now_ns);
  Result<void> take_frames(std::vector<Frame>& fresh);

  FrameDecoder decoder_;
  bool preamble_due_ = false;
  bool attached_ = false;
  bool heartbeat_due_ = false;
  std::string heartbeat_;  // Its payload.
  std::uint64_t last_stamp_ns_ = 0;
  std::deque<StoredFrame> handshake_;
  std::uint64_t handshake_credit_ = 0;  // In this carrier's Attach or Attached; not yet trusted.
  SendQueue sends_;
  ReceiveWindow receives_;
};

bool is_flow(FrameType type);

}  // namespace ivy::link
