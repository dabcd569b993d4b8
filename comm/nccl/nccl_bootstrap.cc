// SPDX-License-Identifier: Apache-2.0
// ReadyBarrier::run() is the whole sequence of a rank: it publishes its facts; rank 0 leads, the
// others follow (lead(), follow()); and every rank carries out rank 0's decision. The functions
// before the class compose the messages about missing ranks. DeviceCommunicator::prepare() calls
// bootstrap().
#include "comm/nccl/nccl_bootstrap.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <type_traits>

#include "comm/nccl/interface_probe.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy::comm::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Rank 0 gives up this much before the others, so that they receive its list of missing ranks.
constexpr milliseconds kHeadStart{300};
// Time limit of one query to the store; with_retries() then repeats the query.
constexpr milliseconds kStoreTimeout{1'000};
// Time limit of a store call that is not repeated, because it only helps with a later message; also
// the least time that any query gets.
constexpr milliseconds kPhaseTimeout{250};
constexpr const char* kSilentStore = "the store does not answer";
// NCCL 2.23, the first release whose init accepts several ids.
constexpr int kFirstScalableInit = 22300;
// On a working network, a connection takes one round trip, or a second more if a packet is lost.
constexpr milliseconds kProbeTimeout{2'500};

Failure failure_with_code(FailureKind kind, int code, const std::string& text) {
  Failure failure = make_failure(kind, text);
  failure.code = code;
  return failure;
}

Failure to_failure(const Error& error) {
  const std::string fix = error.fix.empty() ? "" : "; " + error.fix;
  const bool is_late = error.code == Code::kDeadlineExceeded;
  return failure_with_code(is_late ? FailureKind::kTimeout : FailureKind::kOther,
                           static_cast<int>(error.code), error.message + fix);
}

// Rank 0's decision, for all ranks. nccl_bootstrap.h has the meaning of each kind.
struct Decision {
  enum class Kind : std::uint8_t { kGo, kShare, kShrink, kProbe, kRefuse };
  Kind kind;
  std::int32_t id_count = 0;  // For kGo.
  MaybeFailure failure = {};  // For kRefuse.

  // Formats the decision for the store: "go IDS", "share", "shrink", "probe", or
  // "refuse CODE RANK KIND TEXT".
  std::string encoded() const {
    switch (kind) {
      case Kind::kGo:
        return "go " + std::to_string(id_count);
      case Kind::kShare:
        return "share";
      case Kind::kShrink:
        return "shrink";
      case Kind::kProbe:
        return "probe";
      case Kind::kRefuse:
        break;
    }
    return "refuse " + std::to_string(failure->code) + " " + std::to_string(failure->rank) + " " +
           std::to_string(static_cast<unsigned>(failure->kind)) + " " + failure->text;
  }

  // An invalid text is a refusal that contains it.
  static Decision decoded(const std::string& text) {
    std::string_view rest = text;
    const std::string_view word = take_part(rest, ' ');
    if (word == "share") return {Kind::kShare};
    if (word == "shrink") return {Kind::kShrink};
    if (word == "probe") return {Kind::kProbe};
    if (word == "go") {
      if (const auto ids = to_number<std::int32_t>(rest)) return {Kind::kGo, *ids};
    }
    if (word == "refuse") {
      const auto code = to_number<int>(take_part(rest, ' '));
      const auto rank = to_number<std::int32_t>(take_part(rest, ' '));
      const auto kind = to_number<std::uint8_t>(take_part(rest, ' '));
      if (code && rank && kind) {
        Failure failure =
            failure_with_code(static_cast<FailureKind>(*kind), *code, std::string(rest));
        failure.rank = *rank;
        return refusal(failure);
      }
    }
    return refusal(make_failure(FailureKind::kOther, "rank 0 sent an invalid decision: " + text));
  }

  static Decision refusal(const Failure& failure) { return {Kind::kRefuse, 0, failure}; }
};

// Rank 0 decides once, or twice if its first decision is kProbe.
enum class Round : std::uint8_t { kFirst, kAfterProbe };

// The neighbours in NCCL's ring, and the root: the facts that decide which ranks a rank probes.
struct Neighbours {
  RankFacts before;
  RankFacts next;
  RankFacts root;
};

std::string key_of(const BootstrapOptions& options, const std::string& name, std::int32_t rank) {
  return options.key + "/" + name + "/" + std::to_string(rank);
}

// The progress that ranks have stored. Queries the store once per kind of key for all ranks, and
// never again after a query has failed.
class StoredProgress {
 public:
  explicit StoredProgress(const BootstrapOptions& options) : options_(options) {}
  bool has(const std::string& name, std::int32_t rank) {
    if (!keys_.contains(name)) query(name);
    return keys_[name].contains(key_of(options_, name, rank));
  }
  bool is_silent() const { return is_silent_; }

 private:
  void query(const std::string& name) {
    std::set<std::string>& stored = keys_[name];
    if (is_silent_) return;
    const Result<std::vector<std::string>> keys =
        options_.store->list(options_.key + "/" + name + "/", kStoreTimeout);
    is_silent_ = !keys.ok();
    if (keys.ok()) stored.insert(keys->begin(), keys->end());
  }

  const BootstrapOptions& options_;
  std::map<std::string, std::set<std::string>> keys_;
  bool is_silent_ = false;
};

// Describes the progress of a rank that has not stored the key `missing`.
std::string progress(StoredProgress& stored, std::string_view missing, std::int32_t rank) {
  if (missing == "facts") {
    return stored.has("begun", rank) ? " (it loads the driver and NCCL)" : " (it has not started)";
  }
  if (missing == "done") {
    return stored.has("init", rank) ? " (it is in NCCL's init)"
                                    : " (it has not started NCCL's init)";
  }
  return "";
}

// The other ranks that have not stored a key.
struct MissingRanks {
  std::string names;        // "rank 3 (node2, pid 77) (it has not started), ... and 2 more".
  std::int32_t first = -1;  // The first one's world rank.
  // The store did not answer, so that the ranks are not known; then no rank is blamed.
  bool is_unknown = false;

  // Returns a text that ends with `did_not`, such as " did not become ready in time".
  std::string text(const std::string& did_not) const {
    return is_unknown ? kSilentStore : names + did_not;
  }
};

MissingRanks ranks_without(const BootstrapOptions& options, const std::string& name) {
  constexpr std::size_t kLong = 160;  // A failure's text has 512 bytes.
  MissingRanks missing;
  int more = 0;
  StoredProgress stored(options);
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(options.rank_names.size()); ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (rank == options.rank || stored.has(name, rank)) continue;
    if (missing.first < 0) missing.first = options.world_ranks[index];
    if (missing.names.size() > kLong) {
      ++more;
      continue;
    }
    missing.names += (missing.names.empty() ? "" : ", ") + options.rank_names[index] +
                     progress(stored, name, rank);
  }
  if (stored.is_silent()) return {"", -1, true};
  if (more > 0) missing.names += " and " + std::to_string(more) + " more";
  return missing;
}

// Returns the findings that must prevent NCCL's init, and prints the others as warnings.
// IVY_NCCL_PREFLIGHT=warn turns every finding that NCCL may survive into a warning.
std::vector<Finding> blocking_findings(const std::vector<RankFacts>& ranks,
                                       std::vector<Finding> findings) {
  const char* const mode = std::getenv("IVY_NCCL_PREFLIGHT");
  const bool has_errors = std::any_of(ranks.begin(), ranks.end(),
                                      [](const RankFacts& rank) { return !rank.error.empty(); });
  const bool only_warns = mode != nullptr && std::string_view(mode) == "warn" && !has_errors;
  std::vector<Finding> counting;
  for (Finding& finding : findings) {
    const bool is_error = finding.kind == Finding::Kind::kError && !only_warns;
    if (is_error || finding.kind == Finding::Kind::kSharedDevice) {
      counting.push_back(std::move(finding));
    } else {
      const std::string line = "ivycomm: warning: " + finding.text + "; " + finding.fix + "\n";
      std::fputs(line.c_str(), stderr);
    }
  }
  return counting;
}

// Describes the first finding, and how many more there are.
Failure findings_failure(const std::vector<Finding>& findings, const std::string& communicator) {
  const Finding& first = findings.front();
  const std::string more =
      findings.size() > 1 ? " (and " + std::to_string(findings.size() - 1) + " more)" : "";
  Failure failure = failure_with_code(
      FailureKind::kOther, static_cast<int>(Code::kFailedPrecondition),
      "NCCL of communicator " + communicator + ": " + first.text + "; " + first.fix + more);
  failure.rank = first.rank;
  return failure;
}

bool have_one_parent(const std::vector<RankFacts>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [&](const RankFacts& rank) {
    return !rank.parent.empty() && rank.parent == ranks[0].parent;
  });
}

