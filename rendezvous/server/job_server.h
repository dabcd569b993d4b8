// A store for many jobs behind one address: `ivy-rendezvous serve --tokens DIRECTORY`. A client's
// greeting names its job; a job that has a token file gets the connection, in a process of its own
// (job_process.h), which authenticates the client. Any other connection is closed.
//
// Nothing is kept of a job whose token file is gone. The process of a job without connections is
// stopped after a while: its memory is freed, and its contents are lost unless it keeps a log.
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
  std::string wal;         // Directory of the jobs' logs; empty: none.
  std::size_t jobs = 256;  // At a time; bounds all memory to jobs x memory_bytes.
  std::uint64_t memory_bytes = 256ull << 20;  // Per job's process.
  std::uint64_t connections = 4096;           // Per job.
  std::uint32_t idle_seconds = 600;           // Without a connection, until its process is stopped.
  std::size_t half_open = 8'192;  // Connections without a greeting; beyond it the oldest is closed.
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
