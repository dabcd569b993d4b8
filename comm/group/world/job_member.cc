// SPDX-License-Identifier: Apache-2.0
// In this order: two helpers for jobs without a supervisor, which learn of failures from the store
// (AgreedDetector, StoreEvents); join() and its parts, which connect this process; form_world() and
// repair_world(), which end in begin_world(); and the services for communicators (failure
// detectors, report()).
#include "comm/group/world/job_member.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "comm/contract/resolve.h"
#include "comm/transports/tcp/tcp_streams.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::hours kForever{24 * 400};
constexpr std::size_t kTokenBytesMax = 1 << 20;

std::atomic<std::uint32_t> joins{0};
// Number of worlds that were formed without ivyrun. Failed attempts do not count, so that a rank
// that failed alone may try again.
std::atomic<std::uint32_t> worlds{0};

Result<std::string> read_token(const std::string& path) {
  std::optional<std::string> token = read_file(path, kTokenBytesMax);
  if (token && !token->empty()) return *std::move(token);
  return Error{Code::kFailedPrecondition, "the job's token file cannot be read",
               "was the program started by another user, or after the job had ended?"};
}

// How often the store is queried without an event, by waits that have lasted longer than this.
constexpr milliseconds kStorePoll{200};

// For ranks on several hosts without a supervisor: extends `inner` by the failure that a rank of
// another host has stored. Queries the store after every event, and every kStorePoll.
class AgreedDetector final : public FailureDetector {
 public:
  AgreedDetector(std::unique_ptr<FailureDetector> inner, const EventNotifier& notifier,
                 StoreRecords& records, std::string communicator)
      : inner_(std::move(inner)),
        notifier_(notifier),
        records_(records),
        communicator_(std::move(communicator)),
        seen_events_(notifier.event_count()) {}

  const std::atomic<std::uint32_t>* wake_word() const override { return inner_->wake_word(); }
  milliseconds poll_interval() const override { return inner_->poll_interval(); }

  using FailureDetector::check;
  MaybeFailure check(std::int32_t waited_for) override {
    MaybeFailure agreed;
    const bool has_events = notifier_.event_count() != seen_events_;
    if (has_events || steady_now() - queried_at_ >= kStorePoll) agreed = query();
    return agreed ? agreed : inner_->check(waited_for);
  }

  // The agreed failure comes first, because it may have caused the death that this host sees.
  MaybeFailure check_now(std::int32_t waited_for) override {
    MaybeFailure found = query();
    return found ? found : inner_->check(waited_for);
  }

  bool has_left(std::int32_t rank) override { return inner_->has_left(rank); }

 private:
  MaybeFailure query() {
    queried_at_ = steady_now();
    // Read before the query, so that no later event is missed.
    seen_events_ = notifier_.event_count();
    return records_.find_agreed(communicator_);
  }

  const std::unique_ptr<FailureDetector> inner_;
  const EventNotifier& notifier_;
  StoreRecords& records_;
  const std::string communicator_;
  std::uint64_t seen_events_;
  std::chrono::steady_clock::time_point queried_at_ = steady_now();
};

// Events in the store. Without a supervisor, every rank waits for the next of these records, which
// means that some communicator was aborted.
class StoreEvents final : public EventSource {
 public:
  StoreEvents(store::Client& store, const StoreRecords& records)
      : store_(store), records_(records) {}

  bool await(std::uint64_t count) override {
    awaited_.store(count);
    return store_.wait({records_.key_of_event(count)}, kForever).ok();
  }
  void stop() override {
    if (!records_.end_wait_for_event(store_, awaited_.load())) store_.cancel();
  }

 private:
  store::Client& store_;
  const StoreRecords& records_;
  std::atomic<std::uint64_t> awaited_{0};
};

}  // namespace

JobMember::JobMember(Identity identity, milliseconds timeout)
    : identity_(std::move(identity)),
      timeout_(timeout),
      source_(source_text(identity_)),
      joined_(identity_.bootstrap == Bootstrap::kStore ? joins.fetch_add(1) : worlds.load()),
      world_id_(std::to_string(joined_)),
      records_(identity_.rank, WorldFormation::prefix_of(world_id_)),
      repairs_(identity_, *this) {}

JobMember::~JobMember() {
  if (control_ != nullptr) control_->leave(milliseconds(500));
  // The notifier is destroyed below, and must not wait for a store that hangs.
  if (notifier_ != nullptr && control_ == nullptr) store_->cancel();
  notifier_.reset();
}

