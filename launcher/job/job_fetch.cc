// SPDX-License-Identifier: Apache-2.0
// bring_back() is the sequence; the functions that it awaits follow in its order, then those that
// handle the hosts' messages, and the messages to the user.
#include "launcher/job/job_fetch.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <map>
#include <utility>

#include "launcher/fetch/fetch_names.h"
#include "launcher/options/fetch_rule.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/limits.h"
#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::seconds;

// Files of one host; their names are kept in its memory.
constexpr std::uint32_t kMaxFiles = 100'000;
// Hosts that send at the same time, and the bytes of each that are in transit or wait for this
// disk: together 64 MiB.
constexpr std::size_t kSendingHosts = 16;
constexpr std::int64_t kWindow = 4 << 20;
// The last part may exceed the credit.
constexpr std::int64_t kWindowSlack = 512 << 10;
// A host that searches reports every second. One that sends nothing for this long waits for a file
// system.
constexpr std::int64_t kSilenceNs = 60'000'000'000;
// How long a write may take here.
constexpr seconds kWriteLimit{60};
constexpr std::chrono::milliseconds kTick{250};
// Lines about single files; the rest is counted.
constexpr std::size_t kShownProblems = 10;
// A host that is not malicious reports at most 1,000 problems of its search, and one for each file.
constexpr std::size_t kMaxProblems = kMaxFiles + 1000;
// Parts that are written in one task, so that progress and Ctrl-C are not held up.
constexpr std::size_t kBatchParts = 64;

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 10'000) return std::to_string(bytes) + " bytes";
  if (bytes < 1u << 20) return std::to_string(bytes >> 10) + " KiB";
  return size_text(bytes);
}

}  // namespace

JobFetch::JobFetch(JobContext& job) : job_(job) {}

bool JobFetch::is_wanted() const {
  return !job_.options.fetch.empty() && job_.was_started() && job_.interrupts <= 1 &&
         job_.launcher_end.reason != LauncherReason::kInternal;
}

Awaitable<void> JobFetch::bring_back(Sequence& steps) {
  if (!is_wanted()) co_return;
  is_under_way_ = true;
  begun_ns_ = monotonic_ns();
  plan();
  // The summary follows the fetch, which may take long.
  if (const int code = judge(job_.worker_ends(), job_.launcher_end).exit_code; code != 0)
    job_.screen.note("the job ends with exit code " + std::to_string(code) +
                     "; fetching files before the summary (Ctrl-C stops that)");
  for (HostFetch& host : hosts_) begin(host);
  co_await await_lists(steps);
  if (check_totals()) {
    co_await open_directories(steps);
    if (!given_up_) co_await receive(steps);
  }
  // Each task exits at the end of its input.
  for (const HostFetch& host : hosts_) {
    Command command;
    command.mutable_task_input()->set_task(TASK_FETCH);
    command.mutable_task_input()->set_end(true);
    job_.hosts.send(host.host, command);
  }
  job_.screen.status_line("");
  print_result();
  co_await remove_incomplete(steps);
  is_under_way_ = false;
}

// Assigns a directory to each host and rank, and makes the hosts' patterns.
void JobFetch::plan() {
  matches_.assign(job_.options.fetch.size(), 0);
  std::map<std::pair<std::string, std::string>, std::uint32_t> numbers;
  for (const PlannedHost& planned : job_.plan.hosts) {
    const HostRecord& record = job_.hosts[planned.host_index];
    HostFetch& host = hosts_.emplace_back();
    std::vector<std::size_t>& rules = rule_of_.emplace_back();
    host.host = planned.host_index;
    host.begin.set_max_files(kMaxFiles);
    host.begin.set_directory(job_.options.working_directory);
    if (record.facts && !record.facts->working_directory().empty())
      host.begin.set_directory(record.facts->working_directory());
    const auto add = [&](std::size_t rule, const FetchPlace& place, const std::string& name) {
      const std::string& directory = job_.options.fetch[rule].directory;
      const auto [known, is_new] =
          numbers.try_emplace({directory, name}, static_cast<std::uint32_t>(targets_.size()));
      if (is_new) targets_.push_back({directory, name, planned.host_index});
      FetchPattern& pattern = *host.begin.add_patterns();
      pattern.set_pattern(expanded_pattern(job_.options.fetch[rule].pattern, place));
      pattern.set_target(known->second);
      rules.push_back(rule);
    };
    for (std::size_t rule = 0; rule < job_.options.fetch.size(); ++rule) {
      FetchPlace place{record.host->name, 0, 0};
      if (!is_per_rank(job_.options.fetch[rule].pattern)) {
        add(rule, place, fetched_host_name(record.name()));
        continue;
      }
      for (const PlannedWorker& worker : planned.workers) {
        place.rank = worker.rank;
        place.local_rank = worker.local_rank;
        add(rule, place, fetched_rank_name(worker.rank));
      }
    }
  }
}

