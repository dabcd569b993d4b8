#include "comm/group/job.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "comm/collectives/selector.h"
#include "comm/contract/ivycomm.h"
#include "comm/contract/processors.h"
#include "comm/contract/protocol.h"
#include "comm/contract/resolve.h"
#include "comm/group/init_watch.h"
#include "comm/group/tuning_file.h"
#include "comm/transports/alarms.h"
#include "comm/transports/tcp_streams.h"
#include "proto/contract/build.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookForDeaths{100};

std::atomic<std::uint32_t> joins{0};
// The worlds that were formed without ivyrun: a rank that failed alone may try again.
std::atomic<std::uint32_t> worlds{0};

Result<std::string> read_token(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string token((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || token.empty()) {
    return Error{Code::kFailedPrecondition, "the job's token file cannot be read",
                 "was the program started by another user, or after the job had ended?"};
  }
  return token;
}

// Enough for the ranks that find something at the same time.
constexpr std::uint64_t kRingAttempts = 64;
constexpr std::chrono::hours kForever{24 * 400};

// How often compare_set is tried again on a record that others replace.
constexpr int kCompareAttempts = 4;

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string own_host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// Used where no launcher tells it: ranks share memory if they see the same /dev/shm, know each
// other's processes by the same numbers, and may open each other's files.
std::string own_container() {
  struct stat memory = {};
  stat("/dev/shm", &memory);
  char name[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name - 1);
  return std::to_string(memory.st_dev) + "," + std::to_string(memory.st_ino) + "," +
         std::string(name, static_cast<std::size_t>(std::max<ssize_t>(0, length))) + "," +
         std::to_string(geteuid());
}

// A key that is equal for ranks that can share memory: one kernel, and one host of the job
// (pretended hosts are several).
std::string own_host_key(const Identity& identity) {
  return first_line_of("/proc/sys/kernel/random/boot_id") + "/" +
         (identity.meeting == Meeting::kStore ? identity.host_key : own_container());
}

// The machine of a host key: pretended hosts share its processors.
std::string machine_of(const std::string& host_key) {
  return host_key.substr(0, host_key.find('/'));
}

// The build's name, which every rank says first, so that even a build that knows none of the other
// fields can read it.
std::string own_build() {
  return std::string(version()) + ", protocol " + protocol_text(protocol_identity());
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ",") + text;
  return all;
}

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream whole(text);
  for (std::string part; std::getline(whole, part, ',');) parts.push_back(part);
  return parts;
}

Failure difference(const std::string& communicator, const EnteredOperations& own,
                   const EnteredOperations& other, std::uint64_t sequence) {
  const auto called = [&](const EnteredOperations& by) {
    const OperationShape shape = by.shape(sequence);
    return "rank " + std::to_string(by.rank) + " calls " +
           describe_beside(shape, (&by == &own ? other : own).shape(sequence));
  };
  Failure failure =
      make_failure(FailureKind::kMismatch,
                   "operation " + std::to_string(sequence) + " of communicator " + communicator +
                       " differs between ranks: " + called(own) + ", " + called(other));
  failure.rank = other.rank;
  failure.sequence = sequence;
  set_operation(failure, comm_status::name_of(own.shape(sequence).operation));
  return failure;
}

template <class Value>
std::string bytes_of(const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class Value>
std::optional<Value> value_from(const std::optional<std::string>& bytes) {
  static_assert(std::is_trivially_copyable_v<Value>);
  if (!bytes || bytes->size() != sizeof(Value)) return std::nullopt;
  Value value;
  std::memcpy(&value, bytes->data(), sizeof value);
  return value;
}

// One line per field; each may hold anything but a newline.
struct SeatText {
  std::string build;
  std::string pid;
  std::string host_key;
  std::string address;
  std::string processors;
  std::string host_name;
  std::string tuning;
  std::string quotas;
  std::string caches;
  // The addresses that its connections may come from, if no supervisor vouches for it.
  std::string places;
};

std::string encode_seat(const SeatText& seat) {
  return seat.build + "\n" + seat.pid + "\n" + seat.host_key + "\n" + seat.address + "\n" +
         seat.processors + "\n" + seat.host_name + "\n" + seat.tuning + "\n" + seat.quotas + "\n" +
         seat.caches + "\n" + seat.places;
}

SeatText decode_seat(const std::string& text) {
  std::istringstream lines(text);
  SeatText seat;
  std::getline(lines, seat.build);
  std::getline(lines, seat.pid);
  std::getline(lines, seat.host_key);
  std::getline(lines, seat.address);
  std::getline(lines, seat.processors);
  std::getline(lines, seat.host_name);
  std::getline(lines, seat.tuning);
  std::getline(lines, seat.quotas);
  std::getline(lines, seat.caches);
  std::getline(lines, seat.places);
  return seat;
}

}  // namespace