// Makes the name unique in the page, which keeps the reports of all worlds of a generation.
std::string JobMember::name_in_page(const std::string& communicator) const {
  return world_id_ + ":" + communicator;
}

Result<std::unique_ptr<JobMember>> JobMember::join(Identity identity, milliseconds timeout) {
  std::unique_ptr<JobMember> job(new JobMember(std::move(identity), timeout));
  const Identity& own_identity = job->identity_;
  if (own_identity.bootstrap == Bootstrap::kSingle) return job;
  IVY_CHECK(own_identity.bootstrap == Bootstrap::kStore ? job->connect_to_store()
                                                        : job->bootstrap_without_ivyrun());
  // Under ivyrun, only the job's ranks have its token.
  job->network_info_.credentials.waits_for_addresses = own_identity.bootstrap != Bootstrap::kStore;
  if (own_identity.spans_hosts) {
    job->network_info_.streams = IVY_TRY(wanted_streams(std::getenv("IVY_TCP_STREAMS")));
    IVY_CHECK(job->listen_to_peers(own_identity.rank));
  }
  if (!own_identity.control_path.empty()) IVY_CHECK(job->attach_to_supervisor());
  job->records_.use(job->store_.get(), job->control_ != nullptr);
  job->repairs_.use(job->store_.get(), job->control_.get());
  return job;
}

