// SPDX-License-Identifier: Apache-2.0
// An Open call, from its first message until a transport has its stream. The caller has been
// authorized before (net/authorization.h). Read open_call.cc from top to bottom:
//
//   begin        waits for the first message
//   on_read      checks the request
//   try_open     connects to the job's supervisor; if there is none,
//   find_bundle  searches for ivy-node (pool)
//   act          chooses what to do by choose_open_action(): attach, start, or reject
//   record       writes the job's record for the next agent
//   spawn        starts the warden (pool)
//   on_started   gives the stream a transport
//
// Files of the user are accessed only on the pool: the cache may lie in a home on a network.
// Thread: the loop's.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "agent/daemon/jobs/agent_core.h"
#include "agent/daemon/jobs/open_stream.h"
#include "agent/daemon/jobs/warden_start.h"
#include "agent/daemon/net/authorization.h"
#include "proto/os/descriptor.h"

namespace ivy {

// The state of a job on this host when a caller wants to open it.
struct OpenFacts {
  bool reattach = false;
  bool runs = false;              // The job runs on this host.
  bool same_description = false;  // It was opened with the same description.
  bool has_ended = false;         // It ran here, and has ended.
  bool draining = false;
  bool has_bundle = false;
};
enum class OpenAction { kAttach, kStart, kRequestBundle };
// The table "What Open does" in README.md. Pure.
Result<OpenAction> choose_open_action(const OpenFacts& facts);

class OpenCall final : public StreamHandler, public std::enable_shared_from_this<OpenCall> {
 public:
  // A stream whose first message does not arrive is closed after this time.
  static constexpr std::chrono::seconds kFirstMessageWithin{10};
  // A supervisor that is being started listens after a few milliseconds; one that has just exited
  // may still be listed for a moment.
  static constexpr std::chrono::seconds kConnectWithin{5};
  // A call that waits longer than this for a file system is answered "ivy-wait": the launcher shows
  // that and retries. Launchers wait longer for an answer.
  static constexpr std::chrono::seconds kFilesWithin{6};
  // If this many threads are stuck in file systems, a call is answered "ivy-wait" immediately, so
  // that launchers that retry do not use up the threads.
  static constexpr int kMaxStuck = 8;

  OpenCall(std::shared_ptr<AgentCore> core, std::shared_ptr<OpenStream> stream, Caller caller);
  void begin();

 private:
  void on_read(bool ok) override;
  void on_written(bool) override {}
  void on_cancelled() override;

  Result<void> check() const;
  void try_open();
  void find_bundle();
  // bundle: the directory of this build; empty if it is not on this host.
  void act(const std::string& bundle);
  void retry();
  void record(const std::string& bundle);
  void spawn(const std::string& bundle);
  void on_started(Result<StartedWarden> warden);
  void limit_wait(const std::string& awaited);
  void reject_waiting(const std::string& awaited);
  void request_bundle();
  void reject(const Error& error);
  JobKey key() const { return {job_.job_id(), job_.host()}; }

  const std::shared_ptr<AgentCore> core_;
  std::shared_ptr<OpenStream> stream_;  // Null once it was handed on or has ended.
  const Caller caller_;
  agent::v1::OpenJob job_;
  Descriptor socket_;  // To the job's supervisor; none if nothing listens.
  boost::asio::steady_timer timer_;
  std::chrono::steady_clock::time_point deadline_;
  std::chrono::milliseconds pause_{5};
};

}  // namespace ivy
