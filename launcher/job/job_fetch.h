// SPDX-License-Identifier: Apache-2.0
// --fetch: brings files of every host back, after the workers have exited and before the hosts
// forget the job. JobEnding awaits bring_back(), which does everything in this order: each host
// searches (`ivy-node fetch`); the sizes are compared with the limits and this disk; a few hosts at
// a time send their files, within a window, and a pool thread writes them (fetch_writer.h).
//
// A failure of one file or host is reported, and the others are fetched. Thread: the loop's.
// Lifetime: as long as the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "launcher/fetch/fetch_writer.h"
#include "launcher/job/core/job_context.h"
#include "launcher/streams/sequence.h"
#include "proto/os/blocking.h"
#include "proto/wire/fetch.pb.h"
#include "proto/wire/stage_codec.h"

namespace ivy {

class JobFetch {
 public:
  explicit JobFetch(JobContext& job);

  // Does nothing unless --fetch was given, workers were started, and the user has not killed them.
  Awaitable<void> bring_back(Sequence& steps);
  // Output of `ivy-node fetch` on this host.
  void take(std::size_t host, const TaskOutput& output);
  bool is_under_way() const { return is_under_way_; }
  // Gives up what has not arrived yet; bring_back() returns soon.
  void stop(const std::string& why);
  // Why files are missing; empty if none are.
  const std::string& failure() const { return failure_; }

 private:
  // The state of a host. kListed: it waits for its turn.
  enum class Phase { kSearching, kListed, kSending, kOver };
  struct HostFetch {
    std::size_t host = 0;
    Phase phase = Phase::kSearching;
    FetchBegin begin;
    std::uint64_t files = 0;  // As the host has announced.
    std::uint64_t bytes = 0;
    bool is_final = false;
    bool too_many = false;
    std::int64_t credit = 0;  // Bytes that it may still send; its last part may exceed it.
    std::int64_t heard_at_ns = 0;
    std::size_t problems = 0;
    stage::MessageSplitter messages;
  };
  struct Received {
    std::size_t host = 0;
    FetchPart part;
    std::size_t credit = 0;   // To be given back once it is written.
    bool is_problem = false;  // The host has given its present file up.
  };
  struct Batch {
    FetchWriter::Written written;
    std::vector<std::pair<std::size_t, FetchWriter::Problem>> problems;
    std::vector<std::pair<std::size_t, Error>> broken;  // Hosts that broke the protocol.
    std::optional<Error> error;                         // Nothing more can be written.
  };

  bool is_wanted() const;
  void plan();
  void begin(HostFetch& host);
  Awaitable<void> await_lists(Sequence& steps);
  Awaitable<void> open_directories(Sequence& steps);
  Awaitable<void> receive(Sequence& steps);
  Awaitable<void> await_news(Sequence& steps);
  Awaitable<void> remove_incomplete(Sequence& steps);
  void wake();
  template <class T>
  Awaitable<Result<T>> on_pool(Sequence& steps, std::function<Result<T>()> work);

  bool check_totals();
  void handle(HostFetch& host, FetchReply reply, std::size_t bytes);
  void give_turns();
  void grant(HostFetch& host, std::uint64_t bytes);
  void check_hosts();
  void fail(HostFetch& host, const std::string& why);
  void add_problem(std::size_t host, const std::string& path, const std::string& why);
  void give_up(const Error& error);
  std::string unfinished_hosts() const;
  void show_progress();
  void print_result();
  bool is_any(Phase phase) const;
  HostFetch* find(std::size_t host);
  std::string where() const;

  JobContext& job_;
  bool is_under_way_ = false;
  std::string failure_;
  std::vector<HostFetch> hosts_;
  std::vector<FetchTarget> targets_;
  std::vector<std::size_t> matches_;  // For each rule: hosts and ranks on which it matches a file.
  std::vector<std::vector<std::size_t>> rule_of_;  // For each host: the rule of each pattern.
  std::vector<std::string> directories_;           // That were chosen.
  std::deque<Received> queue_;                     // Bounded by the credit of all hosts.
  std::shared_ptr<FetchWriter> writer_;
  std::unique_ptr<BlockingPool> pool_;
  Arrival<Done> news_;             // Resumes await_news().
  std::function<void()> abandon_;  // Resumes on_pool() without a result.
  std::optional<Error> given_up_;  // Nothing more is fetched, for this reason.
  std::int64_t begun_ns_ = 0, sending_since_ns_ = 0, shown_ns_ = 0;
  std::uint64_t total_files_ = 0, total_bytes_ = 0, files_ = 0, bytes_ = 0;
  std::uint64_t file_bytes_ = 0;  // Of the complete files; bytes_ counts every part.
  std::size_t problems_ = 0, failed_hosts_ = 0;
};

}  // namespace ivy