class ReadyBarrier {
 public:
  explicit ReadyBarrier(const BootstrapOptions& options)
      : options_(options), store_(*options.store) {}

  BootstrapResult run(const RankFacts& facts) {
    if (publish(facts)) {
      const std::optional<Decision> decision = options_.rank == 0 ? lead() : follow();
      if (!ready_.failure && decision) carry_out(*decision);
    }
    return std::move(ready_);
  }

 private:
  // Functions that return a bool or an optional report success; otherwise they have stored the
  // reason in ready_.failure.

  bool publish(const RankFacts& facts) {
    own_ = facts;
    const std::optional<Interface> chosen = interface_of(own_);
    if (chosen && options_.spans_hosts) own_.probe_port = listener_.listen_at(chosen->address);
    const Result<void> stored = set_once(rank_key("facts", options_.rank), encode(own_));
    return stored.ok() || fail_with(stored.error(), "announce that this rank is ready");
  }

  // On rank 0: compares the facts of all ranks, and lets them probe each other if they are in
  // several networks. Returns the decision, which it has announced.
  Decision lead() {
    Round round = Round::kFirst;
    std::vector<Finding> findings;
    const std::vector<RankFacts> ranks = await_facts();
    if (!ready_.failure) findings = blocking_findings(ranks, compare_ranks(ranks));
    // Probes cost another round, so they are made only between different networks.
    if (!ready_.failure && findings.empty() && spans_networks(ranks)) {
      announce(round, {Decision::Kind::kProbe});
      round = Round::kAfterProbe;
      findings = blocking_findings(ranks, probe_all(ranks));
    }
    const Decision decision =
        ready_.failure ? Decision::refusal(*ready_.failure) : decide(ranks, findings);
    // Before announce(), so that an error there does not replace it.
    if (decision.failure) fail(*decision.failure);
    announce(round, decision);
    return decision;
  }