void JobFetch::begin(HostFetch& host) {
  host.heard_at_ns = monotonic_ns();
  const HostRecord& record = job_.hosts[host.host];
  // The user has chosen to go on without such a host, so it is no failure.
  if (record.excluded) {
    host.phase = Phase::kOver;
    return job_.print("warning: --fetch: " + record.name() +
                      " has left the job; its files cannot be fetched");
  }
  if (record.lost || !record.session || !record.session->is_open())
    return fail(host, "it was lost; its files cannot be fetched");
  FetchOrder order;
  *order.mutable_begin() = host.begin;
  Command command;
  command.mutable_task_input()->set_task(TASK_FETCH);
  command.mutable_task_input()->set_bytes(stage::framed(order.SerializeAsString()));
  job_.hosts.send(host.host, command);
}

Awaitable<void> JobFetch::await_lists(Sequence& steps) {
  while (is_any(Phase::kSearching) && !given_up_) co_await await_news(steps);
}

// Waits for a message, and for a tick at most, at which it checks hosts and limits.
Awaitable<void> JobFetch::await_news(Sequence& steps) {
  const auto wait = [this](const Arrival<Done>& arrive) { news_ = arrive; };
  co_await steps.wait_at_most<Done>(kTick, wait);
  check_hosts();
}

// Returns false if nothing can be fetched.
bool JobFetch::check_totals() {
  if (given_up_) return false;
  for (HostFetch& host : hosts_) {
    if (host.phase != Phase::kListed) continue;
    if (host.too_many) {
      fail(host, "its patterns match more than " + std::to_string(kMaxFiles) +
                     " files; fetch an archive of them instead");
      continue;
    }
    total_files_ += host.files;
    total_bytes_ += host.bytes;
  }
  for (std::size_t rule = 0; rule < matches_.size(); ++rule)
    if (matches_[rule] == 0 && failed_hosts_ < hosts_.size())
      job_.screen.note("note: --fetch " + job_.options.fetch[rule].pattern +
                       ": no file matches on any host (relative to " +
                       job_.options.working_directory + ")");
  if (total_files_ == 0) return false;
  if (total_bytes_ <= job_.options.fetch_limit) return true;
  give_up(Error{Code::kResourceExhausted,
                "the files take " + bytes_text(total_bytes_) + ", more than --fetch-limit " +
                    bytes_text(job_.options.fetch_limit) + "; none was fetched",
                "use a larger --fetch-limit, or copy them yourself: they are still on the hosts"});
  return false;
}

// Runs a function on the pool's only thread. stop() resumes this without waiting for it.
template <class T>
Awaitable<Result<T>> JobFetch::on_pool(Sequence& steps, std::function<Result<T>()> work) {
  const auto run = [this, &work](const Arrival<std::shared_ptr<Result<T>>>& arrive) {
    abandon_ = [arrive] {
      arrive(std::make_shared<Result<T>>(Error{Code::kCancelled, "it was stopped"}));
    };
    pool_->run(
        "the file system of " + where(), kWriteLimit, std::move(work),
        [arrive](Result<T> result) { arrive(std::make_shared<Result<T>>(std::move(result))); });
  };
  const std::shared_ptr<Result<T>> result = co_await steps.wait<std::shared_ptr<Result<T>>>(run);
  abandon_ = nullptr;
  co_return std::move(*result);
}

