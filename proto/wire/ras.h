// What NCCL's own health service (RAS, since 2.24) knows of a job that does not go on. Every
// process that has made a communicator answers at NCCL_RAS_ADDR, by a thread of NCCL's which is not
// the one that hangs, for all processes of the job: which of them are silent, which ranks are how
// far. The protocol is lines of text; its server hangs up behind the answer.
//
// Thread: one at a time; nothing here blocks but await(). Lifetime: closes its socket.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "proto/os/socket_address.h"

namespace ivy {

class RasQuestion {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // A process that is stopped costs a question so much: all processes of a host listen at the one
  // address, and the kernel chooses between them at every connection.
  static constexpr std::chrono::milliseconds kFirstWord{1'000};
  static constexpr std::size_t kMaxBytes = 64u << 10;

  // `address`: "127.1.2.3:28028", "[::1]:28028" or "localhost:28028"; other names are not looked
  // up. Nothing happens yet.
  RasQuestion(std::string_view address, TimePoint deadline);
  ~RasQuestion();
  RasQuestion(const RasQuestion&) = delete;
  RasQuestion& operator=(const RasQuestion&) = delete;

  // Goes on as far as it can. True: nothing more is to come.
  bool advance(TimePoint now);
  // Until advance() can do something, or so long.
  void await(std::chrono::milliseconds longest) const;
  // The answer to "verbose status", printable characters and newlines only; where the time or
  // kMaxBytes is over, what has come until then. Empty: nobody listens there, or it is no such
  // service.
  std::string answer() const;

 private:
  void dial(TimePoint now);
  void hang_up();
  // False: this connection is of no more use.
  bool send_question();
  bool receive();

  SocketAddress address_;
  const TimePoint deadline_;
  TimePoint dialled_at_;
  int socket_ = -1;
  std::size_t sent_ = 0;
  std::string heard_;
};

inline constexpr std::string_view kRasNoError = "no error";
// Its errors and warnings in one line; kRasNoError where it has none, "nothing in time" where it
// did not come to them. Pure.
std::string summary_of_ras(std::string_view answer, std::size_t longest);

}  // namespace ivy