  // On the other ranks: returns rank 0's decision, after the probe if it ordered one.
  std::optional<Decision> follow() {
    std::optional<Decision> decision = await_decision(Round::kFirst);
    if (!decision || decision->kind != Decision::Kind::kProbe) return decision;
    if (!take_part_in_probe()) return std::nullopt;
    return await_decision(Round::kAfterProbe);
  }

  void carry_out(const Decision& decision) {
    switch (decision.kind) {
      case Decision::Kind::kGo:
        exchange_ids(decision.id_count);
        return;
      case Decision::Kind::kShare:
        ready_.is_shared = true;
        return;
      case Decision::Kind::kShrink:
        return;  // Without ids, the communicator is created from its parent.
      case Decision::Kind::kProbe:
        fail(make_failure(FailureKind::kOther, prefix() + "rank 0 chose a second probe"));
        return;
      case Decision::Kind::kRefuse:
        fail(*decision.failure);
        return;
    }
  }

  // Returns the facts of all ranks, or nothing after a failure.
  std::vector<RankFacts> await_facts() {
    const std::vector<std::string> keys = rank_keys("facts");
    const auto late = [this] { return late_facts_failure("ready barrier"); };
    if (!await(keys, options_.deadline - kHeadStart, late)) return {};
    return read_facts(keys, "read the facts");
  }

