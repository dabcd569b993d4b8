// SPDX-License-Identifier: Apache-2.0
// received() is the path of bytes: the first line binds the connection to a rank (bind()), and each
// later request is passed to its handler by the table in handlers(), one function per command.
// barrier() starts a fence when all ranks of this host have arrived, and fenced() releases them.
#include "rendezvous/dialects/pmi_host.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "proto/contract/status.h"
#include "proto/contract/text.h"
#include "proto/wire/mpi_names.h"

namespace ivy::store {
namespace {

constexpr std::string_view kMappingKey = "PMI_process_mapping";
constexpr std::string_view kReserved = "PMI_";
constexpr std::string_view kHello = "rank ";
constexpr const char* kUsesPmi2 =
    "its MPI library uses PMI-2, but ivyrun supports PMI-1 and PMIx: use a library that was built "
    "with --with-pmi=pmi1 or with PMIx";

std::string number_text(std::uint64_t number) { return std::to_string(number); }

// Makes text fit into one line for the supervisor: control characters become '?'.
std::string one_line(std::string_view text) {
  constexpr std::size_t kLongest = 512;
  std::string line(text.substr(0, kLongest));
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  return line;
}

// Returns the data that this host contributes to a fence: a line "KEY VALUE" for each pair. Neither
// contains line ends, and keys contain no blanks.
std::string blob_of(const std::map<std::string, std::string>& pairs) {
  std::string blob;
  for (const auto& [key, value] : pairs) blob += key + " " + value + "\n";
  return blob;
}

// Adds the pairs of a blob. Returns false if it is malformed.
bool add_blob(std::string_view blob, std::map<std::string, std::string>& pairs) {
  while (!blob.empty()) {
    const std::size_t end = blob.find('\n');
    const std::size_t blank = blob.find(' ');
    if (end == std::string_view::npos || blank >= end) return false;
    pairs.insert_or_assign(std::string(blob.substr(0, blank)),
                           std::string(blob.substr(blank + 1, end - blank - 1)));
    blob.remove_prefix(end + 1);
  }
  return true;
}

std::string why_not_put(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxPmiKey) return "key_is_empty_or_too_long";
  // Newer clients reject an answer without a value.
  if (value.empty() || value.size() > kMaxPmiValue) return "value_is_empty_or_too_long";
  return key.starts_with(kReserved) ? "key_is_reserved" : "";
}

// Parses "rank 3", which ivyrun's own programs send, or "cmd=initack pmiid=3" from a library that
// has PMI_PORT.
std::optional<int> rank_of_greeting(std::string_view line) {
  if (line.starts_with(kHello)) return to_number<int>(line.substr(kHello.size()));
  const Result<PmiRequest> request = parse_pmi_line(line);
  if (!request.ok() || request->command != "initack") return std::nullopt;
  return request->number("pmiid");
}

}  // namespace

std::string process_mapping(const std::vector<std::uint32_t>& ranks_on_hosts) {
  std::string text = "(vector";
  for (std::size_t first = 0; first < ranks_on_hosts.size();) {
    std::size_t end = first;
    while (end < ranks_on_hosts.size() && ranks_on_hosts[end] == ranks_on_hosts[first]) ++end;
    text += ",(" + number_text(first) + "," + number_text(end - first) + "," +
            number_text(ranks_on_hosts[first]) + ")";
    first = end;
  }
  return text + ")";
}

PmiHost::PmiHost(PmiJob job) : job_(std::move(job)) {
  IVY_ASSERT(job_.host < job_.ranks_on_hosts.size());
  std::string mapping = process_mapping(job_.ranks_on_hosts);
  if (mapping.size() <= kMaxPmiMapping)
    pairs_.emplace(std::string(kMappingKey), std::move(mapping));
}

std::uint32_t PmiHost::first_rank() const {
  const auto begin = job_.ranks_on_hosts.begin();
  return std::accumulate(begin, begin + job_.host, 0u);
}

std::uint32_t PmiHost::world_size() const {
  return std::accumulate(job_.ranks_on_hosts.begin(), job_.ranks_on_hosts.end(), 0u);
}