Awaitable<void> JobFetch::open_directories(Sequence& steps) {
  pool_ = std::make_unique<BlockingPool>(
      [&loop = job_.loop](std::function<void()> function) {
        boost::asio::post(loop, std::move(function));
      },
      // One thread writes in order; while it hangs, no other may take its place.
      BlockingPool::Limits{.threads = 1, .stuck_threads = 0});
  const unsigned umask = job_.request.limits ? job_.request.limits->umask() : 022;
  writer_ = std::make_shared<FetchWriter>(targets_, umask);
  std::function<Result<std::vector<std::string>>()> open =
      [writer = writer_, bytes = total_bytes_] { return writer->open(bytes); };
  const Result<std::vector<std::string>> opened =
      co_await on_pool<std::vector<std::string>>(steps, std::move(open));
  if (!opened.ok()) {
    give_up(opened.error());
    co_return;
  }
  directories_ = *opened;
}

Awaitable<void> JobFetch::receive(Sequence& steps) {
  sending_since_ns_ = monotonic_ns();
  const bool is_long = total_bytes_ > 100u << 20;
  if (is_long && !job_.screen.output().has_terminal())
    job_.screen.note("fetching " + counted(total_files_, "file") + ", " + bytes_text(total_bytes_) +
                     ", into " + where());
  while (!given_up_ && (is_any(Phase::kListed) || is_any(Phase::kSending) || !queue_.empty())) {
    give_turns();
    if (queue_.empty()) {
      co_await await_news(steps);
      show_progress();
      continue;
    }
    std::vector<Received> parts;
    while (!queue_.empty() && parts.size() < kBatchParts) {
      parts.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    std::vector<std::pair<std::size_t, std::size_t>> credits;
    for (const Received& received : parts)
      if (!received.is_problem) credits.emplace_back(received.host, received.credit);
    std::function<Result<Batch>()> write = [writer = writer_,
                                            all = std::move(parts)]() -> Result<Batch> {
      Batch batch;
      for (const Received& received : all) {
        if (received.is_problem) {
          writer->abandon(received.host);
          continue;
        }
        FetchWriter::Written written;
        const Result<void> taken = writer->take(received.host, received.part, written);
        batch.written.files += written.files;
        batch.written.file_bytes += written.file_bytes;
        batch.written.bytes += written.bytes;
        for (FetchWriter::Problem& problem : written.problems)
          batch.problems.emplace_back(received.host, std::move(problem));
        if (taken.ok()) continue;
        if (taken.error().code != Code::kDataLoss) {
          batch.error = taken.error();
          break;
        }
        writer->abandon(received.host);
        batch.broken.emplace_back(received.host, taken.error());
      }
      return batch;
    };
    const Result<Batch> batch = co_await on_pool<Batch>(steps, std::move(write));
    if (!batch.ok()) {
      give_up(batch.error());
      break;
    }
    files_ += batch->written.files;
    file_bytes_ += batch->written.file_bytes;
    bytes_ += batch->written.bytes;
    for (const auto& [host, problem] : batch->problems)
      add_problem(host, problem.path, problem.why);
    for (const auto& [host, error] : batch->broken) fail(*find(host), error.message);
    if (batch->error) give_up(*batch->error);
    for (const auto& [host, bytes] : credits) grant(*find(host), bytes);
    check_hosts();
    show_progress();
  }
}

// Does nothing if the file system does not respond.
Awaitable<void> JobFetch::remove_incomplete(Sequence& steps) {
  queue_.clear();
  const bool hangs = given_up_ && given_up_->code == Code::kDeadlineExceeded;
  if (!writer_ || hangs) co_return;
  std::function<Result<bool>()> work = [writer = writer_]() -> Result<bool> {
    writer->abandon_all();
    return true;
  };
  co_await on_pool<bool>(steps, std::move(work));
}

// ---- The hosts' messages ------------------------------------------------------------------------

void JobFetch::take(std::size_t index, const TaskOutput& output) {
  HostFetch* const host = find(index);
  if (!is_under_way_ || host == nullptr || host->phase == Phase::kOver) return;
  host->heard_at_ns = monotonic_ns();
  host->messages.feed(output.bytes());
  for (;;) {
    const Result<std::optional<std::string>> message = host->messages.next();
    FetchReply reply;
    if (!message.ok() || (*message && !reply.ParseFromString(**message))) {
      fail(*host, "it sent an invalid message");
      break;
    }
    if (!*message) break;
    handle(*host, std::move(reply), (*message)->size());
    if (host->phase == Phase::kOver) break;
  }
  if (output.ended() && host->phase != Phase::kOver) fail(*host, RemoteText(output.why()).line());
  wake();
}

// Resumes await_news() in a later turn, because the sequence may end the session whose event this
// is.
void JobFetch::wake() {
  if (const Arrival<Done> news = std::exchange(news_, nullptr))
    boost::asio::post(job_.loop, [news] { news({}); });
}

void JobFetch::handle(HostFetch& host, FetchReply reply, std::size_t bytes) {
  switch (reply.kind_case()) {
    case FetchReply::kFound: {
      if (host.phase != Phase::kSearching) return fail(host, "it searched twice");
      const FetchFound& found = reply.found();
      host.files = found.files();
      host.bytes = found.bytes();
      if (!found.is_final()) return;
      host.too_many = found.too_many();
      host.phase = Phase::kListed;
      const std::vector<std::size_t>& rules =
          rule_of_[static_cast<std::size_t>(&host - hosts_.data())];
      std::vector<bool> has_match(rules.size(), true);
      for (const std::uint32_t index : found.unmatched())
        if (index < has_match.size()) has_match[index] = false;
      for (std::size_t i = 0; i < rules.size(); ++i)
        if (has_match[i]) ++matches_[rules[i]];
      return;
    }
    case FetchReply::kPart:
      host.credit -= static_cast<std::int64_t>(bytes);
      if (host.phase != Phase::kSending || host.credit < -kWindowSlack)
        return fail(host, "it sent more than it was asked for");
      queue_.push_back({host.host, std::move(*reply.mutable_part()), bytes, false});
      return;
    case FetchReply::kProblem:
      if (++host.problems > kMaxProblems) return fail(host, "it reported too many problems");
      add_problem(host.host, reply.problem().path(), reply.problem().why());
      queue_.push_back({host.host, {}, 0, true});
      return;
    case FetchReply::kDone:
      if (host.phase == Phase::kSearching) return fail(host, "it finished before it began");
      host.phase = Phase::kOver;
      return;
    case FetchReply::KIND_NOT_SET:
      return;
  }
}

// Lets hosts send, up to kSendingHosts of them.
void JobFetch::give_turns() {
  auto sending = static_cast<std::size_t>(
      std::count_if(hosts_.begin(), hosts_.end(),
                    [](const HostFetch& host) { return host.phase == Phase::kSending; }));
  for (HostFetch& host : hosts_) {
    if (sending >= kSendingHosts) return;
    if (host.phase != Phase::kListed) continue;
    host.heard_at_ns = monotonic_ns();
    host.phase = Phase::kSending;
    ++sending;
    grant(host, kWindow);
  }
}

void JobFetch::grant(HostFetch& host, std::uint64_t bytes) {
  if (host.phase != Phase::kSending || bytes == 0) return;
  host.credit += static_cast<std::int64_t>(bytes);
  FetchOrder order;
  order.mutable_credit()->set_bytes(bytes);
  Command command;
  command.mutable_task_input()->set_task(TASK_FETCH);
  command.mutable_task_input()->set_bytes(stage::framed(order.SerializeAsString()));
  job_.hosts.send(host.host, command);
}

// Gives up hosts that are lost or silent, and everything when the time is over.
void JobFetch::check_hosts() {
  const std::int64_t now = monotonic_ns();
  const std::int64_t limit = std::chrono::nanoseconds(job_.options.fetch_timeout).count();
  // Leaves time for the files of the other hosts.
  const std::int64_t silence_limit = std::min(kSilenceNs, limit / 2);
  if (now - begun_ns_ > limit && !given_up_)
    give_up(Error{Code::kCancelled,
                  "not everything arrived from " + unfinished_hosts() + " within --fetch-timeout " +
                      std::to_string(job_.options.fetch_timeout.count() / 1000) + " s",
                  "use a longer --fetch-timeout, or copy the files yourself"});
  for (HostFetch& host : hosts_) {
    if (host.phase == Phase::kOver || given_up_) continue;
    const HostRecord& record = job_.hosts[host.host];
    if (record.lost || !record.session->is_open()) {
      fail(host, "it was lost; its files cannot be fetched");
      continue;
    }
    // Parts of it that wait here do not count as silence, and neither does the wait for its turn.
    const bool is_awaited =
        host.phase == Phase::kSearching || (host.phase == Phase::kSending && host.credit > 0);
    const bool has_parts = std::any_of(queue_.begin(), queue_.end(), [&](const Received& received) {
      return received.host == host.host;
    });
    if (!is_awaited || has_parts)
      host.heard_at_ns = now;
    else if (now - host.heard_at_ns > silence_limit)
      fail(host, "it has sent nothing for " + std::to_string(silence_limit / 1'000'000'000) +
                     " s; its file system may not respond");
  }
}

void JobFetch::fail(HostFetch& host, const std::string& why) {
  if (host.phase == Phase::kOver) return;
  host.phase = Phase::kOver;
  ++failed_hosts_;
  queue_.push_back({host.host, {}, 0, true});
  job_.print("warning: --fetch: " + job_.hosts[host.host].name() + ": " + why);
}

void JobFetch::stop(const std::string& why) {
  give_up(Error{Code::kCancelled, why, ""});
  wake();
  if (const std::function<void()> abandon = std::exchange(abandon_, nullptr))
    boost::asio::post(job_.loop, abandon);
}

void JobFetch::give_up(const Error& error) {
  if (!given_up_) given_up_ = error;
}

bool JobFetch::is_any(Phase phase) const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [&](const HostFetch& host) { return host.phase == phase; });
}

