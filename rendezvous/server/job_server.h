// A store for many jobs behind one address: `ivy-rendezvous serve --tokens DIRECTORY`. A client's
// greeting names its job; a job that has a token file gets the connection, in a process of its own
// (job_process.h), which authenticates the client. Any other connection is closed.
//
// Nothing is kept of a job whose token file is gone. The process of a job without connections is
// stopped after a while: its memory is freed, and its contents are lost.
//
// Thread: the loop's. Lifetime: until stop() and one more turn of the loop.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "rendezvous/server/alive.h"
#include "rendezvous/server/job_process.h"
#include "rendezvous/server/limited_log.h"
#include "rendezvous/server/listeners.h"
#include "rendezvous/server/token_directory.h"

namespace ivy::store {

struct JobServerOptions {
  std::size_t jobs = 256;  // At a time; bounds all memory to jobs x memory_bytes.
  std::uint64_t memory_bytes = 256ull << 20;  // Each job's process may use as much.
  std::uint64_t connections = 4096;           // Each job may have so many.
  std::uint32_t idle_seconds = 600;           // Without a connection, until its process is stopped.
  std::size_t half_open = 8'192;  // Connections without a greeting; beyond it the oldest is closed.
  std::uint64_t greeting_ns = 5'000'000'000;
  std::function<void(const std::string&)> log;
};

class JobServer {
 public:
  JobServer(boost::asio::io_context& loop, TokenDirectory tokens, JobServerOptions options);
  ~JobServer() { stop(); }

  void listen(int listening_fd);
  void stop();

 private:
  // A connection that has not sent its greeting yet.
  struct Greeter {
    Greeter(boost::asio::io_context& loop, int fd) : socket(loop, fd) {}
    boost::asio::posix::stream_descriptor socket;
    std::string greeting;
    std::uint64_t since_ns = 0;
    std::list<std::shared_ptr<Greeter>>::iterator place;
  };
  using GreeterPointer = std::shared_ptr<Greeter>;
  struct Job {
    TokenStamp token;
    std::shared_ptr<JobProcess> process;
  };

  void take_client(Descriptor connection);
  void wait_for_greeting(const GreeterPointer& greeter);
  void read_greeting(const GreeterPointer& greeter);
  void pass_to_job(const GreeterPointer& greeter);
  Result<Job*> job_of(const std::string& id);
  void forget(const GreeterPointer& greeter);
  void refuse(const GreeterPointer& greeter, const std::string& because);
  void end_job(const std::string& id, const std::string& because);
  std::vector<std::string> arguments(const std::string& id) const;
  void wait_for_tick();
  void tick();

  boost::asio::io_context& loop_;
  const TokenDirectory tokens_;
  const JobServerOptions options_;
  LimitedLog log_;
  Listeners listeners_;
  boost::asio::steady_timer timer_;
  std::list<GreeterPointer> greeters_;  // The oldest stands in front and goes first.
  std::map<std::string, Job> jobs_;
  Alive alive_;
};

}  // namespace ivy::store
