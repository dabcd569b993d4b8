// The job's store on host 0. Its sockets listen from before the workers start, its process is born
// when the first client knocks: a job that asks nothing of it pays nothing for it.
//
//   listening --a client--> serving --ended by itself--> lost
//                              ^---- killed, with a log ----'
//
// With a log (wal_directory) a store that was killed is started again: its sockets are ours, too,
// so who knocks meanwhile waits, and who was connected dials again. One that ends by itself (its
// disk is full, its log damaged) is lost all the same, and so is one that is killed again and
// again. The log goes with the job.
//
// A host's leaf is kept in the same way: `ivy-node rendezvous leaf`, born with its first client.
//
// The process is `ivy-node rendezvous`, a child of the supervisor outside the workers' containment,
// so that a stop leaves it to the last worker; it dies with the supervisor.
//
// Thread: the loop's. Lifetime: ends the process with itself.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct StoreRequest {
  std::string job_id;
  std::string token_file;
  std::uint32_t generation = 0;
  std::vector<std::string> addresses;    // Numeric; each is listened on with the same two ports.
  std::uint16_t port = 0;                // Reserved before. Of the native dialect.
  std::uint16_t torch_port = 0;          // Reserved before; 0: no torch dialect.
  std::vector<std::string> torch_peers;  // Who may use it besides this host.
  std::uint32_t torch_connections = 0;   // Of its clients together; 0: the store's own limit.
  std::uint32_t stall_seconds = 0;       // 0: never says who waits for whom by itself.
  std::string wal_directory;             // Absolute; made when it is missing. Empty: no log.
  // A leaf instead of the store: the native address of the store behind it, and a Unix socket of
  // the native dialect. `port` is 0 then.
  std::string root;
  std::string unix_path;
  // Signals that a scheduler sends to the whole step are for workers: the store, which they need
  // for their last words, does not hear them.
  bool in_step = false;
};

class StoreProcess {
 public:
  struct Handlers {
    // The process was born; it is no member of the job's containment.
    std::function<void(pid_t)> born;
    // A line for people: who waits for whom, or whom it has sent away.
    std::function<void(const std::string& text, bool is_stall)> note;
    // It ended by itself, and why.
    std::function<void(const std::string&)> lost;
  };

  // AlreadyExists names address and port when another program listens there. Nothing can be written
  // to wal_directory: the error begins with "the store's log".
  static Result<std::unique_ptr<StoreProcess>> listen(boost::asio::io_context& loop,
                                                      StoreRequest request, Handlers handlers);
  ~StoreProcess();

  // The workers of a new generation are about to start. `begun` is called once the store has
  // forgotten what the last one wrote and has closed its connections, those too that nobody has
  // accepted yet; at once where it was not born. Not called when the store is lost before.
  void begin_generation(std::uint32_t generation, std::function<void()> begun);
  pid_t pid() const;  // 0: not born.
  // The supervisor has reaped it.
  void ended(int wait_status);

 private:
  class Core;
  explicit StoreProcess(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace ivy