Result<void> JobMember::connect_to_store() {
  store::ClientOptions options;
  options.address = identity_.store_address;
  options.job_id = identity_.job_id;
  options.token = IVY_TRY(read_token(identity_.token_file));
  options.generation = identity_.attempt.generation;
  options.rank = identity_.rank;
  options.connect_timeout = std::min(timeout_, milliseconds(60'000));
  Result<std::unique_ptr<store::Client>> client = store::Client::connect(options);
  if (!client.ok())
    return client.error().context("connect to the job's store at " + identity_.store_address);
  store_ = std::move(client).value();
  network_info_.first_host_address = identity_.first_host_address;
  network_info_.credentials.job_id = options.job_id;
  network_info_.credentials.token = options.token;
  network_info_.credentials.generation = options.generation;
  return {};
}

Result<void> JobMember::bootstrap_without_ivyrun() {
  Bootstrapped bootstrapped = IVY_TRY(bootstrap(identity_, joined_, timeout_));
  private_store_ = std::move(bootstrapped.private_store);
  endpoint_file_ = std::move(bootstrapped.endpoint_file);
  store_ = std::move(bootstrapped.client);
  network_info_.first_host_address = bootstrapped.first_host_address;
  network_info_.credentials.job_id = bootstrapped.job_id;
  network_info_.credentials.token = bootstrapped.token;
  network_info_.credentials.generation = bootstrapped.generation;
  return {};
}

// Each world has a separate listener, so that connections of the previous world are not mistaken
// for connections of this one.
Result<void> JobMember::listen_to_peers(std::uint32_t rank) {
  connections_.reset();
  PeerCredentials credentials = network_info_.credentials;
  credentials.rank = rank;
  const std::string own_address =
      IVY_TRY(own_address_towards(host_of(network_info_.first_host_address)));
  connections_ = IVY_TRY(PeerConnections::listen(own_address, std::move(credentials)));
  return {};
}

Result<void> JobMember::attach_to_supervisor() {
  control::Attach attach;
  attach.rank = identity_.rank;
  attach.generation = identity_.attempt.generation;
  attach.pid = getpid();
  control_ = IVY_TRY(ControlClient::connect(identity_.control_path, attach, milliseconds(10'000)));
  rows_.show_in(control_.get());
  rows_.slot().claim(identity_.rank, getpid());
  if (identity_.spans_hosts)
    notifier_ = std::make_unique<EventNotifier>(make_page_events(control_->page()));
  return {};
}

Result<World> JobMember::form_world() {
  if (IVY_TRY(repairs_.is_new_member())) {
    Result<World> entered = repairs_.enter(steady_now() + timeout_);
    // The next world that all ranks form together has the same number on all of them.
    if (entered.ok()) joins.store(repairs_.number_of_base() + 1);
    return entered;
  }
  WorldFormation formation(
      {identity_, timeout_, joined_, store_.get(), control_.get(), connections_.get()});
  Result<World> world = formation.form();
  init_failure_ = formation.death();
  if (!world.ok()) return world;
  if (identity_.bootstrap != Bootstrap::kSingle && identity_.bootstrap != Bootstrap::kStore)
    worlds++;
  endpoint_file_.reset();  // All ranks have joined, so remove the endpoint file.
  if (private_store_ != nullptr) private_store_->reject_joins();
  begin_world(*world);
  return world;
}

Result<World> JobMember::repair_world(RepairAim aim, milliseconds timeout) {
  if (store_ == nullptr) return form_world();
  if (aim == RepairAim::kGrow && identity_.bootstrap != Bootstrap::kStore) {
    return Error{Code::kFailedPrecondition,
                 "grow needs a launcher that restarts lost ranks, and its store",
                 "start the job with ivyrun --on-failure replace, or call shrink"};
  }
  records_.set_notifier(nullptr);
  notifier_.reset();
  world_segment_.reset();
  const milliseconds at_most = timeout.count() != 0 ? timeout : timeout_;
  return repairs_.repair(aim, steady_now() + at_most);
}

Result<World> JobMember::form_repaired(const Identity& identity, milliseconds timeout,
                                       RepairAttempt& attempt) {
  if (identity.spans_hosts) {
    const Result<void> listens = listen_to_peers(identity.rank);
    if (!listens.ok()) {
      static_cast<void>(attempt.conclude(listens, false));
      return listens.error();
    }
  }
  WorldFormation formation(
      {identity, timeout, joined_, store_.get(), control_.get(), connections_.get(), &attempt});
  Result<World> world = formation.form();
  if (!world.ok()) return world;
  world->timeout = timeout_;
  begin_world(*world);
  return world;
}

void JobMember::begin_world(const World& world) {
  world_id_ = world.world_id;
  records_.set_prefix(WorldFormation::prefix_of(world_id_));
  machine_ = world.machine;
  repairs_.world_begins(world);
  if (world.local_ranks.size() == world.members.size()) {
    connections_.reset();
    notifier_.reset();
  } else if (control_ == nullptr) {
    notifier_ = std::make_unique<EventNotifier>(std::make_unique<StoreEvents>(*store_, records_));
  } else if (notifier_ == nullptr) {
    notifier_ = std::make_unique<EventNotifier>(make_page_events(control_->page()));
  }
  records_.set_notifier(notifier_.get());
  if (control_ == nullptr) {
    world_segment_ = world.segment;
    world_members_ = world.local_ranks;
  }
}

bool JobMember::has_left(std::int32_t world_rank) const {
  if (world_segment_ == nullptr) return false;
  const auto found = std::find(world_members_.begin(), world_members_.end(), world_rank);
  if (found == world_members_.end()) return false;
  const auto index = static_cast<std::size_t>(found - world_members_.begin());
  return world_segment_->member(index).attached.load(std::memory_order_acquire) == kHasLeft;
}

std::unique_ptr<FailureDetector> JobMember::make_failure_detector(
    const std::string& communicator, const std::vector<Member>& members, std::int32_t self) {
  if (control_ != nullptr) {
    return make_page_detector(control_->page(), name_in_page(communicator), members, self);
  }
  std::unique_ptr<FailureDetector> detector = make_process_detector(members, self, this);
  const bool spans_hosts = std::any_of(members.begin(), members.end(), [&](const Member& member) {
    return member.host != members[0].host;
  });
  if (!spans_hosts) return detector;
  return std::make_unique<AgreedDetector>(std::move(detector), *notifier_, records_, communicator);
}

void JobMember::report(const Failure& failure, const std::string& communicator) {
  if (control_ == nullptr) return;
  const auto* const kind =
      std::find_if(std::begin(kReportKinds), std::end(kReportKinds),
                   [&](const auto& each) { return each.first == failure.kind; });
  if (kind == std::end(kReportKinds)) return;  // The supervisor reports deaths itself.
  // A rejection that concerns all ranks is in rank 0's record in the store, which every rank reads.
  const bool is_rejection = failure.kind == FailureKind::kOther &&
                            failure.code == static_cast<std::int32_t>(Code::kFailedPrecondition);
  if (is_rejection) return;
  control::Report report;
  report.kind = kind->second;
  report.blamed = static_cast<std::uint32_t>(repairs_.job_rank(failure.rank));
  report.sequence = failure.sequence;
  report.communicator = name_in_page(communicator);
  report.text = failure.text;
  control_->report(report);
}

}  // namespace ivy::comm
