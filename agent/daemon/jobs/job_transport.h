// SPDX-License-Identifier: Apache-2.0
// Copies one stream's bytes to and from a supervisor's command socket without interpreting them. At
// most one message is held in each direction, and none while nothing moves: a supervisor
// that does not read stops the reading of the stream, a launcher that does not read stops the
// reading of the socket. How the end of a stream reaches the supervisor: see the table in
// README.md.
//
// Thread: the loop's. Lifetime: kept alive by its stream and by its pending operations; reports its
// end to its owner.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "agent/daemon/jobs/job_registry.h"
#include "agent/daemon/jobs/open_stream.h"
#include "proto/contract/limits.h"
#include "proto/wire/message_size.h"

namespace ivy {

// How the end of a stream appears on the socket. Pure.
enum class StreamEnd { kRequestsEnded, kBroken };
enum class SocketEnd {
  kHalfClose,  // The launcher sends no more, and still reads.
  kHoldOpen,   // The launcher is only silent: its lease decides, and after kHeldOpen we hang up.
};
SocketEnd socket_end_of(StreamEnd end, std::chrono::milliseconds since_received);

class JobTransport;

// Implemented by AgentCore.
class TransportOwner {
 public:
  virtual ~TransportOwner() = default;
  // Called once. The owner may release the transport.
  virtual void transport_ended(JobTransport& transport) = 0;
};

class JobTransport final : public StreamHandler, public std::enable_shared_from_this<JobTransport> {
 public:
  static constexpr std::size_t kMaxDataBytes = session::MessageSize::kMax;
  // A launcher sends every second: if it was heard this recently when its stream ended, it was
  // still running.
  static constexpr std::chrono::milliseconds kReceivedWithin{5'000};
  // How long the supervisor may be silent after the launcher's side has ended.
  static constexpr std::chrono::milliseconds kSilenceAfterEnd{5'000};
  // How long only the lease of a silent launcher decides: as long as the shortest default lease.
  // After that the socket is closed. Otherwise a launcher that had announced its silence (Pause)
  // and then died would never be missed.
  static constexpr std::chrono::milliseconds kHeldOpen = kLeaseAttended;
  // If a stream breaks, on_cancelled() may follow the end of the requests by this much.
  static constexpr std::chrono::milliseconds kBreakTogether{200};

  // Takes over `socket`, which must be connected and non-blocking. The owner outlives the
  // transport.
  JobTransport(boost::asio::io_context& loop, JobKey key, int socket,
               std::shared_ptr<OpenStream> stream, TransportOwner& owner);

  // Takes the stream over, sends `opened`, and copies bytes from then on.
  void begin(const agent::v1::Opened& opened);
  // Closes the socket to the supervisor because this agent exits; the job keeps running.
  void hang_up();

  const JobKey& key() const { return key_; }
  // Returns false if the stream has ended and only the socket is left.
  bool has_launcher() const { return stream_ != nullptr; }

 private:
  using Clock = std::chrono::steady_clock;

  void on_read(bool ok) override;
  void on_written(bool ok) override;
  void on_cancelled() override;

  void take_data(std::string data);
  void write_socket();
  void wait_writable();
  void read_socket();
  void wait_readable();
  void requests_ended();
  void stream_ended(StreamEnd end);
  void drain_socket();
  void half_close();
  void wait_for_silence();
  void end_after(std::chrono::milliseconds time);
  void finish_stream(grpc::Status status);
  void end(grpc::Status status);

  const JobKey key_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<OpenStream> stream_;  // If null, the supervisor's bytes are dropped.
  TransportOwner& owner_;
  session::MessageSize message_size_;
  std::string down_;  // Bytes from the launcher; written up to down_written_.
  std::size_t down_written_ = 0;
  Clock::time_point received_at_ = Clock::now();
  bool is_waiting_readable_ = false;
  bool is_half_closing_ = false;  // Half-closes as soon as `down_` is written.
  bool is_write_broken_ = false;  // The supervisor reads no more, but may still send.
  bool is_over_ = false;
};

}  // namespace ivy