  std::vector<RankFacts> read_facts(const std::vector<std::string>& keys, const std::string& what) {
    const Result<std::vector<std::string>> texts = multi_get(keys);
    if (!texts.ok()) {
      fail_with(texts.error(), what);
      return {};
    }
    std::vector<RankFacts> ranks;
    for (const std::string& text : *texts) {
      std::optional<RankFacts> facts = decode(text);
      if (!facts) {
        fail(make_failure(FailureKind::kOther, prefix() + "the facts of a rank are damaged"));
        return {};
      }
      ranks.push_back(std::move(*facts));
    }
    return ranks;
  }

  Decision decide(const std::vector<RankFacts>& ranks, const std::vector<Finding>& findings) const {
    if (!findings.empty()) {
      if (findings.front().kind == Finding::Kind::kSharedDevice) return {Decision::Kind::kShare};
      return Decision::refusal(findings_failure(findings, options_.communicator));
    }
    if (have_one_parent(ranks)) return {Decision::Kind::kShrink};
    const bool can_scale =
        options_.can_scale && std::all_of(ranks.begin(), ranks.end(), [](const RankFacts& rank) {
          return rank.nccl_version >= kFirstScalableInit;
        });
    const char* const wanted = std::getenv("IVY_NCCL_ROOTS");
    return {Decision::Kind::kGo,
            root_count(size(), can_scale, wanted != nullptr ? std::atoi(wanted) : 0)};
  }

  // On rank 0, after it has announced the probe: probes its own neighbours, and waits for the
  // reports of the other ranks.
  std::vector<Finding> probe_all(const std::vector<RankFacts>& ranks) {
    const auto facts_of = [&](std::int32_t rank) { return ranks[static_cast<std::size_t>(rank)]; };
    std::vector<std::string> texts = {
        probe({facts_of(rank_before()), facts_of(rank_after()), facts_of(0)})};
    if (ready_.failure) return {};
    const std::vector<std::string> keys = rank_keys("reach", 1);
    const auto late = [this] {
      const MissingRanks missing = ranks_without(options_, "reach");
      Failure failure = make_failure(
          FailureKind::kTimeout,
          prefix() +
              "interfaces: " + missing.text(" did not report in time which ranks it reaches"));
      failure.rank = missing.first;
      return failure;
    };
    if (!await(keys, options_.deadline - kHeadStart, late)) return {};
    const Result<std::vector<std::string>> reports = multi_get(keys);
    if (!reports.ok()) {
      fail_with(reports.error(), "read which ranks reach each other");
      return {};
    }
    texts.insert(texts.end(), reports->begin(), reports->end());
    std::vector<Finding> findings;
    for (std::size_t rank = 0; rank < texts.size() && findings.size() < kFindingsMax; ++rank)
      // A single blank reports success, because a value in the store is never empty.
      if (texts[rank].size() > 1)
        findings.push_back(unreachable_finding(ranks, ranks[rank], texts[rank]));
    return findings;
  }

  // On the other ranks: probes the neighbours and reports the first that cannot be reached.
  bool take_part_in_probe() {
    const std::vector<RankFacts> facts = read_facts(
        {rank_key("facts", rank_before()), rank_key("facts", rank_after()), rank_key("facts", 0)},
        "read the neighbours' facts");
    if (ready_.failure) return false;
    const std::string found = probe({facts[0], facts[1], facts[2]});
    // Only rank 0 reads this key, so it need not be set with SET_ONCE.
    const std::string text = found.empty() ? " " : found;
    const Result<void> stored = with_retries([&](milliseconds limit) {
      return store_.set(rank_key("reach", options_.rank), text, limit);
    });
    return stored.ok() || fail_with(stored.error(), "report which ranks it reaches");
  }

