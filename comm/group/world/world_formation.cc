// SPDX-License-Identifier: Apache-2.0
// form() is the sequence: form_locally() exchanges the ranks' records through the store and then
// creates the shared memory of this host. In a repair, form() also waits until all ranks have done
// so. Functions are in the order in which they are called. Called by JobMember.
#include "comm/group/world/world_formation.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "comm/contract/processors.h"
#include "comm/contract/protocol.h"
#include "comm/contract/resolve.h"
#include "comm/group/world/init_watch.h"
#include "comm/transports/liveness/failure_detectors.h"
#include "comm/transports/liveness/process_state.h"
#include "proto/contract/build.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDeathCheckStep{100};

// Identifies the container if no launcher does. Ranks can share memory if they have the same
// /dev/shm, pid namespace and user.
std::string own_container() {
  struct stat memory = {};
  stat("/dev/shm", &memory);
  char name[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name - 1);
  return std::to_string(memory.st_dev) + "," + std::to_string(memory.st_ino) + "," +
         std::string(name, static_cast<std::size_t>(std::max<ssize_t>(0, length))) + "," +
         std::to_string(geteuid());
}

// Returns a key that is equal for ranks that can share memory: those of one kernel and one host of
// the job (fake hosts count as several).
std::string own_host_key(const Identity& identity) {
  const std::string boot = read_file("/proc/sys/kernel/random/boot_id", 64).value_or("");
  return boot.substr(0, boot.find('\n')) + "/" +
         (identity.bootstrap == Bootstrap::kStore ? identity.host_key : own_container());
}

// Returns the machine of a host key; fake hosts share its processors.
std::string machine_of(const std::string& host_key) {
  return host_key.substr(0, host_key.find('/'));
}

// Returns the build's name. It is the first field, so that a build with other fields can read it.
std::string own_build() {
  return std::string(version()) + ", protocol " + hexadecimal(protocol_identity());
}

}  // namespace

// A rank's record for the other ranks: one line per field, without newlines in a field.
struct WorldFormation::MemberText {
  std::string build;
  std::string pid;
  std::string host_key;
  std::string address;
  std::string processors;
  std::string host_name;
  std::string quotas;
  std::string caches;
  // Addresses from which its connections may come; used only without ivyrun.
  std::string addresses;
  std::string job_rank;
  std::string incarnation;
  std::string process_start;

  static constexpr std::string MemberText::*kFields[] = {
      &MemberText::build,    &MemberText::pid,         &MemberText::host_key,
      &MemberText::address,  &MemberText::processors,  &MemberText::host_name,
      &MemberText::quotas,   &MemberText::caches,      &MemberText::addresses,
      &MemberText::job_rank, &MemberText::incarnation, &MemberText::process_start};

  std::string encoded() const {
    std::string text;
    for (std::string MemberText::*const field : kFields) text += this->*field + "\n";
    return text;
  }
  static MemberText decoded(const std::string& text) {
    MemberText member;
    std::istringstream lines(text);
    for (std::string MemberText::*const field : kFields) std::getline(lines, member.*field);
    return member;
  }
  Member member(std::uint64_t rank) const {
    Member member;
    member.world_rank = static_cast<std::int32_t>(rank);
    member.pid = static_cast<std::int32_t>(std::strtol(pid.c_str(), nullptr, 10));
    member.host_name = host_name;
    member.address = address;
    member.job_rank = to_number<std::uint32_t>(job_rank).value_or(0);
    member.incarnation = to_number<std::uint32_t>(incarnation).value_or(0);
    member.process_start = to_number<std::uint64_t>(process_start).value_or(0);
    return member;
  }
};

WorldFormation::WorldFormation(const FormationInputs& inputs) : inputs_(inputs) {
  world_.self = static_cast<std::int32_t>(inputs.identity.rank);
  world_.timeout = inputs.timeout;
  world_.world_id =
      inputs.repair != nullptr ? inputs.repair->world_id() : std::to_string(inputs.earlier_joins);
  first_world_id_ = world_.world_id;
}

