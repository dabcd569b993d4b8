// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/thread_ranks.h"

#include <unistd.h>

#include <thread>
#include <utility>

#include "comm/collectives/selector.h"

namespace ivy::comm::test {
namespace {

std::vector<std::uint32_t> host_of_rank(const Hosts& hosts) {
  std::vector<std::uint32_t> of;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    of.insert(of.end(), static_cast<std::size_t>(hosts[host]), static_cast<std::uint32_t>(host));
  }
  return of;
}

constexpr std::size_t kElement = sizeof(std::uint32_t);

Collective of(Operation operation, std::size_t count, std::int32_t root = -1) {
  Collective collective;
  collective.shape.operation = operation;
  collective.shape.count = count;
  collective.shape.root = root;
  return collective;
}

// A buffer with the elements of one rank.
template <class Memory>
Side<Memory> one(Memory* data, std::size_t count) {
  return {data, count * kElement, {}};
}

}  // namespace

ThreadRank::ThreadRank(const ThreadRanksOptions& options, std::int32_t rank,
                       std::shared_ptr<SharedSegment> segment,
                       std::unique_ptr<PeerConnections> connections)
    : options_(options),
      rank_(rank),
      size_(rank_count(options.hosts)),
      map_(make_host_map(host_of_rank(options.hosts), rank)),
      connections_(std::move(connections)),
      address_(connections_ != nullptr ? connections_->address() : "") {
  if (segment == nullptr) return;
  SharedGroupOptions group;
  group.communicator = "threads";
  group.host = "host" + std::to_string(map_.own_host());
  group.self = map_.own_member();
  group.has_processor_each = options_.has_processor_each;
  group.spin = options_.spin;
  for (const std::int32_t member : map_.own_ranks()) {
    group.members.push_back({member, member, static_cast<std::int32_t>(getpid())});
  }
  group.selector =
      std::make_shared<const SharedSelector>(static_cast<std::uint32_t>(group.members.size()));
  local_ = std::make_unique<SharedGroup>(std::move(segment), std::move(group), nullptr);
}

ThreadRank::~ThreadRank() = default;

std::vector<TcpPeer> ThreadRank::peers(const std::vector<std::string>& addresses) const {
  std::vector<TcpPeer> peers;
  for (const std::string& address : addresses) {
    TcpPeer peer;
    peer.rank = static_cast<std::int32_t>(peers.size());
    peer.world_rank = peer.rank;
    peer.pid = static_cast<std::int32_t>(getpid());
    peer.host = "host" + std::to_string(map_.host_of[peers.size()]);
    peer.address = address;
    peers.push_back(std::move(peer));
  }
  return peers;
}

void ThreadRank::connect(const std::vector<std::string>& addresses) {
  PointToPointOptions messages;
  messages.communicator = "threads";
  messages.self = rank_;
  messages.peers = peers(addresses);
  messages.spin = options_.spin;
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    const bool is_present = map_.host_of[rank] == map_.own_host();
    messages.member_of.push_back(is_present ? static_cast<std::int32_t>(map_.member_of[rank]) : -1);
  }
  messages_ = std::make_unique<PointToPoint>(std::move(messages), local_.get(), connections_.get(),
                                             nullptr);
  if (connections_ != nullptr) {
    TcpMeshOptions options;
    options.communicator = "threads";
    options.self = rank_;
    options.peers = peers(addresses);
    options.spin = options_.spin;
    mesh_ = std::make_unique<TcpMesh>(*connections_, std::move(options), nullptr);
  }
  collectives_ = std::make_unique<HostCollectives>(map_, local_.get(), mesh_.get(),
                                                   options_.has_processor_each);
}

// A buffer with one block for each rank.
template <class Memory>
Side<Memory> ThreadRank::blocks(Memory* data, std::size_t count_each) const {
  return {data, 0, Blocks::even(static_cast<std::size_t>(size_), count_each * kElement)};
}

bool ThreadRank::run(Collective collective) {
  OperationShape& shape = collective.shape;
  shape.dtype = Dtype::kU32;
  if (local_ != nullptr && local_->is_broken()) return false;
  ++sequence_;
  if (local_ != nullptr) local_->enter(shape, sequence_);
  Deadline deadline(scaled_time(options_.timeout));
  if (collectives_->run(OperationCall{shape, sequence_, deadline}, collective)) return true;
  // Notifies the ranks of this host and of the others, like Communicator.
  if (mesh_ != nullptr && mesh_->failure() && local_ != nullptr)
    local_->break_with(*mesh_->failure());
  if (mesh_ != nullptr) mesh_->hang_up();
  return false;
}

