// One job of a server for many jobs, in a process of its own, so that no job can see, starve or end
// another. The kernel bounds its memory, its descriptors and its share of the cores.
//
//   resting --knock--> serving --idle--> asked --busy--> serving
//                        |                 '--ended--> resting (again, if a connection came)
//                        '--killed, or out of memory--> resting
//
// The two speak over a SOCK_SEQPACKET pair. Down: a greeting with the connection that it came on,
// or "rest"; up: "idle", "busy". So no connection is sent to a process that is about to rest: it
// waits here for the answer.
//
// Thread: the loop's. Lifetime: ends the process with itself.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy::store {

inline constexpr std::string_view kRest = "rest";
inline constexpr std::string_view kIdle = "idle";
inline constexpr std::string_view kBusy = "busy";

// A connection whose greeting has been read.
struct Knock {
  Descriptor socket;
  std::string greeting;
};

class JobProcess : public std::enable_shared_from_this<JobProcess> {
 public:
  struct Limits {
    std::uint64_t memory_bytes = 0;
    std::uint64_t descriptors = 0;
  };
  // `arguments` are those of `ivy-rendezvous serve`, without the descriptor. `over` is called when
  // the process rests, or was killed (`how` then says how), and no connection waits for it: it may
  // be forgotten.
  JobProcess(boost::asio::io_context& loop, std::vector<std::string> arguments, Limits limits,
             std::function<void(const std::string& how)> over);
  ~JobProcess();

  // Takes the connection over. Starts the process if it is not running.
  Result<void> pass(Knock knock);
  // Kills the process and closes the connections that wait for it. `over` is not called.
  void end();

 private:
  Result<void> spawn();
  Result<void> send(Knock& knock);
  void wait();
  void on_readable();
  void on_ended();

  boost::asio::io_context& loop_;
  const std::vector<std::string> arguments_;
  const Limits limits_;
  const std::function<void(const std::string&)> over_;
  boost::asio::posix::stream_descriptor channel_;
  pid_t pid_ = 0;
  bool asked_to_rest_ = false;
  std::vector<Knock> waiting_;  // Connections held while the process is asked to rest.
};

}  // namespace ivy::store