Result<World> WorldFormation::form() {
  Result<void> formed = form_locally();
  if (inputs_.repair != nullptr) {
    const bool is_whole_here = formed.ok();
    if (is_whole_here) formed = wait_at_barrier(prefix_of(first_world_id_) + "formed");
    // If the world is complete on every rank, a later death is a failure of the new world.
    formed = inputs_.repair->conclude(formed, death_.has_value());
    IVY_ASSERT(!formed.ok() || is_whole_here);
  }
  if (!formed.ok()) return formed.error();
  return std::move(world_);
}

Result<void> WorldFormation::form_locally() {
  IVY_CHECK(inputs_.store == nullptr ? form_single() : watched_exchange());
  const std::uint32_t host = world_.members[inputs_.identity.rank].host;
  for (const Member& member : world_.members) {
    if (member.host == host) world_.local_ranks.push_back(member.world_rank);
  }
  if (world_.local_ranks.size() > kMembersMax) {
    return Error{Code::kResourceExhausted, "more than " + std::to_string(kMembersMax) +
                                               " ranks on one host are not supported"};
  }
  if (world_.local_ranks.size() > 1) {
    world_.segment =
        IVY_TRY(inputs_.control != nullptr ? segment_of_supervisor() : segment_by_name());
  }
  return {};
}

Result<void> WorldFormation::form_single() {
  Member member;
  member.pid = getpid();
  member.host_name = own_host_name();
  world_.members.push_back(std::move(member));
  return {};
}

Result<void> WorldFormation::watched_exchange() {
  if (inputs_.control == nullptr || inputs_.repair != nullptr) return exchange_members();
  InitWatch watch(inputs_.control->page(), inputs_.identity.rank, *inputs_.store);
  Result<void> exchanged = exchange_members();
  if (exchanged.ok()) return exchanged;
  const MaybeFailure death = watch.death();
  return death ? give_up(*death) : exchanged;
}

Result<void> WorldFormation::exchange_members() {
  IVY_CHECK(inputs_.store->set(member_key(inputs_.identity.rank), own_member()));
  const Result<void> waited = wait_for_all_ranks();
  if (!waited.ok()) return waited.error().context("wait for the other ranks");
  std::vector<std::string> keys;
  for (std::uint32_t rank = 0; rank < inputs_.identity.world_size; ++rank) {
    keys.push_back(member_key(rank));
  }
  std::vector<MemberText> texts;
  for (const std::string& text : IVY_TRY(inputs_.store->multi_get(keys))) {
    texts.push_back(MemberText::decoded(text));
    if (texts.back().build == own_build()) continue;
    return Error{Code::kFailedPrecondition,
                 "rank " + std::to_string(texts.size() - 1) + " on " + texts.back().host_name +
                     " has a different build of libivycomm (" + texts.back().build +
                     ") than rank " + std::to_string(inputs_.identity.rank) + " on " +
                     own_host_name() + " (" + own_build() + ")",
                 "install one build on all hosts"};
  }
  return read_members(texts);
}

std::string WorldFormation::own_member() const {
  MemberText member;
  member.build = own_build();
  member.pid = std::to_string(getpid());
  member.host_key = own_host_key(inputs_.identity);
  member.processors = core_list_text(own_processors());
  member.host_name = own_host_name();
  member.quotas = quotas_text(own_quotas());
  member.caches = caches_text(own_caches());
  member.job_rank = std::to_string(inputs_.repair != nullptr ? inputs_.repair->job_rank()
                                                             : inputs_.identity.rank);
  member.incarnation = std::to_string(inputs_.identity.attempt.incarnation);
  member.process_start = std::to_string(process_start(getpid()));
  if (inputs_.connections == nullptr) return member.encoded();
  member.address = inputs_.connections->address();
  if (inputs_.identity.bootstrap != Bootstrap::kStore) {
    std::vector<std::string> addresses = own_addresses();
    addresses.push_back(inputs_.connections->host());
    member.addresses = joined(addresses, ",");
  }
  return member.encoded();
}