bool ThreadRank::barrier() { return run(of(Operation::kBarrier, 0)); }

bool ThreadRank::all_reduce(const void* send, void* receive, std::size_t count) {
  Collective collective = of(Operation::kAllReduce, count);
  collective.send = one(send, count);
  collective.receive = one(receive, count);
  return run(std::move(collective));
}

bool ThreadRank::reduce(const void* send, void* receive, std::size_t count, std::int32_t root) {
  Collective collective = of(Operation::kReduce, count, root);
  collective.send = one(send, count);
  collective.receive = one(receive, count);
  return run(std::move(collective));
}

bool ThreadRank::reduce_scatter(const void* send, void* receive, std::size_t count_each) {
  Collective collective = of(Operation::kReduceScatter, count_each);
  collective.send = blocks(send, count_each);
  collective.receive = one(receive, count_each);
  return run(std::move(collective));
}

bool ThreadRank::broadcast(void* buffer, std::size_t count, std::int32_t root) {
  Collective collective = of(Operation::kBroadcast, count, root);
  collective.receive = one(buffer, count);
  return run(std::move(collective));
}

bool ThreadRank::all_gather(const void* send, void* receive, std::size_t count_each) {
  Collective collective = of(Operation::kAllGather, count_each);
  collective.send = one(send, count_each);
  collective.receive = blocks(receive, count_each);
  return run(std::move(collective));
}

bool ThreadRank::gather(const void* send, void* receive, std::size_t count_each,
                        std::int32_t root) {
  Collective collective = of(Operation::kGather, count_each, root);
  collective.send = one(send, count_each);
  collective.receive = blocks(receive, count_each);
  return run(std::move(collective));
}

bool ThreadRank::scatter(const void* send, void* receive, std::size_t count_each,
                         std::int32_t root) {
  Collective collective = of(Operation::kScatter, count_each, root);
  collective.send = blocks(send, count_each);
  collective.receive = one(receive, count_each);
  return run(std::move(collective));
}

bool ThreadRank::all_to_all(const void* send, void* receive, std::size_t count_each) {
  Collective collective = of(Operation::kAllToAll, count_each);
  collective.send = blocks(send, count_each);
  collective.receive = blocks(receive, count_each);
  return run(std::move(collective));
}

bool ThreadRank::scan(const void* send, void* receive, std::size_t count) {
  Collective collective = of(Operation::kScan, count);
  collective.send = one(send, count);
  collective.receive = one(receive, count);
  return run(std::move(collective));
}

void ThreadRank::break_with(const Failure& failure) {
  if (local_ != nullptr) local_->break_with(failure);
  messages_->break_with(failure);
  if (mesh_ != nullptr) mesh_->interrupt();
}

MaybeFailure ThreadRank::failure() const {
  const MaybeFailure here = local_ != nullptr ? local_->failure() : std::nullopt;
  return here || mesh_ == nullptr ? here : mesh_->failure();
}

void ThreadRank::end() {
  messages_.reset();
  collectives_.reset();
  mesh_.reset();
  local_.reset();
}

void run_thread_ranks(const ThreadRanksOptions& options,
                      const std::function<void(ThreadRank&)>& body) {
  std::vector<std::unique_ptr<ThreadRank>> ranks;
  std::vector<std::string> addresses;
  for (const int members : options.hosts) {
    std::shared_ptr<SharedSegment> segment;
    if (members > 1) segment = SharedSegment::create(static_cast<std::uint32_t>(members)).value();
    for (int member = 0; member < members; ++member) {
      PeerCredentials known;
      known.job_id = std::string(32, '0');
      known.token = std::string(32, 't');
      known.rank = static_cast<std::uint32_t>(ranks.size());
      std::unique_ptr<PeerConnections> connections;
      if (options.hosts.size() > 1)
        connections = PeerConnections::listen("127.0.0.1", known).value();
      ranks.push_back(std::make_unique<ThreadRank>(options, static_cast<std::int32_t>(known.rank),
                                                   segment, std::move(connections)));
      addresses.push_back(ranks.back()->address());
    }
  }
  for (const std::unique_ptr<ThreadRank>& rank : ranks) rank->connect(addresses);
  std::vector<std::thread> threads;
  for (const std::unique_ptr<ThreadRank>& rank : ranks) {
    threads.emplace_back([&body, &rank] { body(*rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ivy::comm::test
