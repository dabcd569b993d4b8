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
// by a thread of their own, started by the first of them. Nobody waits for the connection to one
// peer on the way to another: connections are made by threads of their own.
//
// Every error breaks the communicator, whichever rank finds it: first every rank is told
// (PointToPointOptions::break_all), then the requests end.
//
// Thread: any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/contract/fingerprint.h"
#include "comm/group/message_board.h"
#include "comm/group/message_request.h"
#include "comm/group/work.h"
#include "comm/transports/alarm.h"
#include "comm/transports/byte_stream.h"
#include "comm/transports/peer_listener.h"
#include "comm/transports/shared_group.h"
#include "comm/transports/tcp_mesh.h"

namespace ivy::comm {

inline constexpr std::size_t kUnexpectedBytesMax = std::size_t{256} << 20;  // Per communicator.

struct MessagePeer;
struct UnexpectedMessage;

struct PointToPointOptions {
  std::string communicator;
  std::int32_t self = 0;
  std::vector<std::int32_t> member_of;  // By rank: its index on this host; -1: another host.
  std::vector<TcpPeer> peers;           // By rank.
  std::chrono::microseconds spin{200};  // Zero: more ranks than processors.
  // Breaks the communicator on every rank; returns what all of them are told, which may be another
  // rank's finding. Calls break_with() itself, or has it called. May be empty: only messages break.
  std::function<Failure(const Failure&)> break_all;
  std::unique_ptr<MessageBoard> board;  // Null: waiting messages are not shown.
};

class PointToPoint {
 public:
  // `local` and `listener` may be null where no rank needs them; `alarm` is this object's alone.
  PointToPoint(PointToPointOptions options, SharedGroup* local, PeerListener* listener,
               std::unique_ptr<Alarm> alarm);
  // No call may be under way; asynchronous requests that are not done end as aborted. Messages
  // whose sends are done still reach their receivers.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Moves the requests until all of them are done.
  Outcome run(const std::vector<std::shared_ptr<MessageRequest>>& requests,
              std::chrono::nanoseconds timeout);
  // Queues the request for the thread.
  void post(const std::shared_ptr<MessageRequest>& request, std::chrono::nanoseconds timeout);
  // Waits until all posted sends are done, as long as their receivers keep reading.
  Outcome finish_sends();
  // Ends every request, present and to come, with this failure.
  void break_with(const Failure& failure);

 private:
  using Unexpected = UnexpectedMessage;
  using Peer = MessagePeer;
  using Requests = std::vector<std::shared_ptr<MessageRequest>>;
  // Under mutex_.
  void enter(const std::shared_ptr<MessageRequest>& request, std::chrono::nanoseconds timeout);
  bool progress();  // Under mutex_. True if anything moved.
  bool progress_sends(Peer& peer);
  bool progress_receives(Peer& peer);
  PeerChannel channel_of(const Peer& peer) const;
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
  Failure late(const MessageRequest& request, std::chrono::nanoseconds waited) const;
  bool find_overdue(const Requests& requests);  // Under mutex_.
  Outcome see_through(std::unique_lock<std::mutex>& lock, const Requests& requests,
                      std::chrono::nanoseconds patience);
  bool is_broken() const { return found_.has_value() || failure_.has_value(); }  // Under mutex_.
  void fail_all(const Failure& failure);
  void fail_found(const Failure& failure);
  bool tell_found(std::unique_lock<std::mutex>& lock);
  Failure lost(const Peer& peer, const std::string& why);
  void tell_message(Failure& failure) const;
  std::optional<Failure> look(std::int32_t missed);
  bool look_for_trouble();
  std::int32_t next_missed();              // Under mutex_.
  bool is_missed(const Peer& peer) const;  // Under mutex_.
  std::optional<Failure> look_for_absent(std::int32_t& missed);
  const MessageRequest* for_anyone() const;        // Under mutex_.
  std::optional<bool> is_there(const Peer& peer);  // Under mutex_.
  bool are_all_gone();
  bool look_for_desertion();
  void sleep(std::uint32_t bell, std::chrono::steady_clock::time_point until);
  void run_thread();
  void move_pending(std::unique_lock<std::mutex>& lock);
  Outcome fail_thrown(std::unique_lock<std::mutex>& lock, const std::exception& problem);

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
  // Requests that the thread has to complete.
  std::vector<std::shared_ptr<MessageRequest>> pending_;
  std::optional<Failure> found_;    // Found here; not yet told to the other ranks.
  std::optional<Failure> failure_;  // What every request ends with.
  std::chrono::steady_clock::time_point probed_at_;
  std::int32_t missed_last_ = 0;
  std::chrono::steady_clock::time_point counted_at_;
  std::int32_t there_last_ = 0;  // The rank that are_all_gone() last found present.
  // Since when no other rank is present.
  std::optional<std::chrono::steady_clock::time_point> gone_since_;
  std::uint64_t messages_ = 0;            // Messages begun so far.
  std::atomic<bool> is_breaking_{false};  // A thread waits for mutex_ to break everything.
  bool is_ending_ = false;
  std::condition_variable has_work_;
  std::thread thread_;
};

}  // namespace ivy::comm