std::vector<std::int32_t> local_ranks(const std::vector<Seat>& seats, std::int32_t self) {
  std::vector<std::int32_t> ranks;
  const std::uint32_t host = seats[static_cast<std::size_t>(self)].host;
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    if (seats[rank].host == host) ranks.push_back(static_cast<std::int32_t>(rank));
  }
  return ranks;
}

LocalPart make_local_part(const Job& job, const std::string& communicator,
                          const std::vector<Seat>& seats, std::int32_t self,
                          std::shared_ptr<SharedSegment> segment) {
  LocalPart part;
  part.alarm = job.make_alarm(communicator, seats, self);
  if (segment == nullptr) return part;
  SharedGroupOptions options;
  options.communicator = communicator;
  options.host = seats[static_cast<std::size_t>(self)].host_name;
  for (const std::int32_t rank : local_ranks(seats, self)) {
    const Seat& seat = seats[static_cast<std::size_t>(rank)];
    if (rank == self) options.self = static_cast<std::uint32_t>(options.members.size());
    options.members.push_back({rank, seat.world_rank, seat.pid});
  }
  options.has_processor_each = job.has_processor_each();
  options.is_crowded = job.is_crowded();
  options.selector = std::make_shared<const Selector>(
      Over::kShm, static_cast<std::uint32_t>(options.members.size()), job.tuning(), false,
      job.caches());
  part.group =
      std::make_unique<SharedGroup>(std::move(segment), std::move(options), part.alarm.get());
  return part;
}

Job::Job(Identity identity, milliseconds timeout)
    : identity_(std::move(identity)),
      timeout_(timeout),
      source_(source_text(identity_)),
      joined_(identity_.meeting == Meeting::kStore ? joins.fetch_add(1) : worlds.load()),
      life_(std::to_string(joined_)),
      rows_(comm_status::kCommunicators, false) {}

Job::~Job() {
  if (control_ != nullptr) control_->leave(milliseconds(500));
}

std::string Job::key(const std::string& name) const { return "ivycomm/" + life_ + "/" + name; }

// The key is written before the ranks have met and read afterwards.
std::string Job::seat_key(std::uint64_t rank) const {
  return "ivycomm/" + std::to_string(joined_) + "/seat/" + std::to_string(rank);
}

// Makes the name unique on the page, which keeps the reports of a whole generation with perhaps
// many worlds.
std::string Job::name_in_page(const std::string& communicator) const {
  return life_ + ":" + communicator;
}

Result<std::unique_ptr<Job>> Job::join(Identity identity, milliseconds timeout) {
  std::unique_ptr<Job> job(new Job(std::move(identity), timeout));
  const Identity& who = job->identity_;
  if (who.meeting == Meeting::kAlone) return job;
  PeerCredentials credentials = IVY_TRY(
      who.meeting == Meeting::kStore ? job->connect_to_store() : job->meet_without_ivyrun());
  credentials.rank = who.rank;
  // Under ivyrun only the job's ranks have its token.
  credentials.waits_for_places = who.meeting != Meeting::kStore;
  job->limited_store_.use(job->store_.get());
  if (who.spans_hosts) {
    job->tcp_streams_ = IVY_TRY(wanted_streams(std::getenv("IVY_TCP_STREAMS")));
    const std::string own_address = IVY_TRY(own_address_towards(job->first_host_address_));
    job->listener_ = IVY_TRY(PeerListener::listen(own_address, std::move(credentials)));
  }
  if (!who.control_path.empty()) IVY_CHECK(job->attach_to_supervisor());
  return job;
}

