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

ReduceRule sum_of(std::int32_t size) {
  ReduceRule rule;
  rule.dtype = Dtype::kU32;
  rule.divisor = static_cast<std::uint32_t>(size);
  return rule;
}

constexpr std::size_t kElement = sizeof(std::uint32_t);

}  // namespace

ThreadRank::ThreadRank(const ThreadRanksOptions& options, std::int32_t rank,
                       std::shared_ptr<SharedSegment> segment,
                       std::unique_ptr<PeerListener> listener)
    : options_(options),
      rank_(rank),
      size_(rank_count(options.hosts)),
      map_(make_host_map(host_of_rank(options.hosts), rank)),
      listener_(std::move(listener)),
      address_(listener_ != nullptr ? listener_->address() : "") {
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
  group.selector = std::make_shared<const Selector>(
      Over::kShm, static_cast<std::uint32_t>(group.members.size()));
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
    const bool is_here = map_.host_of[rank] == map_.own_host();
    messages.member_of.push_back(is_here ? static_cast<std::int32_t>(map_.member_of[rank]) : -1);
  }
  messages_ =
      std::make_unique<PointToPoint>(std::move(messages), local_.get(), listener_.get(), nullptr);
  if (listener_ == nullptr) return;
  TcpMeshOptions options;
  options.communicator = "threads";
  options.self = rank_;
  options.peers = peers(addresses);
  options.spin = options_.spin;
  mesh_ = std::make_unique<TcpMesh>(*listener_, std::move(options), nullptr);
  spanning_ = std::make_unique<SpanningGroup>(map_, local_.get(), *mesh_);
}

template <class Body>
bool ThreadRank::run(Operation operation, std::size_t count, std::int32_t root, Body body) {
  OperationShape shape;
  shape.operation = operation;
  shape.dtype = Dtype::kU32;
  shape.count = count;
  shape.root = root;
  if (local_ != nullptr && local_->is_broken()) return false;
  ++sequence_;
  if (local_ != nullptr) local_->enter(shape, sequence_);
  Deadline deadline(stretched(options_.timeout));
  if (body(OperationCall{shape, sequence_, deadline})) return true;
  // Those of this host, and those of others, are told as Communicator tells them.
  if (mesh_ != nullptr && mesh_->failure() && local_ != nullptr)
    local_->break_with(*mesh_->failure());
  if (mesh_ != nullptr) mesh_->hang_up();
  return false;
}

bool ThreadRank::barrier() {
  return run(Operation::kBarrier, 0, -1, [this](const OperationCall& call) {
    return spanning_ != nullptr ? spanning_->barrier(call) : shared_barrier(*local_, call);
  });
}

bool ThreadRank::all_reduce(const void* send, void* receive, std::size_t count) {
  const ReduceRule rule = sum_of(size_);
  const Vectors vectors = {rule, send, receive, count};
  return run(Operation::kAllReduce, count, -1, [&](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->all_reduce(call, vectors);
    return shared_all_reduce(*local_, call, vectors);
  });
}

bool ThreadRank::reduce(const void* send, void* receive, std::size_t count, std::int32_t root) {
  const ReduceRule rule = sum_of(size_);
  const Vectors vectors = {rule, send, receive, count};
  return run(Operation::kReduce, count, root, [&](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->reduce(call, vectors, root);
    return shared_reduce(*local_, call, vectors, static_cast<std::uint32_t>(root));
  });
}

bool ThreadRank::reduce_scatter(const void* send, void* receive, std::size_t count_each) {
  const ReduceRule rule = sum_of(size_);
  const Vectors vectors = {rule, send, receive, count_each};
  const Ranges ranges = Ranges::even(static_cast<std::size_t>(size_), count_each);
  return run(Operation::kReduceScatter, count_each, -1, [&](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->reduce_scatter(call, vectors, ranges);
    return shared_reduce_scatter(*local_, call, vectors, ranges);
  });
}

bool ThreadRank::broadcast(void* buffer, std::size_t count, std::int32_t root) {
  const std::size_t bytes = count * kElement;
  return run(Operation::kBroadcast, count, root, [&](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->broadcast(call, {buffer, bytes, {}}, root);
    return shared_broadcast(*local_, call, {buffer, bytes, {}}, static_cast<std::uint32_t>(root));
  });
}

bool ThreadRank::all_gather(const void* send, void* receive, std::size_t count_each) {
  const Blocks blocks = Blocks::even(static_cast<std::size_t>(size_), count_each * kElement);
  return run(Operation::kAllGather, count_each, -1, [&](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->all_gather(call, send, {receive, 0, blocks});
    return shared_all_gather(*local_, call, send, {receive, 0, blocks});
  });
}

bool ThreadRank::gather(const void* send, void* receive, std::size_t count_each,
                        std::int32_t root) {
  const std::size_t bytes = count_each * kElement;
  const Blocks blocks = Blocks::even(static_cast<std::size_t>(size_), bytes);
  const Side<const void> own = {send, bytes, {}};
  const Side<void> all = {receive, 0, blocks};
  const RootedBlocks buffers = {own, all, root};
  return run(Operation::kGather, count_each, root, [&](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->gather(call, buffers);
    return shared_gather(*local_, call, buffers);
  });
}

bool ThreadRank::scatter(const void* send, void* receive, std::size_t count_each,
                         std::int32_t root) {
  const std::size_t bytes = count_each * kElement;
  const Blocks blocks = Blocks::even(static_cast<std::size_t>(size_), bytes);
  const Side<const void> all = {send, 0, blocks};
  const Side<void> own = {receive, bytes, {}};
  const RootedBlocks buffers = {all, own, root};
  return run(Operation::kScatter, count_each, root, [&](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->scatter(call, buffers);
    return shared_scatter(*local_, call, buffers);
  });
}

bool ThreadRank::all_to_all(const void* send, void* receive, std::size_t count_each) {
  const Blocks blocks = Blocks::even(static_cast<std::size_t>(size_), count_each * kElement);
  return run(Operation::kAllToAll, count_each, -1, [&](const OperationCall& call) {
    if (spanning_ != nullptr)
      return spanning_->all_to_all(call, {send, 0, blocks}, {receive, 0, blocks});
    return shared_all_to_all(*local_, call, {send, 0, blocks}, {receive, 0, blocks});
  });
}

bool ThreadRank::scan(const void* send, void* receive, std::size_t count) {
  const ReduceRule rule = sum_of(size_);
  const Vectors vectors = {rule, send, receive, count};
  return run(Operation::kScan, count, -1, [&](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->scan(call, vectors);
    return shared_scan(*local_, call, vectors);
  });
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
  spanning_.reset();
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
      std::unique_ptr<PeerListener> listener;
      if (options.hosts.size() > 1) listener = PeerListener::listen("127.0.0.1", known).value();
      ranks.push_back(std::make_unique<ThreadRank>(options, static_cast<std::int32_t>(known.rank),
                                                   segment, std::move(listener)));
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
