// SPDX-License-Identifier: Apache-2.0
// Sends the states and reports of ranks (the abort epoch and its reasons) on to the other hosts of
// a job, where the comm runtime of their workers needs them. Also queries all hosts for the
// operations of their ranks in the comm runtime. Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launcher/hang/operation_lines.h"
#include "launcher/job/hosts/job_hosts.h"
#include "launcher/job/ranks/rank_event_log.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class RankEventRelay {
 public:
  // Limit of unanswered queries. Each is answered within kTimeout (rank_event_relay.cc).
  static constexpr std::size_t kMaxQuestions = 64;

  RankEventRelay(boost::asio::io_context& loop, JobHosts& hosts);
  RankEventRelay(const RankEventRelay&) = delete;
  RankEventRelay& operator=(const RankEventRelay&) = delete;

  void begin(std::uint32_t generation, std::vector<std::size_t> host_of_rank);

  // ---- Events of ranks. The first one is sent to the other hosts immediately, and so before an
  // order to stop; events that follow within kGather are sent together.

  void on_updates(std::size_t host, const RankUpdates& updates);
  void on_exited(std::size_t host, const Exited& exited);
  void on_restarted(std::size_t host, const Started& started);
  void on_start_failed(std::size_t host, std::uint32_t rank);
  // A spare replaces the host of these ranks, and reports on them from now on.
  void ranks_moved(const std::vector<std::uint32_t>& ranks, std::size_t host) {
    log_.move_ranks(ranks, host);
  }
  void ranks_lost(std::size_t host, const std::vector<std::uint32_t>& ranks,
                  comm_status::RankState state);

  // ---- Queries

  // Calls done with operation_lines() of the hosts that answer within a second, and with the
  // operation_waits() for `exited`; immediately if no rank uses the comm runtime.
  using Lines = std::function<void(const std::string& text, const std::vector<std::string>& waits)>;
  void query_operations(const std::set<std::uint32_t>& exited, Lines done);
  // Calls done with the operations and the resource usage of the ranks of these hosts, as far as
  // they answer within a second.
  using Usage = std::function<void(const std::vector<HostOperations>& answers)>;
  void query_usage(const std::vector<std::size_t>& hosts, Usage done);
  void on_operations(std::size_t host, const Operations& operations);

 private:
  struct Question;
  // Sends new entries of the log, immediately or after kGather.
  void schedule_send();
  void send_now();
  template <class Hosts>
  void query(const std::shared_ptr<Question>& question, const Hosts& hosts, bool with_usage);
  void answer(const std::shared_ptr<Question>& question);

  boost::asio::io_context& loop_;
  JobHosts& hosts_;
  RankEventLog log_;
  boost::asio::steady_timer timer_;
  bool is_timer_set_ = false;
  std::int64_t sent_at_ns_ = 0;
  std::uint32_t next_question_ = 0;
  std::vector<std::shared_ptr<Question>> questions_;
};

}  // namespace ivy
