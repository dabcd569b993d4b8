// A store for many jobs behind one address: `ivy-rendezvous serve --tokens DIRECTORY`. A client's
// greeting names its job; a job that has a token file gets the connection, in a process of its own
// (job_process.h), which proves the client. Everybody else sees a closed connection.
//
// Nothing is kept of a job whose token file is gone. One that nobody is connected to is put to rest
// after a while: its memory is free, and what it held is gone unless it keeps a log.
//
// Thread: the loop's. Lifetime: until stop() and one more turn of the loop.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "proto/contract/status.h"
#include "rendezvous/server/token_directory.h"

namespace ivy::store {

struct JobServerOptions {
  std::string wal;                            // Directory of the jobs' logs; empty: none.
  std::size_t jobs = 256;                     // At a time, so all together: jobs x memory.
  std::uint64_t memory_bytes = 256ull << 20;  // Of one job's process.
  std::uint64_t connections = 4096;           // Of one job.
  std::uint32_t idle_seconds = 600;           // Without a connection, until it is put to rest.
  std::size_t half_open = 8'192;              // Without a greeting; then the oldest goes.
  std::uint64_t greeting_ns = 5'000'000'000;
  std::function<void(const std::string&)> log;
};

class JobServer {
 public:
  JobServer(boost::asio::io_context& loop, TokenDirectory tokens, JobServerOptions options);
  ~JobServer();
  JobServer(const JobServer&) = delete;
  JobServer& operator=(const JobServer&) = delete;

  void listen(int listening_fd);
  void stop();

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

}  // namespace ivy::store