void PmiHost::received(Connection connection, std::string_view bytes, Effects& effects) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  Rank& rank = found->second;
  if (rank.state == State::kAborted) return;
  rank.connection = connection;
  rank.reader.add(bytes);
  if (rank.state == State::kOpened && !bind(rank, effects)) return;
  while (rank.state != State::kAborted) {
    const Result<std::optional<PmiRequest>> request = rank.reader.next();
    if (!request.ok()) {
      const Error& error = request.error();
      return reject(
          rank,
          error.code == Code::kFailedPrecondition
              ? kUsesPmi2
              : "its MPI library sent " + one_line(error.message) + " on PMI's connection",
          effects);
    }
    if (!*request) return;
    serve(rank, **request, effects);
  }
}

bool PmiHost::bind(Rank& rank, Effects& effects) {
  const auto rejected = [&](const std::string& why) {
    effects.notes.push_back("MPI: " + one_line(why));
    effects.closed.push_back(rank.connection);
    connections_.erase(rank.connection);
    return false;
  };
  const Result<std::optional<std::string>> line = rank.reader.next_line();
  if (!line.ok()) return rejected("a process sent " + line.error().message);
  if (!*line) return false;
  const std::optional<int> number = rank_of_greeting(**line);
  const std::int64_t index = number ? std::int64_t{*number} - first_rank() : -1;
  if (index < 0 || index >= local_size())
    return rejected("a process sent '" + **line + "', which is not a rank of this host");
  rank.rank = static_cast<std::uint32_t>(*number);
  if (!bound_.insert(rank.rank).second)
    return rejected("a second process has joined as rank " + number_text(rank.rank) +
                    ": each rank is one MPI process");
  rank.state = State::kBound;
  if (!(*line)->starts_with(kHello)) init_port(rank, {}, effects);
  return true;
}

// Reports an error, which ends the job, and closes the connection.
void PmiHost::reject(Rank& rank, const std::string& why, Effects& effects) {
  effects.events.push_back("error rank " + number_text(rank.rank) + ": " + why);
  rank.state = State::kAborted;
  waiting_.erase(rank.connection);
  effects.closed.push_back(rank.connection);
}

void PmiHost::ended(Connection connection, Effects& effects) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  const Rank& rank = found->second;
  if (rank.state == State::kJoined) effects.events.push_back("vanished " + number_text(rank.rank));
  // A program that never joined (it may only have printed its version) may be followed by the real
  // one.
  if (rank.state == State::kBound) bound_.erase(rank.rank);
  waiting_.erase(connection);
  connections_.erase(found);
}

void PmiHost::reply(const Rank& rank, const std::string& text, Effects& effects) const {
  effects.replies.push_back({rank.connection, text + "\n"});
}

const std::map<std::string_view, PmiHost::Handler>& PmiHost::handlers() {
  static const std::map<std::string_view, Handler> kHandlers = {
      {"init", &PmiHost::init},
      {"initack", &PmiHost::init_port},
      {"get_maxes", &PmiHost::get_maxes},
      {"get_appnum", &PmiHost::get_appnum},
      {"get_my_kvsname", &PmiHost::get_name},
      {"get_universe_size", &PmiHost::get_universe},
      {"put", &PmiHost::put},
      {"get", &PmiHost::get},
      {"barrier_in", &PmiHost::barrier},
      {"spawn", &PmiHost::spawn},
      {"finalize", &PmiHost::finalize},
      {"abort", &PmiHost::abort},
  };
  return kHandlers;
}

void PmiHost::serve(Rank& rank, const PmiRequest& request, Effects& effects) {
  const auto found = handlers().find(request.command);
  if (found != handlers().end()) return (this->*found->second)(rank, request, effects);
  // The answer to publish_name is "publish_result", not "publish_name_result"; so are those to
  // unpublish_name and lookup_name.
  std::string_view name = request.command;
  if (name.ends_with("_name")) name.remove_suffix(std::string_view("_name").size());
  reply(rank, "cmd=" + std::string(name.substr(0, kMaxPmiKey)) + "_result rc=-1 msg=not_served",
        effects);
}