JobFetch::HostFetch* JobFetch::find(std::size_t index) {
  for (HostFetch& host : hosts_)
    if (host.host == index) return &host;
  return nullptr;
}

std::string JobFetch::unfinished_hosts() const {
  std::vector<std::string> names;
  for (const HostFetch& host : hosts_)
    if (host.phase != Phase::kOver) names.push_back(job_.hosts[host.host].name());
  return names.empty() ? "the hosts" : fold_host_names(names);
}

// ---- Messages to the user -----------------------------------------------------------------------

void JobFetch::add_problem(std::size_t host, const std::string& path, const std::string& why) {
  if (++problems_ > kShownProblems) return;
  job_.print("warning: --fetch: " + job_.hosts[host].name() + ": " + RemoteText(path).line() +
             ": " + RemoteText(why).line());
}

// Returns the directories: those chosen, or else those of the flags.
std::string JobFetch::where() const {
  std::vector<std::string> all = directories_;
  if (all.empty())
    for (const FetchRule& rule : job_.options.fetch) all.push_back(rule.directory);
  std::vector<std::string> shown;
  const std::string here = job_.request.started_in + "/";
  for (const std::string& directory : all) {
    std::string name = directory.starts_with(here) ? directory.substr(here.size()) : directory;
    if (std::find(shown.begin(), shown.end(), name) == shown.end())
      shown.push_back(std::move(name));
  }
  return joined(shown, ", ");
}

