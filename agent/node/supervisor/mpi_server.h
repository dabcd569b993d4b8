// SPDX-License-Identifier: Apache-2.0
// One of a host's two MPI servers: `ivy-node pmi` (PMI-1) or `ivy-pmix` (PMIx). Its sockets listen
// from before the workers start, and the process is started by the first client: a job without MPI
// pays nothing for it. There are two of them: a Unix socket for what knows of ivyrun, and a port on
// loopback for MPI libraries in whatever process a worker starts.
//
// The process is a child of the supervisor outside the workers' containment, and dies with it. It
// serves one generation.
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

#include "agent/node/spawn/server_child.h"
#include "agent/node/supervisor/server_lines.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

struct MpiServerStart {
  std::string name;                         // For messages: "the PMI server".
  std::string program;                      // The absolute path of its file.
  std::vector<std::string> arguments;       // argv; arguments with the sockets' numbers are added.
  std::vector<std::string> long_arguments;  // As in ServerChild.
  std::string socket;      // Its path; an existing file is removed. Empty: only the port.
  bool tidies_up = false;  // It exits on its own when its standard input closes.
  bool in_step = false;    // A scheduler signals all processes of our step.
};

class MpiServer : public std::enable_shared_from_this<MpiServer> {
 public:
  struct Handlers {
    std::function<void(pid_t)> born;  // It is not a member of the job's containment.
    std::function<void(const std::string&)> event;
    std::function<void(const std::string&)> note;  // A line for the user.
    std::function<void(const std::string&)> lost;  // It exited on its own, with the reason.
  };

  static Result<std::shared_ptr<MpiServer>> listen(boost::asio::io_context& loop,
                                                   MpiServerStart start, Handlers handlers);
  ~MpiServer();

  pid_t pid() const { return pid_; }  // 0: not started, or ended.
  std::uint16_t port() const { return port_; }
  // Takes the events that are there already.
  void drain() { events_.read_some(); }
  // The supervisor has reaped the process.
  void ended(int wait_status);

 private:
  using Listener = boost::asio::posix::stream_descriptor;

  MpiServer(boost::asio::io_context& loop, MpiServerStart start, Handlers handlers);
  Result<void> listen();
  void wait_for_a_client(Listener& listener);
  void stop_listening();
  ServerChild child_of(int in, int out, int err);
  void spawn();
  void fail();

  const MpiServerStart start_;
  const Handlers handlers_;
  Listener listener_;
  Listener loopback_;
  std::uint16_t port_ = 0;
  ServerLines events_;
  ServerLines notes_;
  Descriptor exec_error_;
  Descriptor life_;  // Its standard input, which ends when it is to end.
  pid_t pid_ = 0;
  bool over_ = false;
};

}  // namespace ivy