void PmiHost::init(Rank& rank, const PmiRequest& request, Effects& effects) {
  if (request.number("pmi_version") != 1) {
    reply(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1", effects);
    return reject(rank, kUsesPmi2, effects);
  }
  if (rank.state != State::kBound) {
    reply(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1", effects);
    effects.notes.push_back("MPI: rank " + number_text(rank.rank) +
                            " called MPI_Init again: start each MPI program with a separate "
                            "ivyrun");
    return;
  }
  rank.state = State::kJoined;
  effects.events.push_back("joined " + number_text(rank.rank));
  reply(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0", effects);
}

void PmiHost::init_port(Rank& rank, const PmiRequest&, Effects& effects) {
  reply(rank, "cmd=initack", effects);
  reply(rank, "cmd=set size=" + number_text(world_size()), effects);
  reply(rank, "cmd=set rank=" + number_text(rank.rank), effects);
  reply(rank, "cmd=set debug=0", effects);
}

void PmiHost::get_maxes(Rank& rank, const PmiRequest&, Effects& effects) {
  reply(rank,
        "cmd=maxes kvsname_max=256 keylen_max=" + number_text(kMaxPmiKey) +
            " vallen_max=" + number_text(kMaxPmiValue),
        effects);
}

void PmiHost::get_appnum(Rank& rank, const PmiRequest&, Effects& effects) {
  reply(rank, "cmd=appnum appnum=0", effects);
}

void PmiHost::get_name(Rank& rank, const PmiRequest&, Effects& effects) {
  reply(rank, "cmd=my_kvsname kvsname=" + job_.name, effects);
}

void PmiHost::get_universe(Rank& rank, const PmiRequest&, Effects& effects) {
  reply(rank, "cmd=universe_size size=" + number_text(world_size()), effects);
}

void PmiHost::put(Rank& rank, const PmiRequest& request, Effects& effects) {
  const std::string_view key = request.value("key");
  const std::string_view value = request.value("value");
  std::string wrong = why_not_put(key, value);
  if (wrong.empty() && pair_bytes_ + key.size() + value.size() > kMaxPmiPairs)
    wrong = "this_host_has_put_too_much";
  if (!wrong.empty()) return reply(rank, "cmd=put_result rc=-1 msg=" + wrong, effects);
  pair_bytes_ += key.size() + value.size();
  fresh_.insert_or_assign(std::string(key), std::string(value));
  reply(rank, "cmd=put_result rc=0 msg=success", effects);
}

void PmiHost::get(Rank& rank, const PmiRequest& request, Effects& effects) {
  const std::string key(request.value("key"));
  // Pairs put by this host's own ranks may be visible early.
  const bool is_fresh = fresh_.contains(key);
  const std::map<std::string, std::string>& pairs = is_fresh ? fresh_ : pairs_;
  const auto found = pairs.find(key);
  if (found == pairs.end())
    return reply(rank, "cmd=get_result rc=-1 msg=key_not_found value=unknown", effects);
  reply(rank, "cmd=get_result rc=0 msg=success value=" + found->second, effects);
}

void PmiHost::barrier(Rank& rank, const PmiRequest&, Effects& effects) {
  waiting_.insert(rank.connection);
  if (waiting_.size() < local_size()) return;
  effects.fence = blob_of(fresh_);
}

void PmiHost::fenced(const std::vector<std::string>& blobs, Effects& effects) {
  fresh_.clear();
  for (const std::string& blob : blobs)
    if (!add_blob(blob, pairs_))
      effects.events.push_back("error the data that another host's ranks put is damaged");
  for (const Connection connection : std::exchange(waiting_, {}))
    effects.replies.push_back({connection, "cmd=barrier_out rc=0\n"});
}

// Answers once, after the last of the programs that are to be spawned together.
void PmiHost::spawn(Rank& rank, const PmiRequest& request, Effects& effects) {
  if (request.number("spawnssofar").value_or(1) < request.number("totspawns").value_or(1)) return;
  effects.notes.push_back(spawn_rejected(rank.rank));
  reply(rank, "cmd=spawn_result rc=-1 msg=not_served", effects);
}

void PmiHost::finalize(Rank& rank, const PmiRequest&, Effects& effects) {
  if (rank.state == State::kJoined) effects.events.push_back("left " + number_text(rank.rank));
  if (rank.state == State::kJoined) rank.state = State::kLeft;
  reply(rank, "cmd=finalize_ack rc=0", effects);
}

// Sends no answer: any answer lets MPICH 4.0 continue as if nothing had happened, while a closed
// connection makes it report an error. The supervisor stops the rank.
void PmiHost::abort(Rank& rank, const PmiRequest& request, Effects& effects) {
  std::string_view text = request.value("message");
  if (text.empty()) text = request.value("error_msg");
  if (text == "abort") text = {};  // MPICH 5 sends no other text.
  const int code = request.number("exitcode").value_or(request.number("exit_code").value_or(1));
  effects.events.push_back("abort " + number_text(rank.rank) + " " + std::to_string(code) + " " +
                           one_line(text));
  rank.state = State::kAborted;
}

}  // namespace ivy::store
