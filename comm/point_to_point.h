// Messages between two ranks, matched by tag: send, receive from one rank or from any.
//
// Every pair has a byte stream of its own for each direction (a ring, or a TCP connection that the
// sender dials), on which a message is
//
//   u32 magic | i32 tag | u64 bytes | u8 dtype, 7 zero | data      little endian
//
// so messages of one pair arrive in the order of the calls. A message that nobody waits for is kept
// until somebody does, kUnexpectedBytesMax in all; beyond that its stream is not read, and its
// sender waits. Blocking calls move everything that can be moved while they wait, so two ranks that
// send to each other first do not stop each other below that limit. Asynchronous requests are moved
// by a thread of their own, started by the first that cannot end at once.
//
// Thread: any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/failure.h"
#include "comm/fingerprint.h"
#include "comm/message_board.h"
#include "comm/transports/alarm.h"
#include "comm/transports/byte_stream.h"
#include "comm/transports/peer_listener.h"
#include "comm/transports/shared_group.h"
#include "comm/transports/tcp_mesh.h"
#include "comm/work.h"

namespace ivy::comm {

inline constexpr std::size_t kUnexpectedBytesMax = std::size_t{256} << 20;  // Per communicator.
inline constexpr std::int32_t kAnySource = -1;
inline constexpr std::int32_t kAnyTag = -1;

struct MessageStatus {
  std::int32_t source = -1;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0;
};

// One send or receive. Who made it waits for `work`; `status` is valid once that is done.
struct MessageRequest : std::enable_shared_from_this<MessageRequest> {
  bool is_send = false;
  std::int32_t peer = 0;  // kAnySource: from whom the first comes.
  std::int32_t tag = 0;
  Dtype dtype = Dtype::kU8;
  void* data = nullptr;  // Only read by a send.
  std::size_t bytes = 0;
  MessageStatus status;
  std::shared_ptr<Work> work = std::make_shared<Work>();
  std::size_t moved = 0;     // Of header and data.
  std::uint64_t number = 0;  // Of this communicator's messages here.
  bool is_done = false;
};

struct PointToPointOptions {
  std::string communicator;
  std::int32_t self = 0;
  std::vector<std::int32_t> member_of;  // By rank: its index on this host; -1: another host.
  std::vector<TcpPeer> peers;           // By rank.
  std::chrono::microseconds spin{200};  // Zero: more ranks than processors.
  // What all ranks are told instead of a finding of this one; may be empty.
  std::function<Failure(const Failure&)> agree;
  std::unique_ptr<MessageBoard> board;  // Null: nobody is shown what waits.
};

class PointToPoint {
 public:
  // `local` and `listener` may be null where no rank needs them; `alarm` is this object's alone.
  PointToPoint(PointToPointOptions options, SharedGroup* local, PeerListener* listener,
               std::unique_ptr<Alarm> alarm);
  // No call may be under way; asynchronous requests that are not done end as aborted.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Moves the requests until all of them are done.
  Outcome run(const std::vector<std::shared_ptr<MessageRequest>>& requests,
              std::chrono::nanoseconds timeout);
  // Leaves it to the thread.
  void post(const std::shared_ptr<MessageRequest>& request);
  // Ends every request, present and to come, with this.
  void break_with(const Failure& failure);

 private:
  struct Unexpected;
  struct Peer;
  void enter(const std::shared_ptr<MessageRequest>& request);  // Under mutex_.
  bool progress();                                             // Under mutex_; has anything moved?
  bool progress_sends(Peer& peer);
  bool progress_receives(Peer& peer);
  bool open_sink(Peer& peer);
  bool open_source(Peer& peer);
  bool begin_message(Peer& peer);
  void end_message(Peer& peer);
  std::shared_ptr<MessageRequest> match(std::int32_t source, std::int32_t tag);
  bool take_unexpected(MessageRequest& request);
  bool check(const MessageRequest& request, std::int32_t source, std::uint64_t bytes, Dtype dtype);
  void finish(MessageRequest& request);
  const MessageRequest* oldest() const;
  void show_oldest();
  void clear_shown(const MessageRequest& request);
  std::string name_of(const MessageRequest& request) const;
  Failure late_of(const std::vector<std::shared_ptr<MessageRequest>>& requests,
                  std::chrono::nanoseconds waited);
  Failure late(const MessageRequest& request, std::chrono::nanoseconds waited) const;
  void fail_all(const Failure& failure);
  void fail_found(const Failure& failure);
  Failure lost(const Peer& peer, const std::string& why);
  void tell_message(Failure& failure) const;
  std::optional<Failure> look();
  bool look_for_trouble();
  std::optional<Failure> look_for_absent();
  bool concerns_nobody(const Failure& failure) const;
  bool has_undelivered() const;  // Under mutex_.
  void sleep(std::uint32_t bell);
  void run_thread();

  const PointToPointOptions options_;
  SharedGroup* const local_;
  PeerListener* const listener_;
  const std::unique_ptr<Alarm> alarm_;
  std::mutex alarm_mutex_;  // Taken behind mutex_, if both.

  std::mutex mutex_;
  std::vector<std::unique_ptr<Peer>> peers_;             // By rank.
  std::list<std::shared_ptr<MessageRequest>> receives_;  // Posted, not yet matched, in order.
  std::list<std::shared_ptr<Unexpected>> unexpected_;    // In the order of arrival.
  std::size_t unexpected_bytes_ = 0;
  std::vector<std::shared_ptr<MessageRequest>> pending_;  // That the thread has to see through.
  std::optional<Failure> failure_;
  std::chrono::steady_clock::time_point probed_at_;
  std::uint64_t messages_ = 0;  // That were begun.
  // Until when a connection may be waited for: the end of the call that is under way.
  std::chrono::steady_clock::time_point dial_until_;
  std::atomic<bool> is_breaking_{false};  // Somebody wants mutex_ to end it all.
  bool is_ending_ = false;
  std::condition_variable has_work_;
  std::thread thread_;
};

}  // namespace ivy::comm
