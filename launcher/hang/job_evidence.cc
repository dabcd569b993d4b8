// SPDX-License-Identifier: Apache-2.0
// Two sequences. A query: query() sends CollectStacks to the hosts, on_part() collects the pieces
// of their answers, host_answered() parses an answer, and answer() summarizes all of them when the
// last host has answered or time is up. The watch for stalls, once per second: check_stall()
// queries twice (sample_positions(), compare_positions()), and if no rank has moved in between,
// report() queries everything and prints it. An incomplete answer proves nothing, so the next
// second starts again.
#include "launcher/hang/job_evidence.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "launcher/hang/nccl_lines.h"
#include "launcher/hang/rank_names.h"
#include "launcher/hang/stack_text.h"
#include "launcher/report/folded_ranks.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/wire/ras.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Limits of the flight records of all hosts and of one; they are parsed and released host by host.
constexpr std::uint64_t kFlightBytesOfJob = 96u << 20;
constexpr std::uint64_t kFlightBytesOfHost = 24u << 20;
// Added to a host's own deadline, for the round trip and the pieces of the answer.
constexpr milliseconds kTravel{1'000};
// Limits of one host's answer (4096 ranks with a short stack each, or its flight records) and of
// all answers to pending queries: misbehaving hosts must not fill the launcher's memory.
constexpr std::size_t kMaxAnswerBytes = 64u << 20;
constexpr std::size_t kMaxPendingBytes = 256u << 20;
// Limit of fields that an answer may have for each rank of its host: the rank's own data, its
// flight records, and its positions in communicators.
constexpr std::size_t kMaxFieldsOfRank = 256;
constexpr milliseconds kSamplePause{1'000};
// For this long after an answer, ranks may still print output that the query has caused.
constexpr milliseconds kEcho{500};
constexpr milliseconds kSampleTimeout{3'000};
constexpr milliseconds kStallTimeout{10'000};
// After a watchdog's abort, the job is stopped only when the ranks' positions are known, or at the
// latest after this time.
constexpr milliseconds kAbortTimeout{5'000};
// Limit of the text of NCCL's health service, in one line.
constexpr std::size_t kMaxHealth = 500;
// The last output of an aborted worker arrives after its exit.
constexpr milliseconds kOutputPause{20};
constexpr int kMaxOutputPauses = 15;
constexpr milliseconds kMaxCtlTimeout{60'000};

// Parsing may expand a field of two bytes to hundreds of bytes. Counts the fields of ranks together
// with those of the answer.
std::size_t fields_of_answer(const std::string& bytes) {
  constexpr std::uint32_t kRanksTag = HostEvidence::kRanksFieldNumber << 3 | 2;
  google::protobuf::io::CodedInputStream input(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                               static_cast<int>(bytes.size()));
  std::size_t fields = 0;
  while (const std::uint32_t tag = input.ReadTag()) {
    ++fields;
    std::uint32_t length = 0;
    const bool continues = tag == kRanksTag
                               ? input.ReadVarint32(&length)
                               : google::protobuf::internal::WireFormatLite::SkipField(&input, tag);
    if (!continues) break;
  }
  return fields;
}

// Adds lines "ranks 0-1,3: NCCL says: ...". Their number is limited, because an address or a number
// often makes otherwise equal warnings differ.
void add_warnings(const std::map<std::string, std::vector<std::uint32_t>>& warnings,
                  std::vector<std::string>& lines) {
  constexpr std::size_t kMaxWarnings = 8;
  std::size_t printed = 0;
  for (const auto& [text, ranks] : warnings) {
    if (++printed > kMaxWarnings) break;
    lines.push_back(named_ranks(ranks) + ": NCCL says: " + text);
  }
  if (warnings.size() > kMaxWarnings)
    lines.push_back("and " + std::to_string(warnings.size() - kMaxWarnings) + " more warnings");
}

// Adds a summary of the ranks' positions in NCCL's operations if they differ, and the ranks that do
// not answer.
void add_health(const std::string& answer, std::vector<std::string>& lines) {
  if (answer.empty()) return;
  const std::string summary = summary_of_ras(answer, kMaxHealth);
  if (summary != kRasNoError) lines.push_back("NCCL's health service says: " + summary);
}

// Merges the records of a rank's backends. Returns the last error of records that cannot be parsed.
Result<void> read_flight(const RankEvidence& rank, FlightRecord& record) {
  Result<void> all;
  for (const FlightJson& json : rank.flight_json()) {
    Result<FlightRecord> part = read_flight_record(json.json(), json.backend());
    if (!part.ok()) {
      all = part.error();
      continue;
    }
    // In an incomplete record, a member without an entry may have finished the collective.
    if (!json.complete()) part->members.clear();
    merge(record, std::move(*part));
  }
  return all;
}

// Takes the location of the newest collective from the main thread's stack, because the record does
// not contain stacks.
void add_source_line(const RankEvidence& rank, FlightRecord& record) {
  const std::vector<StackThread> threads = parse_stack(rank.tool(), rank.stack());
  const std::string collective = threads.empty() ? "" : collective_of(threads.front());
  const std::size_t at = collective.rfind(" at ");
  const auto newest = std::find_if(record.entries.rbegin(), record.entries.rend(),
                                   [](const FlightEntry& entry) { return !entry.is_over; });
  if (!collective.starts_with("torch's ") || at == std::string::npos) return;
  if (newest != record.entries.rend() && newest->source_line.empty())
    newest->source_line = collective.substr(at + 4);
}

}  // namespace

struct JobEvidence::Open {
  explicit Open(boost::asio::io_context& loop) : timer(loop) {}
  std::uint32_t number = 0;
  std::map<std::size_t, std::string> names;              // Names of hosts that have not answered.
  std::map<std::size_t, std::set<std::uint32_t>> ranks;  // Ranks of each queried host.
  std::map<std::size_t, std::string> received;           // Bytes of their answers so far.
  std::uint32_t world = 0;
  // NCCL's warnings, each with its ranks.
  std::map<std::string, std::vector<std::uint32_t>> warnings;
  std::string health;  // The answer of NCCL's own health service.
  std::vector<NcclPosition> nccl_places;
  Answer answer;
  Done done;
  boost::asio::steady_timer timer;
};

JobEvidence::JobEvidence(boost::asio::io_context& loop, ExaminedJob& job)
    : job_(job), loop_(loop), stall_timer_(loop), pause_timer_(loop), abort_timer_(loop) {}

JobEvidence::~JobEvidence() = default;

void JobEvidence::query(const Question& question, Done done) {
  const auto open = std::make_shared<Open>(loop_);
  open->number = ++next_number_;
  open->done = std::move(done);
  const std::vector<ExaminedJob::HostRanks> hosts = job_.ranks_by_host();
  const milliseconds timeout = std::max(question.timeout - kTravel, kTravel);
  open->answer.is_incomplete = open_.size() >= kMaxQuestions;
  for (const ExaminedJob::HostRanks& host : hosts) {
    open->world += static_cast<std::uint32_t>(host.ranks.size());
    Command command;
    CollectStacks& collect = *command.mutable_collect_stacks();
    collect.set_number(open->number);
    collect.set_native(question.native);
    collect.set_light(question.light);
    collect.set_records_only(question.records_only);
    collect.set_patience_ms(static_cast<std::uint32_t>(timeout.count()));
    if (question.flight_records)
      collect.set_max_flight_bytes(std::min(kFlightBytesOfHost, kFlightBytesOfJob / hosts.size()));
    for (const std::uint32_t rank : host.ranks)
      if (question.ranks.contains(rank)) collect.add_ranks(rank);
    const bool is_wanted = question.ranks.empty() || collect.ranks_size() > 0;
    if (open->answer.is_incomplete || !is_wanted) continue;
    collect.set_nccl_health(question.flight_records && open->names.empty());
    if (!job_.send(host.host, command)) continue;
    open->names[host.host] = host.name;
    open->ranks[host.host] = {host.ranks.begin(), host.ranks.end()};
  }
  open_.push_back(open);
  if (open->names.empty()) return answer(open);
  open->timer.expires_after(question.timeout + kTravel);
  open->timer.async_wait([this, open](const boost::system::error_code& error) {
    if (!error) answer(open);
  });
}

void JobEvidence::on_part(std::size_t host, const EvidencePart& part) {
  const auto found = std::find_if(open_.begin(), open_.end(), [&part](const auto& open) {
    return open->number == part.number();
  });
  if (found == open_.end() || !(*found)->names.contains(host)) return;
  const std::shared_ptr<Open> open = *found;
  std::string& received = open->received[host];
  const bool is_too_much = received.size() + part.bytes().size() > kMaxAnswerBytes ||
                           pending_bytes() + part.bytes().size() > kMaxPendingBytes;
  if (!is_too_much) {
    received += part.bytes();
    if (!part.last()) return;
  }
  // Drops unread answers: they would use the memory that other hosts need.
  if (is_too_much || !host_answered(*open, host, received))
    open->answer.notes.push_back("host " + open->names[host] + ": its answer " +
                                 (is_too_much ? "is too long" : "cannot be read"));
  open->received.erase(host);
  open->names.erase(host);
  if (open->names.empty()) answer(open);
}

std::size_t JobEvidence::pending_bytes() const {
  std::size_t sum = 0;
  for (const auto& open : open_)
    for (const auto& [host, bytes] : open->received) sum += bytes.size();
  return sum;
}

bool JobEvidence::host_answered(Open& open, std::size_t host, const std::string& bytes) {
  std::set<std::uint32_t>& expected = open.ranks[host];
  if (fields_of_answer(bytes) > kMaxFieldsOfRank * (expected.size() + 1)) return false;
  HostStacks stacks;
  stacks.host = open.names[host];
  if (!stacks.evidence.ParseFromString(bytes)) return false;
  // Accepts a host's data only for its own ranks, and only once for each.
  const std::set<std::uint32_t> own = expected;
  auto& ranks = *stacks.evidence.mutable_ranks();
  ranks.erase(
      std::remove_if(ranks.begin(), ranks.end(),
                     [&](const RankEvidence& rank) { return expected.erase(rank.rank()) == 0; }),
      ranks.end());
  for (RankEvidence& rank : *stacks.evidence.mutable_ranks()) {
    const std::string prefix = "rank " + std::to_string(rank.rank()) + ": ";
    if (!rank.nccl_warning().empty()) open.warnings[rank.nccl_warning()].push_back(rank.rank());
    if (!rank.flight_note().empty()) open.answer.notes.push_back(prefix + rank.flight_note());
    if (rank.flight_json_size() == 0) continue;
    FlightRecord record;
    const Result<void> read = read_flight(rank, record);
    if (!read.ok())
      open.answer.notes.push_back(prefix +
                                  "its flight record cannot be read: " + read.error().message);
    rank.clear_flight_json();
    if (record.version.empty()) continue;
    add_source_line(rank, record);
    open.answer.flights.push_back({rank.rank(), std::move(record)});
  }
  // A host has its own limit of pending queries, above which it sends no ranks.
  open.answer.is_incomplete |= ranks.empty();
  for (const NcclPosition& position : stacks.evidence.nccl_places())
    if (own.contains(position.rank())) open.nccl_places.push_back(position);
  stacks.evidence.clear_nccl_places();
  if (open.health.empty()) open.health = std::move(*stacks.evidence.mutable_nccl_health());
  open.answer.hosts.push_back(std::move(stacks));
  return true;
}

void JobEvidence::answer(const std::shared_ptr<Open>& open) {
  if (std::erase(open_, open) == 0) return;
  echo_until_ns_ = monotonic_ns() + std::chrono::nanoseconds(kEcho).count();
  open->timer.cancel();
  for (const auto& [host, name] : open->names) open->answer.silent.push_back(name);
  open->answer.lines = flight_lines(open->answer.flights, open->world, wall_ns());
  // NCCL's lines are not needed for collectives that torch has recorded.
  if (open->answer.lines.empty()) open->answer.lines = nccl_lines(open->nccl_places);
  open->answer.places = open->answer.lines;
  // Without records, the stacks at least show which ranks are inside a collective.
  if (open->answer.lines.empty())
    if (std::string line = collective_line(open->answer.hosts); !line.empty())
      open->answer.lines.push_back(std::move(line));
  add_warnings(open->warnings, open->answer.lines);
  add_health(open->health, open->answer.lines);
  for (const std::string& note : open->answer.notes) open->answer.lines.push_back(note);
  open->done(open->answer);
}

void JobEvidence::describe(const ctl::DescribeStacks& request,
                           std::function<void(const std::string&)> done) {
  Question question;
  question.native = request.native();
  question.light = request.brief() || request.main_threads();
  question.flight_records = !request.main_threads();
  if (request.patience_ms() > 0)
    question.timeout = std::min(milliseconds(request.patience_ms()), kMaxCtlTimeout);
  for (const ExaminedJob::HostRanks& host : job_.ranks_by_host())
    for (const std::uint32_t rank : host.ranks)
      for (const ctl::RankRange& range : request.ranks())
        if (rank >= range.first() && rank <= range.last()) question.ranks.insert(rank);
  if (request.ranks_size() > 0 && question.ranks.empty())
    return done("this job has none of these ranks");
  query(question, [done = std::move(done), is_brief = request.brief(),
                   is_main = request.main_threads()](const Answer& answer) {
    if (is_brief) return done(joined(answer.lines, "\n"));
    if (is_main) return done(stack_lines(answer.hosts, answer.silent, StackDetail::kMain));
    done(evidence_text(answer, StackDetail::kWhole));
  });
}

void JobEvidence::watch(std::chrono::seconds limit) {
  limit_ = limit;
  note_progress();
  if (limit_.count() > 0) wait_second();
}

void JobEvidence::note_progress() {
  moved_at_ns_ = monotonic_ns();
  is_reported_ = false;
}

// A query sends signals, and a rank that waits in a call which they interrupt may print that, as
// torch does while connecting to its store. Such output does not count.
void JobEvidence::output_printed() {
  if (open_.empty() && monotonic_ns() >= echo_until_ns_) note_progress();
}

void JobEvidence::wait_second() {
  stall_timer_.expires_after(std::chrono::seconds(1));
  stall_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    check_stall();
    wait_second();
  });
}

void JobEvidence::check_stall() {
  const std::int64_t silent_ns = monotonic_ns() - moved_at_ns_;
  if (is_reported_ || is_sampling_ || !job_.is_running()) return;
  if (silent_ns < std::chrono::nanoseconds(limit_).count()) return;
  is_sampling_ = true;
  sample_positions([this](const Answer& first) {
    if (first.is_incomplete) {
      is_sampling_ = false;
      return;
    }
    pause_timer_.expires_after(kSamplePause);
    pause_timer_.async_wait([this, first](const boost::system::error_code& error) {
      if (!error) compare_positions(first);
    });
  });
}

// Queries only the ranks' positions.
void JobEvidence::sample_positions(Done done) {
  Question question;
  question.light = true;
  question.flight_records = false;
  question.timeout = kSampleTimeout;
  query(question, std::move(done));
}

void JobEvidence::compare_positions(const Answer& first) {
  sample_positions([this, first](const Answer& second) {
    is_sampling_ = false;
    const bool printed = monotonic_ns() - moved_at_ns_ < std::chrono::nanoseconds(limit_).count();
    if (is_reported_ || printed || !job_.is_running() || second.is_incomplete) return;
    // The job works without printing anything: check again after the limit.
    if (has_moved(first.hosts, second.hosts)) return note_progress();
    is_reported_ = true;
    report("no output and no progress for " + std::to_string(limit_.count()) + " s", kStallTimeout,
           [this] {
             if (is_reported_ && job_.is_running()) job_.stall_continues();
           });
  });
}

void JobEvidence::stalled() {
  if (is_reported_) return;
  is_reported_ = true;
  // Output of other ranks does not end this stall, because an operation has a separate clock.
  report("", kStallTimeout, [this] {
    if (job_.is_running()) job_.stall_continues();
  });
}

void JobEvidence::report(const std::string& what, milliseconds timeout,
                         std::function<void()> done) {
  Question question;
  question.timeout = timeout;
  query(question, [this, what, done = std::move(done)](const Answer& answer) {
    finding_ = answer.lines.empty() ? "" : answer.lines.front();
    std::string text = evidence_text(answer, StackDetail::kMain);
    if (!text.empty())
      text = "ivyrun: warning: " + (what.empty() ? "" : what + ". ") + "Where each rank is:\n" +
             indented(text) + "\n";
    if (!text.empty()) job_.print(text);
    done();
  });
}

void JobEvidence::after_failure(std::function<void()> done) { wait_for_output(0, std::move(done)); }

void JobEvidence::wait_for_output(int pauses, std::function<void()> done) {
  const WatchdogAbort abort = job_.watchdog_abort();
  if (abort == WatchdogAbort::kYes)
    return report("a collective's watchdog killed a rank, which is a symptom",
                  kAbortTimeout - kTravel, std::move(done));
  if (abort == WatchdogAbort::kNo || pauses == kMaxOutputPauses) return done();
  abort_timer_.expires_after(kOutputPause);
  abort_timer_.async_wait(
      [this, pauses, done = std::move(done)](const boost::system::error_code& error) {
        if (!error) wait_for_output(pauses + 1, done);
      });
}

std::string evidence_text(const JobEvidence::Answer& answer, StackDetail detail) {
  const std::string found = joined(answer.lines, "\n");
  const std::string stacks = stack_lines(answer.hosts, answer.silent, detail);
  return found + (found.empty() || stacks.empty() ? "" : "\n") + stacks;
}

}  // namespace ivy