Result<PeerCredentials> Job::connect_to_store() {
  store::ClientOptions options;
  options.address = identity_.store_address;
  options.job_id = identity_.job_id;
  options.token = IVY_TRY(read_token(identity_.token_file));
  options.generation = identity_.generation;
  options.rank = identity_.rank;
  options.connect_timeout = std::min(timeout_, milliseconds(60'000));
  Result<std::unique_ptr<store::Client>> client = store::Client::connect(options);
  if (!client.ok())
    return client.error().context("connect to the job's store at " + identity_.store_address);
  store_ = std::move(client).value();
  first_host_address_ = identity_.first_host_address;
  PeerCredentials credentials;
  credentials.job_id = options.job_id;
  credentials.token = options.token;
  credentials.generation = options.generation;
  return credentials;
}

Result<PeerCredentials> Job::meet_without_ivyrun() {
  Meet met = IVY_TRY(meet(identity_, joined_, timeout_));
  own_store_ = std::move(met.own_store);
  note_ = std::move(met.note);
  store_ = std::move(met.client);
  first_host_address_ = met.first_host_address;
  PeerCredentials credentials;
  credentials.job_id = met.job_id;
  credentials.token = met.token;
  credentials.generation = met.generation;
  return credentials;
}

Result<void> Job::attach_to_supervisor() {
  control::Attach attach;
  attach.rank = identity_.rank;
  attach.generation = identity_.generation;
  attach.pid = getpid();
  control_ = IVY_TRY(ControlClient::connect(identity_.control_path, attach, milliseconds(10'000)));
  control_->page().slot(control_->slot()).claim(identity_.rank, getpid());
  if (identity_.spans_hosts) bell_ = std::make_unique<JobBell>(control_->page());
  return {};
}

// A supervisor reports deaths. Without one the store does: the first sign of a rank's death is the
// end of its connection. A rank that has connected has stored before where it is.
Result<void> Job::meet_all_ranks() {
  const std::string name = key("seats");
  if (control_ != nullptr) {
    const std::uint64_t round =
        IVY_TRY(store_->barrier(name, identity_.world_size, identity_.rank, timeout_));
    // A worker may run one program after the other: each begins to count its worlds anew.
    life_ += "." + std::to_string(round);
    return {};
  }
  const store::Client::Round met =
      IVY_TRY(store_->barrier_without_losses(name, identity_.world_size, identity_.rank, timeout_));
  if (!met.lost_member) return {};
  const SeatText lost = decode_seat(IVY_TRY(store_->get(seat_key(*met.lost_member))));
  Seat seat;
  seat.world_rank = static_cast<std::int32_t>(*met.lost_member);
  seat.pid = static_cast<std::int32_t>(std::strtol(lost.pid.c_str(), nullptr, 10));
  seat.host_name = lost.host_name;
  comm_status::RankStatus status;
  status.state = comm_status::RankState::kDied;
  status.pid = seat.pid;
  return give_up_init(death_in_init(seat, status));
}

Error Job::give_up_init(const Failure& death) {
  init_failure_ = death;
  return Error{static_cast<Code>(death.code), death.text};
}

// The text that this rank tells the others about itself.
std::string Job::own_seat(const std::string& tuning) const {
  SeatText seat;
  seat.build = own_build();
  seat.pid = std::to_string(getpid());
  seat.host_key = own_host_key(identity_);
  seat.address = listener_ != nullptr ? listener_->address() : "";
  seat.processors = processors_text(own_processors());
  seat.host_name = own_host_name();
  seat.tuning = tuning;
  seat.quotas = quotas_text(own_quotas());
  seat.caches = caches_text(own_caches());
  if (listener_ != nullptr && identity_.meeting != Meeting::kStore) {
    std::vector<std::string> places = own_addresses();
    places.push_back(listener_->host());
    seat.places = joined(places);
  }
  return encode_seat(seat);
}

// Works out whether this machine's ranks have a processor each, or are crowded.
void Job::count_processors(const std::vector<Processors>& processors,
                           const std::vector<Quotas>& quotas) {
  has_processor_each_ = have_processor_each(processors) && have_quota_each(quotas);
  is_crowded_ = are_crowded(processors) || are_crowded(quotas);
}

Result<std::vector<Seat>> Job::exchange_seats() {
  const std::string own_key = own_host_key(identity_);
  std::vector<Processors> processors;  // These three are by rank of this machine.
  std::vector<Quotas> quotas;
  std::vector<Caches> caches;
  OwnTuning own_tuning = read_tuning(identity_.tuning_file);
  IVY_CHECK(store_->set(seat_key(identity_.rank), own_seat(own_tuning.said)));
  const Result<void> met = meet_all_ranks();
  if (!met.ok()) return met.error().context("wait for the other ranks");
  std::vector<std::string> keys;
  for (std::uint32_t rank = 0; rank < identity_.world_size; ++rank) {
    keys.push_back(seat_key(rank));
  }
  const std::vector<std::string> texts = IVY_TRY(store_->multi_get(keys));
  std::vector<Seat> seats;
  std::vector<std::string> hosts;
  std::vector<SaidTuning> tunings;
  PlacesOfRanks places;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const SeatText text = decode_seat(texts[rank]);
    if (text.build != own_build()) {
      return Error{Code::kFailedPrecondition,
                   "rank " + std::to_string(rank) + " on " + text.host_name +
                       " has another build of libivycomm (" + text.build + ") than rank " +
                       std::to_string(identity_.rank) + " on " + own_host_name() + " (" +
                       own_build() + ")",
                   "install one build on all hosts"};
    }
    const auto found = std::find(hosts.begin(), hosts.end(), text.host_key);
    if (machine_of(text.host_key) == machine_of(own_key)) {
      processors.push_back(processors_from(text.processors));
      quotas.push_back(quotas_from(text.quotas));
      caches.push_back(caches_from(text.caches));
    }
    tunings.push_back({static_cast<std::uint32_t>(rank), text.host_name, text.tuning});
    places.push_back(parts_of(text.places));
    Seat seat;
    seat.world_rank = static_cast<std::int32_t>(rank);
    seat.pid = static_cast<std::int32_t>(std::strtol(text.pid.c_str(), nullptr, 10));
    seat.host = static_cast<std::uint32_t>(found - hosts.begin());
    seat.host_name = text.host_name;
    seat.address = text.address;
    if (found == hosts.end()) hosts.push_back(text.host_key);
    seats.push_back(std::move(seat));
  }
  if (const std::optional<Error> trouble = tuning_trouble(tunings)) return *trouble;
  if (listener_ != nullptr && identity_.meeting != Meeting::kStore) {
    listener_->expect(std::move(places));
  }
  tuning_ = std::move(own_tuning.table);
  count_processors(processors, quotas);
  caches_ = least_caches(caches);
  caches_.processors = static_cast<std::uint32_t>(comm::count_processors(processors));
  return seats;
}

// Without a supervisor: waits at the store in short turns and looks after each whether a rank of
// this host has died.
template <class Wait>
auto Job::wait_for_living(Alarm& alarm, Wait wait) -> decltype(wait(milliseconds())) {
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    auto waited = wait(kLookForDeaths);
    if (waited.ok() || waited.error().code != Code::kDeadlineExceeded) return waited;
    if (const std::optional<Failure> death = alarm.look()) {
      // The dead rank's last act may have been what this rank waits for.
      waited = wait(milliseconds(1));
      if (waited.ok()) return waited;
      Failure in_init = *death;
      set_operation(in_init, comm_status::name_of(comm_status::Operation::kInit));
      return give_up_init(in_init);
    }
    if (std::chrono::steady_clock::now() - begun >= timeout_) {
      return waited.error().context("the world's memory, for " + std::to_string(timeout_.count()) +
                                    " ms");
    }
  }
}

Result<std::unique_ptr<SharedSegment>> Job::share_world_segment(
    const std::vector<Seat>& seats, const std::vector<std::int32_t>& local) {
  const auto members = static_cast<std::uint32_t>(local.size());
  SegmentGeometry geometry;
  geometry.member_count = members;
  if (control_ != nullptr) {
    control::Segment request;
    request.name = "world#" + life_;
    request.bytes = geometry.total_bytes();
    request.members = members;
    control::Segment rings = request;
    rings.name = "rings#" + life_;
    rings.bytes = geometry.rings_bytes();
    rings.reserve = false;
    const int memory = IVY_TRY(control_->segment(request, milliseconds(30'000)));
    const Result<int> rings_memory = control_->segment(rings, milliseconds(30'000));
    if (!rings_memory.ok()) {
      close(memory);
      return rings_memory.error();
    }
    return SharedSegment::adopt(memory, *rings_memory, members);
  }
  // The first rank of the host makes it under a name, which goes as soon as all have it, by the
  // hand of any of them.
  const std::string name = key("segment/" + std::to_string(local.front()));
  const bool is_maker = static_cast<std::uint32_t>(local.front()) == identity_.rank;
  const std::unique_ptr<Alarm> alarm = make_process_alarm(
      seats, static_cast<std::int32_t>(identity_.rank), [](std::int32_t) { return false; });
  const std::string name_to_be = name + "/soon";
  std::unique_ptr<SharedSegment> segment;
  if (is_maker) {
    const std::string path = SharedSegment::new_path();
    IVY_CHECK(store_->set(name_to_be, path));
    segment = IVY_TRY(SharedSegment::create_named(members, path));
    IVY_CHECK(store_->set(name, path));
  } else {
    const Result<std::string> path =
        wait_for_living(*alarm, [&](milliseconds limit) { return store_->wait_get(name, limit); });
    if (!path.ok()) {
      // The maker may have died in the middle of making it.
      const std::optional<std::string> half_made = limited_store_.get(name_to_be);
      if (half_made) unlink(half_made->c_str());
      return path.error();
    }
    segment = IVY_TRY(SharedSegment::attach_path(*path, members));
  }
  const auto place =
      std::find(local.begin(), local.end(), static_cast<std::int32_t>(identity_.rank));
  const auto member = static_cast<std::uint32_t>(place - local.begin());
  const std::uint64_t arrival = store_->new_arrival();
  const Result<std::uint64_t> met = wait_for_living(*alarm, [&](milliseconds limit) {
    return store_->barrier(name + "/attached", members, member, limit, arrival);
  });
  if (!met.ok()) return met.error().context("wait for the other ranks of this host");
  segment->unlink_name();
  return segment;
}

// Names a rank that dies before the world is formed as well as one that dies later.
Result<std::vector<Seat>> Job::watched_exchange() {
  if (control_ == nullptr) return exchange_seats();
  InitWatch watch(control_->page(), identity_.rank, *store_);
  Result<std::vector<Seat>> seats = exchange_seats();
  if (seats.ok()) return seats;
  const std::optional<Failure> death = watch.death();
  return death ? give_up_init(*death) : seats;
}

Result<Job::World> Job::form_world() {
  std::vector<Seat> seats;
  if (store_ == nullptr) {
    Seat seat;
    seat.pid = getpid();
    seat.host_name = own_host_name();
    // The table chooses nothing here; but an error in it is better reported now than on many ranks.
    const OwnTuning own_tuning = read_tuning(identity_.tuning_file);
    if (const auto trouble = tuning_trouble({{0, seat.host_name, own_tuning.said}})) {
      return *trouble;
    }
    seats.push_back(std::move(seat));
  } else {
    seats = IVY_TRY(watched_exchange());
  }
  const auto self = static_cast<std::int32_t>(identity_.rank);
  const std::vector<std::int32_t> local = local_ranks(seats, self);
  if (local.size() > kMembersMax) {
    return Error{Code::kResourceExhausted, "more than " + std::to_string(kMembersMax) +
                                               " ranks on one host are not supported"};
  }
  std::shared_ptr<SharedSegment> segment;
  if (local.size() > 1) segment = IVY_TRY(share_world_segment(seats, local));
  if (identity_.meeting != Meeting::kAlone && identity_.meeting != Meeting::kStore) worlds++;
  note_.reset();  // All ranks have come: remove the endpoint file.
  if (own_store_ != nullptr) own_store_->refuse_joins();
  if (local.size() == seats.size()) {
    listener_.reset();
    bell_.reset();
  } else if (control_ == nullptr) {
    listen_to_store();
  }
  if (control_ == nullptr) {
    world_segment_ = segment;
    world_members_ = local;
  }
  return World{std::move(seats), self, std::move(segment), timeout_};
}

bool Job::has_left(std::int32_t world_rank) const {
  if (world_segment_ == nullptr) return false;
  const auto place = std::find(world_members_.begin(), world_members_.end(), world_rank);
  if (place == world_members_.end()) return false;
  const auto index = static_cast<std::size_t>(place - world_members_.begin());
  return world_segment_->member(index).attached.load(std::memory_order_acquire) == kHasLeft;
}

std::unique_ptr<Alarm> Job::make_alarm(const std::string& communicator,
                                       const std::vector<Seat>& seats, std::int32_t self) const {
  if (control_ != nullptr) {
    return make_page_alarm(control_->page(), name_in_page(communicator), seats, self);
  }
  std::unique_ptr<Alarm> alarm = make_process_alarm(
      seats, self, [this](std::int32_t world_rank) { return has_left(world_rank); });
  const bool spans_hosts = std::any_of(
      seats.begin(), seats.end(), [&](const Seat& seat) { return seat.host != seats[0].host; });
  if (!spans_hosts) return alarm;
  return make_agreed_alarm(
      std::move(alarm), [this] { return bell_->heard(); },
      [this, communicator] { return find_agreed(communicator); });
}

void Job::report(const Failure& failure, const std::string& communicator) {
  if (control_ == nullptr) return;
  control::Report report;
  switch (failure.kind) {
    case FailureKind::kMismatch:
      report.kind = control::ReportKind::kMismatch;
      break;
    case FailureKind::kTimeout:
      report.kind = control::ReportKind::kTimeout;
      break;
    case FailureKind::kAborted:
      report.kind = control::ReportKind::kAborted;
      break;
    case FailureKind::kTransport:
      report.kind = control::ReportKind::kTransportLost;
      break;
    case FailureKind::kOther:
      // Every rank learns a refusal that concerns all from rank 0's word in the store.
      if (failure.code == IVY_FAILED_PRECONDITION) return;
      report.kind = control::ReportKind::kInternal;
      break;
    default:
      return;  // The supervisor reports deaths itself.
  }
  report.blamed = static_cast<std::uint32_t>(failure.rank);
  report.sequence = failure.sequence;
  report.communicator = name_in_page(communicator);
  report.text = failure.text;
  control_->report(report);
}

Failure Job::agree(const Failure& failure, const std::string& communicator) {
  if (control_ != nullptr) return failure;
  const std::string own = bytes_of(failure);
  const std::optional<std::string> stored =
      limited_store_.compare_set(key("failure/" + communicator), std::nullopt, own);
  // Other findings come by hung-up connections, or when it is asked for them: they may wait until
  // those who are still in the operation before have come out of it.
  if (stored == own && failure.kind == FailureKind::kAborted) ring();
  return value_from<Failure>(stored).value_or(failure);
}

// Without a supervisor every rank waits at the store for the next of these records, which say that
// some communicator was aborted.
void Job::listen_to_store() {
  bell_ = std::make_unique<JobBell>(
      [this](std::uint64_t number) {
        return store_->wait({key("bell/" + std::to_string(number))}, kForever).ok();
      },
      [this] { store_->cancel(); });
}

void Job::ring() {
  if (bell_ == nullptr) return;
  const std::string own = std::to_string(identity_.rank) + "," + std::to_string(rings_++);
  // A rank that another record woke may have looked before this rank's finding was stored.
  const std::uint64_t next = bell_->heard();
  for (std::uint64_t number = next; number < next + kRingAttempts; ++number) {
    const std::optional<std::string> stored =
        limited_store_.compare_set(key("bell/" + std::to_string(number)), std::nullopt, own);
    if (!stored || stored == own) return;
  }
}

std::optional<Failure> Job::find_agreed(const std::string& communicator) const {
  return value_from<Failure>(limited_store_.get(key("failure/" + communicator)));
}

std::optional<Failure> Job::compare(const std::string& communicator, const EnteredOperations& own) {
  const std::string where = key("entered/" + communicator);
  std::optional<std::string> expected;
  for (int attempt = 0; attempt < kCompareAttempts; ++attempt) {
    const std::optional<std::string> stored =
        limited_store_.compare_set(where, expected, bytes_of(own));
    const std::optional<EnteredOperations> other = value_from<EnteredOperations>(stored);
    if (!other) return std::nullopt;
    const std::optional<std::uint64_t> differs = first_difference(own, *other);
    if (differs) return difference(communicator, own, *other, *differs);
    if (other->sequence >= own.sequence) return std::nullopt;
    expected = stored;  // An older record is replaced, unless another rank has done so meanwhile.
  }
  return std::nullopt;
}

RollCall::Store Job::wait_records(const std::string& communicator) {
  const std::string where = key("waits/" + communicator + "/");
  RollCall::Store records;
  records.write = [this, where](std::int32_t rank, const WaitRecord& record) {
    return limited_store_.set(where + std::to_string(rank), bytes_of(record));
  };
  records.read = [this, where](std::int32_t rank) {
    std::optional<WaitRecord> record =
        value_from<WaitRecord>(limited_store_.get(where + std::to_string(rank)));
    if (record) record->because[sizeof record->because - 1] = '\0';
    return record;
  };
  return records;
}

std::optional<std::uint32_t> Job::take_row(const std::string& communicator) {
  if (control_ == nullptr) return std::nullopt;
  const std::lock_guard lock(rows_mutex_);
  const auto free = std::find(rows_.begin(), rows_.end(), false);
  if (free == rows_.end()) return std::nullopt;
  *free = true;
  const auto row = static_cast<std::uint32_t>(free - rows_.begin());
  control_->page().slot(control_->slot()).name_communicator(row, communicator);
  return row;
}

void Job::give_back_row(std::uint32_t row) {
  const std::lock_guard lock(rows_mutex_);
  rows_[row] = false;
}

}  // namespace ivy::comm