void JobFetch::show_progress() {
  const std::int64_t now = monotonic_ns();
  if (now - shown_ns_ < std::chrono::nanoseconds(kTick).count()) return;
  shown_ns_ = now;
  const double passed = static_cast<double>(now - sending_since_ns_) / 1e9;
  const double rate = passed > 0 ? static_cast<double>(bytes_) / passed : 0;
  const std::uint64_t percent = total_bytes_ == 0 ? 100 : bytes_ * 100 / total_bytes_;
  job_.screen.status_line("fetching " + bytes_text(total_bytes_) + " from " +
                          counted(hosts_.size(), "host") + ": " +
                          std::to_string(std::min<std::uint64_t>(percent, 100)) + " %, " +
                          bytes_text(static_cast<std::uint64_t>(rate)) + "/s");
}

void JobFetch::print_result() {
  if (problems_ > kShownProblems)
    job_.print("warning: --fetch: " + std::to_string(problems_ - kShownProblems) +
               " more files have problems");
  if (files_ > 0)
    job_.screen.note("fetched " + counted(files_, "file") + ", " + bytes_text(file_bytes_) +
                     ", into " + where() + "/");
  std::vector<std::string> reasons;
  if (given_up_) reasons.push_back(given_up_->message);
  if (failed_hosts_ > 0)
    reasons.push_back("nothing more could be fetched from " + counted(failed_hosts_, "host"));
  if (problems_ > 0) reasons.push_back(counted(problems_, "file") + " could not be fetched");
  failure_ = joined(reasons, "; ");
  if (!failure_.empty() && given_up_ && !given_up_->fix.empty())
    failure_ += "\n  fix: " + given_up_->fix;
}

}  // namespace ivy
