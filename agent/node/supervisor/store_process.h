// The job's store on host 0. Its sockets listen from before the workers start, and its process is
// started by the first client: a job that does not use the store pays nothing for it.
//
//   listening --a client--> serving --ended by itself--> lost
//                              ^---- killed, with a log ----'
//
// With a log (wal_directory) a store that was killed is started again: the supervisor keeps its
// sockets, so new clients wait meanwhile, and connected clients dial again. A store that ends by
// itself (its disk is full, its log damaged) is lost all the same, and so is one that is killed
// again and again. The log is removed with the job.
//
// A host's leaf is kept in the same way: `ivy-node rendezvous leaf`, started by its first client.
//
// The process is `ivy-node rendezvous`, a child of the supervisor outside the workers' containment,
// so that a stop leaves it to the last worker; it dies with the supervisor.
//
// Thread: the loop's. Lifetime: ends the process with itself.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/node/supervisor/server_lines.h"
#include "proto/contract/status.h"

namespace ivy {

struct StoreRequest {
  std::string job_id;
  std::string token_file;
  std::uint32_t generation = 0;
  std::vector<std::string> addresses;    // Numeric; each is listened on with the same two ports.
  std::uint16_t port = 0;                // The native dialect's, reserved with Hello.
  std::uint16_t torch_port = 0;          // Reserved before; 0: no torch dialect.
  std::vector<std::string> torch_peers;  // Hosts besides this one that may use it.
  std::uint32_t torch_connections = 0;   // For all clients together; 0: the store's own limit.
  std::uint32_t stall_seconds = 0;       // 0: never reports by itself who waits for whom.
  std::string wal_directory;             // Absolute; made when it is missing. Empty: no log.
  // For a leaf: the native address of the store behind it, and the leaf's Unix socket of the native
  // dialect. `port` is 0 then.
  std::string root;
  std::string unix_path;
  // Signals that a scheduler sends to the whole step are meant for the workers: the store ignores
  // them, because workers need it for their last reports.
  bool in_step = false;
};

class StoreProcess : public std::enable_shared_from_this<StoreProcess> {
 public:
  struct Handlers {
    // The process was started; it is no member of the job's containment.
    std::function<void(pid_t)> born;
    // A line for the user: which ranks wait for which, or which client was refused.
    std::function<void(const std::string& text, bool is_stall)> note;
    // The store ended by itself; the text says why.
    std::function<void(const std::string&)> lost;
  };

  // AlreadyExists names address and port when another program listens there; NotFound: this host
  // has no such address; PermissionDenied: wal_directory cannot be written.
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
  std::vector<std::string> arguments(int control_fd);
  void spawn();
  void stop_listening();
  void send_line(const std::string& line);
  void send_put(const std::string& key, const std::string& value);
  bool may_start_again();
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
  std::string last_words_;  // Why it ended by itself.
  std::deque<std::chrono::steady_clock::time_point> restarts_;
  pid_t pid_ = 0;
  bool over_ = false;
};

}  // namespace ivy