  // Probes the ranks to which NCCL will connect this one: the next rank in its ring and the root.
  // Only the first of several consecutive ranks in one network probes the root.
  std::string probe(const Neighbours& neighbours) const {
    std::vector<RankFacts> peers = {neighbours.next};
    if (neighbours.root.rank != neighbours.next.rank && !is_same_network(neighbours.before, own_))
      peers.push_back(neighbours.root);
    return try_peers(own_, peers, kProbeTimeout);
  }

  void announce(Round round, const Decision& decision) {
    const Result<void> stored = set_once(decision_key(round), decision.encoded());
    if (!stored.ok()) fail(to_failure(stored.error().context(prefix())));
  }

  std::optional<Decision> await_decision(Round round) {
    const std::string name = decision_key(round);
    const auto late = [this] { return late_facts_failure("rank 0's decision"); };
    if (!await({name}, options_.deadline, late)) return std::nullopt;
    const Result<std::string> text =
        with_retries([&](milliseconds limit) { return store_.get(name, limit); });
    if (text.ok()) return Decision::decoded(*text);
    fail_with(text.error(), "read rank 0's decision");
    return std::nullopt;
  }

  // Makes the ids of which this rank is the root, and reads all ids.
  bool exchange_ids(std::int32_t roots) {
    std::vector<std::string> keys;
    for (std::int32_t root = 0; root < roots; ++root) {
      keys.push_back(rank_key("id", root));
      if (rank_of_root(root, roots, size()) != options_.rank) continue;
      UniqueId id = {};
      if (const MaybeFailure failure = options_.owner->make_id(options_.deadline, id))
        return fail(*failure);
      const Result<void> stored =
          set_once(keys.back(), std::string_view(id.bytes, sizeof id.bytes));
      if (!stored.ok()) return fail_with(stored.error(), "publish the unique id");
    }
    const auto late = [this] {
      return make_failure(FailureKind::kTimeout, prefix() + "the unique id did not arrive in time");
    };
    if (!await(keys, options_.deadline, late)) return false;
    const Result<std::vector<std::string>> texts = multi_get(keys);
    if (!texts.ok()) return fail_with(texts.error(), "read the unique id");
    for (const std::string& text : *texts) {
      UniqueId id = {};
      std::memcpy(id.bytes, text.data(), std::min(text.size(), sizeof id.bytes));
      ready_.ids.push_back(id);
    }
    return true;
  }

  std::int32_t size() const { return static_cast<std::int32_t>(options_.rank_names.size()); }
  std::int32_t rank_before() const { return (options_.rank + size() - 1) % size(); }
  std::int32_t rank_after() const { return (options_.rank + 1) % size(); }
  std::string prefix() const { return "NCCL of communicator " + options_.communicator + ": "; }

  std::string decision_key(Round round) const {
    return options_.key + (round == Round::kFirst ? "/go" : "/after_probe");
  }
  std::string rank_key(const std::string& name, std::int32_t rank) const {
    return key_of(options_, name, rank);
  }
  // Returns the keys of this name of rank `first` and all later ranks.
  std::vector<std::string> rank_keys(const std::string& name, std::int32_t first = 0) const {
    std::vector<std::string> keys;
    for (std::int32_t rank = first; rank < size(); ++rank) keys.push_back(rank_key(name, rank));
    return keys;
  }

  // Keeps the failure that was found first. Returns false.
  bool fail(const Failure& failure) {
    if (!ready_.failure) ready_.failure = failure;
    return false;
  }
  bool fail_with(const Error& error, const std::string& what) {
    return fail(to_failure(error.context(prefix() + what)));
  }
  // The timeout of a wait that ends when all ranks have published their facts.
  Failure late_facts_failure(const std::string& what) const {
    const MissingRanks missing = ranks_without(options_, "facts");
    const bool is_none = missing.names.empty() && !missing.is_unknown;
    const std::string text = is_none ? "all ranks are ready, but rank 0 did not announce it"
                                     : missing.text(" did not become ready in time");
    Failure failure = make_failure(FailureKind::kTimeout, prefix() + what + ": " + text);
    failure.rank = missing.first;
    return failure;
  }

