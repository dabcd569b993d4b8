// SPDX-License-Identifier: Apache-2.0
// The job's store on host 0. Its sockets listen from before the workers start, and its process is
// started by the first client: a job that does not use the store pays nothing for it.
//
//   listening --a client--> serving --its process exits--> lost
//
// A lost store ends the attempt: its contents exist nowhere else. The next attempt has a new one.
//
// The process is `ivy-node rendezvous`, a child of the supervisor outside the workers' containment,
// so that a stop leaves it to the last worker; it dies with the supervisor.
//
// Thread: the loop's. Lifetime: ends the process with itself.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/node/spawn/server_child.h"
#include "agent/node/supervisor/server_lines.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

struct StoreRequest {
  std::string job_id;
  std::string token_file;
  std::uint32_t generation = 0;
  std::vector<std::string> addresses;    // Numeric; each is listened on with the same two ports.
  std::uint16_t port = 0;                // The native dialect's, reserved with Hello.
  std::uint16_t torch_port = 0;          // Reserved before; 0: no torch dialect.
  std::vector<std::string> torch_peers;  // Other hosts that may use it.
  std::uint32_t torch_connections = 0;   // For all clients together; 0: the store's own limit.
  std::uint32_t stall_seconds = 0;       // 0: never reports stalled waits on its own.
  // Signals that a scheduler sends to the whole step are meant for the workers: the store ignores
  // them, because workers need it for their last reports.
  bool in_step = false;
};

class StoreProcess : public std::enable_shared_from_this<StoreProcess> {
 public:
  struct Handlers {
    // The process was started; it is not a member of the job's containment.
    std::function<void(pid_t)> born;
    // A line for the user: which ranks wait for which, or which client was refused.
    std::function<void(const std::string& text, bool is_stall)> note;
    // The store's process exited; the text says why.
    std::function<void(const std::string&)> lost;
  };

  // AlreadyExists names address and port when another program listens there; NotFound: this host
  // has no such address.
  static Result<std::shared_ptr<StoreProcess>> listen(boost::asio::io_context& loop,
                                                      StoreRequest request, Handlers handlers);
  ~StoreProcess();

  // The workers of a new generation are about to start. `begun` is called once the store has
  // forgotten what the last one wrote and has closed its connections, those not yet accepted too;
  // at once when the store is not running. Not called when the store is lost before.
  void begin_generation(std::uint32_t generation, std::function<void()> begun);
  // Sets a key of the present generation, also in a store that is started later. Both are short,
  // and the key has no blank.
  void put(const std::string& key, const std::string& value);
  pid_t pid() const { return pid_; }  // 0 until it is started.
  bool is_lost() const { return over_; }
  // The supervisor has reaped the process.
  void ended(int wait_status);

 private:
  struct Listener {
    boost::asio::posix::stream_descriptor socket;
    bool torch;
  };

  StoreProcess(boost::asio::io_context& loop, StoreRequest request, Handlers handlers);
  Result<void> listen();
  void add_listener(int fd, bool torch);
  void wait_for_a_client();
  void add_arguments(int control_fd, ServerChild& server);
  void spawn();
  void stop_listening();
  void send_line(const std::string& line);
  void send_put(const std::string& key, const std::string& value);
  void fail();
  void take_line(std::string line);

  boost::asio::io_context& loop_;
  const StoreRequest request_;
  const Handlers handlers_;
  std::uint32_t generation_;
  std::function<void()> begun_;
  // Kept for a store that starts later in this generation.
  std::map<std::string, std::string> puts_;
  std::vector<Listener> listeners_;
  ServerLines control_;
  Descriptor exec_error_;
  std::string last_words_;  // The reason why it exited on its own.
  pid_t pid_ = 0;
  bool over_ = false;
};

}  // namespace ivy