// With a supervisor, the supervisor reports deaths. Without one, the store does: a rank's death
// closes the connection over which it has stored its record.
Result<void> WorldFormation::wait_for_all_ranks() {
  const Identity& identity = inputs_.identity;
  const std::string name = prefix_of(world_.world_id) + "members";
  if (inputs_.repair != nullptr) return wait_at_barrier(name);
  if (inputs_.control != nullptr) {
    const std::uint64_t round =
        IVY_TRY(inputs_.store->barrier(name, identity.world_size, identity.rank, inputs_.timeout));
    // A worker may run several programs one after the other, each of which counts its worlds from
    // 0.
    world_.world_id += "." + std::to_string(round);
    return {};
  }
  const store::Client::Round waited = IVY_TRY(inputs_.store->barrier_without_losses(
      name, identity.world_size, identity.rank, inputs_.timeout));
  if (!waited.lost_member) return {};
  const std::string lost = IVY_TRY(inputs_.store->get(member_key(*waited.lost_member)));
  comm_status::RankStatus status;
  status.state = comm_status::RankState::kDied;
  const Member member = MemberText::decoded(lost).member(*waited.lost_member);
  status.pid = member.pid;
  return give_up(death_in_init(member, status));
}

Result<void> WorldFormation::read_members(const std::vector<MemberText>& texts) {
  const std::string machine = machine_of(own_host_key(inputs_.identity));
  // One element for each rank of this machine:
  std::vector<CoreList> processors;
  std::vector<Quotas> quotas;
  std::vector<Caches> caches;

  std::vector<std::string> hosts;
  AddressesOfRanks addresses;
  for (const MemberText& text : texts) {
    const auto rank = static_cast<std::uint32_t>(world_.members.size());
    if (machine_of(text.host_key) == machine) {
      processors.push_back(parse_core_list(text.processors));
      quotas.push_back(quotas_from(text.quotas));
      caches.push_back(caches_from(text.caches));
    }
    const std::vector<std::string_view> member_addresses = parts_of(text.addresses, ',');
    addresses.emplace_back(member_addresses.begin(), member_addresses.end());
    const auto host = std::find(hosts.begin(), hosts.end(), text.host_key);
    world_.members.push_back(text.member(rank));
    world_.members.back().host = static_cast<std::uint32_t>(host - hosts.begin());
    if (host == hosts.end()) hosts.push_back(text.host_key);
  }
  if (inputs_.connections != nullptr && inputs_.identity.bootstrap != Bootstrap::kStore) {
    inputs_.connections->accept_only_from(std::move(addresses));
  }
  MachineFacts& facts = world_.machine;
  facts.has_processor_each = have_processor_each(processors) && have_quota_each(quotas);
  facts.is_overloaded = are_overloaded(processors) || are_overloaded(quotas);
  facts.caches = smallest_caches(caches);
  facts.caches.processors = static_cast<std::uint32_t>(count_processors(processors));
  return {};
}

