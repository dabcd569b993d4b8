// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/ranks/rank_event_relay.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "proto/os/clock.h"

namespace ivy {
namespace {

using comm_status::RankState;
using std::chrono::milliseconds;

// The first event is sent immediately; events that follow within this time are sent together.
constexpr milliseconds kGather{10};
constexpr milliseconds kTimeout{1'000};  // How long a query waits for the hosts' answers.

}  // namespace

struct RankEventRelay::Question {
  explicit Question(boost::asio::io_context& loop) : timer(loop) {}
  std::uint32_t number = 0;
  std::set<std::size_t> waits_for;
  std::vector<HostOperations> answers;
  std::function<void(const Question& question)> done;
  boost::asio::steady_timer timer;
};

RankEventRelay::RankEventRelay(boost::asio::io_context& loop, JobHosts& hosts)
    : loop_(loop), hosts_(hosts), timer_(loop) {}

void RankEventRelay::begin(std::uint32_t generation, std::vector<std::size_t> host_of_rank) {
  log_.begin(generation, std::move(host_of_rank));
  timer_.cancel();
  is_timer_set_ = false;
}

void RankEventRelay::on_updates(std::size_t host, const RankUpdates& updates) {
  if (log_.receive(host, updates)) schedule_send();
}

void RankEventRelay::on_exited(std::size_t host, const Exited& exited) {
  RankUpdate rank;
  rank.set_rank(exited.rank());
  rank.set_state(static_cast<std::uint32_t>(exited.signal() != 0 ? RankState::kSignalled
                                                                 : RankState::kExited));
  rank.set_code(exited.signal() != 0 ? exited.signal() : exited.code());
  rank.set_pid(exited.pid());
  rank.set_out_of_memory(exited.out_of_memory());
  if (log_.worker_ended(host, rank)) schedule_send();
}

void RankEventRelay::on_restarted(std::size_t host, const Started& started) {
  if (log_.rank_restarted(host, started.rank(), started.rejoins(), started.pid())) schedule_send();
}

void RankEventRelay::on_start_failed(std::size_t host, std::uint32_t rank) {
  if (log_.rank_lost(host, rank, RankState::kDied)) schedule_send();
}

void RankEventRelay::ranks_lost(std::size_t host, const std::vector<std::uint32_t>& ranks,
                                RankState state) {
  bool has_changed = false;
  for (const std::uint32_t rank : ranks) has_changed |= log_.rank_lost(host, rank, state);
  if (has_changed) schedule_send();
}

void RankEventRelay::schedule_send() {
  const std::int64_t since_ns = monotonic_ns() - sent_at_ns_;
  const bool is_quiet = since_ns >= std::chrono::nanoseconds(kGather).count();
  if (log_.is_urgent() && is_quiet) return send_now();
  if (std::exchange(is_timer_set_, true)) return;
  timer_.expires_after(kGather);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) send_now();
  });
}

void RankEventRelay::send_now() {
  timer_.cancel();
  is_timer_set_ = false;
  sent_at_ns_ = monotonic_ns();
  for (const std::size_t host : log_.listeners()) {
    std::optional<RankUpdates> updates = log_.next_for(host);
    if (!updates) continue;
    Command command;
    *command.mutable_rank_updates() = *std::move(updates);
    hosts_.send(host, command);
  }
  log_.mark_all_sent();
}

void RankEventRelay::query_operations(const std::set<std::uint32_t>& exited, Lines done) {
  const auto question = std::make_shared<Question>(loop_);
  question->done = [this, exited, done = std::move(done)](const Question& answered) {
    std::vector<std::string> silent;
    for (const std::size_t host : answered.waits_for) silent.push_back(hosts_[host].name());
    done(operation_lines(answered.answers, silent), operation_waits(answered.answers, exited));
  };
  query(question, log_.listeners(), false);
}

void RankEventRelay::query_usage(const std::vector<std::size_t>& hosts, Usage done) {
  const auto question = std::make_shared<Question>(loop_);
  question->done = [done = std::move(done)](const Question& answered) { done(answered.answers); };
  query(question, hosts, true);
}

template <class Hosts>
void RankEventRelay::query(const std::shared_ptr<Question>& question, const Hosts& hosts,
                           bool with_usage) {
  question->number = ++next_question_;
  Command command;
  command.mutable_read_operations()->set_number(question->number);
  command.mutable_read_operations()->set_usage(with_usage);
  if (questions_.size() < kMaxQuestions)
    for (const std::size_t host : hosts)
      if (hosts_.send(host, command)) question->waits_for.insert(host);
  questions_.push_back(question);
  if (question->waits_for.empty()) return answer(question);
  question->timer.expires_after(kTimeout);
  question->timer.async_wait([this, question](const boost::system::error_code& error) {
    if (!error) answer(question);
  });
}

void RankEventRelay::on_operations(std::size_t host, const Operations& operations) {
  const auto found = std::find_if(questions_.begin(), questions_.end(), [&](const auto& question) {
    return question->number == operations.number();
  });
  if (found == questions_.end()) return;
  const std::shared_ptr<Question> question = *found;
  if (question->waits_for.erase(host) == 0) return;
  question->answers.push_back({hosts_[host].name(), log_.without_foreign_ranks(host, operations)});
  if (question->waits_for.empty()) answer(question);
}

void RankEventRelay::answer(const std::shared_ptr<Question>& question) {
  if (std::erase(questions_, question) == 0) return;
  question->timer.cancel();
  question->done(*question);
}

}  // namespace ivy