  // Waits until all keys exist. At the deadline, fails with the failure that `late` returns.
  template <class Late>
  bool await(const std::vector<std::string>& keys, steady_clock::time_point deadline, Late late) {
    while (true) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_now());
      if (left <= milliseconds(0)) return fail(late());
      const Result<void> waited = store_.wait(keys, std::min(left, kSlice), kSlice + kPhaseTimeout);
      if (waited.ok()) return true;
      if (waited.error().code != Code::kDeadlineExceeded)
        return fail_with(waited.error(), "wait for the other ranks");
      if (const MaybeFailure found = options_.owner->find_failure()) return fail(*found);
    }
  }

  // Repeats a query until the store has answered, the deadline has passed, or the owner has found a
  // failure, which it stores.
  template <class Query>
  std::invoke_result_t<Query, milliseconds> with_retries(Query query) {
    while (true) {
      const auto left = std::chrono::duration_cast<milliseconds>(options_.deadline - steady_now());
      auto answer = query(std::clamp(left, kPhaseTimeout, kStoreTimeout));
      const bool is_silent = !answer.ok() && answer.error().code == Code::kDeadlineExceeded;
      if (!is_silent || left <= kPhaseTimeout) return answer;
      if (const MaybeFailure found = options_.owner->find_failure()) {
        fail(*found);
        return answer;
      }
    }
  }
  Result<void> set_once(const std::string& name, std::string_view value) {
    return with_retries([&](milliseconds limit) { return store_.set_once(name, value, limit); });
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& names) {
    return with_retries([&](milliseconds limit) { return store_.multi_get(names, limit); });
  }

  const BootstrapOptions& options_;
  store::Client& store_;
  RankFacts own_;
  ProbeListener listener_;
  BootstrapResult ready_;
};

BootstrapResult bootstrap_single_rank(const BootstrapOptions& options, const RankFacts& own) {
  BootstrapResult ready;
  const std::vector<Finding> findings = blocking_findings({own}, compare_ranks({own}));
  if (!findings.empty()) {
    ready.failure = findings_failure(findings, options.communicator);
    return ready;
  }
  ready.ids.resize(1);
  ready.failure = options.owner->make_id(options.deadline, ready.ids[0]);
  return ready;
}

}  // namespace

std::int32_t root_count(std::int32_t ranks, bool can_scale, std::int32_t wanted) {
  if (!can_scale) return 1;
  if (wanted > 0) return std::min(wanted, ranks);
  return ranks < kRanksPerRoot ? 1 : std::max(2, ranks / kRanksPerRoot);
}

// Divides the ranks into `roots` runs of consecutive ranks, the first of which are one longer. The
// first rank of each run is its root.
std::int32_t rank_of_root(std::int32_t root, std::int32_t roots, std::int32_t ranks) {
  const std::int32_t each = ranks / roots;
  return root * each + std::min(root, ranks % roots);
}

void report_phase(const BootstrapOptions& options, Phase phase) {
  if (options.store == nullptr) return;
  const char* const name = phase == Phase::kBegun  ? "begun"
                           : phase == Phase::kInit ? "init"
                                                   : "done";
  static_cast<void>(options.store->set(key_of(options, name, options.rank), "1", kPhaseTimeout));
}

std::string describe_unfinished_ranks(const BootstrapOptions& options) {
  if (options.store == nullptr) return "";
  const MissingRanks missing = ranks_without(options, "done");
  if (missing.is_unknown) return std::string("; ") + kSilentStore;
  return missing.names.empty() ? "" : "; also not finished: " + missing.names;
}

BootstrapResult bootstrap(const BootstrapOptions& options, const RankFacts& own) {
  if (options.store == nullptr) return bootstrap_single_rank(options, own);
  return ReadyBarrier(options).run(own);
}

}  // namespace ivy::comm::nccl