Result<std::unique_ptr<SharedSegment>> WorldFormation::segment_of_supervisor() const {
  SegmentGeometry geometry;
  geometry.member_count = static_cast<std::uint32_t>(world_.local_ranks.size());
  control::Segment request;
  request.name = "world#" + world_.world_id;
  request.bytes = geometry.total_bytes();
  request.members = geometry.member_count;
  control::Segment rings = request;
  rings.name = "rings#" + world_.world_id;
  rings.bytes = geometry.rings_bytes();
  rings.reserve = false;
  Descriptor memory(IVY_TRY(inputs_.control->segment(request, milliseconds(30'000))));
  const int rings_memory = IVY_TRY(inputs_.control->segment(rings, milliseconds(30'000)));
  return SharedSegment::adopt(memory.release(), rings_memory, geometry.member_count);
}

// The first rank of the host creates the segment under a name, which is removed once all ranks have
// mapped it.
Result<std::unique_ptr<SharedSegment>> WorldFormation::segment_by_name() {
  store::Client& store = *inputs_.store;
  const std::vector<std::int32_t>& local = world_.local_ranks;
  const auto members = static_cast<std::uint32_t>(local.size());
  const std::string name = prefix_of(world_.world_id) + "segment/" + std::to_string(local.front());
  const std::unique_ptr<FailureDetector> detector =
      make_process_detector(world_.members, world_.self, nullptr);
  const std::string name_to_be = name + "/soon";
  std::unique_ptr<SharedSegment> segment;
  if (local.front() == world_.self) {
    const std::string path = SharedSegment::new_path();
    IVY_CHECK(store.set(name_to_be, path));
    segment = IVY_TRY(SharedSegment::create_named(members, path));
    IVY_CHECK(store.set(name, path));
  } else {
    const Result<std::string> path = wait_and_check(
        detector.get(), [&](milliseconds limit) { return store.wait_get(name, limit); });
    if (!path.ok()) {
      // The first rank may have died while it created the segment.
      const Result<std::string> half_made = store.get(name_to_be, milliseconds(250));
      if (half_made.ok()) unlink(half_made->c_str());
      return path.error();
    }
    segment = IVY_TRY(SharedSegment::attach_path(*path, members));
  }
  const auto place = std::find(local.begin(), local.end(), world_.self);
  const auto member = static_cast<std::uint32_t>(place - local.begin());
  const std::uint64_t arrival = store.new_arrival();
  const Result<std::uint64_t> waited = wait_and_check(detector.get(), [&](milliseconds limit) {
    return store.barrier(name + "/attached", members, member, limit, arrival);
  });
  if (!waited.ok()) return waited.error().context("wait for the other ranks of this host");
  segment->unlink_name();
  return segment;
}

// Uses first_world_id_, because the key is written before the ranks have synchronized and read
// later.
std::string WorldFormation::member_key(std::uint64_t rank) const {
  return prefix_of(first_world_id_) + "member/" + std::to_string(rank);
}

Result<void> WorldFormation::wait_at_barrier(const std::string& name) {
  const Identity& identity = inputs_.identity;
  const std::uint64_t arrival = inputs_.store->new_arrival();
  const Result<std::uint64_t> waited = wait_and_check(nullptr, [&](milliseconds limit) {
    return inputs_.store->barrier(name, identity.world_size, identity.rank, limit, arrival);
  });
  return waited.ok() ? Result<void>() : waited.error();
}

template <class Wait>
auto WorldFormation::wait_and_check(FailureDetector* detector, Wait wait)
    -> decltype(wait(milliseconds())) {
  const std::uint64_t start_ns = monotonic_ns();
  for (;;) {
    auto waited = wait(kDeathCheckStep);
    if (waited.ok() || waited.error().code != Code::kDeadlineExceeded) return waited;
    if (const std::optional<Error> why = find_formation_error(detector)) {
      // The dead rank may have written the awaited key before it died.
      waited = wait(milliseconds(1));
      if (waited.ok()) return waited;
      return *why;
    }
    if (std::chrono::nanoseconds(monotonic_ns() - start_ns) >= inputs_.timeout) {
      return waited.error().context("wait for the other ranks, for " +
                                    std::to_string(inputs_.timeout.count()) + " ms");
    }
  }
}

std::optional<Error> WorldFormation::find_formation_error(FailureDetector* detector) {
  if (inputs_.repair != nullptr) {
    if (std::optional<Error> why = inputs_.repair->find_repair_error()) return why;
  }
  const MaybeFailure death = detector != nullptr ? detector->check() : std::nullopt;
  if (!death) return std::nullopt;
  Failure in_init = *death;
  set_operation(in_init, comm_status::name_of(comm_status::Operation::kInit));
  return give_up(in_init);
}

Error WorldFormation::give_up(const Failure& death) {
  death_ = death;
  return Error{static_cast<Code>(death.code), death.text};
}

}  // namespace ivy::comm
